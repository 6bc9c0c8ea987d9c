"""Building the exact index: hashes of all windows, sorted outside of memory."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from olmodetect_jax.construction.index import hashing
from olmodetect_jax.construction.index.base import MAX_ID, window_places
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import write_json

FORMAT = 1
DESCRIPTION = "index.json"
SHARD_TOKENS = 2**32 - 1  # so that positions fit in 32 bits, and an index in four times its tokens
TOKENS, DOCUMENTS, HASHES, POSITIONS = "tokens.u32", "documents.u64", "hashes.u64", "positions.u32"

_ENTRY = np.dtype([("hash", "<u8"), ("position", "<u4")])
_PARTS = 256  # files that windows are sorted into by one byte of their hash, before each is sorted in memory
_BYTES_PER_TOKEN = 120  # of a chunk that is hashed: its ids, hashes, parts and their order
_BYTES_PER_ENTRY = 60  # of a part that is sorted
_LEAST = 1 << 14  # tokens of a chunk and entries of a part, however little may be held


def build_index(
    documents: Iterable[np.ndarray],
    folder: Path,
    *,
    n: int,
    tokenizer_digest: str,
    memory: int,
    report: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Builds an index; what is held does not grow with the corpus.

    Args:
        documents: token ids of each, streamed.
        folder: to make; it appears when all is done.
        n: tokens of a window.
        tokenizer_digest: of the tokenizer that made the ids.
        memory: bytes that may be held, about, besides one document (13 a token, and what the iterator holds).
        report: is told how many more tokens were read.

    Returns:
        What `index.json` says.

    Raises:
        UsageError: the folder exists.
        DataError: the corpus is empty, or an id is negative or above 2**32 - 1.
    """
    if folder.exists():
        raise UsageError(f"{folder}: exists already; choose another folder, or remove it first")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        corpus, facts = _write_shards(documents, partial, n, memory, report)
        if not facts:
            raise DataError(f"{folder}: the corpus holds no document, so there is nothing to index")
        description = {
            "format": FORMAT,
            "backend": "builtin",
            "n": n,
            "tokenizer": tokenizer_digest,
            "corpus": corpus,
            **{name: sum(f[name] for f in facts) for name in ("documents", "tokens", "windows")},
            "shards": facts,
        }
        write_json(partial / DESCRIPTION, description)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return description


def _write_shards(
    documents: Iterable[np.ndarray], folder: Path, n: int, memory: int, report: Callable[[int], None]
) -> tuple[str, list[dict[str, Any]]]:
    """Writes everything but the description: digest of the documents, and what each shard holds."""
    digest, shards = hashlib.sha256(), []
    size = max(_LEAST, memory // _BYTES_PER_TOKEN)
    for ids, lengths in _chunks(documents, size, digest):
        if not shards or shards[-1].tokens + len(ids) > SHARD_TOKENS:
            shards.append(_Shard(folder / f"shard-{len(shards):05d}", n, size))
        shards[-1].add(ids, lengths)
        report(len(ids))
    return digest.hexdigest(), [shard.finish(memory) for shard in shards]


def _chunks(documents: Iterable[np.ndarray], size: int, digest: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Whole documents together: ids [T] uint32 and the length of each document [D] int64, T about `size`."""
    waiting, n_waiting = [], 0
    for number, ids in enumerate(documents):
        ids = checked_ids(ids, f"document {number + 1}")
        if len(ids) > SHARD_TOKENS:
            raise DataError(f"document {number + 1} has {len(ids):,} tokens; at most {SHARD_TOKENS:,} can be indexed")
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(ids)
        if waiting and n_waiting + len(ids) > size:
            yield np.concatenate(waiting), np.array([len(w) for w in waiting], np.int64)
            waiting, n_waiting = [], 0
        waiting.append(ids)
        n_waiting += len(ids)
    if waiting:
        yield np.concatenate(waiting), np.array([len(w) for w in waiting], np.int64)


def checked_ids(ids: np.ndarray, where: str) -> np.ndarray:
    """Ids as [T] little-endian uint32.

    Raises:
        DataError: one of them is negative or does not fit in 32 bits.
    """
    ids = np.asarray(ids)
    if ids.dtype != np.uint32 and len(ids) and (int(ids.min()) < 0 or int(ids.max()) > MAX_ID):
        raise DataError(f"{where}: token ids from {ids.min()} to {ids.max()}; expected 0 to {MAX_ID}")
    return np.ascontiguousarray(ids, "<u4")


class _Shard:
    """One part of the corpus that is sorted as a whole."""

    def __init__(self, folder: Path, n: int, size: int):
        folder.mkdir()
        self.folder, self.n, self._size = folder, n, size
        self.tokens = self.documents = self.windows = 0
        self._parts = folder / "parts"
        self._parts.mkdir()

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Appends documents, and their windows to the unsorted parts."""
        starts = self.tokens + np.concatenate([[0], np.cumsum(lengths)])
        _append(self.folder / TOKENS, ids)
        _append(self.folder / DOCUMENTS, starts[:-1].astype("<u8"))
        places = window_places(lengths, self.n)
        for start in range(0, len(places), self._size):  # more than once for a document longer than a chunk
            some = places[start : start + self._size]
            entries = np.empty(len(some), _ENTRY)
            entries["hash"] = hashing.rolling(ids[some[0] : some[-1] + self.n], self.n)[some - some[0]]
            entries["position"] = some + self.tokens
            _scatter(entries, self._parts, shift=56)
        self.windows += len(places)
        self.tokens += len(ids)
        self.documents += len(lengths)

    def finish(self, memory: int) -> dict[str, Any]:
        """Sorts the parts one after the other."""
        with (self.folder / HASHES).open("wb") as hashes, (self.folder / POSITIONS).open("wb") as positions:
            _write_sorted(self._parts, 56, memory, hashes, positions)
        self._parts.rmdir()
        return {
            "folder": self.folder.name,
            "documents": self.documents,
            "tokens": self.tokens,
            "windows": self.windows,
        }


def _append(path: Path, values: np.ndarray) -> None:
    with path.open("ab") as file:
        values.tofile(file)


def _scatter(entries: np.ndarray, folder: Path, shift: int) -> None:
    """Appends each entry to the file of one byte of its hash; entries of one file keep their order."""
    part = (entries["hash"] >> np.uint64(shift)).astype(np.uint8)
    order = np.argsort(part, kind="stable")
    ends = np.cumsum(np.bincount(part, minlength=_PARTS))
    entries = entries[order]
    for value, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if end > start:
            _append(folder / f"{value:03d}", entries[start:end])


def _write_sorted(folder: Path, shift: int, memory: int, hashes: BinaryIO, positions: BinaryIO) -> None:
    """Writes the parts of a folder in order and removes them; one too large for memory is split by the next byte."""
    for path in sorted(folder.iterdir()):
        n = os.path.getsize(path) // _ENTRY.itemsize
        size = max(_LEAST, memory // _BYTES_PER_ENTRY)
        if n > size and shift > 0:
            inner = folder / f"{path.name}-parts"
            inner.mkdir()
            for start in range(0, n, size):
                _scatter(_read(path, start, min(size, n - start)), inner, shift - 8)
            path.unlink()
            _write_sorted(inner, shift - 8, memory, hashes, positions)
            inner.rmdir()
            continue
        for start in range(0, n, size):  # more than one only where all hashes of a part are the same
            entries = _read(path, start, min(size, n - start))
            order = np.argsort(entries["hash"], kind="stable")  # so equal hashes keep the order of their positions
            entries["hash"][order].tofile(hashes)
            entries["position"][order].tofile(positions)
        path.unlink()


def _read(path: Path, start: int, count: int) -> np.ndarray:
    return np.fromfile(path, _ENTRY, count, offset=start * _ENTRY.itemsize)
