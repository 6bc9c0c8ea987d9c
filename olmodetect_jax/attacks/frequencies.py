"""How often each token occurs in ordinary text: what DC-PDD calibrates with (likelihood spec, section 7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import atomic_path
from olmodetect_jax.tokenization import Tokenizer

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
        return (self.counts + 1) / (self.counts.sum() + len(self.counts))

    def save(self, path: Path) -> None:
        """Writes the table as one safetensors file."""
        from safetensors.numpy import save_file

        facts = {
            "tokenizer_digest": self.tokenizer_digest,
            "documents": str(self.documents),
            "max_tokens": str(self.max_tokens),
            "source": self.source,
        }
        with atomic_path(path) as temporary:
            save_file({"counts": self.counts}, temporary, metadata=facts)

    @classmethod
    def load(cls, path: Path) -> FrequencyTable:
        """Reads a table.

        Raises:
            DataError: the file is missing or is not such a table.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                facts = file.metadata() or {}
                counts = file.get_tensor("counts")
            table = cls(
                counts, facts["tokenizer_digest"], int(facts["documents"]), int(facts["max_tokens"]), facts["source"]
            )
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise DataError(f"{path}: not a token-frequency table: {error}") from None
        if counts.ndim != 1 or counts.dtype != np.int64 or not len(counts) or counts.min() < 0:
            raise DataError(f"{path}: expected non-negative counts [V] int64, got {counts.dtype} {counts.shape}")
        return table

    def check(self, tokenizer: Tokenizer) -> None:
        """Refuses another tokenizer's table.

        Raises:
            UsageError: the table's tokenizer is not this one; says how to make the right table.
        """
        if self.tokenizer_digest != tokenizer.digest or len(self.counts) != tokenizer.vocabulary:
            raise UsageError(
                f"dc_pdd: the frequency table was counted with another tokenizer (table {self.tokenizer_digest[:12]}, "
                f"model {tokenizer.digest[:12]}); make one with: olmodetect frequencies TEXTS --model DIR --out FILE"
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
    """Counts the tokens of texts.

    Raises:
        DataError: there is no text.
    """
    texts = list(texts)
    if not texts:
        raise DataError(f"{source}: no text to count tokens of")
    ids = [t.ids for t in tokenizer.encode_all(texts, max_tokens)]
    counts = count_tokens(ids, vocabulary=tokenizer.vocabulary, max_tokens=max_tokens)
    return FrequencyTable(counts, tokenizer.digest, len(texts), max_tokens, source)
