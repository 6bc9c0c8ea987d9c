"""Runs against the paper: tables by stage, the differences, and whether published values are in our intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation.results import RunMetrics
from olmodetect_jax.tables.paper_table import PaperTable
from olmodetect_jax.tables.score_tables import score_tables
from olmodetect_jax.tables.study import study_of
from olmodetect_jax.tables.write import legend, shown

SHOWN = (4, 50)


@dataclass(frozen=True)
class PublishedTable:
    """A table as the page shows it: a cell is its text and whether the published value is inside (None: unknown)."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, bool | None], ...]], ...]
    notes: tuple[str, ...]


def published_tables(results: Sequence[RunMetrics], n_resamples: int) -> tuple[PublishedTable, ...]:
    """The paper's overall tables with ours.

    Args:
        results: of runs on the paper's benchmark.
        n_resamples: of the intervals.

    Raises:
        UsageError: the runs do not go together, or are of another benchmark.
    """
    study = study_of(results, n_resamples=n_resamples)
    if not study.is_papers:
        raise UsageError(f"--against paper: these runs are of {study.tree.title}, of which nothing is published")
    return tuple(_table(t) for t in score_tables(study, against_paper=True) if t.number in SHOWN)


def _table(table: PaperTable) -> PublishedTable:
    rows = tuple((row.labels[0], tuple((shown(table, cell), cell.inside) for cell in row.cells)) for row in table.rows)
    headings = tuple(" ".join(column) for column in table.columns)
    return PublishedTable(f"Table {table.number}. {table.title}", headings, rows, tuple(legend(table)))
