"""The pieces of a tokenizer's vocabulary, and each one's partner with or without a mark of a word's start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import parse_json

_MARKS = ("▁", "Ġ")  # SentencePiece's, and that of byte-level BPE


class Pieces:
    """A vocabulary, for the first-token variant (construction spec, section 4, step 4).

    Attributes:
        mark: what a piece at a word's start begins with.
    """

    def __init__(self, by_id: Mapping[int, str]):
        self._by_id = dict(by_id)
        self._ids = {piece: i for i, piece in self._by_id.items()}
        counts = {mark: sum(p.startswith(mark) for p in self._ids) for mark in _MARKS}
        self.mark = max(_MARKS, key=counts.__getitem__)

    @classmethod
    def of_tokenizer(cls, path: Path) -> Pieces:
        """The vocabulary of a `tokenizer.json`.

        Raises:
            UsageError: the file has no vocabulary of pieces.
        """
        value = parse_json(path.read_text(encoding="utf-8"))
        vocabulary = value.get("model", {}).get("vocab")
        if isinstance(vocabulary, dict):
            return cls({i: piece for piece, i in vocabulary.items()})
        if isinstance(vocabulary, list):  # of a unigram model: pieces with their scores
            return cls({i: piece for i, (piece, _) in enumerate(vocabulary)})
        raise UsageError(
            f"{path}: has no vocabulary of pieces, so no first-token variant; set first_token_variant: false"
        )

    def toggled(self, token: int) -> int | None:
        """The id of the piece without all its leading marks, or with one if it has none; None if there is none.

        Digits have no variant, and neither have pieces of nothing but marks.
        """
        piece = self._by_id.get(token)
        if piece is None:
            return None
        bare = piece.lstrip(self.mark)
        if not bare or bare.isdigit():
            return None
        return self._ids.get(self.mark + bare if bare == piece else bare)
