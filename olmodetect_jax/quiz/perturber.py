"""Options without any model: words and names are replaced from a table, as a text's own hash says.

A stand-in for a judge, for tests and for the embedded sample: it knows no grammar, so a reader can often tell its
rewordings from the text. Made for English prose and Python code.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from olmodetect_jax.files import load_yaml
from olmodetect_jax.quiz.options import Options
from olmodetect_jax.quiz.python_names import Piece, split, usable
from olmodetect_jax.records import text_hash

NAME = "synonyms-1"  # another table or another rule is another version
CREATED = "2026-12-01"  # of this version: what it makes is the same on any day

_WORD_SHARE = 0.6  # of the words that have synonyms, in one option
_NAME_SHARE = 0.75
_ATTEMPTS = 100  # at four different options
# No part of a compound, of a name or of a possessive; no label before a colon; not what stands after an escape.
_WORD = re.compile(r"(?<![\w\\%.'’-])[A-Za-z]+(?![\w(:'’-])")
_SENTENCE_START = re.compile(r"(?:^|[.!?;:\n\"“‘(*#])\s*$")
_ARTICLE = re.compile(r"\ban?\s+$", re.IGNORECASE)
_VOWELS = "aeiou"
_BEFORE = 40  # characters before a word that say whether it begins a sentence


class _Draws:
    """A stream of choices; Python keeps what `random()` gives for a seed, and no more than that."""

    def __init__(self, text: str):
        self._random = random.Random(int.from_bytes(text_hash(text), "big")).random

    def happens(self, share: float) -> bool:
        return self._random() < share

    def one_of(self, choices: Sequence[str]) -> str:
        return choices[int(self._random() * len(choices))]


def perturb(text: str) -> Options | None:
    """Four rewordings of a text, all different, and different from it; None if the text has too little to replace.

    White space, punctuation, numbers and the case of first letters stay; the same text always gives the same options.
    """
    pieces, draws = split(text), _Draws(text)
    taken = set(re.findall(r"\w+", text))
    options: list[str] = []
    for _ in range(_ATTEMPTS):
        option = _reword(pieces, taken, draws)
        if option != text and option not in options:
            options.append(option)
        if len(options) == 4:
            return Options(*options)
    return None


def _reword(pieces: Sequence[Piece], taken: set[str], draws: _Draws) -> str:
    names: dict[str, str] = {}
    made = []
    for piece in pieces:
        if piece.kind == "prose":
            made.append("".join(_prose(piece.text, draws)))
        elif piece.kind == "name":
            if piece.text not in names:
                new = [n for n in other_names(piece.text) if n not in taken and n not in names.values()]
                names[piece.text] = draws.one_of(new) if new and draws.happens(_NAME_SHARE) else piece.text
            made.append(names[piece.text])
        else:
            made.append(piece.text)
    return "".join(made)


def _prose(text: str, draws: _Draws) -> Iterator[str]:
    end = 0
    for match in _WORD.finditer(text):
        before, word = text[max(0, match.start() - _BEFORE) : match.start()], match[0]
        choices = _choices(word, before)
        if choices and draws.happens(_WORD_SHARE):
            yield text[end : match.start()] + draws.one_of(choices)
            end = match.end()
    yield text[end:]


def _choices(word: str, before: str) -> list[str]:
    """What a word can be replaced by, in its case; none for a name of a person or a place."""
    found = synonyms().get(word.lower(), ())
    if not found or word not in (word.lower(), word.capitalize()):
        return []
    if word[0].isupper() and not _SENTENCE_START.search(before):
        return []
    if _ARTICLE.search(before[-10:]):
        found = tuple(f for f in found if (f[0] in _VOWELS) == (word[0].lower() in _VOWELS))
    return [f.capitalize() if word[0].isupper() else f for f in found]


def other_names(name: str) -> list[str]:
    """Names of about the same length that code could have instead, those of like meaning first."""
    if len(name) == 1:
        letters = string.ascii_lowercase if name.islower() else string.ascii_uppercase
        return [letter for letter in letters if letter != name and letter not in "loO"]
    parts = name.split("_")
    found = [
        "_".join([*parts[:i], synonym, *parts[i + 1 :]])
        for i, part in enumerate(parts)
        for synonym in synonyms().get(part, ())
    ]
    camel = parts[0] + "".join(part.capitalize() for part in parts[1:])
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), name)
    short = name[0] + re.sub(f"[{_VOWELS}]", "", name[1:])
    plural = name[:-1] if name.endswith("s") else name + "s"
    found += [camel, snake, short, plural, name + "_"]
    return [other for other in dict.fromkeys(found) if other != name and len(other) > 1 and usable(other)]


@cache
def synonyms() -> dict[str, tuple[str, ...]]:
    """Each word of the table to those that may stand for it."""
    table: dict[str, dict[str, None]] = {}
    for group in load_yaml(Path(__file__).with_name("synonyms.yaml")):
        words = group.split()
        for word in words:
            table.setdefault(word, {}).update((other, None) for other in words if other != word)
    return {word: tuple(others) for word, others in table.items()}
