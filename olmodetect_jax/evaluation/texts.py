"""A user's own texts one by one: each text's score under every attack, and the share of the reference above it."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.aggregate import mean_of_present
from olmodetect_jax.evaluation.formatting import ABSENT, printable, share
from olmodetect_jax.evaluation.runs import TEXTS, Run
from olmodetect_jax.records import MEMBER

LABELS = {MEMBER: "member", 0: "non-member", None: ""}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet take a cell for a formula


@dataclass(frozen=True)
class TextRow:
    """One text.

    Attributes:
        record_id: its id.
        label: 1 member, 0 non-member, None unknown.
        n_tokens: tokens of the whole text; None where the score file does not say.
        scores: one an attack; None where there is none.
        shares: one an attack: share of the reference's texts that score at least as high; None where there is none.
        mean_share: mean of the shares that are there; None if none is.
    """

    record_id: str
    label: int | None
    n_tokens: int | None
    scores: tuple[float | None, ...]
    shares: tuple[float | None, ...]
    mean_share: float | None


@dataclass(frozen=True)
class TextTable:
    """All texts of a run: likeliest members first with a reference, else in the file's order.

    Attributes:
        attacks: attack ids, in the run's order.
        titles: the attacks'.
        rows: the texts.
        n_reference: one an attack: how many texts of the reference have a score; empty without a reference.
    """

    attacks: tuple[str, ...]
    titles: tuple[str, ...]
    rows: tuple[TextRow, ...]
    n_reference: tuple[int, ...]

    @property
    def title(self) -> str:
        """Heading of the table."""
        return "Texts against the reference" if self.n_reference else "Texts"

    @property
    def explanation(self) -> str:
        """What the numbers mean, in a few words."""
        if not self.n_reference:
            return (
                "Scores; higher means more likely a member. How high a text scores that the model has not seen is not "
                "known here: give such texts with --reference (and another --out)."
            )
        return (
            f"Share of the {max(self.n_reference)} reference texts that score at least as high. Small means: scores "
            "like a text the model was trained on; under each attack 1 in 20 unseen texts gets 0.05 or less. "
            "The share is only as good as the reference is alike in kind and length."
        )

    def cells(self, row: TextRow) -> tuple[str, ...]:
        """The row's shares as printed, one an attack; its scores if there is no reference."""
        if self.n_reference:
            return tuple(map(share, row.shares, self.n_reference))
        return tuple(ABSENT if value is None else f"{value:.3g}" for value in row.scores)


def text_table(run: Run) -> TextTable | None:
    """The texts of a run of a user's own texts; None for a benchmark.

    Raises:
        DataError: two attacks' score files are not about the same records in the same order.
    """
    if run.tree is not None:
        return None
    columns = [run.scores[attack][TEXTS] for attack in run.attacks]
    for attack, column in zip(run.attacks, columns, strict=True):
        if [(s.record_id, s.label) for s in column] != [(s.record_id, s.label) for s in columns[0]]:
            raise DataError(f"{run.path}: the score files of {run.attacks[0]} and {attack} hold different records")
    rows = []
    for lines in zip(*columns, strict=True):
        shares = tuple(s.reference_share for s in lines)
        scores = tuple(s.value for s in lines)
        first = lines[0]
        rows.append(TextRow(first.record_id, first.label, first.n_tokens, scores, shares, mean_of_present(shares)))
    rows.sort(key=lambda row: (row.mean_share is None, row.mean_share))
    n_reference = tuple(sum(s.value is not None for s in run.reference[attack]) for attack in run.reference)
    return TextTable(run.attacks, tuple(map(run.attack_title, run.attacks)), tuple(rows), n_reference)


def texts_csv(table: TextTable) -> str:
    """All texts as CSV, unrounded, in the table's order."""
    file = io.StringIO(newline="")
    # Quoting every string keeps an id with a line end in its cell.
    writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    pairs = [f"{attack}_{what}" for attack in table.attacks for what in ("score", "share")]
    writer.writerow(["record_id", "label", "n_tokens", *pairs])
    for row in table.rows:
        values = [value for pair in zip(row.scores, row.shares, strict=True) for value in pair]
        writer.writerow([_no_formula(row.record_id), LABELS[row.label], row.n_tokens, *values])
    return file.getvalue()


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def print_texts(table: TextTable, console: Console, shown: int = 20) -> None:
    """Prints the first texts and what the numbers mean."""
    console.print(Text(table.title))
    grid = Table()
    grid.add_column("Record", overflow="fold", min_width=10)
    for heading in ("Tokens", *table.titles):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in table.rows[:shown]:
        tokens = ABSENT if row.n_tokens is None else str(row.n_tokens)
        grid.add_row(Text(printable(row.record_id)), tokens, *table.cells(row))  # Text: an id is never read as markup
    console.print(grid)
    if len(table.rows) > shown:
        console.print(Text(f"… {len(table.rows) - shown} more in tables/texts.csv"))
    console.print(Text(table.explanation, style="dim"))
