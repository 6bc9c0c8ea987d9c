"""Going on from a finished run: the options it was made with, and whether its model and texts are still the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from olmodetect_jax.attacks.base import Group
from olmodetect_jax.commands.options import ScoreOptions, check_options
from olmodetect_jax.commands.run_folder import records_digest
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation.runs import read_manifest, require_fields
from olmodetect_jax.records import Record

_NUMBER = (int, NoneType)
_NEEDED: dict[str, tuple[type, ...]] = {
    "model.path": (str,), "model.weights_digest": (str,), "benchmark.path": (str,), "dtype": (str,),
    "split": (str,), "variant": (str,), "hyperparameters": (dict,), "records": (dict,), "dev_records": (dict,),
    "limit": _NUMBER, "token_budget": _NUMBER, "em_mia_limit": _NUMBER,
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
    protocol, table = manifest["protocol"], manifest.get("frequencies") or {}
    options = ScoreOptions(
        model=Path(manifest["model"]["path"]),
        out=run,
        benchmark=Path(manifest["benchmark"]["path"]),
        attacks=",".join(attacks),
        protocol=protocol["preset"],
        settings=tuple(f"{name}={value}" for name, value in protocol["changed"].items()),
        em_mia_limit=manifest["em_mia_limit"],
        split=manifest["split"],
        variant=manifest["variant"],
        size=manifest["model"].get("size"),
        subsets=manifest["subsets"],
        limit=manifest["limit"],
        dtype=manifest["dtype"],
        token_budget=manifest["token_budget"],
        frequencies=Path(table["path"]) if "path" in table and "dc_pdd" in attacks else None,
    )
    try:
        check_options(options, attacks)
    except UsageError as error:
        raise DataError(f"{run / 'manifest.json'}: {error}") from None
    return dataclasses.replace(options, **others)


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


def dev_of(groups: Mapping[str, Group]) -> dict[str, Sequence[Record]]:
    """The development records by subset."""
    return {name: group.dev for name, group in groups.items()}
