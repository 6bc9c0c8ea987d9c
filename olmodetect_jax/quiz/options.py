"""The four options of a quiz: read from a judge's reply, and checked (generative spec, section 3)."""

from __future__ import annotations

import itertools
import re
from dataclasses import astuple, dataclass

LETTERS = "ABCD"

# A marker may be wrapped in asterisks. It may not follow a word: "vitamin-A)" and "(A)" are taken for one all the same.
_MARKER = re.compile(r"(?<![\w*])\**([A-D])\)\**")


@dataclass(frozen=True)
class Options:
    """Four rewordings of one text, by their places in the quiz; an empty one is missing."""

    a: str
    b: str
    c: str
    d: str

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """In the order of their letters."""
        return astuple(self)

    @property
    def count(self) -> int:
        """How many of them are there."""
        return sum(bool(text.strip()) for text in self.texts)


def parse_reply(reply: str) -> Options:
    """Reads the options out of a reply: each runs from its letter to the next one.

    Of a repeated letter the last one counts. A text that itself has a letter before a closing bracket is cut there:
    that is how the released code reads it.
    """
    markers = list(_MARKER.finditer(reply))
    found = dict.fromkeys(LETTERS, "")
    for marker, after in itertools.zip_longest(markers, markers[1:]):
        found[marker[1]] = reply[marker.end() : after.start() if after else None].strip()
    return Options(*found.values())


def problem(options: Options, text: str) -> str | None:
    """Why these options make no quiz about a text; None if they do."""
    named = list(zip(LETTERS, (option.strip() for option in options.texts), strict=True))
    missing = [letter for letter, option in named if not option]
    if missing:
        return f"option {', '.join(missing)} is missing"
    for letter, option in named:
        if option == text.strip():
            return f"option {letter} is the text itself"
        if not _is_unicode(option):
            return f"option {letter} holds a lone surrogate, which is not valid Unicode text"
    for (first, one), (second, other) in itertools.combinations(named, 2):
        if one == other:
            return f"options {first} and {second} are identical"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
