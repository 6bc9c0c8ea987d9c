"""Choosing a hyperparameter on development scores: the first largest AUC in the grid's order (likelihood spec, 10)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from olmodetect_jax.evaluation.metrics import ClassScores, Floats, auc

Rule = Literal["drop", "fill"]

FILLED_INFINITY = 1e6  # of the released MinK and MinK++ tuner, whose NaN becomes 0: the most member-like value


@dataclass(frozen=True)
class Candidate:
    """One value of the grid.

    Attributes:
        value: the hyperparameter.
        auc: its AUC on the development scores; NaN if a class has no score left.
        non_finite: scores that were no finite numbers: left out, or filled.
    """

    value: Hashable
    auc: float
    non_finite: int


@dataclass(frozen=True)
class Choice:
    """The outcome over a grid.

    Attributes:
        best: the chosen value; None if no candidate has an AUC.
        curve: every candidate in the grid's order.
    """

    best: Hashable | None
    curve: tuple[Candidate, ...]


def choose(
    grid: Mapping[Hashable, tuple[Sequence[float], Sequence[float]]], *, rule: Rule = "drop", what: str = "scores"
) -> Choice:
    """Chooses the first value with the largest AUC.

    Args:
        grid: value to (member scores, non-member scores) of the pooled development split, in the order that decides
            between equals.
        rule: non-finite scores are dropped, or filled (NaN by 0, an infinity by a million of its sign).
        what: what the scores are of, for messages.
    """
    curve = tuple(_candidate(value, classes, rule, what) for value, classes in grid.items())
    with_auc = [c for c in curve if not math.isnan(c.auc)]
    best = max(with_auc, key=lambda c: c.auc).value if with_auc else None  # max keeps the first of equals
    return Choice(best, curve)


def _candidate(value: Hashable, classes: tuple[Sequence[float], Sequence[float]], rule: Rule, what: str) -> Candidate:
    member, non_member = (np.asarray(scores, np.float64) for scores in classes)
    non_finite = sum(int(np.sum(~np.isfinite(scores))) for scores in (member, non_member))
    member, non_member = (_finite(scores, rule) for scores in (member, non_member))
    if not len(member) or not len(non_member):
        return Candidate(value, math.nan, non_finite)
    return Candidate(value, auc(ClassScores(member, non_member, f"{what} at {value}")), non_finite)


def _finite(scores: Floats, rule: Rule) -> Floats:
    if rule == "fill":
        return np.nan_to_num(scores, nan=0.0, posinf=FILLED_INFINITY, neginf=-FILLED_INFINITY)
    return scores[np.isfinite(scores)]
