"""LoRA: a low-rank update beside each linear map of a model whose own weights stay as they are.

    y = W x + (alpha / rank) B (A drop(x))

The branch is float32 whatever the base's dtype, and is never merged into bfloat16 weights, which would lose a quarter
of it (supervised spec, 1.2 and 5.1). An adapter is plain data, so that it can be differentiated, stacked and kept
without the model: {linear map: {"A": [L, D_in, r], "B": [L, r, D_out]}}.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from olmodetect_jax.errors import UsageError
from olmodetect_jax.models.layers import Linear

Adapter = Mapping[str, Mapping[str, jax.Array]]


class LoraParam(nnx.Variable):
    """A tensor of an adapter; no `nnx.Param`, so that nothing takes it for a weight of the base."""


class LoraLinear(nnx.Module):
    """A linear map with its update."""

    def __init__(
        self, base: Linear, update: Mapping[str, jax.Array], scaling: float, dropout: float, keys: jax.Array | None
    ):
        """Puts an update beside `base`.

        Args:
            base: the linear map as it is.
            update: `A` [D_in, r] and `B` [r, D_out], float32; with the leading layer axis where `base` has it.
            scaling: alpha / rank.
            dropout: probability with which a value of the input is left out of the branch.
            keys: [R], what the mask of each row is drawn by, with the same leading axis; None leaves nothing out.
        """
        self.base = base
        self.A, self.B = LoraParam(update["A"]), LoraParam(update["B"])
        self.keys = nnx.data(None) if keys is None else LoraParam(keys)
        self.scaling, self.dropout = scaling, dropout

    def __call__(self, x: jax.Array) -> jax.Array:
        """[R, T, D_in] to [R, T, D_out], in the input's dtype."""
        branch = x.astype(jnp.float32)
        if self.keys is not None and self.dropout > 0:
            branch = _dropped(branch, self.keys[...], self.dropout)
        with jax.default_matmul_precision("highest"):
            branch = (branch @ self.A[...]) @ self.B[...]
        return (self.base(x).astype(jnp.float32) + self.scaling * branch).astype(x.dtype)


def _dropped(x: jax.Array, keys: jax.Array, dropout: float) -> jax.Array:
    """Inverted dropout of [R, T, D], each row by its own key, so that it does not matter which rows come together.

    Sixteen bits a value decide: half the numbers to draw, and half their memory.
    """
    threshold = round((1 - dropout) * 2**16)
    bits = jax.vmap(lambda key: jax.random.bits(key, x.shape[1:], jnp.uint16))(keys)
    kept = bits < np.uint16(threshold)
    return jnp.where(kept, x * (2**16 / threshold), jnp.float32(0))


def attach(
    model: nnx.Module,
    adapter: Adapter,
    *,
    scaling: float,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    places: jax.Array | None = None,
) -> None:
    """Puts an adapter beside a model's stacked linear maps; call it on a model made in the same trace.

    Args:
        model: has `blocks` with L stacked layers.
        adapter: by the names of linear maps of a layer.
        scaling: alpha / rank.
        dropout: of the branch's input.
        key: what the masks are drawn by: each linear map of each layer has its own; None leaves nothing out.
        places: [R] int32, what tells the rows' masks apart; needed with a key.

    Raises:
        UsageError: the architecture has no linear map of that name.
    """
    check_targets(model, tuple(adapter))
    for place, (name, update) in enumerate(adapter.items()):
        keys = None
        if key is not None:
            layers = jnp.arange(update["A"].shape[0])
            own = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.fold_in(key, place), layers)
            keys = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(None, 0)), in_axes=(0, None))(own, places)
        setattr(model.blocks, name, LoraLinear(getattr(model.blocks, name), update, scaling, dropout, keys))


def check_targets(model: nnx.Module, targets: tuple[str, ...]) -> None:
    """Refuses names that are no linear map of a model's layers.

    Raises:
        UsageError: names the first such, and what there is.
    """
    known = [name for name, value in vars(model.blocks).items() if isinstance(value, Linear)]
    for name in targets:
        if name not in known:
            raise UsageError(
                f"LoRA target {name!r}: {type(model).__name__} has no such linear map; it has {', '.join(known)}"
            )


def target_sizes(model: nnx.Module, targets: tuple[str, ...]) -> dict[str, tuple[int, int, int]]:
    """(layers, D_in, D_out) of each linear map that an adapter stands beside.

    Raises:
        UsageError: as `check_targets`.
    """
    check_targets(model, targets)
    return {name: tuple(getattr(model.blocks, name).kernel.get_value().shape) for name in targets}
