"""`olmodetect score`: a model and records in; one score a record and attack out, with all that is behind it."""

from __future__ import annotations

import platform
import sys
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from olmodetect_jax import __version__
from olmodetect_jax.attacks.base import TITLES, Attack, Score
from olmodetect_jax.attacks.dc_pdd import DcPdd
from olmodetect_jax.attacks.registry import Settings, attack_ids
from olmodetect_jax.attacks.rounds import run_jobs
from olmodetect_jax.benchmark import tree_entry
from olmodetect_jax.commands.inputs import Inputs, attacks_that_can_run, jobs_of, read_inputs
from olmodetect_jax.commands.open_model import OpenModel, open_tokenizer
from olmodetect_jax.commands.options import ScoreOptions, check_options, choices
from olmodetect_jax.commands.run_folder import join_run, records_digest, run_lock, say_holes, write_scores
from olmodetect_jax.commands.settings import generation_facts, say_other_neighbours, settings_of
from olmodetect_jax.commands.training_log import write_training
from olmodetect_jax.commands.training_texts import notes_of, training_digests, training_sets_of
from olmodetect_jax.commands.tuned import load_tuned
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.runs import MANIFEST_FORMAT, REFERENCE, TEXTS
from olmodetect_jax.files import write_json
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import Record

LIBRARIES = (  # whose versions are recorded
    "jax", "flax", "numpy", "scipy", "scikit-learn", "numba", "tokenizers", "transformers", "rapidfuzz", "rouge-score",
    "nltk",
)  # fmt: skip

Scores = Mapping[tuple[str, str], list[Score]]  # by (attack id, subset)


def score(options: ScoreOptions) -> Scores:
    """Scores records under attacks and writes `scores/`, `statistics/` and `manifest.json` below `options.out`.

    Finished batches are kept: the same call after a kill goes on where it was and gives the same bytes.

    Returns:
        One score a record, by (attack id, subset).

    Raises:
        OlmoDetectError: whatever is wrong with the options, the records, the model or the run folder.
    """
    from conversion import model_directory_name
    from olmodetect_jax.benchmark import model_size

    ids = attack_ids(options.attacks, options.setting)
    check_options(options, ids)
    name = model_directory_name(options.model)
    tuned = load_tuned(options.hyperparameters) if options.hyperparameters else None
    protocol, hyperparameters = choices(options.protocol, options.settings, name, tuned)
    inputs = read_inputs(options, options.size or model_size(name))
    records = inputs.records()
    if tuned:
        tuned.refuse_own_texts(r for rs in records.values() for r in rs)
    tokenizer = open_tokenizer(options.model)
    settings = settings_of(options, hyperparameters)
    attacks = attacks_that_can_run(options, settings, inputs, tokenizer, protocol)
    training = training_sets_of(attacks, inputs.groups, inputs.texts, protocol)
    for note in notes_of(training):
        print(f"note: {note}", file=sys.stderr)
    say_other_neighbours(attacks, protocol)
    with run_lock(options.out):
        model = OpenModel(options, tokenizer)
        if tuned:
            tuned.check(model.facts["model"]["weights_digest"], protocol)
        capped = model.capped(protocol)
        manifest = {
            **_about(protocol, settings, attacks, inputs, records),
            "training_records": training_digests(attacks, training),
            "tuned": tuned and tuned.facts(),
            **model.facts,
            **_source(options),
            "limit": options.limit,
            "token_budget": options.token_budget,
            "adapters": options.adapters and str(options.adapters.absolute()),
            "max_tokens_used": capped.max_tokens,
            "window_used": capped.window,
        }
        finished = join_run(options.out / "manifest.json", manifest)
        jobs = jobs_of(attacks, inputs.groups, capped, training)
        scores = _by_subset(inputs, run_jobs(jobs, model.tokenizer, model.engine(protocol.score_dtype)))
        write_training(options.out, model.trained.values())
        shares = _reference_shares(scores, [a.id for a in attacks]) if REFERENCE in records else {}
        for (attack, subset), column in scores.items():
            path = options.out / "scores" / attack / f"{subset}.jsonl"
            write_scores(path, records[subset], column, shares.get(attack) if subset == TEXTS else None)
        write_json(options.out / "manifest.json", finished)
    say_holes(records, scores)
    if REFERENCE in records and not shares:
        raise DataError(
            f"{options.out}: no text of the reference has a score to compare with, under "
            f"{', '.join(TITLES[a.id] for a in attacks)}; the lines above and the score files say why"
        )
    if all(s.missing for (_, subset), column in scores.items() if subset != REFERENCE for s in column):
        raise DataError(f"{options.out}: no record has a score; the score files say why")
    return scores


def _by_subset(inputs: Inputs, scores: Scores) -> dict[tuple[str, str], list[Score]]:
    """The scores of a group that holds two subsets (own texts and their reference), apart."""
    apart: dict[tuple[str, str], list[Score]] = {}
    for (attack, name), column in scores.items():
        for record, value in zip(inputs.groups[name].records, column, strict=True):
            apart.setdefault((attack, record.subset), []).append(value)
    return apart


def _source(options: ScoreOptions) -> dict[str, Any]:
    if options.benchmark is None:
        given = {name: getattr(options, name) for name in ("texts", "reference", "dev")}
        files = {name: path and str(path.absolute()) for name, path in given.items()}
        return {"benchmark": None, **files, "split": None, "variant": None}
    benchmark = {"path": str(options.benchmark.absolute()), "tree": tree_entry(options.benchmark)}
    return {"benchmark": benchmark, "texts": None, "split": options.split, "variant": options.variant}


def _about(
    protocol: Protocol,
    settings: Settings,
    attacks: Sequence[Attack],
    inputs: Inputs,
    records: Mapping[str, Sequence[Record]],
) -> dict[str, Any]:
    """What the manifest says of the choices, the attacks and the records."""
    table = next((a.table.facts() for a in attacks if isinstance(a, DcPdd)), None)
    return {
        "format": MANIFEST_FORMAT,
        "command": "score",
        "version": __version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "records": {name: records_digest(rs) for name, rs in records.items()},
        "record_counts": {name: len(rs) for name, rs in records.items()},
        "dev_records": {name: records_digest(group.dev) for name, group in inputs.groups.items()},
        "protocol": {"preset": protocol.preset, "fields": protocol.fields(), "changed": protocol.changed()},
        "hyperparameters": dict(settings.hyperparameters),
        "em_mia_limit": settings.em_mia_limit,
        "frequencies": table and {"path": str(settings.frequencies.absolute()), **table},
        "generation": generation_facts(attacks, settings),
        "attacks": [a.id for a in attacks],
        "subsets": [name for name in records if name != REFERENCE],
        "libraries": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "zlib": _zlib_build(),
    }


def _zlib_build() -> dict[str, str]:
    """Zlib's lengths, and with them its scores, depend on the build: a run does not go on with another."""
    builds = {"zlib": zlib.ZLIB_RUNTIME_VERSION, "zlib-ng": getattr(zlib, "ZLIBNG_VERSION", None)}
    return {name: build for name, build in builds.items() if build}


def _reference_shares(scores: Scores, attacks: Sequence[str]) -> dict[str, list[float | None]]:
    """For each text, the share of the reference's non-members that score at least as high; None without a score."""
    shares = {}
    for attack in attacks:
        reference = [s.value for s in scores[attack, REFERENCE] if s.missing is None]
        if not reference:
            print(f"note: {TITLES[attack]}: no text of the reference has a score to compare with", file=sys.stderr)
            continue
        shares[attack] = [
            None if s.missing else sum(r >= s.value for r in reference) / len(reference) for s in scores[attack, TEXTS]
        ]
    return shares
