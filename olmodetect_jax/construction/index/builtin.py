"""The built-in exact index: sorted hashes of all windows, and the tokens to verify a hit with.

In the folder of a shard lie its tokens one after the other (u32), where its documents begin (u64), and for each window
that lies within one document its hash (u64, sorted) and its position (u32): at most sixteen bytes a token.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

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

_REGION = 1 << 16  # bytes the kernel maps around one that is read
_PER_REGION = _REGION // 8  # hashes
_BYTES_PER_SORTED = 128  # of queries that are sorted together
_TOGETHER = 1 << 14  # queries searched, and occurrences compared, at once


class _ShardFacts(BaseModel):
    model_config = ConfigDict(strict=True)

    folder: str = Field(pattern=r"^shard-\d{5}$")
    documents: NonNegativeInt
    tokens: NonNegativeInt
    windows: NonNegativeInt


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True)

    n: PositiveInt
    tokenizer: str
    corpus: str
    documents: NonNegativeInt
    tokens: NonNegativeInt
    windows: NonNegativeInt
    shards: list[_ShardFacts]


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
        self._sorted = max(_TOGETHER, memory // _BYTES_PER_SORTED)
        shards = [s for s in description["shards"] if s["windows"]]
        gives_back = sum(4 * s["tokens"] + 12 * s["windows"] for s in shards) > memory // 2
        self._shards = [_Shard(folder / s["folder"], memory, gives_back) for s in shards]

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
            for start in range(0, len(order), _TOGETHER):
                batch = order[start : start + _TOGETHER]
                for shard in self._shards:
                    found[first + batch] += shard.count(hashes[batch], some[batch])
        return found


class _Shard:
    """The files of one shard, mapped.

    Pages that were read stay with the process and would add up. Where those of all shards are more than half of what
    may be held, those of one stretch of the hashes, or of one block of occurrences, are given back before the next.
    """

    def __init__(self, folder: Path, memory: int, gives_back: bool):
        self._maps = [_mapped(folder / name) for name in (HASHES, POSITIONS, TOKENS)]
        self._hashes, self._positions, self._tokens = (
            np.frombuffer(mapped, dtype) for mapped, dtype in zip(self._maps, ("<u8", "<u4", "<u4"), strict=True)
        )
        self._gives_back = gives_back
        self._of_hashes, self._of_tokens = memory // 4, memory // 2

    def count(self, wanted: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Occurrences of queries, which come in the order of their hashes: [Q] int64."""
        found = np.zeros(len(queries), np.int64)
        for span, low, high in self._stretches(wanted):
            hashes = self._hashes[low:high]
            first = np.searchsorted(hashes, wanted[span])
            hits = np.flatnonzero(hashes[np.minimum(first, len(hashes) - 1)] == wanted[span])
            lengths = np.searchsorted(hashes, wanted[span][hits], side="right") - first[hits]
            found[span][hits] = self._verified(low + first[hits], lengths, queries[span][hits])
            self._give_back()
        return found

    def _stretches(self, wanted: np.ndarray) -> Iterator[tuple[slice, int, int]]:
        """Runs of queries, and the stretch of the hashes that each is searched in, of which little enough is read."""
        waiting = [(0, len(wanted))]
        while waiting:
            start, stop = waiting.pop()
            low = int(np.searchsorted(self._hashes, wanted[start]))
            high = int(np.searchsorted(self._hashes, wanted[stop - 1], side="right"))
            steps = 1 + ((high - low) // _PER_REGION).bit_length()  # of a search, each in a region of its own
            read = min(8 * (high - low), (stop - start) * steps * _REGION)
            if self._gives_back and read > self._of_hashes and stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                self._give_back()
            elif high > low:
                yield slice(start, stop), low, high

    def _verified(self, first: np.ndarray, lengths: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """How many of the windows with a query's hash are the query: [Q] int64."""
        found, ends = np.zeros(len(queries), np.int64), np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        for start in range(0, total, _TOGETHER):
            occurrence = np.arange(start, min(start + _TOGETHER, total))
            query = np.searchsorted(ends, occurrence, side="right")
            position = self._positions[first[query] + occurrence - (ends[query] - lengths[query])].astype(np.int64)
            same = np.ones(len(occurrence), bool)
            for block in self._blocks(position):
                for k in range(queries.shape[1]):
                    same[block] &= self._tokens[position[block] + k] == queries[query[block], k]
                self._give_back()
            counts = np.bincount(query - query[0], weights=same).astype(np.int64)
            found[query[0] : query[0] + len(counts)] += counts
        return found

    def _blocks(self, position: np.ndarray) -> list[slice]:
        """Runs of occurrences whose tokens may be held together."""
        if not self._gives_back or len(self._tokens) * 4 <= self._of_tokens:
            return [slice(0, len(position))]
        regions = np.cumsum(np.diff(position // (_REGION // 4), prepend=-1) != 0)  # read so far, at most
        edges = np.flatnonzero(np.diff(regions // max(1, self._of_tokens // _REGION))) + 1
        return [slice(a, b) for a, b in zip([0, *edges], [*edges, len(position)], strict=True)]

    def _give_back(self) -> None:
        for mapped in self._maps if self._gives_back else ():
            mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def open_index(folder: Path, *, tokenizer_digest: str | None, memory: int = 2**30) -> BuiltinIndex:
    """Opens an index for look-ups.

    Args:
        folder: of `build_index`.
        tokenizer_digest: that it has to be of; None for any.
        memory: bytes that look-ups may hold, about.

    Raises:
        UsageError: it is no such index, of another format, or of another tokenizer.
        DataError: files are missing or cut off, or the description lacks a field.
    """
    description = read_description(folder)
    if description.get("backend") != "builtin" or description.get("format") != FORMAT:
        raise UsageError(f"{folder}: is no built-in index of format {FORMAT}; make it anew with `olmodetect index`")
    try:
        _Facts.model_validate(description)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise DataError(f"{folder / DESCRIPTION}: {wrong}; copy the index again, or make it anew") from None
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
