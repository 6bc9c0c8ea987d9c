"""`olmodetect quickstart`: the embedded model and benchmark, scored, evaluated and reported in one go."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

from olmodetect_jax import sample
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.hyperparameters import search_space
from olmodetect_jax.attacks.registry import attack_ids
from olmodetect_jax.attacks.supervised import row_id
from olmodetect_jax.commands.budget import budget
from olmodetect_jax.commands.estimate import estimated_minutes
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.commands.score import score
from olmodetect_jax.commands.shipped import NEW_TOKENS, read_shipped
from olmodetect_jax.commands.tune import tune
from olmodetect_jax.commands.tuned import FILE_NAME

SETTINGS = "in-domain,lodo"  # of the supervised attacks, as in the paper's table of them
MIA_TUNER, SUP_CAMIA = ([row_id(a, s) for s in SETTINGS.split(",")] for a in ("mia_tuner", "sup_camia"))

# Records of each class that the slowest attacks take, unless all are asked for.
EM_MIA_LIMIT = 20  # every text is compared with every other
GENERATION_LIMIT = 10  # what follows a text is generated token by token
EPOCHS = "mia_tuner_epochs=20"  # of the published 50, for the same reason


def quickstart(out: Path, *, attacks: str = "unsupervised", limit: int | None = None, full: bool = False) -> Path:
    """Chooses hyperparameters on the sample's development texts, scores its test texts and prints the table.

    Those of the generative attacks are not chosen here: the sample brings them, with their grids.

    Args:
        out: the run folder to make or to go on with.
        attacks: attack ids, families, or `all`, `unsupervised`, `supervised`; supervised attacks run in-domain and
            with one domain left out.
        limit: records of each class and subset; None for all.
        full: EMMIA and the generative attacks take all records, not the first 20 and 10 of each class only, and
            MIA-Tuner trains 50 epochs, not 20.

    Returns:
        The report's path.
    """
    from rich.console import Console

    from olmodetect_jax.commands.evaluate import evaluate_runs
    from olmodetect_jax.commands.report import report_runs
    from olmodetect_jax.evaluation.tables import print_tables
    from olmodetect_jax.report.budget_plot import write_budget_plot
    from olmodetect_jax.report.training_plot import write_training_plot
    from olmodetect_jax.report.tuning_plot import write_tuning_plot

    ids = attack_ids(attacks, SETTINGS)
    if limit is None and not full:
        print(f"about {math.ceil(estimated_minutes(ids))} minutes on this machine, if it has nothing else to do")
    options = ScoreOptions(
        model=sample.model_directory(),
        benchmark=sample.benchmark_directory(),
        out=out,
        attacks=",".join(ids),
        settings=NEW_TOKENS if full or not any(row in ids for row in MIA_TUNER) else (*NEW_TOKENS, EPOCHS),
        limit=limit,
        em_mia_limit=None if full else EM_MIA_LIMIT,
        generation_limit=None if full else GENERATION_LIMIT,
    )
    tuned = [name for name in ids if search_space(name)]
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
    write_training_plot(out)
    if any(row in ids for row in SUP_CAMIA):
        budget(out)
        write_budget_plot(out)
    print_tables(*evaluate_runs([out]), Console())
    report = out / "report.html"
    report_runs([out], report)
    return report


def _listed(values: Mapping[str, float | int | str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
