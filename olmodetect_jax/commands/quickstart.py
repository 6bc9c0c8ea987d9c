"""`olmodetect quickstart`: the embedded model and benchmark, scored, evaluated and reported in one go."""

from __future__ import annotations

from pathlib import Path

from olmodetect_jax import sample
from olmodetect_jax.commands.score import ScoreOptions, score


def quickstart(out: Path, *, attacks: str = "all", limit: int | None = None) -> Path:
    """Runs the main job on the sample and prints the table.

    Args:
        out: the run folder to make or to go on with.
        attacks: attack ids, or `all`.
        limit: records of each class and subset; None for all.

    Returns:
        The report's path.
    """
    from rich.console import Console

    from olmodetect_jax.evaluation.tables import evaluate, print_tables, write_tables
    from olmodetect_jax.report.page import write_report

    score(
        ScoreOptions(
            model=sample.model_directory(),
            benchmark=sample.benchmark_directory(),
            out=out,
            attacks=attacks,
            limit=limit,
        )
    )
    results = evaluate([out])
    for metrics in results:
        write_tables(metrics, out)
    print_tables(results, Console())
    report = out / "report.html"
    write_report([out], report)
    return report
