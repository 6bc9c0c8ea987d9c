"""Where Guided cuts a text in two (generative spec, section 2), always at the same share of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A full stop and what may begin a sentence after it: the rule that the released scores were made with, not NLTK's.
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")
_LEAST, _MOST = 0.40, 0.70
_DRAWN = 0.6394267984578837  # the first random() of Python's Random(42), drawn anew for every text


@dataclass(frozen=True)
class Split:
    """A text in two pieces.

    Attributes:
        unit: what it was cut between: `sentence`, `word`, `character`, or `none` for a single character.
        units: how many it has.
        units_in_first: how many of them the first piece has.
        first: the first piece.
        second: the second piece; empty for a single character.
    """

    unit: str
    units: int
    units_in_first: int
    first: str
    second: str


def split(text: str) -> Split:
    """Cuts a text between sentences; a single sentence between words; a single word between characters.

    Pieces of sentences or words are joined by single spaces, so white space between them is not kept.
    """
    sentences = [s.strip() for s in _BETWEEN_SENTENCES.split(text) if s.strip()]
    words = text.split()
    for unit, units, joint in (("sentence", sentences, " "), ("word", words, " "), ("character", "".join(words), "")):
        if len(units) > 1:
            k = units_in_first(len(units))
            return Split(unit, len(units), k, joint.join(units[:k]), joint.join(units[k:]))
    return Split("none", len(words), len(words), "".join(words), "")


def units_in_first(units: int) -> int:
    """How many of at least two units the first piece gets; at least one, and at least one is left."""
    least, most = _LEAST * units, _MOST * units
    return min(max(round(least + (most - least) * _DRAWN), 1), units - 1)
