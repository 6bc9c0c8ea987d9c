"""Plots of the loss while adapters were trained: one panel an attack and setting, one line an adapter.

Coordinates are as in `plots`: a panel's box is `WIDTH` × `HEIGHT`. Each panel has axes of its own, for the attacks'
losses are different things. A line's colour says what its adapter was trained for, in all panels alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from olmodetect_jax.attacks.supervised import SETTINGS
from olmodetect_jax.evaluation.formatting import ABSENT
from olmodetect_jax.evaluation.supervised import SETTING_TITLES
from olmodetect_jax.evaluation.training import TITLES, Adapter, read_training
from olmodetect_jax.files import write_text
from olmodetect_jax.report.templates import template

FILE_NAME = "training.svg"
WIDTH, HEIGHT = 200, 100
POINTS = 200  # of a line at most: of more steps, each point is the mean of several
_COLUMNS = 3  # of panels in the file

Point = tuple[float, float | None]  # step, from 0 on, and loss


@dataclass(frozen=True)
class LossLine:
    """One adapter's losses: its colour, tooltip, and the SVG points of each part without a gap."""

    index: int
    hint: str
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class LossPanel:
    """The adapters of one attack in one setting; ticks are (place, text)."""

    title: str
    lines: tuple[LossLine, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class TrainingPlot:
    """All panels of a run; what the colours stand for, in their order; the most points of a line."""

    panels: tuple[LossPanel, ...]
    legend: tuple[str, ...]
    points: int = POINTS


def write_training_plot(run: Path) -> Path | None:
    """Writes the panels of a run as one self-contained `training.svg` into its folder.

    Returns:
        The file; None if nothing was trained there.

    Raises:
        DataError: the run's `training.json` cannot be used.
    """
    adapters = read_training(run)
    if not adapters:
        return None
    plot = training_plot(adapters)
    rows, legend_rows = (math.ceil(len(part) / _COLUMNS) for part in (plot.panels, plot.legend))
    svg = template("training.svg.j2").render(plot=plot, columns=_COLUMNS, rows=rows, legend_rows=legend_rows)
    write_text(run / FILE_NAME, svg)
    return run / FILE_NAME


def training_plot(adapters: Sequence[Adapter]) -> TrainingPlot:
    """The panels, attack by attack and setting by setting."""
    legend = tuple(dict.fromkeys(adapter.trained_for for adapter in adapters))
    colours = {name: index for index, name in enumerate(legend)}
    panels = []
    for attack, title in TITLES.items():
        for setting in SETTINGS:
            shown = [a for a in adapters if (a.attack, a.setting) == (attack, setting)]
            if shown:
                panels.append(_panel(f"{title}, {SETTING_TITLES[setting]}", shown, colours))
    return TrainingPlot(tuple(panels), legend)


def _panel(title: str, adapters: Sequence[Adapter], colours: Mapping[str, int]) -> LossPanel:
    curves = [_points(adapter.losses) for adapter in adapters]
    known = [loss for curve in curves for _, loss in curve if loss is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    last = max(max(adapter.steps for adapter in adapters) - 1, 1)
    lines = []
    for adapter, curve in zip(adapters, curves, strict=True):
        pieces = (
            _piece([(WIDTH * step / last, HEIGHT * _share_below(high, loss, low)) for step, loss in piece])
            for there, piece in groupby(curve, lambda point: point[1] is not None)
            if there
        )
        lines.append(LossLine(colours[adapter.trained_for], _hint(adapter), tuple(pieces)))
    ends = ((float(HEIGHT), f"{low:.3g}"), (0.0, f"{high:.3g}")) if known else ()
    return LossPanel(title, tuple(lines), ((0.0, "1"), (float(WIDTH), str(last + 1))), ends)


def _points(losses: Sequence[float | None]) -> list[Point]:
    """The losses, or means of as many neighbouring ones as leave `POINTS`; a hole in a mean is a hole."""
    every = max(1, math.ceil(len(losses) / POINTS))
    points: list[Point] = []
    for start in range(0, len(losses), every):
        part = losses[start : start + every]
        known = [loss / len(part) for loss in part if loss is not None]  # divided first: no sum can overflow
        points.append((start + (len(part) - 1) / 2, math.fsum(known) if len(known) == len(part) else None))
    return points


def _share_below(high: float, loss: float, low: float) -> float:
    """How far below the top a loss stands; halves, for the range of floats itself is no float."""
    return (high / 2 - loss / 2) / (high / 2 - low / 2) if high > low else 0.5


def _piece(points: Sequence[tuple[float, float]]) -> str:
    texts = [f"{x:.1f},{y:.1f}" for x, y in points]
    return " ".join(texts if len(texts) > 1 else texts * 2)  # a point alone: a line of no length has round ends


def _hint(adapter: Adapter) -> str:
    first, last = (
        ABSENT if x is None else f"{x:.3g}" for x in (adapter.losses[:1] + adapter.losses[-1:] or (None, None))
    )
    counts = f"{adapter.n_texts} texts, {adapter.steps} steps of {adapter.batch}"
    return f"{adapter.trained_for}: {counts}, loss {first} → {last}"
