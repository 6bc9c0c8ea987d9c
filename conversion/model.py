"""A model's weights in memory: the pure dict of its NNX state, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olmodetect_jax.errors import one_of

if TYPE_CHECKING:
    import jax
    from flax import nnx

    from olmodetect_jax.models.registry import Family

    ShardingOf = Callable[[str, tuple[int, ...]], jax.sharding.Sharding]

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class LoadedModel:
    """Weights and their identity.

    Attributes:
        family: architecture, from the registry.
        config: its config object.
        params: pure dict of the NNX state: nested names to arrays, layers stacked on axis 0.
        weights_digest: `digest.weights_digest(params)`.
        name: the model's name, for tables and manifests.
        dtype: `float32` or `bfloat16`, in which parameters are kept and the model computes.
    """

    family: Family
    config: Any
    params: dict[str, Any]
    weights_digest: str
    name: str
    dtype: str

    def module(self) -> nnx.Module:
        """The NNX module that holds these weights (the arrays are shared, not copied)."""
        from flax import nnx

        graph, state = nnx.split(_abstract_module(self.family, self.config, self.dtype))
        nnx.replace_by_pure_dict(state, self.params)
        return nnx.merge(graph, state)


def abstract_leaves(family: Family, config: Any, dtype: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a model's leaves; nothing is allocated and no random weight drawn.

    Args:
        family: architecture.
        config: its config object.
        dtype: one of `DTYPES`.

    Returns:
        Path (`blocks/q_proj/kernel`) to abstract leaf, sorted by path.

    Raises:
        UsageError: an unknown dtype.
    """
    from flax import nnx

    leaves = flatten(nnx.to_pure_dict(nnx.state(_abstract_module(family, config, dtype))))
    return dict(sorted(leaves.items()))


def _abstract_module(family: Family, config: Any, dtype: str) -> nnx.Module:
    import jax.numpy as jnp
    from flax import nnx

    if dtype not in DTYPES:
        raise one_of("--dtype", dtype, DTYPES)
    return nnx.eval_shape(lambda: family.model_class(config, rngs=nnx.Rngs(0), dtype=jnp.dtype(dtype)))


def flatten(params: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dict to paths joined by `/`."""
    from flax.traverse_util import flatten_dict

    return flatten_dict(params, sep="/")


def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Paths joined by `/` to a nested dict."""
    from flax.traverse_util import unflatten_dict

    return unflatten_dict(leaves, sep="/")


def shardings(leaves: Mapping[str, jax.ShapeDtypeStruct], sharding_of: ShardingOf | None) -> dict[str, Any]:
    """Where each leaf goes: as `sharding_of(path, shape)` says, else all to this process's first device."""
    import jax

    if sharding_of is None:
        alone = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return dict.fromkeys(leaves, alone)
    return {path: sharding_of(path, leaf.shape) for path, leaf in leaves.items()}
