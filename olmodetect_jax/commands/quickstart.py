"""`olmodetect quickstart`: the embedded model and benchmark, scored, evaluated and reported in one go."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from olmodetect_jax import sample
from olmodetect_jax.attacks.hyperparameters import search_space
from olmodetect_jax.attacks.registry import attack_ids
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.commands.score import score
from olmodetect_jax.commands.tune import tune
from olmodetect_jax.commands.tuned import FILE_NAME

EM_MIA_LIMIT = 20  # records of each class that EMMIA compares with each other, unless all are asked for


def quickstart(out: Path, *, attacks: str = "all", limit: int | None = None, full: bool = False) -> Path:
    """Chooses hyperparameters on the sample's development texts, scores its test texts and prints the table.

    Args:
        out: the run folder to make or to go on with.
        attacks: attack ids, or `all`.
        limit: records of each class and subset; None for all.
        full: EMMIA compares all records, not the first 20 of each class only.

    Returns:
        The report's path.
    """
    from rich.console import Console

    from olmodetect_jax.evaluation.tables import evaluate, print_tables, write_tables
    from olmodetect_jax.report.page import write_report
    from olmodetect_jax.report.tuning_plot import write_tuning_plot

    options = ScoreOptions(
        model=sample.model_directory(),
        benchmark=sample.benchmark_directory(),
        out=out,
        attacks=attacks,
        limit=limit,
        em_mia_limit=None if full else EM_MIA_LIMIT,
    )
    if any(search_space(name) for name in attack_ids(attacks)):
        tuning = tune(options)
        write_tuning_plot(out)
        chosen = ", ".join(f"{name}={value}" for name, value in tuning.values.items())
        print(f"chosen on {tuning.n_member} + {tuning.n_non_member} development texts: {chosen}")
        options = dataclasses.replace(options, hyperparameters=out / FILE_NAME)
    score(options)
    results = evaluate([out])
    for metrics in results:
        write_tables(metrics, out)
    print_tables(results, Console())
    report = out / "report.html"
    write_report([out], report)
    return report
