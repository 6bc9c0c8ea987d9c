"""`olmodetect report --compare-protocols`: what each field of the protocol does to each attack's AUC, one at a time."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.base import Score
from olmodetect_jax.attacks.hyperparameters import Hyperparameters, checked, search_space
from olmodetect_jax.attacks.registry import build_attacks
from olmodetect_jax.attacks.rounds import run_jobs
from olmodetect_jax.benchmark import Tree, tree_of
from olmodetect_jax.commands.inputs import jobs_of, read_dev, read_inputs
from olmodetect_jax.commands.open_model import OpenModel, open_tokenizer
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.commands.rerun import (
    dev_of,
    manifest_of,
    options_of,
    require_same_files,
    require_same_model,
    require_same_texts,
    require_same_training,
)
from olmodetect_jax.commands.run_folder import run_lock
from olmodetect_jax.commands.settings import generation_facts, settings_of
from olmodetect_jax.commands.training_texts import training_digests, training_sets_of
from olmodetect_jax.commands.tune import chosen_values, tune_attacks
from olmodetect_jax.errors import OlmoDetectError
from olmodetect_jax.evaluation.aggregate import aggregate, attack_domains, is_representative, mean
from olmodetect_jax.evaluation.metrics import ClassScores, auc
from olmodetect_jax.evaluation.protocols import FILE_NAME
from olmodetect_jax.files import write_json
from olmodetect_jax.protocol import PRESETS, Protocol, alternatives, attacks_of, load_protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record

# These bear on scores through tuning alone: the values are chosen anew under them.
_TUNING_FIELDS = ("tuning_non_finite", "min_k_choice", "dc_pdd_tuning_text", "camia_tuning")


class _Comparison:
    """A run whose attacks can be repeated under other protocols."""

    def __init__(
        self, options: ScoreOptions, manifest: Mapping[str, Any], hyperparameters: Hyperparameters, protocol: Protocol
    ):
        self.tree: Tree = tree_of(options.benchmark)
        self._settings = settings_of(options, hyperparameters)
        attacks = build_attacks(manifest["attacks"], self._settings)
        require_same_files(options.out, manifest["generation"], generation_facts(attacks, self._settings))
        self._model = OpenModel(options, open_tokenizer(options.model))
        require_same_model(options.out, manifest, self._model.facts["model"]["weights_digest"])
        size = self._model.facts["model"]["size"]
        inputs = read_inputs(options, size)
        require_same_texts(options.out, manifest["records"], inputs.records())
        require_same_texts(options.out, manifest["dev_records"], dev_of(inputs.groups))
        self._groups, self._texts = inputs.groups, inputs.texts
        training = training_sets_of(attacks, self._groups, self._texts, protocol)
        require_same_training(options.out, manifest, training_digests(attacks, training))
        self._dev = read_dev(options, size) if manifest.get("tuned") else {}
        self._engines: dict[str, Any] = {}

    def aucs(self, attacks: Sequence[str], protocol: Protocol, *, tune: bool = False) -> dict[str, float | None]:
        """AUC over All of each attack; None where a subset has none.

        Args:
            attacks: ids.
            protocol: not yet capped.
            tune: whether to choose the hyperparameters anew under it.
        """
        settings, answer = self._settings, self._engine(protocol.score_dtype)
        capped = self._model.capped(protocol)
        if tune:
            ids = [name for name in attacks if search_space(name)]
            curves = tune_attacks(ids, settings, self._dev, capped, self._model.tokenizer, answer)
            values = {**settings.hyperparameters, **chosen_values(curves, protocol)}
            settings = dataclasses.replace(settings, hyperparameters=values)
        made = build_attacks(attacks, settings)
        training = training_sets_of(made, self._groups, self._texts, protocol)
        jobs = jobs_of(made, self._groups, capped, training)
        scores = run_jobs(jobs, self._model.tokenizer, answer)
        return {name: self._over_all(name, scores, protocol) for name in attacks}

    def _engine(self, score_dtype: str) -> Any:
        if score_dtype not in self._engines:
            self._engines[score_dtype] = self._model.engine(score_dtype)
        return self._engines[score_dtype]

    def _over_all(self, attack: str, scores: Mapping[tuple[str, str], list[Score]], protocol: Protocol) -> float | None:
        groups, alone = self._groups, is_representative(attack, protocol.lodo_subsets)
        by_id = {s.id: s for s in self.tree.subsets}
        values = {
            name: _auc(
                [
                    (record, score)
                    for record, score in zip(group.records, scores[attack, name], strict=True)
                    if not alone or by_id[name].stands_for_domain(record.side, self.tree.size_pairs)
                ]
            )
            for name, group in groups.items()
            if (attack, name) in scores
        }
        if len(groups) < len(self.tree.subsets):  # a run of some subsets has no All: their plain mean instead
            return mean(values.values())
        return aggregate(values, self.tree, domains=attack_domains(attack, self.tree), representative=alone).all


def compare_protocols(run: Path, *, mesh: str | None = None) -> None:
    """Repeats a run with one field of its protocol changed at a time; writes `protocols.json` into its folder.

    Answers are kept with the run's own, so that what a field does not touch is not computed again.

    Args:
        run: folder of a run on a benchmark with a development split.
        mesh: as for `score`.

    Raises:
        OlmoDetectError: the run, its model or its benchmark cannot be used.
    """
    manifest = manifest_of(run)
    options = options_of(run, manifest, attacks=manifest["attacks"], mesh=mesh)
    hyperparameters = {name: checked(name, value) for name, value in manifest["hyperparameters"].items()}
    overrides = manifest["protocol"]["changed"]
    protocol = load_protocol(manifest["protocol"]["preset"], overrides)
    attacks = manifest["attacks"]
    tuned = manifest.get("tuned")
    if not tuned:
        print(
            f"left out: {', '.join(_TUNING_FIELDS)}: they bear on tuning, and the run's hyperparameters were not tuned "
            "(`olmodetect tune`, then `olmodetect score --hyperparameters`)",
            file=sys.stderr,
        )
    with run_lock(run):
        comparison = _Comparison(options, manifest, hyperparameters, protocol)
        own = comparison.aucs(attacks, protocol)
        rows = []
        for field, value in protocol.fields().items():
            if field in _TUNING_FIELDS and not tuned:
                continue
            touched = [name for name in attacks if name in attacks_of(field) or not attacks_of(field)]
            for other in alternatives(field):
                if other == value or not touched:
                    continue
                print(f"{field} = {other}", file=sys.stderr)
                changed = dataclasses.replace(protocol, **{field: other})
                try:
                    aucs = comparison.aucs(touched, changed, tune=field in _TUNING_FIELDS)
                except (
                    OlmoDetectError
                ) as error:  # it refuses these records, or does not go with the run's other choices
                    print(f"{field} = {other}: {error}", file=sys.stderr)
                    aucs = dict.fromkeys(touched)
                takes = [preset for preset in PRESETS if getattr(load_protocol(preset), field) == other]
                rows.append({"field": field, "value": other, "presets": takes, "auc": aucs})
        write_json(
            run / FILE_NAME,
            {
                "format": 1,
                "preset": protocol.preset,
                "fields": protocol.fields(),
                "attacks": attacks,
                "auc": own,
                "rows": rows,
            },
        )


def _auc(scored: Sequence[tuple[Record, Score]]) -> float | None:
    by_label: dict[int | None, list[float]] = {MEMBER: [], NON_MEMBER: [], None: []}
    for record, score in scored:
        if score.missing is None:
            by_label[record.label].append(score.value)
    if not by_label[MEMBER] or not by_label[NON_MEMBER]:
        return None
    return auc(ClassScores(by_label[MEMBER], by_label[NON_MEMBER]))
