"""Dots with whiskers: each attack's AUC and its 95% interval, over All and over the stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olmodetect_jax.evaluation.aggregate import Column
from olmodetect_jax.evaluation.formatting import two_decimals
from olmodetect_jax.evaluation.intervals import Interval, RunIntervals
from olmodetect_jax.evaluation.results import METHOD_AVG, Row, RunMetrics
from olmodetect_jax.evaluation.tables import between, summary_columns
from olmodetect_jax.report.axis import AucAxis

WIDTH, ROW = 220, 18


@dataclass(frozen=True)
class Dot:
    """One attack: places on the axis, and what the tooltip says; `clear` whether chance is outside the interval."""

    title: str
    y: float
    x: float
    low: float
    high: float
    clear: bool
    hint: str


@dataclass(frozen=True)
class IntervalPlot:
    """One group of records.

    Attributes:
        title: the group's.
        height: of the plot.
        chance: where 0.5 is.
        ticks: (x, text).
        dots: the attacks, the best on top.
    """

    title: str
    height: int
    chance: float
    ticks: tuple[tuple[float, str], ...]
    dots: tuple[Dot, ...]


def interval_plots(result: RunMetrics, intervals: RunIntervals | None) -> tuple[IntervalPlot, ...]:
    """All and the stages; of a run of some subsets, these. None where there are no intervals."""
    if intervals is None:
        return ()
    columns = list(reversed(summary_columns(result)))  # All first
    if columns and columns[0].level == "all":
        columns = [columns[0], *reversed(columns[1:])]
    if not columns:
        return ()
    order = {row.id: -(columns[0].of(row.auc) or 0.0) for row in result.rows}
    plots = [_plot(result, intervals, column, order) for column in columns]
    return tuple(plot for plot in plots if plot.dots)


def _plot(result: RunMetrics, intervals: RunIntervals, column: Column, order: dict[str, float]) -> IntervalPlot:
    found: list[tuple[str, float, Interval]] = []
    for row in sorted(result.rows, key=lambda r: order[r.id]):
        value, ends = column.of(row.auc), column.of(intervals.auc[row.id])
        if row.id != METHOD_AVG and value is not None and ends is not None:
            found.append((row.title, value, ends))
    axis = AucAxis.of([v for _, value, ends in found for v in (value, ends.low, ends.high)], WIDTH)
    dots = tuple(_dot(axis, i, *one) for i, one in enumerate(found))
    return IntervalPlot(column.title, ROW * len(dots), axis.x(0.5), axis.x_ticks(), dots)


def _dot(axis: AucAxis, i: int, title: str, value: float, ends: Interval) -> Dot:
    x, low, high = map(axis.x, (value, ends.low, ends.high))
    clear = not ends.low <= 0.5 <= ends.high
    return Dot(title, ROW * (i + 0.5), x, low, high, clear, f"{title}: {value:.3f}, 95% {between(ends)}")


def verdict(result: RunMetrics, intervals: RunIntervals | None) -> str | None:
    """The run in a few words: the best attack, how many are clearly better than guessing, and where."""
    columns = summary_columns(result)
    if not columns:
        return None
    column = columns[-1]
    rows = [r for r in result.rows if r.id != METHOD_AVG and column.of(r.auc) is not None]
    if not rows:
        return None
    best = max(rows, key=lambda r: column.of(r.auc))
    text = f"Best over {column.title}: {best.title}, AUC {two_decimals(column.of(best.auc))}"
    if intervals:
        text += f" (95%: {between(column.of(intervals.auc[best.id]))})"
        directions = _directions(intervals, rows, column)
        text += (
            f". Of {len(rows)} attacks {directions.count(1)} are clearly better than guessing there"
            f"{f', {directions.count(-1)} clearly point the wrong way' if -1 in directions else ''}"
        )
        counts = [f"{c.title} {_directions(intervals, rows, c).count(1)}" for c in columns[:-1]]
        text += f" ({', '.join(counts)})" if counts else ""
    groups = [c for c in result.columns if c.level == ("domain" if result.run.tree else "subset")]
    where = [(c.of(r.auc), r.title, c.title) for r in rows for c in groups if c.of(r.auc) is not None]
    if where and len({c for _, _, c in where}) > 1:
        value, attack, group = max(where)
        text += f". Strongest on one domain: {attack} on {group}, {value:.2f}"
    return text + "."


def _directions(intervals: RunIntervals, rows: Sequence[Row], column: Column) -> list[int]:
    """Of each attack with an interval: 1 above chance, -1 below, 0 where chance is inside."""
    found = [column.of(intervals.auc[row.id]) for row in rows]
    return [int(ends.low > 0.5) - int(ends.high < 0.5) for ends in found if ends is not None]
