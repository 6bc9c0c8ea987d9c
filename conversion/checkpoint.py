"""Our own checkpoints: Orbax (tensorstore, OCDBT) beside the model's config, tokenizer and a manifest.

    OUT/olmodetect_checkpoint.json    format, family, dtype, weights digest, name, versions, file sizes; written last
    OUT/config.json, tokenizer.json … as in the Hugging Face directory
    OUT/params/                       Orbax, the pure dict of the NNX state

The directory appears under its name only when it is complete, and the digest is checked again on loading.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from conversion.digest import weights_digest
from conversion.directories import CONFIG, copy_companions, new_directory, read_config, require_new
from conversion.load import load_hf
from conversion.model import DTYPES, LoadedModel, abstract_leaves, flatten, shardings, unflatten
from conversion.strict import Expected, Found, check_tensors
from olmodetect_jax.errors import CheckpointError, UsageError
from olmodetect_jax.files import disk_error, parse_json, write_json

if TYPE_CHECKING:
    import jax
    import orbax.checkpoint as ocp

    from conversion.model import ShardingOf

MANIFEST = "olmodetect_checkpoint.json"
PARAMS = "params"
TOKENIZER = "tokenizer.json"
FORMAT = 1

# A chunk is what a reader of any part must read whole; Orbax's default is one chunk a device of the writer.
_CHUNK_BYTES = 64 * 2**20

_VERSIONS = ("jax", "flax", "orbax-checkpoint", "tensorstore", "safetensors")


def convert(source: Path, out: Path, dtype: str, sharding_of: ShardingOf | None = None) -> LoadedModel:
    """Converts a Hugging Face directory to a checkpoint of ours.

    Args:
        source: Hugging Face directory.
        out: directory to make.
        dtype: `float32` or `bfloat16`.
        sharding_of: as for `load_hf`.

    Returns:
        The model as it was loaded and written.

    Raises:
        UsageError: `out` exists, or as for `load_hf`.
        CheckpointError: as for `load_hf`.
    """
    require_new(out)  # before the weights are read
    model = load_hf(source, dtype, sharding_of)
    save_checkpoint(out, model, source)
    return model


def save_checkpoint(directory: Path, model: LoadedModel, source: Path | None = None) -> None:
    """Writes a checkpoint; a kill at any moment leaves nothing that loads.

    Args:
        directory: to be made.
        model: what to write.
        source: model directory whose config.json, tokenizer and other text files go along; without one the
            config.json is written from the model's config and there is no tokenizer.

    Raises:
        UsageError: `directory` exists, or more than one process is running.
    """
    import jax
    import orbax.checkpoint as ocp

    if jax.process_count() > 1:
        raise UsageError("convert: runs in one process only; load the checkpoint it writes from as many as you like")
    with new_directory(directory.absolute()) as unfinished:
        try:
            with _checkpointer(flatten(model.params)) as checkpointer:  # leaving it waits for the asynchronous write
                save_args = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES), model.params)
                checkpointer.save(unfinished / PARAMS, model.params, save_args=save_args)
        except jax.errors.JaxRuntimeError:  # a device's error, no disk's
            raise
        except (ValueError, RuntimeError) as error:  # how Orbax and its threads pass on what tensorstore met
            raise disk_error(error, directory) from None
        if source is None:
            write_json(unfinished / CONFIG, model.config.to_hf())
        else:
            shutil.copyfile(source / CONFIG, unfinished / CONFIG)
            copy_companions(source, unfinished)
        manifest = {
            "format": FORMAT,
            "family": model.family.name,
            "name": model.name,
            "dtype": model.dtype,
            "weights_digest": model.weights_digest,
            "versions": {package: version(package) for package in _VERSIONS},
            "files": _file_sizes(unfinished / PARAMS),
            "tokenizer": _sha256(unfinished / TOKENIZER),
        }
        write_json(unfinished / MANIFEST, manifest)


def load_checkpoint(directory: Path, dtype: str | None = None, sharding_of: ShardingOf | None = None) -> LoadedModel:
    """Loads a checkpoint of ours, bit for bit, straight onto its devices.

    Args:
        directory: as `save_checkpoint` made it.
        dtype: None takes what is stored; bfloat16 weights may be widened to float32, which loses nothing. They are
            never narrowed here: that is `convert`'s to do.
        sharding_of: where a leaf goes, from its path and shape; None puts all on one device.

    Raises:
        UsageError: no such checkpoint, or it holds float32 and bfloat16 is asked for.
        CheckpointError: names, shapes or dtypes do not fit the config, or the bytes are not those that were written.
    """
    import jax

    from olmodetect_jax.models.registry import model_family

    manifest = read_manifest(directory)
    stored = manifest["dtype"]
    if dtype == "bfloat16" != stored:
        raise UsageError(
            f"--dtype: {directory} holds {stored}, which is not narrowed to {dtype} on loading; choose "
            f"--dtype {stored}, or convert the Hugging Face directory again with --dtype {dtype}"
        )
    if _sha256(directory / TOKENIZER) != manifest["tokenizer"]:
        raise CheckpointError(
            f"{directory / TOKENIZER}: not the tokenizer this checkpoint was made with; convert again from a directory "
            "that holds the model's own tokenizer"
        )
    raw = read_config(directory)
    family = model_family(raw)
    config = family.config_class.from_hf(raw)
    leaves = abstract_leaves(family, config, stored)
    _check_files(directory / PARAMS, manifest["files"])
    params = _restore(directory.absolute() / PARAMS, leaves, shardings(leaves, sharding_of))
    digest = weights_digest(params)
    if digest != manifest["weights_digest"]:
        raise CheckpointError(
            f"{directory}: damaged: the weights' digest is {digest}, {MANIFEST} says {manifest['weights_digest']}; "
            "convert again"
        )
    if dtype not in (None, stored):
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        digest, stored = weights_digest(params), dtype
    return LoadedModel(family, config, params, digest, manifest["name"], stored)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        UsageError: there is none.
        CheckpointError: it is not one this version reads.
    """
    file = directory / MANIFEST
    try:
        manifest = parse_json(file.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"{directory}: {MANIFEST} is missing; `olmodetect convert` makes a checkpoint") from None
    except ValueError as error:
        raise CheckpointError(f"{file}: not a JSON file: {error}") from None
    fields = {"name": str, "dtype": str, "weights_digest": str, "files": dict, "tokenizer": (str, NoneType)}
    readable = isinstance(manifest, dict) and manifest.get("format") == FORMAT and manifest.get("dtype") in DTYPES
    if not readable or not all(isinstance(manifest.get(field), kind) for field, kind in fields.items()):
        raise CheckpointError(f"{file}: not a manifest of format {FORMAT}; convert again with this version")
    return manifest


def _sha256(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def _file_sizes(directory: Path) -> dict[str, int]:
    """Size in bytes of every file below a directory, by its relative path."""
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return {file.relative_to(directory).as_posix(): file.stat().st_size for file in files}


def _check_files(directory: Path, expected: dict[str, int]) -> None:
    """Compares files and sizes with the manifest's: from a truncated file Orbax makes pages of noise, not one error."""
    found = _file_sizes(directory)
    problems = [
        f"{name}: expected {expected.get(name, 'no file')}, found {found.get(name, 'no file')}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    if problems:
        details = "".join(f"\n  {problem}" for problem in problems)
        raise CheckpointError(f"{directory}: damaged: not the files that were written (bytes); convert again{details}")


def _restore(
    directory: Path, leaves: dict[str, jax.ShapeDtypeStruct], where: dict[str, jax.sharding.Sharding]
) -> dict[str, Any]:
    """Checks the metadata of an Orbax checkpoint against the leaves, then restores it."""
    import jax

    with _checkpointer(leaves) as checkpointer:
        try:
            # Orbax casts to the target's dtype without a word, so its metadata is compared first.
            metadata = checkpointer.metadata(directory).item_metadata
            if metadata is None:
                raise CheckpointError(f"{directory}: not an Orbax checkpoint; convert again")
            found = {path: Found(tuple(m.shape), str(m.dtype)) for path, m in flatten(metadata.tree).items()}
            expected = {path: Expected(leaf.shape, (str(leaf.dtype),)) for path, leaf in leaves.items()}
            check_tensors(str(directory), found, expected)
            targets = {p: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where[p]) for p, leaf in leaves.items()}
            return checkpointer.restore(directory, unflatten(targets))
        except (OSError, ValueError, LookupError) as error:
            raise CheckpointError(f"{directory}: damaged: {error}; convert again") from error


def _checkpointer(leaves: Mapping[str, Any]) -> ocp.StandardCheckpointer:
    """An Orbax checkpointer that keeps a leaf or two on the host; by default it would take up to 96 GB."""
    import orbax.checkpoint as ocp

    largest = max(leaf.size * leaf.dtype.itemsize for leaf in leaves.values())
    gigabytes = 1 + 2 * largest // 10**9  # Orbax counts in whole GB, and raises for a leaf that exceeds them
    return ocp.StandardCheckpointer(save_concurrent_gb=gigabytes, restore_concurrent_gb=gigabytes)
