"""How often each token occurs in ordinary text: what DC-PDD calibrates with (likelihood spec, section 7)."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import parse_json, write_tensors
from olmodetect_jax.tokenization import Tokenizer

PART = 1000  # texts that are encoded at a time
FILE_NAME = "token_frequencies.safetensors"  # beside a model's tokenizer.json


@dataclass(frozen=True, eq=False)
class FrequencyTable:
    """Token counts over a reference corpus, valid for one tokenizer only.

    Attributes:
        counts: [V] int64, occurrences of each id of the tokenizer.
        tokenizer_digest: of the tokenizer that made the ids.
        documents: documents counted.
        max_tokens: tokens of each document that were counted, from its start.
        source: what was counted, for people.
    """

    counts: np.ndarray
    tokenizer_digest: str
    documents: int
    max_tokens: int
    source: str

    def smoothed(self) -> np.ndarray:
        """[V] float64: (count + 1) / (total + V)."""
        counts = self.counts.astype(np.float64)
        return (counts + 1) / (counts.sum() + len(counts))

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of the table."""
        digest = hashlib.sha256(self.counts.astype("<i8").tobytes()).hexdigest()
        return {"sha256": digest, "source": self.source, "documents": self.documents, "max_tokens": self.max_tokens}

    def save(self, path: Path) -> None:
        """Writes the table as one safetensors file."""
        facts = {
            "tokenizer_digest": self.tokenizer_digest,
            "documents": self.documents,
            "max_tokens": self.max_tokens,
            "source": self.source,
        }
        # One entry, for safetensors writes several in a random order; the same table is the same bytes.
        write_tensors(path, {"counts": self.counts}, {"table": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(cls, path: Path) -> FrequencyTable:
        """Reads a table.

        Raises:
            DataError: the file is missing or is not such a table.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                facts = parse_json((file.metadata() or {})["table"])
                counts = file.get_tensor("counts")
            table = cls(counts, facts["tokenizer_digest"], facts["documents"], facts["max_tokens"], facts["source"])
        except (OSError, SafetensorError, KeyError, ValueError, AttributeError, TypeError) as error:
            raise DataError(f"{path}: not a token-frequency table: {error}") from None
        if counts.ndim != 1 or counts.dtype != np.int64 or not len(counts) or counts.min() < 0:
            raise DataError(f"{path}: expected non-negative counts [V] int64, got {counts.dtype} {counts.shape}")
        return table

    def check(self, tokenizer: Tokenizer) -> None:
        """Refuses another tokenizer's table.

        Raises:
            UsageError: the table's tokenizer is not this one (says how to make the right table), or its ids have gaps.
        """
        _require_no_gaps(tokenizer)
        if self.tokenizer_digest != tokenizer.digest or len(self.counts) != tokenizer.vocabulary:
            raise UsageError(
                f"dc_pdd: the frequency table was counted with another tokenizer (table {self.tokenizer_digest[:12]}, "
                f"model {tokenizer.digest[:12]}); make one with: olmodetect frequencies TEXTS --model DIR --out FILE"
            )


def _require_no_gaps(tokenizer: Tokenizer) -> None:
    if tokenizer.largest_id >= tokenizer.vocabulary:
        raise UsageError(
            f"{tokenizer.path}: {tokenizer.vocabulary} tokens with ids up to {tokenizer.largest_id}; a frequency "
            "table needs ids without gaps"
        )


def count_tokens(documents: Iterable[np.ndarray], *, vocabulary: int, max_tokens: int) -> np.ndarray:
    """Counts every occurrence of every id in the first `max_tokens` tokens of each document.

    Args:
        documents: [T_i] integer ids each; ids outside the vocabulary are not counted.
        vocabulary: V.
        max_tokens: tokens of a document that count.

    Returns:
        [V] int64.
    """
    counts = np.zeros(vocabulary, np.int64)
    for ids in documents:
        head = np.asarray(ids[:max_tokens], np.int64)
        counts += np.bincount(head[(head >= 0) & (head < vocabulary)], minlength=vocabulary)
    return counts


def build_table(texts: Iterable[str], tokenizer: Tokenizer, *, max_tokens: int, source: str) -> FrequencyTable:
    """Counts the tokens of texts, some at a time: a corpus need not fit into memory.

    Args:
        texts: any number of texts.
        tokenizer: makes the ids.
        max_tokens: tokens of a text that count, from its start.
        source: what is counted, for people.

    Raises:
        DataError: there is no text.
        UsageError: the tokenizer's ids have gaps.
    """
    _require_no_gaps(tokenizer)
    counts, documents = np.zeros(tokenizer.vocabulary, np.int64), 0
    remaining = iter(texts)
    while part := list(itertools.islice(remaining, PART)):
        ids = [t.ids for t in tokenizer.encode_once(part, max_tokens)]
        counts += count_tokens(ids, vocabulary=tokenizer.vocabulary, max_tokens=max_tokens)
        documents += len(part)
    if not documents:
        raise DataError(f"{source}: no text to count tokens of")
    return FrequencyTable(counts, tokenizer.digest, documents, max_tokens, source)
