"""The report's tables of the supervised attacks: their AUC by setting, and FSD's gains over its base scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.evaluation.aggregate import Column
from olmodetect_jax.evaluation.formatting import ABSENT, signed, two_decimals
from olmodetect_jax.evaluation.supervised import (
    SETTING_TITLES,
    GainRow,
    SupervisedRow,
    SupervisedTable,
)
from olmodetect_jax.report.cells import Cell

FULL = 0.1  # gain of full colour


@dataclass(frozen=True)
class SettingTable:
    """A heat table of rows in settings.

    Attributes:
        groups: the upper line of headings as (title, number of columns).
        headings: of the columns.
        rows: (attack or base score, setting, cells).
    """

    groups: tuple[tuple[str, int], ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class SupervisedSection:
    """Both tables, either of which may have no rows; the gain of full colour as printed; what to know about them."""

    aucs: SettingTable
    gains: SettingTable
    full: str
    notes: tuple[str, ...]


def supervised_section(table: SupervisedTable, groups: Sequence[tuple[str, Sequence[Column]]]) -> SupervisedSection:
    """The section of a run.

    Args:
        table: of the run.
        groups: headings and columns of the run's AUC table.
    """
    columns = [column for _, group in groups for column in group]
    spans = tuple((title, len(group)) for title, group in groups)
    headings = tuple("Mean" if column.level == "stage" else column.title for column in columns)
    # What a gain over All is to be held against stands before it; that of the other columns is in their hints.
    own = [column for column in columns if column.level == "all"]
    return SupervisedSection(
        aucs=SettingTable(
            spans,
            headings,
            tuple((r.title, SETTING_TITLES[r.setting], tuple(_auc_cell(r, c) for c in columns)) for r in table.rows),
        ),
        gains=SettingTable(
            (*(("", 1) for _ in own), *spans),
            (*("Base AUC" for _ in own), *headings),
            tuple(
                (
                    gain.title,
                    SETTING_TITLES[gain.setting],
                    (*(_base_cell(gain, c) for c in own), *(_gain_cell(gain, c) for c in columns)),
                )
                for gain in table.gains
            ),
        ),
        full=two_decimals(FULL),
        notes=table.notes,
    )


def _auc_cell(row: SupervisedRow, column: Column) -> Cell:
    auc = column.of(row.auc)
    if auc is None:
        return Cell(ABSENT, None, "missing: not scored, or one class has no score", 0, "low")
    hint = f"{TITLES[row.id]} on {column.title}: {auc:.3f}"
    return Cell(two_decimals(auc), auc, hint, round(200 * abs(auc - 0.5)), "high" if auc >= 0.5 else "low")


def _base_cell(gain: GainRow, column: Column) -> Cell:
    auc = column.of(gain.before)
    return Cell(two_decimals(auc).strip(), auc, "AUC of the base score on the same records", 0, "low")


def _gain_cell(gain: GainRow, column: Column) -> Cell:
    before, after, value = column.of(gain.before), column.of(gain.after), gain.gain(column)
    if before is None or after is None or value is None:
        return Cell(ABSENT, None, "missing: one of the two AUCs is", 0, "low")
    hint = f"{TITLES[gain.id]} on {column.title}: AUC {after:.3f}, base score {before:.3f}"
    heat = min(100, round(100 * abs(value) / FULL))
    return Cell(signed(value), value, hint, heat, "high" if value > 0 else "low")
