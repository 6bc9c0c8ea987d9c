"""The AUC axis of a plot: its ends are round numbers, and guessing is always on it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEP = 0.05  # what the ends are multiples of
_TALL, _WIDE = 12, 30  # labels nearer to each other than this would overlap: one above the other, side by side


@dataclass(frozen=True)
class AucAxis:
    """From `low` at the bottom, y = `height`, to `high` at the top, y = 0; lying, from x = 0 to x = `height`."""

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

    def x(self, auc: float) -> float:
        """Where an AUC stands on the lying axis."""
        return round(self.height - self.y(auc), 1)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """(y, text) of the ends and of 0.5."""
        return self._ticks(_TALL)

    def x_ticks(self) -> tuple[tuple[float, str], ...]:
        """(x, text) of the ends and of 0.5 on the lying axis."""
        return tuple((round(self.height - y, 1), text) for y, text in self._ticks(_WIDE))

    def _ticks(self, near: float) -> tuple[tuple[float, str], ...]:
        chance = self.y(0.5)
        ends = ((float(self.height), f"{self.low:.2f}"), (0.0, f"{self.high:.2f}"))
        return (*(end for end in ends if abs(end[0] - chance) >= near), (chance, "0.50"))
