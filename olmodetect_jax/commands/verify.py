"""`olmodetect verify`: what can be said of a benchmark without a model, as tables and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from olmodetect_jax.commands.index import open_any
from olmodetect_jax.construction.index.base import NgramIndex
from olmodetect_jax.construction.overlap import OverlapMeasure
from olmodetect_jax.construction.verification.copies import copies
from olmodetect_jax.construction.verification.verify import Count, Measure, Verification, verify
from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import write_json, write_text
from olmodetect_jax.report.verification_page import Table, tables, write_page
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.tokenization import Tokenizer

PAGE, FACTS = "verification.html", "verification.json"
_N, _MEMORY_GB = 13, 1.0


def verify_benchmark(benchmark: Path, *, tokenizer: Path, out: Path | None, indices: Sequence[Path]) -> str:
    """Verifies a benchmark and writes what was found.

    Args:
        benchmark: its folder.
        tokenizer: folder of the tokenizer.json.
        out: folder to write to; None for one in the working directory, named after the benchmark.
        indices: of what the model was trained on, to measure overlap anew.

    Returns:
        The tables as text.

    Raises:
        OlmoDetectError: a file of the benchmark or an index cannot be used.
    """
    out = out or Path(f"{benchmark.name}.verified")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder")
    used = Tokenizer(tokenizer)
    with progress("Verifying", 1, unit="benchmarks") as advance:
        opened = {str(path): open_any(path, used, n=_N, memory_gb=_MEMORY_GB) for path in indices}
        measure, count = (_measure(opened, used), _count(opened, used)) if opened else (None, None)
        found = verify(benchmark, encode=used.bare_ids, measure=measure, count=count)
        advance(1)
    made = tables(found)
    write_json(out / FACTS, found.as_json())
    for table in made:
        write_text(out / f"{table.id}.csv", _csv(table))
    write_text(out / "verification.md", "\n\n".join(_markdown(table) for table in made) + "\n")
    settings = [("tokenizer", used.digest[:12]), ("indices", ", ".join(p.name for p in indices) or "none")]
    write_page(found, out / PAGE, settings=settings)
    return "\n\n".join([*map(_text, made), _conclusion(found), f"{out / PAGE}: tables and plots"])


def _count(opened: Mapping[str, NgramIndex], tokenizer: Tokenizer) -> Count:
    return lambda texts: copies(tokenizer.bare_ids(texts), list(opened.values()), _N)


def _measure(opened: Mapping[str, NgramIndex], tokenizer: Tokenizer) -> Measure:
    # A threshold above 1 gives no text up, so that each share is exact.
    overlap = OverlapMeasure(opened, {"all": dict.fromkeys(opened, 1)}, n=_N, threshold=2.0)

    def measure(texts: Sequence[str]) -> list[float]:
        measured = overlap.measure(tokenizer.bare_ids(texts), ["all"], short_text="zero")
        return [m.by_size["all"].eta for m in measured]

    return measure


def _conclusion(found: Verification) -> str:
    apart = [
        f"{name} ({variant}): {b.auc:.2f}"
        for (name, variant), b in found.blind.items()
        if abs(b.auc - 0.5) > 3 * b.standard_error
    ]
    lines = [f"{len(found.leaks)} warnings"] if found.leaks else ["no warnings"]
    if apart:
        lines.append(f"words alone tell the classes apart, or were matched too well: {', '.join(apart)}")
    return "; ".join([*lines, *found.notes])


def _csv(table: Table) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([table.headings, *table.rows])
    return file.getvalue()


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"

    return "\n".join(
        [f"## {table.title}", "", line(table.headings), line(["---"] * len(table.headings)), *map(line, table.rows)]
    )


def _text(table: Table) -> str:
    """Columns side by side, the first to the left."""
    rows = [table.headings, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.headings))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([table.title, *lines])
