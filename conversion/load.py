"""Loading a Hugging Face directory: all names and shapes are checked first, then each leaf is read into its shards."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from conversion.digest import combine, leaf_digest
from conversion.directories import model_name, read_config
from conversion.keymaps import KeyMap, LeafSource, key_map, leaf_sources
from conversion.model import LoadedModel, abstract_leaves, shardings, unflatten
from conversion.safetensors_reader import DTYPES, Reader, SafetensorsIndex, index_directory
from conversion.strict import Expected, Found, check_tensors
from olmodetect_jax.errors import CheckpointError

if TYPE_CHECKING:
    import jax

    from conversion.model import ShardingOf

Bounds = tuple[tuple[int, int], ...]  # (start, stop) on each axis of a leaf

_COMPARE_ROWS = 4096
_STRIP = 64


def load_hf(directory: Path, dtype: str, sharding_of: ShardingOf | None = None) -> LoadedModel:
    """Loads the weights of a Hugging Face directory.

    Each device's part of a leaf is read as slices of the files and cast to `dtype`; the host holds one leaf's parts
    at a time, never the model.

    Args:
        directory: `config.json` and safetensors.
        dtype: `float32` or `bfloat16`; float32 weights are rounded to bfloat16 (nearest even) only by asking so.
        sharding_of: where a leaf goes, from its path and shape; None puts all on one device.

    Raises:
        UsageError: config.json cannot be used, the architecture is not supported, or there are no safetensors.
        CheckpointError: the files are damaged, or the weights do not fit the config: one error lists everything.
    """
    import jax

    from olmodetect_jax.models.registry import model_family

    raw = read_config(directory)
    family = model_family(raw)
    config = family.config_class.from_hf(raw)
    keys = key_map(family.name)
    leaves = abstract_leaves(family, config, dtype)
    sources = leaf_sources(keys, {path: leaf.shape for path, leaf in leaves.items()})
    index = index_directory(directory)
    _check(index, keys, sources, leaves)

    where = shardings(leaves, sharding_of)
    params, lines = {}, {}
    for path, leaf in leaves.items():
        with index.reader() as read:
            part = functools.cache(functools.partial(_read_part, read, sources[path], leaf))  # replicas share a part
            params[path] = jax.make_array_from_callback(
                leaf.shape, where[path], lambda cut, part=part, leaf=leaf: part(_bounds(cut, leaf.shape)), leaf.dtype
            )
        lines[path] = leaf_digest(path, params[path])
    return LoadedModel(family, config, unflatten(params), combine(lines), model_name(directory), dtype)


def _check(
    index: SafetensorsIndex, keys: KeyMap, sources: dict[str, LeafSource], leaves: dict[str, jax.ShapeDtypeStruct]
) -> None:
    """Every tensor the model needs is there, in shape and readable; nothing else is, but what the key map allows."""
    expected = {
        name: Expected(source.tensor_shape(leaves[path].shape), DTYPES)
        for path, source in sources.items()
        for name in source.names
    }
    tied_copy = keys.head not in expected and keys.head in index.tensors
    if tied_copy:
        expected[keys.head] = expected[keys.embedding]
    found = {n: Found(t.shape, t.dtype) for n, t in index.tensors.items() if not keys.ignores(n)}
    check_tensors(str(index.directory), found, expected)
    if tied_copy and not _equal(index, keys.head, keys.embedding):
        raise CheckpointError(
            f"{index.directory}: config.json says tie_word_embeddings, but {keys.head} is not equal to "
            f"{keys.embedding}; if the head is meant, set tie_word_embeddings to false"
        )


def _equal(index: SafetensorsIndex, first: str, second: str) -> bool:
    """Whether two tensors of the same shape are equal bit for bit, a few thousand rows at a time."""
    if index.tensors[first].dtype != index.tensors[second].dtype:
        return False
    rows = index.tensors[first].shape[0]
    cuts = (slice(i, min(rows, i + _COMPARE_ROWS)) for i in range(0, rows, _COMPARE_ROWS))
    with index.reader() as read:
        return all(read(first, (cut,)).tobytes() == read(second, (cut,)).tobytes() for cut in cuts)


def _bounds(cut: tuple[slice, ...], shape: tuple[int, ...]) -> Bounds:
    """What a device holds of a leaf, hashable."""
    return tuple((start, stop) for start, stop, _ in (s.indices(n) for s, n in zip(cut, shape, strict=True)))


def _read_part(read: Reader, source: LeafSource, leaf: jax.ShapeDtypeStruct, bounds: Bounds) -> np.ndarray:
    """Reads one part of a leaf from just those slices of its tensors that lie in it, in the leaf's dtype."""
    part = np.empty([stop - start for start, stop in bounds], leaf.dtype)
    inner = tuple(slice(*b) for b in (bounds[1:] if source.stacked else bounds))
    layers = range(*bounds[0]) if source.stacked else (0,)
    for row, layer in enumerate(layers):
        tensor = read(source.names[layer], inner[::-1] if source.transposed else inner)
        target = part[row] if source.stacked else part
        if source.transposed:
            _transpose_into(target, tensor)
        else:
            target[...] = tensor
    return part


def _transpose_into(target: np.ndarray, tensor: np.ndarray) -> None:
    """`target[...] = tensor.T` in strips that stay in the cache: five times as fast for weights of this size."""
    for start in range(0, tensor.shape[0], _STRIP):
        target[:, start : start + _STRIP] = tensor[start : start + _STRIP].T
