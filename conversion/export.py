"""Back to Hugging Face: the exact inverse of `load`, so that other tools can read what was trained or tuned here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from conversion.digest import host_rows
from conversion.directories import CONFIG, copy_companions, new_directory, read_config
from conversion.keymaps import LeafSource, key_map, leaf_sources
from conversion.model import DTYPES, LoadedModel, flatten
from conversion.safetensors_reader import INDEX, SINGLE
from olmodetect_jax.errors import one_of
from olmodetect_jax.files import write_json, write_tensors

MAX_SHARD_BYTES = 5 * 10**9  # transformers' own default


def export_hf(
    model: LoadedModel,
    directory: Path,
    dtype: str | None = None,
    *,
    source: Path | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes a Hugging Face directory: safetensors (with an index when more than one file is needed) and config.json.

    Args:
        model: what to write; at its own dtype, and loaded from safetensors of that dtype, the bytes are those read.
        directory: to be made.
        dtype: `float32` or `bfloat16`; None keeps the model's.
        source: model directory whose tokenizer and further config fields (special token ids) go along.
        max_shard_bytes: upper bound of a file's weights; a larger tensor gets a file of its own.

    Raises:
        UsageError: `directory` exists, or an unknown dtype.
    """
    dtype = model.dtype if dtype is None else dtype
    if dtype not in DTYPES:
        raise one_of("--dtype", dtype, DTYPES)
    leaves = flatten(model.params)
    sources = leaf_sources(key_map(model.family.name), {path: leaf.shape for path, leaf in leaves.items()})
    origin = {name: (path, layer) for path, s in sources.items() for layer, name in enumerate(s.names)}
    width = np.dtype(_numpy_dtype(dtype)).itemsize
    sizes = {n: width * leaves[p].size // len(sources[p].names) for n, (p, _) in sorted(origin.items())}
    with new_directory(directory.absolute()) as unfinished:
        files = _file_names(list(_shards(sizes, max_shard_bytes)))
        for file, names in files.items():
            tensors = {n: _tensor(leaves[origin[n][0]], sources[origin[n][0]], origin[n][1], dtype) for n in names}
            _write(unfinished / file, tensors)
        if len(files) > 1:
            weight_map = {name: file for file, names in files.items() for name in names}
            write_json(unfinished / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})
        config = read_config(source) if source is not None else {}
        config.pop("dtype", None)  # how transformers 5 spells torch_dtype, and what it then reads first
        write_json(unfinished / CONFIG, config | model.config.to_hf() | {"torch_dtype": dtype})
        if source is not None:
            copy_companions(source, unfinished)


def _shards(sizes: dict[str, int], limit: int) -> Iterator[list[str]]:
    """Names in order, cut where the next one would exceed the limit."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > limit:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    yield names


def _file_names(shards: list[list[str]]) -> dict[str, list[str]]:
    """File name to tensor names, as transformers names them."""
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": names for i, names in enumerate(shards, start=1)}


def _tensor(leaf: Any, source: LeafSource, layer: int, dtype: str) -> np.ndarray:
    """One Hugging Face tensor, contiguous, in the dtype asked for."""
    tensor = host_rows(leaf, layer, 1)[0] if source.stacked else host_rows(leaf, 0, leaf.shape[0])
    return np.ascontiguousarray(tensor.T if source.transposed else tensor, _numpy_dtype(dtype))


def _write(file: Path, tensors: dict[str, np.ndarray]) -> None:
    """One safetensors file; transformers refuses one without the format in its metadata."""
    # Memory is written as it lies: a transposed view would be written wrong without a word.
    assert all(tensor.flags.c_contiguous for tensor in tensors.values())
    write_tensors(file, tensors, {"format": "pt"})


def _numpy_dtype(name: str) -> Any:
    """The numpy dtype; numpy itself has no bfloat16."""
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else np.float32
