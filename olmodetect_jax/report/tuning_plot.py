"""Plots of what `olmodetect tune` tried, one panel an attack: AUC against the values, the chosen one marked.

Coordinates are as in `plots`: a panel's box is `WIDTH` × `HEIGHT`. All panels of a run have the same AUC axis; values
stand at equal distances.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.evaluation.formatting import ABSENT
from olmodetect_jax.evaluation.tuning import Candidate, TunedAttack, Tuning, read_tuning, shown, tuning_notes
from olmodetect_jax.files import write_text
from olmodetect_jax.report.axis import AucAxis
from olmodetect_jax.report.templates import template

FILE_NAME = "tuning.svg"
WIDTH, HEIGHT = 200, 100
_TICKS = 6  # values that get a label at most
_COLUMNS = 3  # of panels in the file
_WRAP = 125  # characters of a line below them


@dataclass(frozen=True)
class Dot:
    """One candidate: its place, tooltip, and whether it is the chosen one."""

    x: float
    y: float
    hint: str
    chosen: bool


@dataclass(frozen=True)
class Curve:
    """Candidates that differ in the last hyperparameter only.

    Attributes:
        index: place among the curves (colour).
        label: values of the other hyperparameters.
        pieces: SVG points of each part without a gap; none where the values are words.
        dots: the candidates that have an AUC.
    """

    index: int
    label: str
    pieces: tuple[str, ...]
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Panel:
    """The plot of one attack.

    Attributes:
        title: the attack's.
        choice: the chosen values, and whether they are used.
        axis: the hyperparameter along x.
        others: the hyperparameters that tell the curves apart; empty for one curve.
        curves: what is drawn.
        x_ticks: (x, text).
        y_ticks: (y, text).
        chance: y of an AUC of 0.5.
    """

    title: str
    choice: str
    axis: str
    others: str
    curves: tuple[Curve, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    chance: float


@dataclass(frozen=True)
class TuningPlot:
    """All panels of a run, and what to know about them."""

    panels: tuple[Panel, ...]
    notes: tuple[str, ...]


def write_tuning_plot(run: Path) -> Path | None:
    """Writes the panels of a run as one self-contained `tuning.svg` into its folder.

    Returns:
        The file; None if nothing was tuned there.

    Raises:
        DataError: the run's `tuning.json` cannot be used.
    """
    tuning = read_tuning(run)
    if tuning is None:
        return None
    plot = tuning_plot(tuning)
    rows = math.ceil(len(plot.panels) / _COLUMNS)
    lines = [line for note in plot.notes for line in textwrap.wrap(note, _WRAP)]
    svg = template("tuning.svg.j2").render(panels=plot.panels, lines=lines, columns=_COLUMNS, rows=rows)
    write_text(run / FILE_NAME, svg)
    return run / FILE_NAME


def tuning_plot(tuning: Tuning) -> TuningPlot:
    """The panels of all attacks."""
    axis = AucAxis.of((c.auc for attack in tuning.attacks.values() for c in attack.grid if c.auc is not None), HEIGHT)
    panels = tuple(_panel(TITLES[name], attack, axis) for name, attack in tuning.attacks.items())
    return TuningPlot(panels, tuple(tuning_notes(tuning)))


def _panel(title: str, attack: TunedAttack, axis: AucAxis) -> Panel:
    values = list(dict.fromkeys(map(attack.last, attack.grid)))
    x = {value: round((i + 0.5) * WIDTH / len(values), 1) for i, value in enumerate(values)}
    curves = []
    for index, (before, line) in enumerate(attack.lines().items()):
        drawn = [
            (x[attack.last(c)], None if c.auc is None else axis.y(c.auc), c, place == attack.chosen)
            for place, c in line
        ]
        dots = tuple(Dot(at, y, _hint(c), chosen) for at, y, c, chosen in drawn if y is not None)
        pieces = (
            " ".join(f"{at},{y}" for at, y, *_ in piece)
            for there, piece in groupby(drawn, lambda point: point[1] is not None)
            if there and not any(isinstance(value, str) for value in values)
        )
        curves.append(Curve(index, ", ".join(map(shown, before)), tuple(pieces), dots))
    every = math.ceil(len(values) / _TICKS)
    return Panel(
        title=title,
        choice=_choice(attack),
        axis=attack.names[-1],
        others=", ".join(attack.names[:-1]),
        curves=tuple(curves),
        x_ticks=tuple((x[value], shown(value)) for value in values[::every]),
        y_ticks=axis.ticks(),
        chance=axis.y(0.5),
    )


def _choice(attack: TunedAttack) -> str:
    if attack.chosen is None:
        return ABSENT
    values = ", ".join(map(shown, attack.grid[attack.chosen].values.values()))
    return values + ("" if attack.used else ", not used") + (", shipped" if attack.shipped else "")


def _hint(candidate: Candidate) -> str:
    values = ", ".join(f"{name}={shown(value)}" for name, value in candidate.values.items())
    return f"{values}: AUC {candidate.auc:.3f}"
