"""How weights and activations are split over a mesh with axes data, fsdp and tensor.

Rows of a batch are split over (data, fsdp), weights over fsdp and tensor. Left alone, XLA would gather the
activations instead of the fsdp-split weights: right scores, no speed, and sums whose order depends on the mesh.
So the models constrain both (`constrain`), and a row's result does not depend on how rows are spread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olmodetect_jax.errors import UsageError

AXES = ("data", "fsdp", "tensor")


@dataclass(frozen=True)
class ShardingRules:
    """Mesh axes of each kind of weight, without the leading layer axis, and of a batch's rows.

    Attributes:
        embedding: [V, D] token embedding; split along D alone, or the lookup would replicate [B, T, D].
        inward: [D, F] and [D, N*H]: projections from the model's width.
        outward: [F, D] and [N*H, D]: projections back to it.
        head: [D, V].
        wide_norm: [N*H] gain of a norm over all heads.
        norm: [D] gain of a norm over the model's width.
        rows: [B, ...] rows of a batch.
    """

    embedding: P = P(None, ("fsdp", "tensor"))
    inward: P = P("fsdp", "tensor")
    outward: P = P("tensor", "fsdp")
    head: P = P("fsdp", "tensor")
    wide_norm: P = P("tensor")
    norm: P = P(None)
    rows: P = P(("data", "fsdp"))


RULES = ShardingRules()

# Paths of the state tree, in order; the first match decides. Weights of `blocks` carry a leading layer axis.
_PATHS: tuple[tuple[str, str], ...] = (
    (r"embed/embedding", "embedding"),
    (r"head/kernel", "head"),
    (r"blocks/(q|k|v|gate|up)_proj/kernel", "inward"),
    (r"blocks/(o|down)_proj/kernel", "outward"),
    (r"blocks/[qk]_norm/scale", "wide_norm"),
    (r"(blocks/post_(attention|feedforward)_)?norm/scale", "norm"),
)


def leaf_spec(path: str, rules: ShardingRules = RULES) -> P:
    """The partition of one leaf of a model's state.

    Args:
        path: names joined by "/", as in `blocks/q_proj/kernel`.
        rules: mesh axes of each kind of weight.

    Raises:
        KeyError: no rule names the path.
    """
    for pattern, name in _PATHS:
        if re.fullmatch(pattern, path):
            spec = getattr(rules, name)
            return P(None, *spec) if path.startswith("blocks/") else spec
    raise KeyError(f"no sharding rule for {path}")


def leaf_sharding(mesh: Mesh, path: str, shape: tuple[int, ...], rules: ShardingRules = RULES) -> NamedSharding:
    """Where one leaf lives on a mesh.

    Raises:
        UsageError: an axis of the leaf cannot be divided evenly over the mesh axes the rules give it.
    """
    spec = leaf_spec(path, rules)
    for size, axes in zip(shape, spec, strict=False):
        names = axes if isinstance(axes, tuple) else (axes,) if axes else ()
        parts = math.prod(mesh.shape[n] for n in names)
        if size % parts:
            raise UsageError(
                f"--mesh: {path} {shape} cannot be split into {parts} equal parts along {size} "
                f"(mesh axes {', '.join(names)}); choose sizes that divide {size}"
            )
    return NamedSharding(mesh, spec)


def without_fsdp(spec: P) -> P:
    """The partition a weight has while it is used: gathered over fsdp, still split over tensor."""

    def keep(axes: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        if isinstance(axes, tuple):
            return tuple(a for a in axes if a != "fsdp") or None
        return None if axes == "fsdp" else axes

    return P(*(keep(axes) for axes in spec))


def constrain(x: jax.Array, spec: P) -> jax.Array:
    """Fixes the partition of `x` under the current mesh (`jax.set_mesh`); does nothing where none is set."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec)


def parse_mesh(text: str) -> dict[str, int]:
    """Reads `data=4,fsdp=2` into axis sizes; axes left out have size 1.

    Raises:
        UsageError: an unknown axis, a repeated axis or a size that is not a positive integer.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        name = name.strip()
        if name not in AXES or name in sizes or not size.strip().isdecimal() or int(size) < 1:
            raise UsageError(f"--mesh: cannot read {part!r}; expected {'=N,'.join(AXES)}=N, each axis at most once")
        sizes[name] = int(size)
    return {name: sizes.get(name, 1) for name in AXES}


def make_mesh(sizes: Mapping[str, int] | None = None) -> Mesh:
    """A mesh over all devices of this job.

    Args:
        sizes: axis sizes; None puts all devices on the data axis.

    Raises:
        UsageError: JAX cannot start, or the product of the sizes is not the number of devices (jax would take the
            first ones silently).
    """
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"JAX finds no device: {error}; see JAX_PLATFORMS and the extras [gpu] and [tpu]") from None
    sizes = {"data": len(devices), "fsdp": 1, "tensor": 1} if sizes is None else sizes
    if math.prod(sizes.values()) != len(devices):
        asked = ",".join(f"{n}={sizes[n]}" for n in AXES)
        raise UsageError(
            f"--mesh: {asked} makes {math.prod(sizes.values())} places, but there are {len(devices)} devices"
        )
    # Auto axes: the compiler propagates shardings between our constraints; jax's own default is Explicit.
    return jax.make_mesh(tuple(sizes[n] for n in AXES), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def row_parts(mesh: Mesh) -> int:
    """Over how many places the rows of a batch are split: a batch's rows must be a multiple of it."""
    return mesh.shape["data"] * mesh.shape["fsdp"]
