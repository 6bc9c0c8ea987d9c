"""Exact counts of strings in documents held in memory: what a byte-level index answers, for small corpora."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np


class TextIndex:
    """Counts strings over the UTF-8 bytes of documents; occurrences may overlap, and never cross documents.

    Attributes:
        asked_with: text.
        block: None.
        description: digest of the documents.
    """

    asked_with: Literal["ids", "text"] = "text"
    block: int | None = None

    def __init__(self, documents: Sequence[str]):
        self._documents = [d.encode("utf-8") for d in documents]
        digest = hashlib.sha256(b"\x00".join(hashlib.sha256(d).digest() for d in self._documents)).hexdigest()
        self.description: dict[str, Any] = {"backend": "text", "corpus": digest}

    def count(self, queries: Sequence[str]) -> np.ndarray:
        """Occurrences of each string: [Q] int64."""
        found = [sum(_occurrences(d, q.encode("utf-8")) for d in self._documents) for q in queries]
        return np.array(found, np.int64)


def _occurrences(document: bytes, query: bytes) -> int:
    count, place = 0, document.find(query)
    while place >= 0:
        count, place = count + 1, document.find(query, place + 1)
    return count
