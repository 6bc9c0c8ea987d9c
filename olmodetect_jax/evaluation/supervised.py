"""The supervised attacks' own tables: their AUC by setting, and what tuning gains FSD over its base scores.

FSD is judged against the base score it deviates from: AUC(FSD) - AUC(base), the latter over the very records that FSD
scored, each mean taken before the difference (supervised spec 1.1, evaluation spec 6).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.attacks.supervised import FSD_BASES, IN_DOMAIN, LODO, POOLED, SETTINGS, row_id
from olmodetect_jax.benchmark import Tree
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.aggregate import Aggregate, Column, aggregate, model_avg
from olmodetect_jax.evaluation.formatting import ABSENT, printable, signed, two_decimals
from olmodetect_jax.evaluation.runs import Run
from olmodetect_jax.files import write_text
from olmodetect_jax.records import MEMBER, NON_MEMBER

SETTING_TITLES = {IN_DOMAIN: "In-domain", LODO: "LODO", POOLED: "Pooled"}
OUTSIDE_MAIN_TABLE = "min_k_plus_plus"  # computed all the same; the paper shows it in its appendix only


@dataclass(frozen=True)
class SupervisedRow:
    """Sup-CAMIA or MIA-Tuner in one setting: the row's id, the attack's title, its AUC and its TPR."""

    id: str
    title: str
    setting: str
    auc: Aggregate
    tpr: Aggregate


@dataclass(frozen=True)
class GainRow:
    """FSD over one base score in one setting.

    Attributes:
        id: the row's.
        base: id of the base score.
        setting: what was trained on.
        before: AUC of the base score.
        after: AUC of FSD.
        before_tpr: TPR of the base score.
        after_tpr: TPR of FSD.
    """

    id: str
    base: str
    setting: str
    before: Aggregate
    after: Aggregate
    before_tpr: Aggregate
    after_tpr: Aggregate

    @property
    def in_main_table(self) -> bool:
        """Whether the paper's main table has the base score."""
        return self.base != OUTSIDE_MAIN_TABLE

    @property
    def title(self) -> str:
        """The base score's, marked where the paper's main table lacks it."""
        return FSD_BASES[self.base] + ("" if self.in_main_table else "*")

    def gain(self, column: Column) -> float | None:
        """AUC of FSD minus AUC of the base score; None where one of them is missing."""
        return _difference(column.of(self.before), column.of(self.after))

    def gain_tpr(self, column: Column) -> float | None:
        """TPR of FSD minus TPR of the base score; None where one of them is missing."""
        return _difference(column.of(self.before_tpr), column.of(self.after_tpr))


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True)
class SupervisedTable:
    """Both tables of a run.

    Attributes:
        rows: Sup-CAMIA and MIA-Tuner, each in its settings.
        gains: FSD, each base score in its settings.
        notes: what a reader must know about them.
    """

    rows: tuple[SupervisedRow, ...]
    gains: tuple[GainRow, ...]
    notes: tuple[str, ...]


def supervised_table(run: Run, aucs: Mapping[str, Aggregate], tprs: Mapping[str, Aggregate]) -> SupervisedTable | None:
    """The supervised attacks of a run.

    Args:
        run: with its scores.
        aucs: row id to AUC, of all the run's attacks.
        tprs: row id to TPR.

    Returns:
        None where no supervised attack has scored a benchmark.
    """
    if run.tree is None:
        return None
    rows = tuple(
        SupervisedRow(row, TITLES[attack], setting, aucs[row], tprs[row])
        for attack in ("sup_camia", "mia_tuner")
        for setting in SETTINGS
        if (row := row_id(attack, setting)) in aucs
    )
    gains = tuple(
        GainRow(row, base, setting, before, aucs[row], before_tpr, tprs[row])
        for base in FSD_BASES
        for setting in SETTINGS
        if (row := row_id(f"fsd_{base}", setting)) in aucs
        for before, before_tpr in [_base(run, run.tree, row)]
    )
    if not rows and not gains:
        return None
    settings = {row.setting for row in (*rows, *gains)}
    notes = [*_two_sides(run, settings), *(note for gain in gains for note in _without_base(run, gain.id))]
    if not all(gain.in_main_table for gain in gains):
        notes.append(f"* {FSD_BASES[OUTSIDE_MAIN_TABLE]} is left out of the paper's main table.")
    return SupervisedTable(rows, gains, tuple(map(printable, notes)))


def _base(run: Run, tree: Tree, row: str) -> tuple[Aggregate, Aggregate]:
    """AUC and TPR of the base score, over the records that FSD scored; None where one of them has none."""
    aucs: dict[str, float | None] = {}
    tprs: dict[str, float | None] = {}
    for subset, lines in run.scores[row].items():
        pairs = [(s.label, s.base_value) for s in lines if s.value is not None]
        member, non_member = ([value for label, value in pairs if label == side] for side in (MEMBER, NON_MEMBER))
        whole = member and non_member and not any(value is None for _, value in pairs)
        scores = m.ClassScores(member, non_member) if whole else None
        aucs[subset] = scores and m.auc(scores)
        tprs[subset] = scores and m.tpr_at_fpr(m.roc_curve(scores))
    return aggregate(aucs, tree), aggregate(tprs, tree)


def _without_base(run: Run, row: str) -> Iterator[str]:
    for subset, lines in run.scores[row].items():
        scored = [s for s in lines if s.value is not None]
        lacking = sum(s.base_value is None for s in scored)
        if lacking:
            yield f"{row} on {subset}: {lacking} of {len(scored)} scores have no base_score, so there is no gain."


def _two_sides(run: Run, settings: set[str]) -> Iterator[str]:
    """In-domain, each side of a subset has a model of its own, unless whole domains are trained on (spec 3.2)."""
    if IN_DOMAIN not in settings or run.manifest["protocol"]["fields"].get("in_domain_unit") == "domain":
        return
    for subset in run.tree.subsets if run.tree else ():
        if subset.id in run.subsets and len(subset.files) > 1:
            yield (
                f"{subset.title}, in-domain: its {len(subset.files)} sides are pooled into one AUC, though the scores "
                "of each come from what was trained on that side's own development texts."
            )


def mean_over_tables(tables: Sequence[SupervisedTable | None]) -> SupervisedTable | None:
    """Model-Avg of the rows that all runs' tables have; None if there is none. The notes stay with their runs."""
    rows = [{row.id: row for row in table.rows} if table else {} for table in tables]
    gains = [{gain.id: gain for gain in table.gains} if table else {} for table in tables]

    def common(found: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        return [[of[name] for of in found] for name in (found[0] if found else ()) if all(name in of for of in found)]

    def means(of: Sequence[Any], *names: str) -> list[Aggregate]:
        return [model_avg([getattr(row, name) for row in of]) for name in names]

    mean_rows = tuple(
        SupervisedRow(of[0].id, of[0].title, of[0].setting, *means(of, "auc", "tpr")) for of in common(rows)
    )
    mean_gains = tuple(
        GainRow(of[0].id, of[0].base, of[0].setting, *means(of, "before", "after", "before_tpr", "after_tpr"))
        for of in common(gains)
    )
    return SupervisedTable(mean_rows, mean_gains, ()) if mean_rows or mean_gains else None


def write_supervised(table: SupervisedTable, columns: Sequence[Column], run_path: Path) -> None:
    """Writes `tables/supervised.csv` and `tables/fsd_gain.csv`, unrounded; a table without rows is not written.

    The first has a column a group, as `auc.csv` has; the second a line a row and group.
    """
    if table.rows:
        headings = [c.id if c.level == "all" else f"{c.level}:{c.id}" for c in columns]
        lines = [[r.id, r.title, r.setting, *(c.of(r.auc) for c in columns)] for r in table.rows]
        _write_csv(run_path / "tables" / "supervised.csv", ["attack", "title", "setting", *headings], lines)
    if table.gains:
        headings = ["attack", "base", "setting", "main_table", "level", "group", "base_auc", "fsd_auc", "gain"]
        lines = [
            [g.id, g.base, g.setting, int(g.in_main_table), c.level, c.id, c.of(g.before), c.of(g.after), g.gain(c)]
            for g in table.gains
            for c in columns
        ]
        _write_csv(run_path / "tables" / "fsd_gain.csv", headings, lines)


def _write_csv(path: Path, headings: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(lines)
    write_text(path, file.getvalue())


def print_supervised(table: SupervisedTable, columns: Sequence[Column], console: Console) -> None:
    """Prints both tables and the notes.

    Args:
        table: to be shown.
        columns: the groups to show.
        console: where to.
    """
    if table.rows and columns:
        console.print(Text("Supervised attacks by what they were trained on: AUC", style="bold"))
        grid = _grid("Attack", "", columns)
        for row in table.rows:
            cells = (two_decimals(c.of(row.auc)) for c in columns)
            grid.add_row(f"{row.title}, {SETTING_TITLES[row.setting]}", *cells)
        console.print(grid)
    if table.gains and columns:
        console.print(Text("FSD against its base scores", style="bold"))
        grid = _grid("Base score", "\nbase   gain", columns)
        for _, gains in groupby(table.gains, lambda gain: gain.base):
            for gain in gains:
                cells = (f"{two_decimals(c.of(gain.before))}  {_shown(gain.gain(c)):>5}" for c in columns)
                grid.add_row(f"{gain.title}, {SETTING_TITLES[gain.setting]}", *cells)
            grid.add_section()
        console.print(grid)
        console.print(Text("Gain: AUC of FSD minus AUC of the base score on the same records.", style="dim"))
    for note in table.notes:
        console.print(Padding(Text(note), (0, 0, 0, 2)))


def _grid(first: str, below: str, columns: Sequence[Column]) -> Table:
    grid = Table()
    grid.add_column(first, overflow="fold")
    for column in columns:
        grid.add_column(Text(f"{column.title}{below}"), justify="right", no_wrap=True)
    return grid


def _shown(gain: float | None) -> str:
    return ABSENT if gain is None else signed(gain)
