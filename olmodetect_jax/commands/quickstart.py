"""`olmodetect quickstart`: the embedded model and benchmark, scored, evaluated and reported in one go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from olmodetect_jax import sample
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.hyperparameters import search_space
from olmodetect_jax.attacks.registry import attack_ids
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.commands.score import score
from olmodetect_jax.commands.shipped import NEW_TOKENS, read_shipped
from olmodetect_jax.commands.tune import tune
from olmodetect_jax.commands.tuned import FILE_NAME

# Records of each class that the slowest attacks take, unless all are asked for.
EM_MIA_LIMIT = 20  # every text is compared with every other
GENERATION_LIMIT = 10  # what follows a text is generated token by token


def quickstart(out: Path, *, attacks: str = "unsupervised", limit: int | None = None, full: bool = False) -> Path:
    """Chooses hyperparameters on the sample's development texts, scores its test texts and prints the table.

    Those of the generative attacks are not chosen here: the sample brings them, with their grids.

    Args:
        out: the run folder to make or to go on with.
        attacks: attack ids, families, or `all`, `unsupervised`, `supervised`.
        limit: records of each class and subset; None for all.
        full: EMMIA and the generative attacks take all records, not the first 20 and 10 of each class only.

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
        settings=NEW_TOKENS,
        limit=limit,
        em_mia_limit=None if full else EM_MIA_LIMIT,
        generation_limit=None if full else GENERATION_LIMIT,
    )
    tuned = [name for name in attack_ids(attacks) if search_space(name)]
    if tuned:
        brought = [name for name in tuned if name in GENERATIVE]
        shipped = read_shipped(sample.directory()) if brought else None
        tuning = tune(options, shipped=shipped)
        write_tuning_plot(out)
        known = shipped.values(brought) if shipped else {}
        chosen = {name: value for name, value in tuning.values.items() if name not in known}
        if chosen:
            print(f"chosen on {tuning.n_member} + {tuning.n_non_member} development texts: {_listed(chosen)}")
        if known:
            print(f"chosen when the sample was made: {_listed(known)}")
        options = dataclasses.replace(options, hyperparameters=out / FILE_NAME)
    score(options)
    results = evaluate([out])
    for metrics in results:
        write_tables(metrics, out)
    print_tables(results, Console())
    report = out / "report.html"
    write_report([out], report)
    return report


def _listed(values: Mapping[str, float | int | str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
