"""Signs that something else than membership tells the classes apart, or that a split knows another.

A *format* warning is about how a text or a field is written, a *fields* warning about which fields a record has and of
which type. Each form (how a text begins and ends, its line ends, how many parts two blank lines make of it, the shape
of a date, the kind of an id, a field) is counted in both classes, and its shares compared by Fisher's exact test. It
warns where p times the number of tests is below 0.01 and the shares differ by a quarter or more: chance alone gives
one subset in a hundred a warning, and a difference that hardly any text shows gives none. Only forms that are frequent
enough in both classes together to differ so much are tests. Few texts cannot reach such a p: a form that every record
of one class has and none of the other warns in any case.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from olmodetect_jax.construction.verification.data import Line, SubsetLines

ERROR_RATE, GAP = 0.01, 0.25
NEAR = 0.5  # share of common runs of five words from which two texts count as near-duplicates
_SHOWN = 5  # names in a warning
_RUN = 5  # words
_COMMON = 50  # texts; a run of words in more of them says nothing of two of them
_SCORE = re.compile(r".*_13-gram_overlap_score")
_WORD = re.compile(r"\w+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Leak:
    """One warning.

    Attributes:
        kind: format, fields, both classes, dev and test, or near-duplicates.
        subset: id of the subset.
        variant: matched or shifted.
        message: what was found, with counts.
        examples: names of records.
    """

    kind: str
    subset: str
    variant: str
    message: str
    examples: tuple[str, ...]


def leaks(subset: SubsetLines) -> list[Leak]:
    """All warnings about one subset, in the order of the module's description."""

    def leak(kind: str, message: str, lines: Sequence[Line]) -> Leak:
        names = tuple(dict.fromkeys(line.name for line in lines))
        return Leak(kind, subset.id, subset.variant, message, names[:_SHOWN])

    found = [leak("format", *warning) for warning in _told_apart(subset, _forms)]
    found += [leak("fields", *warning) for warning in _told_apart(subset, _fields)]
    for kind, pairs, what in (
        ("both classes", _same(subset.members, subset.non_members), "texts stand in both classes"),
        ("dev and test", _across_splits(subset, _same), "texts stand in dev and in test"),
        ("near-duplicates", _across_splits(subset, _near), "pairs of texts of dev and test are nearly the same"),
    ):
        if pairs:
            found.append(leak(kind, f"{len(pairs)} {what}", [line for pair in pairs for line in pair]))
    return found


def _told_apart(subset: SubsetLines, forms_of: Callable[[Line], Iterable[str]]) -> Iterator[tuple[str, list[Line]]]:
    """Forms that are much more frequent in one class, each with the lines that have it."""
    from scipy.stats import fisher_exact

    sides = [[set(forms_of(line)) for line in lines] for lines in (subset.members, subset.non_members)]
    counts = [Counter(form for forms in side for form in forms) for side in sides]
    n_members, n_others = map(len, sides)
    frequent = GAP * min(n_members, n_others)
    forms = sorted(form for form in {*counts[0], *counts[1]} if counts[0][form] + counts[1][form] >= frequent)
    for form in forms:
        a, b = counts[0][form], counts[1][form]
        gap = a / n_members - b / n_others
        if abs(gap) < GAP:
            continue
        p = fisher_exact([[a, n_members - a], [b, n_others - b]]).pvalue
        always = {a / n_members, b / n_others} == {0.0, 1.0}
        if p * len(forms) < ERROR_RATE or always:
            lines, own = (subset.members, sides[0]) if gap > 0 else (subset.non_members, sides[1])
            yield (
                f"{form}: {a} of {n_members} members, {b} of {n_others} non-members",
                [line for line, forms in zip(lines, own, strict=True) if form in forms],
            )


def _forms(line: Line) -> tuple[str, ...]:
    raw = line.value.get("text")
    text = raw if isinstance(raw, str) else line.text
    parts = len(re.split(r"\n[ \t]*\n[ \t]*\n", line.own_text))
    first, _, rest = line.own_text.partition("\n")
    return (
        f"the text begins with {_kind(text[:1])}",
        f"the first word of the text is {text.split(maxsplit=1)[0][:20]!r}",
        f"the text ends with {_kind(text[-1:])}",
        f"two blank lines make {min(parts, 4)}{' or more' if parts > 3 else ''} parts of the text",
        *(["the first line ends without a full stop, and a blank line follows"] if _is_title(first, rest) else []),
        *(["lines end with CR LF"] if "\r\n" in text else []),
        *(["there are tabs in the text"] if "\t" in text else []),
        *(["lines end with white space"] if re.search(r"[ \t]\n", text) else []),
        *(["there are characters beyond ASCII"] if not text.isascii() else []),
        *(["the text is one line"] if "\n" not in text.strip() else []),
        *(f"{name} is written like {shape}" for name, shape in _shapes(line.value)),
    )


def _kind(character: str) -> str:
    if character.isspace():
        return "a line end" if character in "\r\n" else "a space"
    if character.isalpha():
        return "a capital" if character.isupper() else "a letter"
    return "a digit" if character.isdigit() else f"{character!r}" if character.isascii() else "another sign"


def _is_title(first: str, rest: str) -> bool:
    return 0 < len(first) <= 150 and first.rstrip()[-1:] not in ".!:;," and rest.startswith("\n")


def _shapes(value: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Dates and ids with each digit as 0: what is left is how they are written."""
    for name, own in value.items():
        full = f"{above}{name}"
        if isinstance(own, Mapping):
            yield from _shapes(own, f"{full}.")
        elif isinstance(own, str) and _DATE.match(own.strip()):
            yield full, repr(re.sub(r"\d", "0", own)[:40])
        elif isinstance(own, str) and name == "id":
            yield full, repr(re.sub(r"\d+", "0", own)[:20])


def _fields(line: Line) -> Iterator[str]:
    return _typed(line.value)


def _typed(value: Mapping[str, object], above: str = "") -> Iterator[str]:
    """Fields with their types; overlap scores are the non-members' by design."""
    for name, own in value.items():
        if _SCORE.fullmatch(name):
            continue
        if isinstance(own, Mapping):
            yield from _typed(own, f"{above}{name}.")
        elif own is not None:
            kind = "number" if isinstance(own, int | float) and not isinstance(own, bool) else type(own).__name__
            yield f"the field {above}{name} ({kind})"
            for item in own if isinstance(own, list) else ():
                if isinstance(item, Mapping):
                    yield from _typed(item, f"{above}{name}[].")


def _same(ones: Sequence[Line], others: Sequence[Line]) -> list[tuple[Line, Line]]:
    by_text: dict[str, Line] = {}
    for line in others:
        by_text.setdefault(line.text, line)
    return [(line, by_text[line.text]) for line in ones if line.text in by_text]


def _across_splits(
    subset: SubsetLines, compare: Callable[[Sequence[Line], Sequence[Line]], list[tuple[Line, Line]]]
) -> list[tuple[Line, Line]]:
    """Pairs of a development and a test text of any class, file by file: a pair's own two texts share their prompt."""
    found = []
    for side in subset.sides:
        lines = [line for line in (*subset.members, *subset.non_members) if line.side == side]
        dev, test = ([line for line in lines if line.split == split] for split in ("dev", "test"))
        found += compare(dev, test)
    return found


def _near(dev: Sequence[Line], test: Sequence[Line]) -> list[tuple[Line, Line]]:
    """Pairs whose sets of five-word runs overlap by half or more (Jaccard), equal texts aside."""
    runs = [_runs(line.own_text) for line in test]
    places: dict[str, list[int]] = defaultdict(list)
    for i, own in enumerate(runs):
        for run in own:
            places[run].append(i)
    found = []
    for line in dev:
        mine = _runs(line.own_text)
        shared = Counter(i for run in mine if len(places.get(run, ())) <= _COMMON for i in places.get(run, ()))
        for i, n in shared.items():
            # Common runs were left out of n, so a pair is compared in full once it shares enough of the others.
            if n * 4 >= min(len(mine), len(runs[i])) and test[i].text != line.text:
                both = len(mine & runs[i])
                if both / (len(mine) + len(runs[i]) - both) >= NEAR:
                    found.append((line, test[i]))
    return found


def _runs(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    return {" ".join(words[i : i + _RUN]) for i in range(max(1, len(words) - _RUN + 1))}
