"""One number of a table in the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A number with its colour.

    Attributes:
        text: as printed.
        value: what the table sorts by; None sorts last.
        hint: tooltip.
        heat: distance from what the table compares with (chance, or the run's own) in percent of full colour.
        side: `high` above it, `low` below.
    """

    text: str
    value: float | None
    hint: str
    heat: int
    side: str
