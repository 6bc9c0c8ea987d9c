"""The built-in exact index: sorted hashes of all windows, and the tokens to verify a hit with.

In the folder of a shard lie its tokens one after the other (u32), where its documents begin (u64), and for each window
that lies within one document its hash (u64, sorted) and its position (u32): at most sixteen bytes a token.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np

from olmodetect_jax.construction.index import hashing
from olmodetect_jax.construction.index.build_builtin import (
    DESCRIPTION,
    DOCUMENTS,
    FORMAT,
    HASHES,
    POSITIONS,
    TOKENS,
    checked_ids,
)
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import parse_json

_BYTES_PER_QUERY = 20_000  # resident while queries are looked up: pages of hashes, positions and tokens
_BYTES_PER_SORTED = 128  # of queries that are sorted together
_VERIFIED = 1 << 20  # occurrences that are compared at once


class BuiltinIndex:
    """An index opened for look-ups.

    Attributes:
        asked_with: ids.
        block: None; queries are answered together.
        n: tokens of a query.
        description: of the corpus: digests, numbers of documents and tokens.
    """

    asked_with: Literal["ids", "text"] = "ids"
    block: int | None = None

    def __init__(self, folder: Path, description: dict[str, Any], memory: int):
        """Maps the files; see `open_index`."""
        self.n: int = description["n"]
        self.description = {name: value for name, value in description.items() if name != "shards"}
        self._sorted, self._batch = max(1 << 14, memory // _BYTES_PER_SORTED), max(1 << 10, memory // _BYTES_PER_QUERY)
        self._shards = [
            tuple(
                np.memmap(folder / s["folder"] / name, dtype, mode="r") if s["windows"] else np.zeros(0, dtype)
                for name, dtype in ((HASHES, "<u8"), (POSITIONS, "<u4"), (TOKENS, "<u4"))
            )
            for s in description["shards"]
        ]

    def count(self, queries: np.ndarray) -> np.ndarray:
        """Occurrences of each n-gram: [Q] int64; exact, for each hash that is found is compared with the tokens.

        Args:
            queries: [Q, n] ids.

        Raises:
            DataError: the queries are of another length, or an id does not fit in 32 bits.
        """
        if queries.ndim != 2 or queries.shape[1] != self.n:
            raise DataError(f"queries of shape {queries.shape} to an index of {self.n}-grams")
        queries = checked_ids(queries.reshape(-1), "queries").reshape(queries.shape)
        found = np.zeros(len(queries), np.int64)
        for first in range(0, len(queries), self._sorted):
            some = queries[first : first + self._sorted]
            hashes = hashing.of_windows(some)
            order = np.argsort(hashes, kind="stable")  # neighbours in this order share pages of the index
            for start in range(0, len(order), self._batch):
                batch = order[start : start + self._batch]
                for shard in self._shards:
                    found[first + batch] += _count(*shard, hashes[batch], some[batch])
        return found


def _count(
    hashes: np.ndarray, positions: np.ndarray, tokens: np.ndarray, wanted: np.ndarray, queries: np.ndarray
) -> np.ndarray:
    """Occurrences of queries, which come in the order of their hashes, in one shard."""
    found = np.zeros(len(queries), np.int64)
    if not len(hashes):
        return found
    first = np.searchsorted(hashes, wanted)
    hits = np.flatnonzero(hashes[np.minimum(first, len(hashes) - 1)] == wanted)
    first, lengths = first[hits], np.searchsorted(hashes, wanted[hits], side="right") - first[hits]
    ends = np.cumsum(lengths)
    for low in range(0, int(ends[-1]) if len(ends) else 0, _VERIFIED):
        high = min(low + _VERIFIED, int(ends[-1]))
        occurrence = np.arange(low, high)
        hit = np.searchsorted(ends, occurrence, side="right")
        entry = first[hit] + occurrence - (ends[hit] - lengths[hit])
        same = np.ones(high - low, bool)
        position = positions[entry].astype(np.int64)
        for k in range(queries.shape[1]):
            same &= tokens[position + k] == queries[hits[hit], k]
        found += np.bincount(hits[hit], weights=same, minlength=len(queries)).astype(np.int64)
    for mapped in (hashes, positions, tokens):  # the pages that were touched would stay and add up
        if isinstance(mapped, np.memmap):
            mapped._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
    return found


def open_index(folder: Path, *, tokenizer_digest: str | None, memory: int = 2**30) -> BuiltinIndex:
    """Opens an index for look-ups.

    Args:
        folder: of `build_index`.
        tokenizer_digest: that it has to be of; None for any.
        memory: bytes that look-ups may hold, about.

    Raises:
        UsageError: it is no such index, of another format, or of another tokenizer.
        DataError: files are missing or cut off.
    """
    description = read_description(folder)
    if description.get("backend") != "builtin" or description.get("format") != FORMAT:
        raise UsageError(f"{folder}: is no built-in index of format {FORMAT}; make it anew with `olmodetect index`")
    if tokenizer_digest is not None and description["tokenizer"] != tokenizer_digest:
        raise UsageError(
            f"{folder}: is of another tokenizer ({description['tokenizer'][:12]}, not {tokenizer_digest[:12]}), so "
            "its ids mean other words: make it anew with this tokenizer"
        )
    for shard in description["shards"]:
        sizes = {TOKENS: 4 * shard["tokens"], DOCUMENTS: 8 * shard["documents"]}
        sizes |= {HASHES: 8 * shard["windows"], POSITIONS: 4 * shard["windows"]}
        for name, size in sizes.items():
            path = folder / shard["folder"] / name
            found = path.stat().st_size if path.is_file() else None
            if found != size and (size or found):
                raise DataError(f"{path}: has {found} bytes, expected {size}; copy the index again, or make it anew")
    return BuiltinIndex(folder, description, memory)


def read_description(folder: Path) -> dict[str, Any]:
    """What an index's `index.json` says.

    Raises:
        UsageError: there is none.
    """
    path = folder / DESCRIPTION
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: no index description: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not an index description")
    return value
