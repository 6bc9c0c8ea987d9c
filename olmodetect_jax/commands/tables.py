"""`olmodetect tables`: every table of the paper that the given runs support."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError, UsageError, one_of
from olmodetect_jax.evaluation.intervals import N_RESAMPLES, check_resamples
from olmodetect_jax.evaluation.results import evaluate
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.tables.benchmark_tables import benchmark_tables, member_copies
from olmodetect_jax.tables.catalogue import NUMBERS, lacking
from olmodetect_jax.tables.cross_stage_tables import cross_stage_tables
from olmodetect_jax.tables.paper_table import PaperTable
from olmodetect_jax.tables.score_tables import score_tables
from olmodetect_jax.tables.shift_tables import shift_tables
from olmodetect_jax.tables.study import Study, study_of
from olmodetect_jax.tables.study_tables import study_tables
from olmodetect_jax.tables.supervised_tables import supervised_tables
from olmodetect_jax.tables.write import write_tables


def make_tables(
    runs: Sequence[Path],
    out: Path,
    *,
    verification: Path | None = None,
    against: str | None = None,
    only: Sequence[str] | None = None,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
    resample: str = "prompts",
) -> list[PaperTable]:
    """Makes the tables and writes them; says on standard error which could not be made, and why.

    Args:
        runs: run folders on one benchmark.
        out: folder to write to.
        verification: what `olmodetect verify` found on the benchmark, for the tables of its texts.
        against: `paper` to hold each cell against the published one.
        only: numbers of tables; all if None.
        n_resamples: of the bootstrap; 0 for no intervals and no tables of differences.
        seed: of its draws.
        resample: `prompts` or `texts`: whether the two texts of a DPO prompt are drawn together.

    Returns:
        The tables, by number.

    Raises:
        UsageError: a number that no such table has, runs that do not go together, or an unknown word.
        DataError: a file cannot be used, or a table of `only` cannot be made.
    """
    if against not in (None, "paper"):
        raise one_of("--against", str(against), ["paper"])
    if resample not in ("prompts", "texts"):
        raise one_of("--resample", resample, ["prompts", "texts"])
    wanted = None if only is None else {_number(word) for word in only}
    if wanted == set():
        raise UsageError("--only names no table; leave it out for all")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder")
    if n_resamples:
        check_resamples(n_resamples)
    results = evaluate(runs)
    of_texts = benchmark_tables(verification, against_paper=against is not None) if verification else []
    copies = member_copies(verification) if verification else None
    steps = len({s for r in results for s in r.run.subsets}) if n_resamples else 0
    drawn: dict[str, Any] = {"seed": seed, "together": resample == "prompts"}
    with progress("Bootstrap", steps, unit="subsets") as advance:
        study = study_of(results, n_resamples=n_resamples or None, advance=advance, **drawn)
    if against and not study.is_papers:
        raise UsageError(f"--against paper: these runs are of {study.tree.title}, of which nothing is published")
    compared = against is not None
    tables = [
        *of_texts,
        *score_tables(study, against_paper=compared),
        *supervised_tables(study, against_paper=compared),
        *cross_stage_tables(study, against_paper=compared, copies=copies),
        *(shift_tables(study, against_paper=compared, n_resamples=n_resamples, **drawn) if n_resamples else ()),
        *study_tables(study, against_paper=compared, seed=seed),
    ]
    made = sorted((t for t in tables if t.supported and (wanted is None or t.number in wanted)), key=lambda t: t.number)
    _say_missing(study, tables, wanted)
    write_tables(made, out)
    return made


def _number(word: str) -> int:
    if not word.isdecimal() or int(word) not in NUMBERS:
        raise UsageError(f"--only {word}: no such table; there are {', '.join(map(str, NUMBERS))}")
    return int(word)


def _say_missing(study: Study, tables: Sequence[PaperTable], wanted: set[int] | None) -> None:
    supported = {t.number for t in tables if t.supported}
    gone = [n for n in NUMBERS if n not in supported and (wanted is None or n in wanted)]
    empty = {t.number: t.reasons[0] for t in tables if not t.supported and t.reasons}
    by_reason: dict[str, list[int]] = {}
    for n in gone:
        by_reason.setdefault(empty.get(n) or lacking(n, study), []).append(n)
    lines = [f"{_ranges(numbers)}: {reason}" for reason, numbers in by_reason.items()]
    if lines and wanted is not None:
        raise DataError("these tables cannot be made:\n  " + "\n  ".join(lines))
    for line in lines:
        print(f"not made: {line}", file=sys.stderr)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in a row as `Tables 64-72`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    words = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
    return f"Table{'s' if len(numbers) > 1 else ''} {words}"
