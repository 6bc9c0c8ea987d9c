"""The texts that supervised attacks learn from: read from a benchmark when an attack asks, or a user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from olmodetect_jax.attacks.base import Attack, Group
from olmodetect_jax.attacks.supervised import row_id
from olmodetect_jax.attacks.training_sets import (
    BenchmarkTexts,
    TrainingSet,
    own_training_set,
    trained_for,
    training_set,
)
from olmodetect_jax.benchmark import Subset, read_benchmark, tree_of
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.commands.run_folder import records_digest
from olmodetect_jax.errors import DataError, MissingFilesError
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import Record

TrainingSets = Mapping[tuple[str, str], TrainingSet]  # by (attack id, subset)


def benchmark_texts(options: ScoreOptions, size: str | None, groups: Mapping[str, Group]) -> BenchmarkTexts:
    """What training sets of a benchmark's subsets are made from; each file is read once, when it is asked for.

    Args:
        options: of the run: its variant where a subset has variants, and its limit, bear on the training texts too.
        size: of the model.
        groups: subset to what is scored.
    """
    root, tree = options.benchmark, tree_of(options.benchmark)

    @cache
    def read(subset: Subset, split: str) -> Sequence[Record]:
        variant = options.variant if subset.variants else "matched"
        try:
            found = read_benchmark(root, tree, [subset], split=split, variant=variant, size=size)
        except MissingFilesError as error:
            if subset in tree.ablations:
                files = str(error).split("\n", 1)[1]
                raise DataError(
                    f"{root}: the released training pools hold texts that are not here; take them from the release, "
                    f"or choose --set lodo_pool=benchmark:\n{files}"
                ) from None
            if split == "dev":
                return ()
            raise
        return first_of_each(found[subset.id], options.limit)

    return BenchmarkTexts(tree, {name: group.records for name, group in groups.items()}, read)


def first_of_each(records: list[Record], limit: int | None) -> list[Record]:
    """The first `limit` records of each class (and of each side of a subset that has two)."""
    if limit is None:
        return records
    seen: dict[tuple[int | None, str], int] = {}
    kept = []
    for record in records:
        key = (record.label, record.side)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= limit:
            kept.append(record)
    return kept


def training_sets_of(
    attacks: Iterable[Attack], groups: Mapping[str, Group], texts: BenchmarkTexts | None, protocol: Protocol
) -> TrainingSets:
    """The training set of every supervised attack on every subset.

    Args:
        attacks: as made; those that have a `setting` are supervised.
        groups: by subset.
        texts: of the benchmark; None for a user's own texts.
        protocol: says what a setting means.

    Raises:
        OlmoDetectError: there is not enough to learn from, or a file is missing.
    """
    found, made = {}, {}  # the rows of FSD learn from the same texts, and so do subsets that share a pool
    subsets = {s.id: s for s in texts.tree.subsets} if texts else {}
    for attack in attacks:
        setting = getattr(attack, "setting", None)
        for name, group in groups.items() if setting else ():
            if texts is None:
                found[attack.id, name] = own_training_set(group, name)
                continue
            key = (attack.family, setting, trained_for(subsets[name], setting, protocol))
            if key not in made:
                made[key] = training_set(texts, subsets[name], family=attack.family, setting=setting, protocol=protocol)
            found[attack.id, name] = made[key]
    return found


def notes_of(training: TrainingSets) -> list[str]:
    """What the training sets have to say, each thing once."""
    return list(dict.fromkeys(note for found in training.values() for note in found.notes))


def training_digests(attacks: Iterable[Attack], training: TrainingSets) -> dict[str, dict[str, str]]:
    """Digests of the training records, by the attack's family in its setting (`fsd_lodo`) and by subset."""
    digests: dict[str, dict[str, str]] = {}
    for attack in attacks:
        for (name, subset), found in training.items():
            if name == attack.id:
                own = digests.setdefault(row_id(attack.family, attack.setting), {})
                own[subset] = own.get(subset) or records_digest(found.records)
    return digests
