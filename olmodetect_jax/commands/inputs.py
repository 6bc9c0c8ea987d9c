"""The records of a run: what is scored, and the development records that attacks may learn from."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import TITLES, Attack, Group
from olmodetect_jax.attacks.registry import GROUPS, Settings, attack_ids, build_attacks
from olmodetect_jax.attacks.rounds import Job
from olmodetect_jax.attacks.supervised import LODO, SETTINGS, SUPERVISED_TITLES, parts_of, row_ids
from olmodetect_jax.attacks.training_sets import BenchmarkTexts, TrainingSet
from olmodetect_jax.benchmark import Subset, read_benchmark, tree_of
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.commands.training_texts import TrainingSets, benchmark_texts, first_of_each
from olmodetect_jax.errors import DataError, MissingFilesError, UsageError
from olmodetect_jax.evaluation.aggregate import DOMAINS_OF, is_defined_on
from olmodetect_jax.evaluation.runs import REFERENCE, TEXTS
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, read_records
from olmodetect_jax.tokenization import Tokenizer


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a run scores.

    Attributes:
        groups: by subset. A user's own texts and their reference are one group: attacks that look at several texts
            at once see both.
        no_dev: why there are no development records; None if there are.
        texts: the benchmark, of which supervised attacks may learn from other subsets too; None for own texts.
    """

    groups: Mapping[str, Group]
    no_dev: str | None
    texts: BenchmarkTexts | None = None

    def records(self) -> dict[str, list[Record]]:
        """The records that are scored by their own subset: a reference apart from the texts."""
        found: dict[str, list[Record]] = {}
        for group in self.groups.values():
            for record in group.records:
                found.setdefault(record.subset, []).append(record)
        return found


def read_inputs(options: ScoreOptions, size: str | None) -> Inputs:
    """Reads a benchmark's split with its development split, or a user's own texts with theirs.

    Raises:
        UsageError: an option does not fit the benchmark.
        DataError: a file is missing or cannot be read.
    """
    if options.texts is not None:
        return _own_texts(options)
    tree = tree_of(options.benchmark)
    subsets = tree.select(options.subsets)
    records = _benchmark(options, subsets, options.split, size)
    try:
        dev, no_dev = _benchmark(options, subsets, "dev", size), None
    except MissingFilesError as error:
        message, first, *more = str(error).split("\n  ")
        dev, no_dev = {}, f"{message} {first}{' …' if more else ''}"
    groups = {s.id: Group(records[s.id], dev.get(s.id, ()), s.domain) for s in subsets}
    return Inputs(groups, no_dev, benchmark_texts(options, size, groups))


def read_dev(options: ScoreOptions, size: str | None) -> dict[str, Group]:
    """The matched development split of a benchmark, each subset a group that is scored and learnt from.

    Hyperparameters are chosen on the matched texts whatever variant is scored (likelihood spec, section 0).

    Raises:
        UsageError: an option does not fit the benchmark.
        DataError: a file is missing or cannot be read.
    """
    subsets = tree_of(options.benchmark).select(options.subsets)
    dev = _benchmark(dataclasses.replace(options, variant="matched"), subsets, "dev", size)
    return {s.id: Group(dev[s.id], dev[s.id], s.domain, tuning=True) for s in subsets}


def _benchmark(
    options: ScoreOptions, subsets: Sequence[Subset], split: str, size: str | None
) -> dict[str, list[Record]]:
    tree = tree_of(options.benchmark)
    found = read_benchmark(options.benchmark, tree, subsets, split=split, variant=options.variant, size=size)
    return {name: first_of_each(records, options.limit) for name, records in found.items()}


def _own_texts(options: ScoreOptions) -> Inputs:
    texts = read_records(options.texts, subset=TEXTS)
    reference, dev = _reference(options), _dev(options)
    reference, dev = first_of_each(reference, options.limit), first_of_each(dev, options.limit)
    if reference:
        origin = options.reference or "the embedded benchmark; give --reference for texts more like yours"
        print(f"reference: {len(reference)} non-members of {origin}")
    else:
        print("no reference: give --reference FILE, texts the model cannot have seen, to hold the scores against")
    both = {r.label for r in dev} == {MEMBER, NON_MEMBER}
    no_dev = None if both else "needs development texts of both classes: give --dev FILE, labelled texts"
    return Inputs({TEXTS: Group([*first_of_each(texts, options.limit), *reference], dev)}, no_dev)


def _reference(options: ScoreOptions) -> list[Record]:
    """Non-members that a user's texts are held against: their file, or the sample's own with the sample's model."""
    if options.reference is not None:
        records = read_records(options.reference, subset=REFERENCE)
        for record in records:
            if record.label == MEMBER:
                raise DataError(f"{record}: labelled a member; --reference takes non-members only")
        return [dataclasses.replace(r, label=NON_MEMBER) for r in records]
    return [r for r in _of_the_sample(options.model, "test", REFERENCE) if r.label == NON_MEMBER]


def _dev(options: ScoreOptions) -> list[Record]:
    """Labelled texts for the attacks that learn from some: the user's file, or the sample's own with its model."""
    if options.dev is None:
        return _of_the_sample(options.model, "dev", TEXTS)
    records = read_records(options.dev, subset=TEXTS)
    for record in records:
        if record.label is None:
            raise DataError(f"{record}: --dev takes labelled texts only; give it a `label`")
    return records


def _of_the_sample(model: Path, split: str, subset: str) -> list[Record]:
    if model.resolve() != sample.model_directory().resolve():
        return []
    tree = tree_of(sample.benchmark_directory())
    found = read_benchmark(sample.benchmark_directory(), tree, tree.subsets, split=split, variant="matched", size=None)
    return [dataclasses.replace(r, subset=subset) for records in found.values() for r in records]


def attacks_that_can_run(
    options: ScoreOptions, settings: Settings, inputs: Inputs, tokenizer: Tokenizer, protocol: Protocol
) -> list[Attack]:
    """Makes the attacks that were asked for; leaves out of `all` what cannot be run here, and says so.

    Args:
        options: an attack or a family that is named there is never left out.
        settings: what they are made from.
        inputs: the records.
        tokenizer: the model's.
        protocol: the run's.

    Raises:
        UsageError: an attack that was named cannot run, or there is nothing to make it from; says why.
    """
    ids = attack_ids(options.attacks, options.setting)
    words = [name.strip() for name in options.attacks.split(",")]
    words = [name for name in words if name and name not in GROUPS]
    named = set(attack_ids(",".join(words), options.setting)) if words else set()
    reasons = _in_the_way(settings, inputs, tokenizer, protocol)
    attacks = build_attacks([name for name in ids if name not in reasons], settings)
    if inputs.no_dev:
        reasons |= {a.id: inputs.no_dev for a in attacks if a.needs_dev}
    for name, reason in reasons.items():
        if name in named:
            raise UsageError(f"--attacks {name}: {reason}")
    if TEXTS in inputs.groups:
        advice = "name it in --attacks to have it"
        unasked = {
            # comparing every text with every other is a study of a set, not a score of a text
            "em_mia": f"compares every text with every other; {advice}",
            "em_mia_best_of_four": f"compares every text with every other; {advice}",
            "self_critique": f"answers the question at the start of a chat; {advice}",
        }
        reasons = {name: reason for name, reason in unasked.items() if name not in named} | reasons
    for name in ids:
        if name in reasons:
            print(f"left out: {TITLES[name]}: {reasons[name]}", file=sys.stderr)
    return [a for a in attacks if a.id not in reasons]


def _in_the_way(settings: Settings, inputs: Inputs, tokenizer: Tokenizer, protocol: Protocol) -> dict[str, str]:
    """Attack id to the reason for which it cannot even be made."""
    reasons = {}
    if any(group.is_dev for group in inputs.groups.values()):
        learns = "learns from the very development texts that are to be scored: take --split test"
        reasons |= {row: f"{learns}, or --setting {LODO}" for row in SUPERVISED_TITLES if parts_of(row)[2] != LODO}
    if not tokenizer.has_chat and protocol.mia_tuner_loss == "aligned":
        no_chat = f"needs a chat template, and {tokenizer.path.parent} has none; or take --set mia_tuner_loss=unaligned"
        reasons |= {row: no_chat for setting in SETTINGS for row in row_ids("mia_tuner", setting)}
    if settings.quiz is None:
        reasons["dcq"] = "needs a quiz on these texts: make one with `olmodetect quiz` and give it with --quiz FILE"
    if not tokenizer.has_chat:
        reasons["self_critique"] = f"needs a chat template, and {tokenizer.path.parent} has none"
    elif not any(is_defined_on("self_critique", group.domain) for group in inputs.groups.values()):
        domains = ", ".join(DOMAINS_OF["self_critique"])
        reasons["self_critique"] = f"needs texts with a question in them, of the domains {domains}"
    return reasons


def jobs_of(
    attacks: Iterable[Attack], groups: Mapping[str, Group], protocol: Protocol, training: TrainingSets
) -> dict[tuple[str, str], Job]:
    """Every attack on every subset that it is defined on, by (attack id, subset).

    Args:
        attacks: as made.
        groups: by subset.
        protocol: already capped by the model's context.
        training: of the supervised attacks among them, by the same keys.
    """
    return {
        (attack.id, name): Job(attack, _with_training(group, training.get((attack.id, name))), protocol)
        for attack in attacks
        for name, group in groups.items()
        if is_defined_on(attack.id, group.domain)
    }


def _with_training(group: Group, learnt: TrainingSet | None) -> Group:
    return learnt.given_to(group) if learnt else group
