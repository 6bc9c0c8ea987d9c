"""Plot of the label budget: AUC against the share of labels trained on, a line a domain and a strong one for All.

Coordinates are as in `plots`; the box is `WIDTH` × `HEIGHT`. The domains' points stand a little apart, so that their
whiskers (one standard deviation over the splits) can be told from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.benchmark import tree_from
from olmodetect_jax.evaluation.budget import ATTACK, Budget, Curve, read_budget
from olmodetect_jax.evaluation.formatting import ABSENT
from olmodetect_jax.evaluation.runs import read_manifest
from olmodetect_jax.files import write_text
from olmodetect_jax.report.axis import AucAxis
from olmodetect_jax.report.templates import template

FILE_NAME = "budget.svg"
WIDTH, HEIGHT = 440, 220
_MARGIN = 30  # left and right of the first and the last share
_APART = 3  # between the points of neighbouring domains
_COLUMNS = 3  # of the legend in the file


@dataclass(frozen=True)
class BudgetPoint:
    """One share of labels: place, ends of the whisker, tooltip."""

    x: float
    y: float
    top: float
    bottom: float
    hint: str


@dataclass(frozen=True)
class BudgetLine:
    """A domain, or All.

    Attributes:
        title: of the group.
        style: CSS classes.
        points: where there is an AUC.
        pieces: SVG points of each part without a gap.
        cells: mean and standard deviation at each share, as printed.
    """

    title: str
    style: str
    points: tuple[BudgetPoint, ...]
    pieces: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class BudgetPlot:
    """The plot.

    Attributes:
        lines: the domains', then that of All.
        headings: the shares as printed.
        x_ticks: (x, text).
        y_ticks: (y, text).
        chance: y of an AUC of 0.5.
        explanation: what is drawn.
        notes: which subsets have no AUC, and why.
    """

    lines: tuple[BudgetLine, ...]
    headings: tuple[str, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    chance: float
    explanation: str
    notes: tuple[str, ...]


def write_budget_plot(run: Path) -> Path | None:
    """Writes the plot of a run as one self-contained `budget.svg` into its folder.

    Returns:
        The file; None if the run has no `budget.json`.

    Raises:
        DataError: the run's `budget.json` or its manifest cannot be used.
    """
    budget = read_budget(run)
    if budget is None:
        return None
    benchmark = read_manifest(run / "manifest.json")["benchmark"]
    titles = tree_from(benchmark["tree"], run / "manifest.json").domain_titles if benchmark else {}
    plot = budget_plot(budget, titles)
    svg = template("budget.svg.j2").render(plot=plot, columns=_COLUMNS, rows=math.ceil(len(plot.lines) / _COLUMNS))
    write_text(run / FILE_NAME, svg)
    return run / FILE_NAME


def budget_plot(budget: Budget, domain_titles: Mapping[str, str]) -> BudgetPlot:
    """The plot of a run's label budget.

    Args:
        budget: mean and standard deviation of each domain and of All at each share of labels.
        domain_titles: of the benchmark's tree.
    """
    headings = tuple(f"{fraction:.0%}" for fraction in budget.fractions)
    groups = [(domain_titles.get(name, name), curve) for name, curve in budget.domains.items()] + [("All", budget.all)]
    ends = [end for _, curve in groups for point in _values(curve) if point for end in _ends(*point)]
    axis, places = AucAxis.of(ends, HEIGHT), _places(budget.fractions)
    lines = []
    for index, (title, curve) in enumerate(groups):
        is_all = index == len(groups) - 1
        shift = 0.0 if is_all else (index - (len(groups) - 2) / 2) * _APART
        style = "c6 strong" if is_all else f"c{index % 6} d{index // 6 % 3}"
        xs = [round(x + shift, 1) for x in places]
        lines.append(_line(title, style, list(zip(headings, xs, _values(curve), strict=True)), axis))
    return BudgetPlot(
        lines=tuple(lines),
        headings=headings,
        x_ticks=tuple(zip(places, headings, strict=True)),
        y_ticks=axis.ticks(),
        chance=axis.y(0.5),
        explanation=f"{TITLES[ATTACK]} trained on a share of each subset's labelled texts and judged on that half of "
        f"them which it never learns from: mean over {budget.splits} splits, whiskers one standard deviation over "
        "them. All is the plain mean of the domains.",
        notes=tuple(f"{name}: {curve.reason}." for name, curve in budget.subsets.items() if curve.auc is None),
    )


def _values(curve: Curve) -> list[tuple[float, float] | None]:
    """Mean and standard deviation at each share; None where there is no AUC."""
    pairs = zip(curve.mean, curve.std, strict=True)
    return [None if mean is None or std is None else (mean, std) for mean, std in pairs]


def _ends(mean: float, std: float) -> tuple[float, float]:
    """Of the whisker; an AUC is between 0 and 1."""
    return max(0.0, mean - std), min(1.0, mean + std)


def _places(fractions: Sequence[float]) -> list[float]:
    """Where the shares stand along x; one alone stands in the middle."""
    low, high = min(fractions), max(fractions)
    if low == high:
        return [WIDTH / 2 for _ in fractions]
    return [round(_MARGIN + (f - low) / (high - low) * (WIDTH - 2 * _MARGIN), 1) for f in fractions]


def _line(
    title: str, style: str, values: Sequence[tuple[str, float, tuple[float, float] | None]], axis: AucAxis
) -> BudgetLine:
    points = []
    for share, x, value in values:
        if value:
            bottom, top = map(axis.y, _ends(*value))
            hint = f"{title}, {share} of the labels: AUC {_shown(value)}"
            points.append(BudgetPoint(x, axis.y(value[0]), top, bottom, hint))
    pieces = (
        " ".join(f"{x},{axis.y(value[0])}" for _, x, value in piece if value)
        for there, piece in groupby(values, lambda value: value[2] is not None)
        if there
    )
    return BudgetLine(title, style, tuple(points), tuple(pieces), tuple(_shown(value) for *_, value in values))


def _shown(value: tuple[float, float] | None) -> str:
    return f"{value[0]:.2f} ± {value[1]:.2f}" if value else ABSENT
