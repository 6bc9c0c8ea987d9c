"""Going on from a finished run: the options it was made with, and whether its model and texts are still the same."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.generative import PROMPTS_OF
from olmodetect_jax.benchmark import tree_of
from olmodetect_jax.commands.options import ScoreOptions, check_options
from olmodetect_jax.commands.run_folder import records_digest, without_path
from olmodetect_jax.commands.tuned import FILE_NAME
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation.runs import read_manifest, require_fields
from olmodetect_jax.records import Record

_NUMBER = (int, NoneType)
_NEEDED: dict[str, tuple[type, ...]] = {
    "model.path": (str,), "model.weights_digest": (str,), "benchmark.path": (str,), "dtype": (str,),
    "split": (str,), "variant": (str,), "hyperparameters": (dict,), "records": (dict,), "dev_records": (dict,),
    "limit": _NUMBER, "token_budget": _NUMBER, "em_mia_limit": _NUMBER, "generation": (dict,),
}  # fmt: skip


def manifest_of(run: Path) -> dict[str, Any]:
    """The manifest of a run of a benchmark, with all that repeating it needs.

    Raises:
        DataError: the folder is no run, or a field of its manifest is missing or has another type.
        UsageError: it is a run of own texts.
    """
    path = run / "manifest.json"
    manifest = read_manifest(path)
    if manifest["benchmark"] is None:
        raise UsageError(f"{run}: a run of own texts; this needs one of a benchmark, which has a development split")
    require_fields(manifest, _NEEDED, path)
    facts = manifest["generation"]
    if type(facts.get("limit")) not in _NUMBER or not isinstance(facts.get("prompts", {}), dict):
        raise DataError(f"{path}: field generation: limit or prompts has another type")
    if not isinstance(manifest.get("training_records", {}), dict):
        raise DataError(f"{path}: field training_records: expected an object")
    return manifest


def options_of(run: Path, manifest: Mapping[str, Any], *, attacks: Sequence[str], **others: Any) -> ScoreOptions:
    """The options with which a run was made.

    Args:
        run: the run folder.
        manifest: of `manifest_of`.
        attacks: ids of the attacks to run, not those of the run.
        **others: options that replace the run's.

    Raises:
        DataError: the manifest holds a value that no run has.
    """
    protocol, table, generation = manifest["protocol"], manifest.get("frequencies") or {}, manifest["generation"]
    wanted = {name for attack in attacks for name in PROMPTS_OF.get(attack, ())}
    prompts = {name: _path(facts) for name, facts in generation.get("prompts", {}).items() if name in wanted}
    options = ScoreOptions(
        model=Path(manifest["model"]["path"]),
        out=run,
        benchmark=Path(manifest["benchmark"]["path"]),
        attacks=",".join(attacks),
        protocol=protocol["preset"],
        settings=tuple(f"{name}={value}" for name, value in protocol["changed"].items()),
        em_mia_limit=manifest["em_mia_limit"],
        generation_limit=generation.get("limit"),
        prompts=tuple(f"{name}={path}" for name, path in prompts.items() if path),
        quiz=_path(generation.get("quiz")) if "dcq" in attacks else None,
        neighbours=_path(generation.get("neighbours")) if "neighborhood" in attacks else None,
        split=manifest["split"],
        variant=manifest["variant"],
        size=manifest["model"].get("size"),
        subsets=manifest["subsets"],
        limit=manifest["limit"],
        dtype=manifest["dtype"],
        token_budget=manifest["token_budget"],
        frequencies=_path(table) if "dc_pdd" in attacks else None,
        adapters=_path({"path": manifest.get("adapters")}),
    )
    try:
        check_options(options, attacks)
    except UsageError as error:
        raise DataError(f"{run / 'manifest.json'}: {error}") from None
    return dataclasses.replace(options, **others)


def _path(facts: Any) -> Path | None:
    """Where a file lies of which the manifest holds facts; None if it is no file, or the package's own."""
    path = facts.get("path") if isinstance(facts, dict) else None
    return Path(path) if isinstance(path, str) else None


def score_command(options: ScoreOptions) -> str:
    """The command that scores with these options, ready to be copied to a shell.

    Args:
        options: as the command line gives them.
    """
    words = ["olmodetect", "score"]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value == field.default or value is None:
            continue
        name = {"settings": "set", "prompts": "prompt"}.get(field.name, field.name)
        values = value if field.name in ("settings", "prompts") else [value]
        for one in values:
            words += [f"--{name.replace('_', '-')}", ",".join(one) if isinstance(one, (list, tuple)) else str(one)]
    return shlex.join(words)


def tuned_command(run: Path) -> str:
    """The command that scores the test texts of a run's benchmark with what tuning chose for it.

    Raises:
        DataError: the run's manifest cannot be used.
    """
    manifest = manifest_of(run)
    options = options_of(run, manifest, attacks=manifest["attacks"], split="test")
    everything = list(options.subsets or ()) == [s.id for s in tree_of(options.benchmark).subsets]
    options = dataclasses.replace(options, subsets=None if everything else options.subsets)
    return score_command(
        dataclasses.replace(options, hyperparameters=run / FILE_NAME, out=run.parent / f"{run.name}-tuned")
    )


def require_same_files(run: Path, recorded: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuses to go on with another quiz, other neighbours or other prompts than the run's.

    Args:
        run: the run folder.
        recorded: `generation` of its manifest.
        facts: of the files as they are now.

    Raises:
        DataError: names what changed.
    """
    for name, value in facts.items():
        if without_path(value) != without_path(recorded.get(name)):
            raise DataError(f"{run}: generation.{name} is not what the run was made with; score it again")


def require_same_model(run: Path, manifest: Mapping[str, Any], weights_digest: str) -> None:
    """Refuses to go on with other weights than the run's.

    Raises:
        DataError: the model at the run's path is another one now.
    """
    if manifest["model"]["weights_digest"] != weights_digest:
        raise DataError(f"{run}: the model at {manifest['model']['path']} has other weights than the run was made with")


def require_same_texts(run: Path, recorded: Mapping[str, Any], groups: Mapping[str, Sequence[Record]]) -> None:
    """Refuses to go on with other texts than the run's.

    Args:
        run: the run folder.
        recorded: subset to digest: `records` or `dev_records` of the manifest.
        groups: subset to the records that were read now.

    Raises:
        DataError: names the first subset whose texts changed.
    """
    for subset, records in groups.items():
        if recorded.get(subset) != records_digest(records):
            raise DataError(f"{run}: the texts of {subset} are not those the run was made with; score them again")


def require_same_training(run: Path, manifest: Mapping[str, Any], digests: Mapping[str, Any]) -> None:
    """Refuses to go on with other training texts of the supervised attacks than the run's.

    Args:
        run: the run folder.
        manifest: of `manifest_of`.
        digests: `training_records` as they are now.

    Raises:
        DataError: names the first attack and setting whose texts changed.
    """
    for name, found in digests.items():
        if manifest.get("training_records", {}).get(name) != found:
            raise DataError(f"{run}: {name} would learn from other texts than the run's; score it again")


def dev_of(groups: Mapping[str, Group]) -> dict[str, Sequence[Record]]:
    """The development records by subset."""
    return {name: group.dev for name, group in groups.items()}
