"""What of a text may be reworded: its prose, and in Python code the names that the code itself gives.

By patterns, not by Python's own parser: the code may be a part of a whole, and a parser's answer changes with its
version.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

# A text has code if it defines something; the code begins at the first line that looks like it.
_DEFINITION = re.compile(r"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[ \t]*[(:])", re.MULTILINE)
_FIRST = re.compile(r"^[ \t]*(?:@\w|(?:async[ \t]+)?def\b|class\b|import\b|from\b.*\bimport\b|assert\b)", re.MULTILINE)
_TAG = re.compile(r"(<\|\w+\|>)")  # of a chat's roles

_STRING = r"""(?:\b[a-zA-Z]{1,2})?(?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
_TOKEN = re.compile(rf"(?P<string>{_STRING})|(?P<comment>#[^\n]*)|(?P<tag><\|\w+\|>)|(?P<word>\w+)|[\s\S]")
_NAME = re.compile(r"[^\W\d]\w*")

# Where code gives a name; strings and comments are blanked out before.
_GIVEN = (
    re.compile(r"\b(?:def|class|as)\s+(\w+)"),
    re.compile(r"\bfor\b([\w\s,()]+?)\bin\b"),
    re.compile(r"^[ \t]*(\w+(?:[ \t]*,[ \t]*\w+)*)[ \t]*(?:[-+*/%|&^]|//|\*\*)?=(?!=)", re.MULTILINE),
)
_HEADER = re.compile(r"\bdef\s+\w+\s*\(")
_PARAMETER = re.compile(r"[(,]\s*\*{0,2}\s*([^\W\d]\w*)")
_KEYWORD = re.compile(r"[(,]\s*(\w+)\s*=(?!=)")
_ATTRIBUTE = re.compile(r"\.\s*(\w+)")
_TAKEN = frozenset([*keyword.kwlist, *dir(builtins), "self", "cls"])


class Piece(NamedTuple):
    """A part of a text: `prose`; a `name` that stands for the same thing wherever it stands; or what is `kept`."""

    kind: Literal["prose", "name", "kept"]
    text: str


def split(text: str) -> list[Piece]:
    """Cuts a text into pieces, which together are the text again."""
    first = _FIRST.search(text) if _DEFINITION.search(text) else None
    start = first.start() if first else len(text)
    names = free_names(text[start:])
    return [*_prose(text[:start], names), *_code(text[start:], names)]


def usable(name: str) -> bool:
    """Whether code may give this name to something of its own."""
    return bool(_NAME.fullmatch(name)) and name not in _TAKEN and not name.startswith("__")


def free_names(code: str) -> set[str]:
    """Names of variables, parameters, functions and classes that can be changed throughout a piece of code.

    Left out are names that it also uses as another's: in a call's keyword, or within an f-string. An attribute may
    have the same name: it is another thing.
    """
    bare = _TOKEN.sub(lambda m: " " * len(m[0]) if m["string"] or m["comment"] or m["tag"] else m[0], code)
    given = {name for pattern in _GIVEN for match in pattern.finditer(bare) for name in _NAME.findall(match[1])}
    for header in _HEADER.finditer(bare):
        end = _closing(bare, header.end())
        given.update(_PARAMETER.findall(_outermost(bare[header.end() - 1 : end])))
        bare = bare[: header.end()] + " " * (end - header.end()) + bare[end:]
    defined = set(_GIVEN[0].findall(bare)) & set(_ATTRIBUTE.findall(bare))  # a method that is called as one
    formatted = " ".join(m["string"] for m in _TOKEN.finditer(code) if m["string"] and _is_formatted(m["string"]))
    others = {*_KEYWORD.findall(bare), *_NAME.findall(formatted), *defined}
    return {name for name in given - others if usable(name)}


def _closing(bare: str, start: int) -> int:
    """Place of the bracket that closes the one before `start`."""
    depth = 1
    for place in range(start, len(bare)):
        depth += (bare[place] in "([{") - (bare[place] in ")]}")
        if not depth:
            return place
    return len(bare)


def _outermost(header: str) -> str:
    """A bracket and what is in it, without what is in further brackets there: a default's or an annotation's."""
    while (shorter := re.sub(r"(?<!^)[(\[{][^()\[\]{}]*[)\]}]", "", header)) != header:
        header = shorter
    return header


def _is_formatted(string: str) -> bool:
    return "f" in string[: len(string) - len(string.lstrip("rbfuRBFU"))].lower()


def _code(code: str, names: set[str]) -> Iterator[Piece]:
    before = ""  # what stands before a name, white space aside
    for token in _TOKEN.finditer(code):
        string = token["string"]
        if token["comment"] or (string and _is_prose(string)):
            yield from _prose(token[0], names)
        else:
            free = token["word"] in names and before != "."
            yield Piece("name" if free else "kept", token[0])
        before = token[0] if token[0].strip() else before


def _is_prose(string: str) -> bool:
    """Whether a string is read by people: at least three words, and no fields that code fills in by name."""
    return len(string.split()) > 2 and "{" not in string and "%(" not in string and not _is_formatted(string)


def _prose(text: str, names: set[str]) -> Iterator[Piece]:
    """Prose may mention a name; it is known as such if no word looks like it, and kept if it may be a word."""
    for part in _TAG.split(text):
        if _TAG.fullmatch(part):
            yield Piece("kept", part)
            continue
        end = 0
        for match in _NAME.finditer(part):
            if match[0] in names:
                yield Piece("prose", part[end : match.start()])
                yield Piece("kept" if _may_be_word(match[0]) else "name", match[0])
                end = match.end()
        yield Piece("prose", part[end:])


def _may_be_word(name: str) -> bool:
    return name.isalpha() and name[1:] == name[1:].lower()
