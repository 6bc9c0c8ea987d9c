"""The paper's tables as files and on the terminal; every text is escaped for where it goes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from olmodetect_jax.evaluation.formatting import printable, signed, two_decimals
from olmodetect_jax.files import write_text
from olmodetect_jax.tables.paper_table import PaperTable, TableCell

FORMAT = 1
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "†": r"$^\dagger$", "‡": r"$^\ddagger$", "–": "--",
    "≥": r"$\geq$", "±": r"$\pm$", "✓": r"$\checkmark$", "✗": r"$\times$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#])")


def write_tables(tables: Sequence[PaperTable], folder: Path) -> None:
    """Writes each table as CSV, Markdown, LaTeX and JSON, and all of them in `tables.md`.

    Args:
        tables: to be written.
        folder: where to.
    """
    for table in tables:
        write_text(folder / f"{table.name}.csv", as_csv(table))
        write_text(folder / f"{table.name}.md", as_markdown(table))
        write_text(folder / f"{table.name}.tex", as_latex(table))
        write_text(folder / f"{table.name}.json", json.dumps(as_json(table), ensure_ascii=False, indent=1) + "\n")
    write_text(folder / "tables.md", "\n".join(as_markdown(table) for table in tables))


def as_csv(table: PaperTable) -> str:
    """A line a cell, unrounded: labels, column, value, interval, what was published, or why there is no value."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    ours = ["value", "mark", "low", "high", "published", "difference", "inside", "refused"]
    writer.writerow([*(h.lower().replace(" ", "_") for h in table.heads), "group", "column", *ours])
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            group, heading = column if len(column) == 2 else ("", column[0])
            writer.writerow([*row.labels, group, heading, *_fields(cell).values()])
    return file.getvalue()


def _fields(cell: TableCell) -> dict[str, Any]:
    ends = (cell.interval.low, cell.interval.high) if cell.interval else (None, None)
    inside = None if cell.inside is None else "yes" if cell.inside else "no"
    return {
        "value": cell.value, "mark": cell.mark, "low": ends[0], "high": ends[1], "published": cell.published,
        "difference": cell.difference, "inside": inside, "refused": cell.refused,
    }  # fmt: skip


def as_json(table: PaperTable) -> dict[str, Any]:
    """The whole table as plain values."""
    return {
        "format": FORMAT,
        "table": table.number,
        "part": table.part,
        "title": table.title,
        "heads": list(table.heads),
        "columns": [list(column) for column in table.columns],
        "rows": [
            {"labels": list(r.labels), "cells": [{"text": c.text, **_fields(c)} for c in r.cells]} for r in table.rows
        ],
        "notes": list(table.notes),
    }


def shown(table: PaperTable, cell: TableCell) -> str:
    """A cell's words: as printed, then, in brackets, the published value, ours minus it, and whether it is inside."""
    if cell.refused:
        text = f"refused [{table.reasons.index(cell.refused) + 1}]"
        return text if cell.published is None else f"{text} ({_published(cell)})"
    if cell.published is None:
        return cell.text
    difference = "" if cell.difference is None else f" {signed(cell.difference)}"
    inside = {None: "", True: " ✓", False: " ✗"}[cell.inside]
    return f"{cell.text} ({_published(cell)}{difference}{inside})"


def _published(cell: TableCell) -> str:
    value = cell.published
    return two_decimals(value) if isinstance(value, float) else str(value)


def legend(table: PaperTable) -> list[str]:
    """What stands below a table: its notes, what brackets mean, and why cells were refused."""
    lines = list(table.notes)
    if table.against:
        lines.append(
            "In brackets: published, ours minus published, ✓ if the published value is in our 95% interval, give or "
            "take half a hundredth."
        )
    return [*lines, *(f"[{i}] {reason}" for i, reason in enumerate(table.reasons, 1))]


def as_markdown(table: PaperTable) -> str:
    """A grid under a heading."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_markdown(c) for c in cells) + " |"

    heads = [*table.heads, *(" ".join(column) for column in table.columns)]
    grid = [line(heads), "|" + " --- |" * len(table.heads) + " ---: |" * len(table.columns)]
    grid += [line([*row.labels, *(shown(table, c) for c in row.cells)]) for row in table.rows]
    below = "".join(f"\n{_markdown(text)}\n" for text in legend(table))
    return f"### Table {table.number}. {_markdown(table.title)}\n\n" + "\n".join(grid) + "\n" + below


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", printable(text))


def as_latex(table: PaperTable) -> str:
    """A `table` environment with booktabs rules."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(_latex(c) for c in cells) + r" \\"

    groups = [column[0] if len(column) == 2 else "" for column in table.columns]
    spans: list[tuple[str, int]] = []
    for group in groups:
        if spans and spans[-1][0] == group:
            spans[-1] = (group, spans[-1][1] + 1)
        else:
            spans.append((group, 1))
    rows = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(table.title)}}}"]
    rows += [rf"\begin{{tabular}}{{{'l' * len(table.heads)}{'r' * len(table.columns)}}}", r"\toprule"]
    if any(groups):
        heads = " & ".join(rf"\multicolumn{{{n}}}{{c}}{{{_latex(group)}}}" for group, n in spans)
        rows.append("& " * len(table.heads) + heads + r" \\")
    rows += [line([*table.heads, *(column[-1] for column in table.columns)]), r"\midrule"]
    rows += [line([*row.labels, *(shown(table, c) for c in row.cells)]) for row in table.rows]
    rows += [r"\bottomrule", r"\end{tabular}"]
    rows += [rf"\par\smallskip\footnotesize {_latex(text)}" for text in legend(table)]
    return "\n".join([*rows, r"\end{table}"]) + "\n"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in printable(text))


def print_table(table: PaperTable, console: Console) -> None:
    """Prints a table and what stands below it; one that is wider than the console in parts with the same labels."""
    console.print(Text(f"Table {table.number}. {printable(table.title)}", style="bold"))
    cells = [[shown(table, cell) for cell in row.cells] for row in table.rows]
    for part in _parts(table, cells, console.width):
        grid = Table()
        for head in table.heads:
            grid.add_column(Text(head), overflow="fold")
        for i in part:
            heading = "\n".join(map(printable, table.columns[i]))
            grid.add_column(Text(heading), justify="right", overflow="fold")
        for row, texts in zip(table.rows, cells, strict=True):
            grid.add_row(*(Text(printable(text)) for text in (*row.labels, *(texts[i] for i in part))))
        console.print(grid)
    for text in legend(table):
        console.print(Text(printable(text), style="dim"))


def _parts(table: PaperTable, cells: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Places of columns that fit beside the labels, each part with at least one."""
    border = 3
    by_head = zip(table.heads, *(row.labels for row in table.rows), strict=True)
    labels = sum(max(map(len, words)) + border for words in by_head)
    parts: list[list[int]] = []
    room = 0
    for i, column in enumerate(table.columns):
        needed = max(map(len, (*column, *(row[i] for row in cells)))) + border
        if not parts or needed > room:
            parts.append([])
            room = width - 1 - labels
        parts[-1].append(i)
        room -= needed
    return parts
