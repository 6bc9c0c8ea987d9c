"""The report's table of what each protocol field does to each attack's AUC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from olmodetect_jax.evaluation.formatting import two_decimals
from olmodetect_jax.evaluation.protocols import Change, ProtocolComparison
from olmodetect_jax.report.cells import Cell

FULL = 0.1  # difference of full colour


@dataclass(frozen=True)
class ProtocolTable:
    """A heat table of differences.

    Attributes:
        full: difference from which on the colour is full, as printed.
        headings: the attacks' titles.
        preset: the run's.
        own: the run's own AUCs, as printed.
        rows: (field, other value, the run's value, presets that have the other value, cells).
    """

    full: str
    headings: tuple[str, ...]
    preset: str
    own: tuple[str, ...]
    rows: tuple[tuple[str, str, str, str, tuple[Cell, ...]], ...]


def protocol_table(comparison: ProtocolComparison, title_of: Callable[[str], str]) -> ProtocolTable:
    """The table of a comparison.

    Args:
        comparison: of one run.
        title_of: an attack's title by its id.
    """
    headings = {attack: title_of(attack) for attack in comparison.attacks}
    return ProtocolTable(
        full=two_decimals(FULL),
        headings=tuple(headings.values()),
        preset=comparison.preset,
        own=tuple(two_decimals(comparison.auc[attack]).strip() for attack in comparison.attacks),
        rows=tuple(
            (
                change.field,
                str(change.value),
                str(comparison.fields[change.field]),
                ", ".join(change.presets),
                tuple(_cell(comparison, change, attack, title) for attack, title in headings.items()),
            )
            for change in comparison.changes
        ),
    )


def _cell(comparison: ProtocolComparison, change: Change, attack: str, title: str) -> Cell:
    difference = comparison.difference(change, attack)
    if attack not in change.auc:
        hint = ""
    elif difference is None:
        hint = f"{title} with {change.title}: no AUC"
    else:
        hint = f"{title} with {change.title}: AUC {change.auc[attack]:.3f} instead of {comparison.auc[attack]:.3f}"
    distance = difference or 0.0
    heat = min(100, round(100 * abs(distance) / FULL))
    return Cell(comparison.cell(change, attack), difference, hint, heat, "high" if distance > 0 else "low")
