"""Counts, tokens, quality, dates and divergence of a benchmark's classes (tables 2, 15 to 21 and 30 to 36)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from olmodetect_jax.construction.candidates import shuffled
from olmodetect_jax.construction.dates import days, temporal_term
from olmodetect_jax.construction.jsd import divergence_of_texts
from olmodetect_jax.construction.verification.data import Line
from olmodetect_jax.errors import DataError
from olmodetect_jax.records import text_key

# Titles of the quality numbers, and the fields of a record they are in.
QUALITY: Mapping[str, tuple[str, ...]] = {
    "fastText": (
        "fasttext-oh-eli5_quality_score",
        "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob",
    ),
    "Stars": ("max_stars_count",),
    "Top-1 share": ("top1_word_freq",),
    "Question votes": ("question_score",),
    "Answer votes": ("answer_score",),
}
TOP2 = "Top-2 share"  # cumulative, as in the paper's tables; the field holds the second word alone
DATE_FIELDS = ("created", "metadata.WARC-Date")
_HALVINGS = 5


@dataclass(frozen=True)
class Spread:
    """Mean and population standard deviation of n numbers."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one number."""
        return cls(float(np.mean(values)), float(np.std(values)), len(values))


@dataclass(frozen=True)
class PartFacts:
    """Some records of one class.

    Attributes:
        records: their number.
        tokens: of all.
        length: tokens a record.
        quality: the domain's own numbers by title.
        date: mean date in days, and spread; None if no record is dated.
    """

    records: int
    tokens: int
    length: Spread
    quality: Mapping[str, Spread]
    date: Spread | None

    @property
    def mean_date(self) -> str | None:
        """The mean date as a day."""
        return None if self.date is None else date.fromordinal(int(self.date.mean)).isoformat()


@dataclass(frozen=True)
class ClassFacts(PartFacts):
    """One class of a subset or domain.

    Attributes:
        dev: of its development records; None if it has none.
        test: of its test records.
        lengths: tokens of each record, for plots.
        dates: ordinals of the dated records, for plots.
    """

    dev: PartFacts | None
    test: PartFacts | None
    lengths: tuple[int, ...]
    dates: tuple[float, ...]


@dataclass(frozen=True)
class GroupFacts:
    """Both classes of a subset, or of a domain's subsets together.

    Attributes:
        level: subset or domain.
        id: of it.
        title: of it.
        variant: matched or shifted.
        members: one class.
        non_members: the other.
        jsd: divergence of their tokens, bits.
        jsd_of_halves: of a random half of each class, mean over five draws.
        jsd_floor: of two random halves of the non-members, mean over five draws: what two samples of one source of
            that size differ by.
        temporal: the temporal term.
    """

    level: str
    id: str
    title: str
    variant: str
    members: ClassFacts
    non_members: ClassFacts
    jsd: float
    jsd_of_halves: float
    jsd_floor: float
    temporal: float


def group_facts(
    level: str,
    name: str,
    title: str,
    variant: str,
    members: Sequence[Line],
    non_members: Sequence[Line],
    encode: Callable[[Sequence[str]], list[np.ndarray]],
    *,
    seed: int,
) -> GroupFacts:
    """Computes the facts of one group; subsets of a domain are pooled, so long texts weigh more.

    Args:
        level: subset or domain.
        name: its id.
        title: of it.
        variant: of the members.
        members: of all its subsets.
        non_members: the same.
        encode: texts to ids.
        seed: of the halves.
    """
    ids = [encode([line.text for line in side]) for side in (members, non_members)]
    dates = [
        np.array([np.nan if (d := _date(line)) is None else d for line in side]) for side in (members, non_members)
    ]
    halves, floor = [], []
    for draw in range(_HALVINGS):
        one, two = (_half(side, own, seed, draw) for side, own in zip((members, non_members), ids, strict=True))
        halves.append(divergence_of_texts(one[0], two[0]))
        floor.append(divergence_of_texts(*two))
    return GroupFacts(
        level, name, title, variant,
        _class_facts(members, ids[0], dates[0]), _class_facts(non_members, ids[1], dates[1]),
        divergence_of_texts(*ids), float(np.mean(halves)), float(np.mean(floor)), temporal_term(*dates),
    )  # fmt: skip


def _half(
    lines: Sequence[Line], ids: list[np.ndarray], seed: int, draw: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Two halves of a class's texts, by hash; not by order."""
    if len(lines) < 2:
        raise DataError(f"{lines[0].where}: a class of one text cannot be halved; verification needs at least 2")
    order = shuffled([text_key(line.text) for line in lines], seed, f"half {draw}")
    middle = len(order) // 2
    return [ids[i] for i in order[:middle]], [ids[i] for i in order[middle : 2 * middle]]


def _class_facts(lines: Sequence[Line], ids: list[np.ndarray], dates: np.ndarray) -> ClassFacts:
    lengths = np.array([len(own) for own in ids])

    def part(split: str) -> PartFacts | None:
        own = [i for i, line in enumerate(lines) if line.split == split]
        return _part_facts([lines[i] for i in own], lengths[own], dates[own]) if own else None

    return ClassFacts(
        **vars(_part_facts(lines, lengths, dates)), dev=part("dev"), test=part("test"),
        lengths=tuple(lengths.tolist()), dates=tuple(_dated(dates)),
    )  # fmt: skip


def _part_facts(lines: Sequence[Line], lengths: np.ndarray, dates: np.ndarray) -> PartFacts:
    dated = _dated(dates)
    return PartFacts(
        len(lines),
        int(lengths.sum()),
        Spread.of(lengths.tolist()),
        _quality(lines),
        Spread.of(dated) if dated else None,
    )


def _dated(dates: np.ndarray) -> list[float]:
    return dates[~np.isnan(dates)].tolist()


def _quality(lines: Sequence[Line]) -> dict[str, Spread]:
    columns = {title: [_number(line, *fields) for line in lines] for title, fields in QUALITY.items()}
    tops = [(_number(line, "top1_word_freq"), _number(line, "top2_word_freq")) for line in lines]
    columns[TOP2] = [None if None in pair else sum(pair) for pair in tops]  # type: ignore[arg-type]
    known = {title: [v for v in values if v is not None] for title, values in columns.items()}
    return {title: Spread.of(values) for title, values in known.items() if values}


def _number(line: Line, *fields: str) -> float | None:
    for name in fields:
        value = line.value.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _date(line: Line) -> float | None:
    """The date of a record: its own field, or that of a page's capture."""
    for name in DATE_FIELDS:
        value: object = line.value
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str) and (found := days(value)) is not None:
            return found
    return None
