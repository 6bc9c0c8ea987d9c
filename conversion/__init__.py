"""Hugging Face safetensors to Flax NNX and back, and the Orbax checkpoints in between.

`load_model_directory` reads either kind of directory; `checkpoint.convert` makes a checkpoint from a Hugging Face
directory; `export.export_hf` goes back. No torch and no pickle anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conversion.model import LoadedModel, ShardingOf

__all__ = ["load_model_directory", "model_directory_name"]


def model_directory_name(directory: Path) -> str:
    """The name of the model in a directory of either kind, without reading its weights.

    Raises:
        CheckpointError: the manifest of a checkpoint cannot be read.
    """
    from conversion.checkpoint import MANIFEST, read_manifest
    from conversion.directories import model_name

    directory = Path(directory)
    return read_manifest(directory)["name"] if (directory / MANIFEST).is_file() else model_name(directory)


def load_model_directory(
    directory: Path, dtype: str | None = None, sharding_of: ShardingOf | None = None
) -> LoadedModel:
    """Loads a model directory: a checkpoint of ours or a Hugging Face directory.

    Args:
        directory: the model directory.
        dtype: `float32` or `bfloat16`; None takes what is stored (what config.json says of a Hugging Face directory).
        sharding_of: where a leaf goes, from its path and shape; None puts all on one device.

    Returns:
        The weights, their digest, config, name and dtype. The digest is the same from either kind.

    Raises:
        UsageError: the directory is neither, or its architecture or dtype is not supported.
        CheckpointError: the weights are damaged or do not fit the config; one error lists everything.
    """
    from conversion.checkpoint import MANIFEST, load_checkpoint
    from conversion.directories import CONFIG, stored_dtype
    from conversion.load import load_hf
    from conversion.safetensors_reader import INDEX, SINGLE
    from olmodetect_jax.errors import UsageError

    directory = Path(directory)
    if (directory / MANIFEST).is_file():
        return load_checkpoint(directory, dtype, sharding_of)
    if (directory / CONFIG).is_file():
        return load_hf(directory, dtype or stored_dtype(directory), sharding_of)
    raise UsageError(
        f"{directory}: not a model directory; looked for {MANIFEST} (a checkpoint of ours) "
        f"and for {CONFIG} with {SINGLE} or {INDEX} (Hugging Face)"
    )
