"""What `olmodetect tune` tried and chose: its file `tuning.json`, read and shown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation.formatting import ABSENT, printable
from olmodetect_jax.evaluation.json_fields import Field, read_fields
from olmodetect_jax.protocol import PRESETS, Protocol, load_protocol

FILE_NAME = "tuning.json"
FORMAT = 1

Value = float | int | str


@dataclass(frozen=True)
class Candidate:
    """Values that were tried.

    Attributes:
        values: hyperparameter to value.
        auc: AUC over the pooled development texts; None if a class has no score left.
        non_finite: scores that were no finite numbers.
    """

    values: Mapping[str, Value]
    auc: float | None
    non_finite: int


@dataclass(frozen=True)
class TunedAttack:
    """The grid of one attack.

    Attributes:
        names: its hyperparameters.
        grid: every combination that was tried; the values of the last name run fastest.
        chosen: the best one's place in the grid; None if none has an AUC.
        used: whether its values are used: not where the protocol keeps them fixed.
        shipped: members and non-members on which it was chosen before this run; None if it was chosen in it.
    """

    names: tuple[str, ...]
    grid: tuple[Candidate, ...]
    chosen: int | None
    used: bool
    shipped: tuple[int, int] | None = None

    def lines(self) -> dict[tuple[Value, ...], list[tuple[int, Candidate]]]:
        """The candidates and their places in the grid, by the values of every name but the last."""
        lines: dict[tuple[Value, ...], list[tuple[int, Candidate]]] = {}
        for place, candidate in enumerate(self.grid):
            *before, _ = candidate.values.values()
            lines.setdefault(tuple(before), []).append((place, candidate))
        return lines

    def last(self, candidate: Candidate) -> Value:
        """The candidate's value of the last name, which runs fastest."""
        return candidate.values[self.names[-1]]


@dataclass(frozen=True)
class Tuning:
    """What tuning found.

    Attributes:
        protocol: under which the development texts were scored.
        n_member: development members.
        n_non_member: development non-members.
        attacks: attack id to its grid.
    """

    protocol: Protocol
    n_member: int
    n_non_member: int
    attacks: Mapping[str, TunedAttack]


def shown(value: Value) -> str:
    """A hyperparameter's value as it is printed."""
    return printable(value) if isinstance(value, str) else f"{value:g}"


def read_tuning(run: Path) -> Tuning | None:
    """Reads what `olmodetect tune` left in a run folder; None if it left nothing.

    Raises:
        DataError: the file is no such one; names file and field.
    """
    file = read_fields(run / FILE_NAME, FORMAT)
    if file is None:
        return None
    attacks = {name: _attack(field) for name, field in file["attacks"].fields().items()}
    for name in attacks:
        if name not in TITLES:
            raise DataError(f"{file.path}: field attacks: unknown value {name!r}; allowed are: {', '.join(TITLES)}")
    return Tuning(_protocol(file["protocol"]), file["n_member"].count(), file["n_non_member"].count(), attacks)


def _protocol(field: Field) -> Protocol:
    preset = field["preset"].text(PRESETS)
    changed = {name: value.setting() for name, value in field["changed"].fields().items()}
    try:
        return load_protocol(preset, changed)
    except UsageError as error:
        raise DataError(f"{field.path}: field {field.name}.changed: {error}") from None


def _attack(field: Field) -> TunedAttack:
    grid = tuple(map(_candidate, field["grid"].elements()))
    if not grid:
        raise field["grid"].error("at least one candidate")
    names = tuple(grid[0].values)
    for element, candidate in zip(field["grid"].elements(), grid, strict=True):
        if not names or tuple(candidate.values) != names:
            raise element["values"].error(f"values of {', '.join(names) or 'a hyperparameter'}")
    chosen, place = field["chosen"].value, None
    if chosen is not None:
        place = next((i for i, c in enumerate(grid) if c.values == chosen and c.auc is not None), None)
        if place is None:
            raise field["chosen"].error("null, or the values of a candidate that has an AUC")
    used = field["used"].flag()
    if used and place is None:
        raise field["used"].error("false where nothing is chosen")
    counts = field["shipped"] if "shipped" in field.fields() else None
    shipped = counts and (counts["n_member"].count(), counts["n_non_member"].count())
    return TunedAttack(names, grid, place, used, shipped)


def _candidate(field: Field) -> Candidate:
    values = {name: value.setting() for name, value in field["values"].fields().items()}
    return Candidate(values, field["auc"].auc(), field["non_finite"].count())


def print_tuning(tuning: Tuning, console: Console) -> None:
    """Prints every grid with its AUCs and the choice, then what to know about it."""
    console.print(Text("Chosen on development texts", style="bold"))
    table = Table()
    table.add_column("Attack", no_wrap=True)
    table.add_column("Tried")
    table.add_column(Text("Value→AUC, [chosen]"))
    table.add_column("Used", no_wrap=True)
    for name, attack in tuning.attacks.items():
        title, used = TITLES[name], ("yes" if attack.used else "no") + (", shipped" if attack.shipped else "")
        for before, line in attack.lines().items():
            fixed = [f"{name}={shown(value)}" for name, value in zip(attack.names, before, strict=False)]
            tried = Text(printable(", ".join([*fixed, attack.names[-1]])))
            table.add_row(title, tried, _line(attack, line), used)
            title = used = ""
        table.add_section()
    console.print(table)
    for note in tuning_notes(tuning):
        console.print(Padding(Text(note), (0, 0, 0, 2)))


def _line(attack: TunedAttack, line: list[tuple[int, Candidate]]) -> Text:
    text = Text()
    for place, candidate in line:
        auc = ABSENT if candidate.auc is None else f"{candidate.auc:.2f}"
        entry = f"{shown(attack.last(candidate))}→{auc}"
        if place == attack.chosen:
            text.append(f"[{entry}]", style="bold")
        else:
            text.append(entry)
        text.append(" ")
    text.rstrip()
    return text


def tuning_notes(tuning: Tuning) -> list[str]:
    """What a reader must know about the choice: on how many texts it was made, and what stands in its way."""
    of_attacks = (note for name in tuning.attacks for note in _notes(tuning, name))
    return [*_number_of_texts(tuning), *_shipped(tuning), *of_attacks]


def _shipped(tuning: Tuning) -> Iterator[str]:
    titles: dict[tuple[int, int], list[str]] = {}
    for name, attack in tuning.attacks.items():
        if attack.shipped:
            titles.setdefault(attack.shipped, []).append(TITLES[name])
    for (n, m), names in titles.items():
        yield f"{', '.join(names)}: chosen when the sample was made, on {n} members and {m} non-members, and shipped."


def _number_of_texts(tuning: Tuning) -> Iterator[str]:
    n, m = tuning.n_member, tuning.n_non_member
    yield f"Each AUC is over the development texts of all subsets together: {n} members and {m} non-members."
    if n and m:
        error = math.sqrt((n + m + 1) / (12 * n * m))  # of the Mann-Whitney statistic where nothing tells them apart
        yield (
            "On few texts the choice is noisy: with so many, the AUC of mere guessing has a standard error of "
            f"{error:.2f}, and smaller differences may be chance."
        )


def _notes(tuning: Tuning, name: str) -> Iterator[str]:
    attack, title = tuning.attacks[name], TITLES[name]
    if attack.chosen is None:
        yield f"{title}: no value has an AUC, so none is chosen."
    elif not attack.used:
        yield f"{title}: the choice is shown but not used: the protocol keeps the value fixed (min_k_choice=fixed)."
    counts = [
        f"{c.non_finite} at {', '.join(f'{name}={shown(value)}' for name, value in c.values.items())}"
        for c in attack.grid
        if c.non_finite
    ]
    if counts:
        filled = tuning.protocol.tuning_non_finite == "fill" and name in ("min_k", "min_k_plus_plus")
        how = "filled by 0 or a million" if filled else "left out"
        yield f"{title}: scores that were no finite numbers are {how}: {'; '.join(counts)}."
