"""Samples as scores of a benchmark's records (released layout, sections 8 and 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olmodetect_jax.released.files import Joined, Line, Sample, unscored


@dataclass(frozen=True)
class Scored:
    """One record's released score.

    Attributes:
        record_id: of the benchmark's line; of the sample where it joins to none.
        key: hash of the text; empty where neither sample nor benchmark has it.
        value: None where there is no usable score.
        missing: why, then.
        base: the base score that FSD's deviates from.
        choices: EMMIA's scores from its four base scores.
        fill: the marker of a score that was filled in later.
    """

    record_id: str
    key: str
    value: float | None
    missing: str | None = None
    base: float | None = None
    choices: tuple[float, ...] = ()
    fill: str | None = None


def placed(
    samples: Sequence[Sample],
    lines: Sequence[Line] | None,
    joined: Sequence[Joined] | None,
    column: str,
    base: str | None,
    *,
    one_a_line: bool,
) -> tuple[Scored, ...]:
    """One column of a file, as scores.

    Args:
        samples: of the file.
        lines: of its side's benchmark file; None without one: samples are then taken as they are.
        joined: where the samples belong, as `join` gives it; None without lines.
        column: the score's field.
        base: the field of the base score that FSD's deviates from.
        one_a_line: whether to give one score a line of the benchmark, else all samples and then the lines without.
    """
    if lines is None or joined is None:
        return tuple(_scored(s, s.sample_id, s.key or "", column, base) for s in samples)
    if one_a_line:
        return _one_a_line(samples, joined, lines, column, base)
    found = []
    for sample, j in zip(samples, joined, strict=True):
        line = None if j.line is None else lines[j.line]
        name, key = (line.record_id, line.key) if line else (sample.sample_id, sample.key or "")
        found.append(_scored(sample, name, key, column, base))
    return (*found, *(_without(lines[i]) for i in unscored(joined, len(lines))))


def _scored(sample: Sample, name: str, key: str, column: str, base: str | None) -> Scored:
    value = sample.score(column)
    missing = None if value is not None else f"the released score is {sample.raw.get(column)!r}"
    own_base = sample.score(base) if base and value is not None else None
    return Scored(name, key, value, missing, own_base, fill=sample.fill)


def _without(line: Line) -> Scored:
    return Scored(line.record_id, line.key, None, "no released score")


def count_conflicts(samples: Sequence[Sample], joined: Sequence[Joined], columns: Sequence[str]) -> int:
    """How many lines several samples join to that do not have the same scores."""
    found: dict[int, set[tuple[float | None, ...]]] = {}
    for sample, j in zip(samples, joined, strict=True):
        if j.line is not None:
            found.setdefault(j.line, set()).add(tuple(sample.score(column) for column in columns))
    return sum(len(values) > 1 for values in found.values())


def _one_a_line(
    samples: Sequence[Sample], joined: Sequence[Joined], lines: Sequence[Line], column: str, base: str | None
) -> tuple[Scored, ...]:
    """One score a text of the benchmark: the first of several; a line that repeats a text has none of its own."""
    first: dict[int, Sample] = {}
    for sample, j in zip(samples, joined, strict=True):
        if j.line is not None:
            first.setdefault(j.line, sample)
    return tuple(
        _scored(first[i], line.record_id, line.key, column, base) if i in first else _without(line)
        for i, line in enumerate(lines)
    )
