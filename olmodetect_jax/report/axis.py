"""The AUC axis of a plot: its ends are round numbers, and guessing is always on it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEP = 0.05  # what the ends are multiples of
_NEAR = 12  # labels nearer to each other would overlap


@dataclass(frozen=True)
class AucAxis:
    """From `low` at the bottom, y = `height`, to `high` at the top, y = 0."""

    low: float
    high: float
    height: float

    @staticmethod
    def of(aucs: Iterable[float], height: float) -> AucAxis:
        """The shortest axis on which all the AUCs and 0.5 are."""
        steps = [round(auc / _STEP, 6) for auc in (0.5, *aucs)]
        low, high = math.floor(min(steps)), math.ceil(max(steps))
        return AucAxis(low * _STEP, max(high, low + 1) * _STEP, height)

    def y(self, auc: float) -> float:
        """Where an AUC stands."""
        return round((self.high - auc) / (self.high - self.low) * self.height, 1)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """(y, text) of the ends and of 0.5."""
        chance = self.y(0.5)
        ends = ((float(self.height), f"{self.low:.2f}"), (0.0, f"{self.high:.2f}"))
        return (*(end for end in ends if abs(end[0] - chance) >= _NEAR), (chance, "0.50"))
