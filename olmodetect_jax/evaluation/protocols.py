"""What each field of the protocol does to each attack's AUC: the file `protocols.json`, read and shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.evaluation.formatting import ABSENT, printable, signed, two_decimals
from olmodetect_jax.evaluation.json_fields import Field, read_fields
from olmodetect_jax.protocol import PRESETS

FILE_NAME = "protocols.json"
FORMAT = 1


@dataclass(frozen=True)
class Change:
    """One field with another value than the run's.

    Attributes:
        field: the protocol's.
        value: the other value.
        presets: those that have it.
        auc: AUC of the attacks that the field bears on; None where there is none.
    """

    field: str
    value: float | int | str
    presets: tuple[str, ...]
    auc: Mapping[str, float | None]

    @property
    def title(self) -> str:
        """The field and its value."""
        return printable(f"{self.field} = {self.value}")


@dataclass(frozen=True)
class ProtocolComparison:
    """A run under its own protocol and under others that differ in one field.

    Attributes:
        preset: the run's.
        fields: every field with the run's value.
        attacks: attack ids in the run's order.
        auc: the run's own AUC over All, or the mean over its subsets if it has some only; None where there is none.
        changes: the others.
    """

    preset: str
    fields: Mapping[str, float | int | str]
    attacks: tuple[str, ...]
    auc: Mapping[str, float | None]
    changes: tuple[Change, ...]

    def difference(self, change: Change, attack: str) -> float | None:
        """AUC under a change minus the run's own; None where one of them is missing."""
        own, other = self.auc[attack], change.auc.get(attack)
        return None if own is None or other is None else other - own

    def cell(self, change: Change, attack: str) -> str:
        """The difference as printed; blank where the field does not bear on the attack."""
        difference = self.difference(change, attack)
        if attack not in change.auc:
            return ""
        return ABSENT if difference is None else signed(difference)


def read_protocols(run: Path) -> ProtocolComparison | None:
    """Reads what `olmodetect report --compare-protocols` left in a run folder; None if it left nothing.

    Raises:
        DataError: the file is no such one; names file and field.
    """
    file = read_fields(run / FILE_NAME, FORMAT)
    if file is None:
        return None
    attacks = tuple(attack.text(TITLES) for attack in file["attacks"].elements())
    fields = {name: field.setting() for name, field in file["fields"].fields().items()}
    return ProtocolComparison(
        preset=file["preset"].text(PRESETS),
        fields=fields,
        attacks=attacks,
        auc={attack: file["auc"][attack].auc() for attack in attacks},
        changes=tuple(_change(row, fields, attacks) for row in file["rows"].elements()),
    )


def _change(row: Field, fields: Mapping[str, object], attacks: Sequence[str]) -> Change:
    aucs = row["auc"].fields()
    if not set(aucs) <= set(attacks):
        raise row["auc"].error(f"the AUCs of some of {', '.join(attacks)}")
    return Change(
        field=row["field"].text(fields),
        value=row["value"].setting(),
        presets=tuple(preset.text(PRESETS) for preset in row["presets"].elements()),
        auc={attack: auc.auc() for attack, auc in aucs.items()},
    )


def print_protocols(comparison: ProtocolComparison, console: Console, titles: Mapping[str, str] = TITLES) -> None:
    """Prints the differences, in as many tables one below the other as the width asks for.

    Args:
        comparison: to be shown.
        console: where to.
        titles: of the attacks.
    """
    console.print(Text("What each protocol field does to the AUC", style="bold"))
    own = f"this run ({comparison.preset})"
    first = max(map(len, [own, *(change.title for change in comparison.changes)]))
    for attacks in _blocks(comparison.attacks, titles, console.width - first - 4):
        table = Table()
        table.add_column("Field", no_wrap=True)
        for attack in attacks:
            table.add_column(titles[attack], justify="right", max_width=_width(titles[attack]))
        table.add_row(own, *(two_decimals(comparison.auc[attack]) for attack in attacks))
        table.add_section()
        for change in comparison.changes:
            cells = [comparison.cell(change, attack) for attack in attacks]
            if any(cells):
                table.add_row(Text(change.title), *cells)
        console.print(table)
    console.print(Text("AUC with one field changed, minus the run's own. Blank: no part of the attack.", style="dim"))


def _blocks(attacks: Sequence[str], titles: Mapping[str, str], room: int) -> Iterator[list[str]]:
    """The attacks in parts that fit side by side."""
    block: list[str] = []
    left = room
    for attack in attacks:
        needed = _width(titles[attack]) + 3
        if block and needed > left:
            yield block
            block, left = [], room
        block.append(attack)
        left -= needed
    if block:
        yield block


def _width(title: str) -> int:
    """Of a column whose heading is broken between words."""
    return max(5, *map(len, title.split()))
