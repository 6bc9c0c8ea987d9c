"""`olmodetect tune`: one value an attack and model, by AUC over the pooled development split."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.base import TITLES, Group, Score
from olmodetect_jax.attacks.hyperparameters import Hyperparameters, fallback, search_space
from olmodetect_jax.attacks.registry import Settings, attack_ids, build_attacks
from olmodetect_jax.attacks.rounds import AnswerRequests, Job, run_jobs
from olmodetect_jax.commands.inputs import read_dev
from olmodetect_jax.commands.open_model import OpenModel, open_tokenizer
from olmodetect_jax.commands.options import ScoreOptions, check_options, choices
from olmodetect_jax.commands.rerun import (
    dev_of,
    manifest_of,
    options_of,
    require_same_model,
    require_same_texts,
)
from olmodetect_jax.commands.run_folder import run_lock
from olmodetect_jax.commands.settings import settings_of
from olmodetect_jax.commands.shipped import Shipped
from olmodetect_jax.commands.tuned import FILE_NAME, Tuned
from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation.selection import Choice, choose
from olmodetect_jax.evaluation.tuning import FILE_NAME as TUNING
from olmodetect_jax.files import write_json
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER
from olmodetect_jax.tokenization import Tokenizer


@dataclass(frozen=True)
class Tuning:
    """What tuning found.

    Attributes:
        curves: attack id to the candidates that were tried; a candidate's value is its (name, value) pairs.
        values: the hyperparameters that were chosen, here or for the shipped attacks, and are to be used.
        n_member: development members.
        n_non_member: development non-members.
    """

    curves: Mapping[str, Choice]
    values: Hyperparameters
    n_member: int
    n_non_member: int


def tune_run(run: Path, *, attacks: str | None = None, mesh: str | None = None) -> Tuning:
    """Chooses hyperparameters for the model and the benchmark of a run, into its folder.

    Args:
        run: folder of a run on a benchmark.
        attacks: attack ids separated by commas, or `all`; None for the run's own.
        mesh: as for `score`.

    Raises:
        OlmoDetectError: the run, its model or its benchmark cannot be used.
    """
    manifest = manifest_of(run)
    ids = attack_ids(attacks) if attacks else tuple(manifest["attacks"])
    options = options_of(run, manifest, attacks=ids, mesh=mesh)
    return tune(options, manifest)


def tune(options: ScoreOptions, manifest: Mapping[str, Any] | None = None, shipped: Shipped | None = None) -> Tuning:
    """Chooses hyperparameters on the development split of a benchmark.

    Writes `hyperparameters.yaml`, which `score --hyperparameters` reads, and `tuning.json` with the whole grid below
    `options.out`; answers are kept in `statistics/` there, so a killed run goes on where it was.

    Args:
        options: as for `score`.
        manifest: of the run that is gone on from, whose model and texts must be the same; None for none.
        shipped: what was chosen before for some attacks, on the whole development split; it is taken over.

    Raises:
        OlmoDetectError: whatever is wrong with the options, the records, the model or the run folder.
    """
    from conversion import model_directory_name
    from olmodetect_jax.benchmark import model_size

    ids = [name for name in attack_ids(options.attacks) if search_space(name)]
    if not ids:
        raise UsageError(f"--attacks {options.attacks}: these have no hyperparameter to choose")
    check_options(options, ids)
    name = model_directory_name(options.model)
    protocol, hyperparameters = choices(options.protocol, options.settings, name, None)
    groups = read_dev(options, options.size or model_size(name))
    tokenizer = open_tokenizer(options.model)
    settings = settings_of(options, hyperparameters)
    known = {name: shipped.attacks[name] for name in ids if name in shipped.attacks} if shipped else {}
    if options.em_mia_limit or options.generation_limit:
        print("note: tuning takes all development records, whatever the limits of the run", file=sys.stderr)
    with run_lock(options.out):
        model = OpenModel(options, tokenizer)
        if manifest:
            require_same_model(options.out, manifest, model.facts["model"]["weights_digest"])
            if manifest["variant"] == "matched":
                require_same_texts(options.out, manifest["dev_records"], dev_of(groups))
        answer = model.engine(protocol.score_dtype)
        own = [name for name in ids if name not in known]
        curves = tune_attacks(own, settings, groups, model.capped(protocol), model.tokenizer, answer)
        records = [r for group in groups.values() for r in group.records]
        values = chosen_values(curves, protocol)
        weights = model.facts["model"]["weights_digest"]
        texts = frozenset(r.text_sha1 for r in records if r.text)
        if known:
            shipped.require(weights, {"preset": protocol.preset, "changed": protocol.changed()})
            values |= shipped.values(known)
            whole = read_dev(dataclasses.replace(options, limit=None), model.facts["model"]["size"])
            texts |= {r.text_sha1 for group in whole.values() for r in group.records if r.text}
        tuning = Tuning(
            curves,
            values,
            sum(r.label == MEMBER for r in records),
            sum(r.label == NON_MEMBER for r in records),
        )
        found = _json(tuning, protocol)
        found["attacks"] = {name: known.get(name) or found["attacks"][name] for name in ids}
        write_json(options.out / TUNING, {**found, "subsets": list(groups), "limit": options.limit})
        Tuned(tuning.values, weights, protocol.fields(), texts, options.out / FILE_NAME).save()
    return tuning


def tune_attacks(
    ids: Sequence[str],
    settings: Settings,
    groups: Mapping[str, Group],
    protocol: Protocol,
    tokenizer: Tokenizer,
    answer: AnswerRequests,
) -> dict[str, Choice]:
    """Runs every candidate of every attack on the development groups and chooses.

    Args:
        ids: attacks with a search space.
        settings: what attacks are made from; a candidate's values replace its hyperparameters, and its limits, meant
            for the records of a run, do not count.
        groups: development records by subset.
        protocol: already capped by the model's context.
        tokenizer: the model's.
        answer: the engine's.
    """
    # Each base score of EMMIA is judged for itself, also where the test is to report the best of four.
    one_base = dataclasses.replace(protocol, em_mia_choice="dev")
    settings = dataclasses.replace(settings, em_mia_limit=None, generation_limit=None)
    jobs = {}
    for name in ids:
        for values in search_space(name):
            candidate = dataclasses.replace(settings, hyperparameters={**settings.hyperparameters, **values})
            (attack,) = build_attacks([name], candidate)
            for subset, group in groups.items():
                jobs[name, tuple(values.items()), subset] = Job(attack, group, one_base)
    scores = run_jobs(jobs, tokenizer, answer)
    curves = {}
    for name in ids:
        grid = {}
        for values in search_space(name):
            key = tuple(values.items())
            grid[key] = _classes(groups, {subset: scores[name, key, subset] for subset in groups})
        rule = protocol.tuning_non_finite if name in ("min_k", "min_k_plus_plus") else "drop"
        curves[name] = choose(grid, rule=rule, what=TITLES[name])
    return curves


def _classes(groups: Mapping[str, Group], scores: Mapping[str, Sequence[Score]]) -> tuple[list[float], list[float]]:
    """The pooled scores of both classes; records that an attack leaves out by choice are none of them."""
    by_label: dict[int | None, list[float]] = {MEMBER: [], NON_MEMBER: []}
    for subset, group in groups.items():
        for record, score in zip(group.records, scores[subset], strict=True):
            if not score.left_out:
                by_label[record.label].append(score.value)
    return by_label[MEMBER], by_label[NON_MEMBER]


def chosen_values(curves: Mapping[str, Choice], protocol: Protocol) -> dict[str, Any]:
    """The hyperparameters that tuning sets, by name; the released tuners' fallbacks where no score was finite."""
    values: dict[str, Any] = {}
    for attack, choice in curves.items():
        if choice.best is None:
            values |= fallback(attack)
            print(
                f"note: {TITLES[attack]}: no development score to choose by; taken: {fallback(attack)}", file=sys.stderr
            )
        elif _is_used(attack, choice, protocol):
            values |= dict(choice.best)
    return values


def _is_used(attack: str, choice: Choice, protocol: Protocol) -> bool:
    """Whether a choice is used: not where there is none, nor for a fixed k."""
    fixed = attack in ("min_k", "min_k_plus_plus") and protocol.min_k_choice == "fixed"
    return choice.best is not None and not fixed


def _json(tuning: Tuning, protocol: Protocol) -> dict[str, Any]:
    attacks = {
        attack: {
            "chosen": None if choice.best is None else dict(choice.best),
            "used": _is_used(attack, choice, protocol),
            "grid": [
                {"values": dict(c.value), "auc": None if c.auc != c.auc else c.auc, "non_finite": c.non_finite}
                for c in choice.curve
            ],
        }
        for attack, choice in tuning.curves.items()
    }
    return {
        "format": 1,
        "protocol": {"preset": protocol.preset, "changed": protocol.changed()},
        "n_member": tuning.n_member,
        "n_non_member": tuning.n_non_member,
        "attacks": attacks,
    }
