"""`olmodetect evaluate`: every metric of runs, with intervals, written into their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from olmodetect_jax.evaluation.comparisons import attack_pairs
from olmodetect_jax.evaluation.intervals import N_RESAMPLES, Bootstrap, bootstrap, check_resamples
from olmodetect_jax.evaluation.results import RunMetrics, evaluate
from olmodetect_jax.evaluation.tables import write_pairs, write_tables
from olmodetect_jax.runtime.progress import progress


def evaluate_runs(runs: Sequence[Path], n_resamples: int = N_RESAMPLES) -> tuple[list[RunMetrics], Bootstrap | None]:
    """Evaluates runs and writes their tables.

    Args:
        runs: run folders.
        n_resamples: of the bootstrap; 0 for no intervals.

    Raises:
        UsageError: too few resamples.
        DataError: a folder that is no run, or a score file that cannot be used.
    """
    if n_resamples:
        check_resamples(n_resamples)
    results = evaluate(runs)
    found = None
    if n_resamples:
        with progress("Bootstrap", len({s for r in results for s in r.run.subsets}), unit="subsets") as advance:
            found = bootstrap(results, n_resamples=n_resamples, advance=advance)
    for i, (metrics, path) in enumerate(zip(results, runs, strict=True)):
        write_tables(metrics, path, found.runs[i] if found else None)
        pairs = attack_pairs(metrics.rows, found.draws[i]) if found else ()
        if pairs:
            write_pairs(pairs, path / "tables" / "attack_pairs.csv")
    return results, found
