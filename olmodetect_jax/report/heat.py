"""The tables of AUC and TPR with colours: attacks by groups of records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from olmodetect_jax.evaluation.aggregate import Column
from olmodetect_jax.evaluation.formatting import ABSENT, two_decimals
from olmodetect_jax.evaluation.intervals import RunIntervals
from olmodetect_jax.evaluation.metrics import LOW_FPR
from olmodetect_jax.evaluation.results import METHOD_AVG, Row, RunMetrics
from olmodetect_jax.report.cells import Cell

Groups = Sequence[tuple[str, Sequence[Column]]]

_METRICS = (("AUC", "auc", 0.5), ("TPR at 5% FPR", "tpr", LOW_FPR))


@dataclass(frozen=True)
class HeatTable:
    """A table of attacks; `groups` is the upper line of headings as (title, number of columns)."""

    title: str
    chance: str
    groups: tuple[tuple[str, int], ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, bool, tuple[Cell, ...]], ...]  # (title, whether it is a mean, cells)


def heat_tables(result: RunMetrics, intervals: RunIntervals | None) -> tuple[HeatTable, ...]:
    """AUC and TPR by every group that has a value."""
    groups = filled_groups(result)
    return tuple(_table(result, groups, *metric, intervals) for metric in _METRICS) if groups else ()


def summary_map(result: RunMetrics, intervals: RunIntervals | None) -> HeatTable | None:
    """AUC by domain, stage and All: what fits a screen; None where that is all of the whole table."""
    if result.run.tree is None:
        return None
    subsets, whole = result.run.tree.subsets, filled_groups(result)
    domain_of = {s.id: s.domain for s in subsets}
    single = {s.id for s in subsets if sum(domain_of[s.id] == other.domain for other in subsets) == 1}
    groups = [(title, [c for c in group if c.level != "subset" or c.id in single]) for title, group in whole]
    groups = [(title, group) for title, group in groups if group]
    if not groups or groups == whole:
        return None
    return _table(result, groups, *_METRICS[0], intervals)


def _table(
    result: RunMetrics, groups: Groups, title: str, metric: str, chance: float, intervals: RunIntervals | None
) -> HeatTable:
    columns = [column for _, group in groups for column in group]
    return HeatTable(
        title=title,
        chance=two_decimals(chance),
        groups=tuple((title, len(group)) for title, group in groups),
        headings=tuple("Mean" if c.level == "stage" else c.title for c in columns),
        rows=tuple(
            (row.title, row.id == METHOD_AVG, tuple(_cell(result, row, metric, c, chance, intervals) for c in columns))
            for row in result.rows
        ),
    )


def filled_groups(result: RunMetrics) -> list[tuple[str, list[Column]]]:
    """The columns in which any attack has an AUC, under their headings."""
    groups = [
        (title, [c for c in group if any(c.of(row.auc) is not None for row in result.rows)])
        for title, group in _column_groups(result)
    ]
    return [(title, group) for title, group in groups if group]


def _column_groups(result: RunMetrics) -> list[tuple[str, list[Column]]]:
    """All, then each stage with its mean, domains and subsets; a domain of one subset is shown once."""
    by_key = {(c.level, c.id): c for c in result.columns}
    tree = result.run.tree
    if tree is None:
        return [("", list(result.columns))]
    groups = [("", [by_key["all", "all"]])]
    for stage, title in tree.stage_titles.items():
        group = [by_key["stage", stage]]
        for domain in dict.fromkeys(s.domain for s in tree.subsets if s.stage == stage):
            subsets = [by_key["subset", s.id] for s in tree.subsets if s.domain == domain]
            group += subsets if len(subsets) == 1 else [by_key["domain", domain], *subsets]
        groups.append((title, group))
    return groups


def _cell(
    result: RunMetrics, row: Row, metric: str, column: Column, chance: float, intervals: RunIntervals | None
) -> Cell:
    value = column.of(getattr(row, metric))
    if value is None:
        return Cell(ABSENT, None, "missing: not scored, or one class has no score", 0, "low")
    heat = round(100 * abs(value - chance) / max(chance, 1 - chance))
    hint = f"{row.title} on {column.title}: {value:.3f}"
    ends = column.of(getattr(intervals, metric)[row.id]) if intervals else None
    if ends:
        hint += f" [{ends.low:.3f}, {ends.high:.3f}]"
    if column.level == "subset" and row.id in result.subsets:
        found = result.subsets[row.id][column.id]
        if metric == "auc" and found.delong_variance is not None:
            hint += f" ± {math.sqrt(found.delong_variance):.3f} (standard error)"
        hint += f", {found.n_member} members, {found.n_non_member} non-members"
    return Cell(two_decimals(value), value, hint, heat, "high" if value >= chance else "low")
