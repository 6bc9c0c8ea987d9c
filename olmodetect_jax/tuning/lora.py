"""A LoRA adapter's start, and its form on disk: one tensor a layer and linear map, named as in the published adapters.

layers.<n>.self_attn.q_proj.lora_A [r, D_in]      layers.<n>.mlp.up_proj.lora_B [D_out, r]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from olmodetect_jax.models.lora import target_sizes
from olmodetect_jax.training import LoraRecipe
from olmodetect_jax.tuning.draws import lora_starts

_GROUPS = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn"}
Arrays = dict[str, dict[str, np.ndarray]]


def start(model: Any, recipe: LoraRecipe, dtype: jnp.dtype) -> Arrays:
    """The adapter before the first step: it changes nothing yet.

    Args:
        model: the base, or its abstract form.
        recipe: ranks, targets and seed.
        dtype: of the base: under a bfloat16 one the start is rounded to it once.

    Returns:
        By linear map, `A` [L, D_in, r] and `B` [L, r, D_out], float32.

    Raises:
        UsageError: the architecture lacks a target.
    """
    sizes = target_sizes(model, recipe.targets)
    layers = next(iter(sizes.values()))[0]
    drawn = lora_starts([(recipe.rank, *size[1:]) for _ in range(layers) for size in sizes.values()], recipe.seed)
    own: dict[str, list[np.ndarray]] = {name: [] for name in sizes}
    for _ in range(layers):
        for name in sizes:
            own[name].append(next(drawn).T.astype(dtype).astype(np.float32))
    return {
        name: {"A": np.stack(own[name]), "B": np.zeros((layers, recipe.rank, size[2]), np.float32)}
        for name, size in sizes.items()
    }


def to_tensors(adapter: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The adapter as it is written down."""
    return {
        f"layers.{layer}.{_GROUPS.get(name, 'mlp')}.{name}.lora_{matrix}": np.ascontiguousarray(value.T)
        for name, update in adapter.items()
        for matrix, stacked in update.items()
        for layer, value in enumerate(np.asarray(stacked))
    }


def from_tensors(tensors: Mapping[str, np.ndarray], targets: tuple[str, ...]) -> Arrays:
    """The adapter from what was written down.

    Args:
        tensors: of `to_tensors`.
        targets: its linear maps, in the recipe's order.

    Raises:
        KeyError: a tensor is missing.
    """
    layers = 1 + max(int(name.split(".")[1]) for name in tensors)
    return {
        name: {
            matrix: np.stack(
                [tensors[f"layers.{n}.{_GROUPS.get(name, 'mlp')}.{name}.lora_{matrix}"].T for n in range(layers)]
            )
            for matrix in ("A", "B")
        }
        for name in targets
    }
