"""One number for a set of weights: what tells two models apart in the store of answers.

The digest covers the leaves as they are kept in memory (path, dtype, shape, bytes in C order), so a Hugging Face
directory and the Orbax checkpoint made from it at the same dtype have the same digest, on any mesh.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conversion.model import flatten

_PIECE_BYTES = 16 * 2**20


def weights_digest(params: Mapping[str, Any]) -> str:
    """SHA-256 over the sorted (path, dtype, shape, SHA-256 of bytes) of all leaves, as hex digits.

    Args:
        params: nested dict of jax or numpy arrays.
    """
    return combine({path: leaf_digest(path, leaf) for path, leaf in flatten(params).items()})


def leaf_digest(path: str, leaf: Any) -> str:
    """The line that stands for one leaf: its path, dtype, shape and the SHA-256 of its bytes.

    Only a piece of the leaf is on the host at a time.
    """
    content = hashlib.sha256()
    rows = max(1, _PIECE_BYTES * leaf.shape[0] // max(1, leaf.nbytes))
    leaf = _whole_rows(leaf)
    for start in range(0, leaf.shape[0], rows):
        piece = host_rows(leaf, start, min(rows, leaf.shape[0] - start))
        content.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))  # hashlib knows no bfloat16
    return f"{path} {leaf.dtype} {'x'.join(map(str, leaf.shape))} {content.hexdigest()}"


def combine(lines: Mapping[str, str]) -> str:
    """The weights digest from the lines of all leaves, by path."""
    return hashlib.sha256("\n".join(lines[path] for path in sorted(lines)).encode()).hexdigest()


def host_rows(leaf: Any, start: int, count: int) -> np.ndarray:
    """Rows `start` to `start + count` of axis 0 on the host, from all shards of the leaf.

    Args:
        leaf: [R, ...] jax array (on any devices, of any process) or numpy array.
        start: first row.
        count: number of rows.

    Returns:
        [count, ...] numpy array.
    """
    if isinstance(leaf, np.ndarray):
        return leaf[start : start + count]
    # Sliced on the device: np.asarray of a whole leaf would stay cached on the host for as long as the leaf lives.
    return np.asarray(_slicer(count, leaf.sharding)(leaf, np.int32(start)))


def _whole_rows(leaf: Any) -> Any:
    """The leaf with axis 0 on every device: a slice across it would gather the whole leaf again for every piece."""
    import jax

    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding) or not sharding.spec or sharding.spec[0] is None:
        return leaf
    spec = jax.sharding.PartitionSpec(None, *sharding.spec[1:])
    return jax.device_put(leaf, jax.sharding.NamedSharding(sharding.mesh, spec))


@functools.cache
def _slicer(count: int, sharding: Any) -> Callable[[Any, np.int32], Any]:
    """A compiled slice of `count` rows whose result every device (hence every process) holds whole."""
    import jax

    if isinstance(sharding, jax.sharding.NamedSharding):
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    slice_rows = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=count, axis=0)
    return jax.jit(slice_rows, out_shardings=sharding)
