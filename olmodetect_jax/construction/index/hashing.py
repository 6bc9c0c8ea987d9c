"""64-bit hashes of n-grams of token ids."""

from __future__ import annotations

import numpy as np

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)
_ROWS = 1 << 12


def rolling(ids: np.ndarray, n: int) -> np.ndarray:
    """Hash of every run of n ids: [T - n + 1] uint64; `ids` are [T] uint32, T at least n."""
    size = len(ids) - n + 1
    return _hash((ids[k : k + size] for k in range(n)), size)


def of_windows(queries: np.ndarray) -> np.ndarray:
    """Hash of each row of [Q, n] uint32: [Q] uint64."""
    found = np.empty(len(queries), np.uint64)
    for start in range(0, len(queries), _ROWS):  # so that the columns of a block are read from the cache
        block = queries[start : start + _ROWS]
        found[start : start + _ROWS] = _hash((block[:, k] for k in range(block.shape[1])), len(block))
    return found


def _hash(columns: object, size: int) -> np.ndarray:
    found = np.zeros(size, np.uint64)
    for column in columns:  # type: ignore[attr-defined]
        found += column
        found *= _FACTOR
        found ^= found >> _SHIFT
    found *= _MIX
    found ^= found >> _SHIFT
    return found
