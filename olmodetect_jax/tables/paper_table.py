"""One table of the paper as data: what a cell holds, what was published, and why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from olmodetect_jax.evaluation.formatting import ABSENT, signed, two_decimals
from olmodetect_jax.evaluation.intervals import Interval


@dataclass(frozen=True)
class TableCell:
    """One cell.

    Attributes:
        value: unrounded, or words; None where `refused` says why.
        text: as the paper prints it.
        published: the paper's value, where the table is held against it.
        interval: 95%, where the value has one.
        refused: why there is no value; None if there is one. A cell is never blank without a reason.
        mark: what follows the value: a dagger.
    """

    value: float | str | None
    text: str
    published: float | str | None = None
    interval: Interval | None = None
    refused: str | None = None
    mark: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus the published value; None where one of them is no number."""
        both = self.value, self.published
        return None if any(not isinstance(v, (int, float)) for v in both) else both[0] - both[1]  # type: ignore[operator]

    @property
    def inside(self) -> bool | None:
        """Whether the published value lies in our interval, ends widened by the half unit that rounding hides."""
        if self.interval is None or not isinstance(self.published, (int, float)):
            return None
        return self.interval.low - 0.005 <= self.published <= self.interval.high + 0.005


@dataclass(frozen=True)
class TableRow:
    """One line: its labels under the table's `heads`, then the cells."""

    labels: tuple[str, ...]
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class PaperTable:
    """A table.

    Attributes:
        number: in the paper.
        part: of a table that has two, what tells the second from the first; else empty.
        title: of what it shows.
        heads: headings of the labels.
        columns: of the cells: (heading,), or (group, heading).
        rows: each with a label a head and a cell a column.
        notes: what a reader must know.
    """

    number: int
    title: str
    heads: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    part: str = ""

    @property
    def name(self) -> str:
        """Of its files: table_04, table_05_fsd."""
        return f"table_{self.number:02}" + (f"_{self.part}" if self.part else "")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why cells have no value, each reason once."""
        return tuple(dict.fromkeys(c.refused for row in self.rows for c in row.cells if c.refused))

    @property
    def supported(self) -> bool:
        """Whether any cell has a value."""
        return any(cell.refused is None for row in self.rows for cell in row.cells)

    @property
    def against(self) -> bool:
        """Whether any cell is held against a published one."""
        return any(cell.published is not None for row in self.rows for cell in row.cells)


def number_cell(
    value: float | None,
    reason: str,
    *,
    published: float | str | None = None,
    interval: Interval | None = None,
    difference: bool = False,
    mark: str = "",
) -> TableCell:
    """A cell of two decimals.

    Args:
        value: None if there is none.
        reason: why, then.
        published: the paper's.
        interval: of the value.
        difference: whether the sign is shown.
        mark: what follows it.
    """
    if value is None:
        return TableCell(None, ABSENT, published, None, reason)
    text = (signed(value) if difference else two_decimals(value)) + mark
    return TableCell(value, text, published, interval, None, mark)
