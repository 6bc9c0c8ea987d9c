"""The page of `olmodetect verify`: warnings first, then tables and plots of a benchmark without any model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from olmodetect_jax.construction.verification.overlap_summary import OverlapSummary
from olmodetect_jax.construction.verification.statistics import ClassFacts, GroupFacts, PartFacts, Spread
from olmodetect_jax.construction.verification.verify import Verification
from olmodetect_jax.files import write_text
from olmodetect_jax.report.templates import template

_BINS, _WIDTH, _HEIGHT = 24, 200, 80
_AXIS = 400  # of dots
_BOUND = 0.2  # share of windows from which the filter rejects a text
_Z = 1.96  # of a 95% interval

Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class Table:
    """Headings and rows of text; the first column names the row."""

    id: str
    title: str
    explanation: str
    headings: tuple[str, ...]
    rows: Rows


@dataclass(frozen=True)
class Histogram:
    """Both classes over the same bins.

    Attributes:
        title: of the group.
        areas: (class, path) of each.
        low: text at the left end.
        high: text at the right end.
    """

    title: str
    areas: tuple[tuple[str, Markup], ...]
    low: str
    high: str


@dataclass(frozen=True)
class Dots:
    """One line a group: a value, the interval it is compared with, all on one axis from `low` to `high`.

    `mark` is the x of what all are compared with, `width` that of the axis.
    """

    title: str
    explanation: str
    low: str
    high: str
    mark: float | None
    width: int
    lines: tuple[tuple[str, float, float, float, str], ...]  # name, x of the value, x of the interval's ends, hint


def tables(found: Verification) -> list[Table]:
    """All numbers as tables, for every form of output."""
    return [_classes(found), _likeness(found), *_quality(found), *_blind(found), *_overlap(found), _warnings(found)]


def write_page(found: Verification, path: Path, *, settings: Sequence[tuple[str, str]]) -> None:
    """Writes the page.

    Args:
        found: what was verified.
        path: of the file.
        settings: (name, value) of what it was made with.
    """
    groups = [g for g in found.groups if g.level == "subset"]
    page = template("verification.html.j2").render(
        found=found,
        settings=settings,
        css=Markup((Path(__file__).parent / "page.css").read_text(encoding="utf-8")),
        tables=[t for t in tables(found) if t.id != "warnings"],
        lengths=[_histogram(_name(g), g.members.lengths, g.non_members.lengths, _count) for g in groups],
        dates=[
            _histogram(_name(g), g.members.dates, g.non_members.dates, _day)
            for g in groups
            if g.members.dates and g.non_members.dates
        ],
        dots=[dots for dots in (_jsd_dots(groups), _blind_dots(found), _overlap_dots(found)) if dots.lines],
    )
    write_text(path, page)


def _name(group: GroupFacts) -> str:
    return f"{group.title} ({group.variant})" if group.variant != "matched" else group.title


def _label(group: GroupFacts) -> str:
    return f"{group.id}, {group.variant}" + (" (domain)" if group.level == "domain" else "")


def _classes(found: Verification) -> Table:
    rows: Rows = []
    for g in found.groups:
        for title, own in _sides(g):
            dev = own.dev
            rows.append(
                (
                    _label(g), title, f"{own.records:,}", f"{dev.records:,}" if dev else "0", f"{own.tokens:,}",
                    f"{dev.tokens:,}" if dev else "0", _spread(own.length, ".1f"), _date(own),
                )
            )  # fmt: skip
    headings = ("Group", "Class", "Records", "of these dev", "Tokens", "of these dev", "Tokens a record", "Date")
    return Table("classes", "Classes", "Mean ± population standard deviation.", headings, rows)


def _sides(group: GroupFacts) -> tuple[tuple[str, ClassFacts], ...]:
    return ("members", group.members), ("non-members", group.non_members)


def _spread(spread: Spread, form: str) -> str:
    return f"{spread.mean:{form}} ± {spread.std:{form}}"


def _date(own: PartFacts | None) -> str:
    return "–" if own is None or own.date is None else f"{own.mean_date} ± {own.date.std:.0f} days ({own.date.n})"


def _likeness(found: Verification) -> Table:
    rows = [
        (
            _label(g), f"{g.members.tokens - g.non_members.tokens:+,}", f"{g.jsd:.3f}", f"{g.jsd_of_halves:.3f}",
            f"{g.jsd_floor:.3f}", f"{g.temporal:.3f}" if g.members.date or g.non_members.date else "–",
        )
        for g in found.groups
    ]  # fmt: skip
    return Table(
        "likeness", "Likeness of the classes",
        "JSD of the tokens in bits. It falls with the number of texts, so halves are compared with halves: a random "
        "half of the members with one of the non-members, and two halves of the non-members, which have one source.",
        ("Group", "Tokens apart", "JSD", "JSD of halves", "Same source", "Temporal"), rows,
    )  # fmt: skip


def _quality(found: Verification) -> list[Table]:
    rows: Rows = []
    for g in found.groups:
        titles = dict.fromkeys(title for _, own in _sides(g) for title in own.quality)
        for title in titles:
            rows += [(_label(g), title, side, *(_number(p, title) for p in _parts(own))) for side, own in _sides(g)]
        if g.members.date or g.non_members.date:
            rows += [(_label(g), "Date", side, *map(_date, _parts(own))) for side, own in _sides(g)]
    headings = ("Group", "Number", "Class", "Dev", "Test", "All")
    explanation = "Mean ± population standard deviation (records that have it). Top-2 is the share of both words."
    return [Table("quality", "Quality and dates", explanation, headings, rows)] if rows else []


def _parts(own: ClassFacts) -> tuple[PartFacts | None, ...]:
    return own.dev, own.test, own


def _number(part: PartFacts | None, title: str) -> str:
    spread = part.quality.get(title) if part else None
    return "–" if spread is None else f"{_spread(spread, '.5g')} ({spread.n})"


def _blind(found: Verification) -> list[Table]:
    rows = [
        (f"{name}, {variant}", f"{b.auc:.3f} ± {b.std:.3f}", f"{0.5 - _Z * b.standard_error:.2f} to "
         f"{0.5 + _Z * b.standard_error:.2f}", f"{b.length_auc:.3f}", f"{b.n:,}")
        for (name, variant), b in found.blind.items()
    ]  # fmt: skip
    explanation = (
        "Word counts under logistic regression, out of fold, mean over five seeds: what tells the classes apart "
        "without any model; a domain's is the mean of its subsets. Chance: where about 95% of such AUCs lie if nothing "
        "does. Classes that were matched as wholes fall below it: a word that one fold of a class has too much of, the "
        "rest of the class has too little of. Length: characters alone."
    )
    headings = ("Group", "Bag of words AUC", "Chance", "Length AUC", "Texts a class")
    return [Table("blind", "Blind baseline", explanation, headings, rows)] if rows else []


def _overlap(found: Verification) -> list[Table]:
    rows: Rows = []
    for size, domains in found.overlap.items():
        for domain, summary in domains.items():
            rows.append(
                (f"{domain}, {size}", "non-members", f"{summary.mean:.4f} ± {summary.std:.4f}", _of_subsets(summary))
            )
    for domain, sides in (found.measured or {}).items():
        for title, summary in sides.items():
            rows.append((f"{domain}, index", title, f"{summary.mean:.4f} ± {summary.std:.4f}", _of_subsets(summary)))
    explanation = (
        "Share of 13-token windows that occur in what the model was trained on: as stored in the records, and as found "
        "in the given index. A domain's mean is that of its subsets."
    )
    headings = ("Domain and size", "Class", "Overlap", "Subsets")
    return [Table("overlap", "Overlap", explanation, headings, rows)] if rows else []


def _of_subsets(summary: OverlapSummary) -> str:
    spreads = summary.subset_std
    return ", ".join(f"{name} {mean:.4f} ± {spreads[name]:.4f}" for name, mean in summary.subset_mean.items())


def _warnings(found: Verification) -> Table:
    rows = [(f"{w.subset}, {w.variant}", w.kind, w.message, ", ".join(w.examples)) for w in found.leaks]
    return Table("warnings", "Warnings", "", ("Group", "Kind", "Found", "Records"), rows)


def _histogram(title: str, members: Sequence[float], others: Sequence[float], text: Any) -> Histogram:
    low, high = min(*members, *others), max(*members, *others)
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    shares = [np.histogram(side, edges)[0] / len(side) for side in (members, others)]
    top = max(float(s.max()) for s in shares)
    areas = tuple((kind, _area(own / top)) for kind, own in zip(("member", "non-member"), shares, strict=True))
    return Histogram(title, areas, text(low), text(high))


def _area(heights: np.ndarray) -> Markup:
    step, parts = _WIDTH / len(heights), [f"M0,{_HEIGHT}"]
    for i, height in enumerate(heights):
        y = round(_HEIGHT * (1 - float(height)), 1)
        parts.append(f"L{i * step:.1f},{y} L{(i + 1) * step:.1f},{y}")
    return Markup(" ".join([*parts, f"L{_WIDTH},{_HEIGHT} Z"]))


def _count(value: float) -> str:
    return f"{value:,.0f} tokens"


def _day(value: float) -> str:
    return date.fromordinal(int(value)).isoformat()


def _dots(
    title: str,
    explanation: str,
    values: Iterable[tuple[str, float, float, float, str]],
    form: str,
    mark: float | None = None,
) -> Dots:
    lines = list(values)
    ends = [v for line in lines for v in line[1:4]] + [0.0 if mark is None else mark]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return round((value - low) / span * _AXIS, 1)

    placed = tuple((name, x(value), x(start), x(end), hint) for name, value, start, end, hint in lines)
    marked = None if mark is None else x(mark)
    return Dots(title, explanation, form.format(low), form.format(high), marked, _AXIS, placed)


def _jsd_dots(groups: Sequence[GroupFacts]) -> Dots:
    return _dots(
        "Divergence of halves against its floor",
        "Dot: members against non-members. Bar: from 0 to two halves of one source.",
        (
            (_name(g), g.jsd_of_halves, 0.0, g.jsd_floor, f"{g.jsd_of_halves:.3f}, floor {g.jsd_floor:.3f}")
            for g in groups
        ),
        "{:.2f}",
    )


def _blind_dots(found: Verification) -> Dots:
    return _dots(
        "Bag of words",
        "Dot: AUC. Bar: where about 95% of AUCs lie by chance. Dashes: 0.5.",
        (
            (f"{name}, {variant}", b.auc, 0.5 - _Z * b.standard_error, 0.5 + _Z * b.standard_error, f"{b.auc:.3f}")
            for (name, variant), b in found.blind.items()
        ),
        "{:.2f}",
        mark=0.5,
    )


def _overlap_dots(found: Verification) -> Dots:
    return _dots(
        "Overlap of non-members",
        "Dot: mean share of windows that occur. Bar: one standard deviation. Dashes: the filter's bound, 0.2.",
        (
            (f"{domain}, {size}", s.mean, max(0.0, s.mean - s.std), s.mean + s.std, f"{s.mean:.4f} ± {s.std:.4f}")
            for size, domains in found.overlap.items()
            for domain, s in domains.items()
        ),
        "{:.2f}",
        mark=_BOUND,
    )
