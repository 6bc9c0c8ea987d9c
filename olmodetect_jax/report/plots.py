"""Geometry of the report's plots, ready for the template to draw: it escapes every text, this file makes none of it.

All coordinates are SVG user units with y downwards; a plot's box is `WIDTH` × `HEIGHT` (histogram) or `SIDE` × `SIDE`
(ROC) with its origin in the upper left corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from olmodetect_jax.evaluation.aggregate import Column
from olmodetect_jax.evaluation.metrics import RocCurve
from olmodetect_jax.evaluation.results import aggregate_of
from olmodetect_jax.evaluation.runs import Run

SIDE = 200
WIDTH, HEIGHT = 200, 80
BINS = 24
_TAIL = 0.025  # share of the scores at either end that the outermost bars take in: one outlier of -4128 hides the rest
_GRID = np.linspace(0.0, 1.0, 101)
LOG_FROM = 0.01  # left end of the logarithmic FPR axis
_LOG_GRID = np.geomspace(LOG_FROM, 1.0, 41)


@dataclass(frozen=True)
class Line:
    """One attack's curve in a ROC plot.

    Attributes:
        index: its place among the attacks (colour).
        title: the attack's.
        auc: its AUC.
        points: SVG points.
        log_points: the same with a logarithmic FPR axis, from `LOG_FROM` to 1.
    """

    index: int
    title: str
    auc: float
    points: str
    log_points: str


@dataclass(frozen=True)
class RocPlot:
    """ROC curves of all attacks on one group of records."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Histogram:
    """Scores of one attack on one subset.

    Attributes:
        title: the subset's.
        areas: (class, SVG path), the hindmost first, class a key of `wording.CLASSES`; a bar's height is the share of
            its class, so classes of different size compare.
        low: score at the left edge, as text.
        high: score at the right edge, as text.
        auc: AUC of the subset; None if it has none.
    """

    title: str
    areas: tuple[tuple[str, str], ...]
    low: str
    high: str
    auc: float | None


def roc_line(index: int, title: str, auc: float, curve: RocCurve) -> Line:
    """Places a ROC curve in its box."""
    points = _points(curve.fpr, curve.tpr)
    # Between corners a straight line is none on the logarithmic axis, so it is followed in steps.
    steps = np.unique(np.concatenate([_LOG_GRID, curve.fpr[curve.fpr > LOG_FROM]]))
    logarithmic = 1 - np.log10(steps) / math.log10(LOG_FROM)
    return Line(index, title, auc, points, _points(logarithmic, np.interp(steps, curve.fpr, curve.tpr)))


def chance_on_log_axis() -> str:
    """SVG points of guessing, where TPR is FPR."""
    return _points(1 - np.log10(_LOG_GRID) / math.log10(LOG_FROM), _LOG_GRID)


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    return " ".join(f"{a * SIDE:.1f},{(1 - b) * SIDE:.1f}" for a, b in zip(x, y, strict=True))


def mean_curve(curves: Mapping[str, RocCurve], column: Column, attack: str, run: Run) -> RocCurve:
    """Mean of the subsets' curves at each FPR, with the weights of the table's mean.

    So the area below it is the table's AUC (up to the grid of 101 points), which no curve of pooled scores has.

    Args:
        curves: subset id to curve, for every subset of the group.
        column: the group: a domain, a stage or All.
        attack: attack id.
        run: of a benchmark; says how the attack's subsets make a mean.
    """
    tpr = np.zeros_like(_GRID)
    for subset in run.tree.subsets:
        alone = {s.id: float(s is subset) for s in run.tree.subsets}
        weight = column.of(aggregate_of(run, attack, alone))
        if weight:
            tpr += weight * np.interp(_GRID, curves[subset.id].fpr, curves[subset.id].tpr)
    return RocCurve(np.concatenate([[0.0], _GRID]), np.concatenate([[0.0], tpr]))


def histogram(title: str, groups: Mapping[str, Sequence[float]], auc: float | None) -> Histogram | None:
    """Bins the scores of every class alike; None if there is no score.

    Args:
        title: the subset's.
        groups: class to its finite scores; empty classes are left out.
        auc: AUC to print.
    """
    groups = {name: values for name, values in groups.items() if len(values)}
    if not groups:
        return None
    ordered = np.sort(np.concatenate([np.asarray(values, dtype=np.float64) for values in groups.values()]))
    tail = int(_TAIL * ordered.size)
    low, high = ordered[tail], ordered[-1 - tail]
    shares = {name: _shares(values, low, high) for name, values in groups.items()}
    top = max(float(share.max()) for share in shares.values())
    areas = tuple((name, _area(share / top)) for name, share in shares.items())
    return Histogram(title, areas, f"{low:.3g}", f"{high:.3g}", auc)


def _shares(values: Sequence[float], low: float, high: float) -> NDArray[np.float64]:
    steps = np.linspace(0.0, 1.0, BINS + 1)[1:-1]
    # Weighting both ends cannot overflow, unlike low + step * (high - low). A score on an edge belongs to its right.
    edges = low * (1 - steps) + high * steps
    return np.bincount(np.searchsorted(edges, values, "right"), minlength=BINS) / len(values)


def _area(heights: Iterable[float]) -> str:
    width = WIDTH / BINS
    tops = " ".join(f"V{(1 - h) * HEIGHT:.1f}H{(i + 1) * width:.1f}" for i, h in enumerate(heights))
    return f"M0,{HEIGHT} {tops} V{HEIGHT}Z"
