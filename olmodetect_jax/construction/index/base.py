"""What the 13-gram filter asks of an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

MAX_ID = 2**32 - 1


class NgramIndex(Protocol):
    """Counts n-grams in the documents of a corpus.

    Attributes:
        asked_with: whether queries are token ids or text.
        block: windows of a text that are asked at once; None for all. A costly index asks few, for a text is given up
            as soon as enough of them occur.
        description: what it is of, as JSON values: what is made with it depends on this.
    """

    asked_with: Literal["ids", "text"]
    block: int | None
    description: dict[str, Any]

    def count(self, queries: np.ndarray | Sequence[str]) -> np.ndarray:
        """Occurrences in all documents, never across two of them.

        Args:
            queries: [Q, n] uint32 ids, or Q texts.

        Returns:
            [Q] int64.
        """
        ...


def window_places(lengths: np.ndarray, n: int) -> np.ndarray:
    """Where windows begin in documents that lie one after the other, none across two of them: [W] int64.

    Args:
        lengths: [D] tokens of each document.
        n: tokens of a window.
    """
    ends = np.cumsum(lengths)
    inside = np.ones(int(ends[-1]) if len(ends) else 0, bool)
    for back in range(1, n):  # the last n - 1 tokens of a document begin no window
        inside[ends[lengths >= back] - back] = False
    return np.flatnonzero(inside)


def windows(ids: np.ndarray, n: int) -> np.ndarray:
    """Every run of n ids: [T - n + 1, n], a view."""
    if len(ids) < n:
        return np.zeros((0, n), ids.dtype)
    return np.lib.stride_tricks.sliding_window_view(ids, n)
