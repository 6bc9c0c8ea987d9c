"""Several adapters trained at once beside the same frozen weights: one compiled step for all of them.

Adapters, their optimiser's states and their rows are stacked along a leading axis K and mapped over; the base is an
argument that is not mapped, not differentiated and in no optimiser's state. A step adds up the gradients of its
micro-batches and then moves the adapters once. An adapter whose training is shorter stands still at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olmodetect_jax.errors import OlmoDetectError
from olmodetect_jax.models.sharding import RULES
from olmodetect_jax.runtime.failures import device_errors_named
from olmodetect_jax.training import LoraRecipe, SoftPromptRecipe
from olmodetect_jax.tuning.checkpoints import Checkpoints
from olmodetect_jax.tuning.losses import LoraLoss, SoftPromptLoss
from olmodetect_jax.tuning.steps import Rows, Training, no_rows, places_of, rates_of, rows_of, steps_of

Loss = LoraLoss | SoftPromptLoss


@functools.partial(jax.jit, static_argnames=("graph", "loss"), donate_argnames=("total",))
def add_gradients(
    params: nnx.State,
    adapters: Any,
    total: Any,
    rows: Rows,
    step: jax.Array,
    *,
    graph: nnx.GraphDef,
    loss: Loss,
) -> Any:
    """Adds a micro-batch's losses and gradients to those of the step so far.

    Args:
        params: the base's weights.
        adapters: stacked, [K, ...] each.
        total: (gradients like `adapters`, losses and their parts [K]) of the step's earlier micro-batches.
        rows: stacked, [K, R, ...].
        step: [] uint32.
        graph: the base without its weights.
        loss: of one adapter's rows.

    Returns:
        The new total.
    """

    def one(adapter: Any, own: Rows) -> Any:
        def of(adapter: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            value, parts = loss(nnx.merge(graph, params), adapter, own, step)
            return value, {"loss": value, **parts}

        (_, values), gradient = jax.value_and_grad(of, has_aux=True)(adapter)
        return gradient, values

    # Accelerators multiply float32 matrices in fewer bits unless told otherwise; bfloat16 ones are not affected.
    with jax.default_matmul_precision("highest"):
        return jax.tree.map(jnp.add, total, jax.vmap(one)(adapters, rows))


@functools.partial(jax.jit, static_argnames=("recipe",), donate_argnames=("adapters", "state"))
def move(
    adapters: Any,
    state: Any,
    gradients: Any,
    rates: jax.Array,
    active: jax.Array,
    *,
    recipe: LoraRecipe | SoftPromptRecipe,
) -> tuple[Any, Any]:
    """One step of the optimiser for each adapter that still trains.

    Args:
        adapters: stacked, [K, ...] each.
        state: the optimiser's, stacked too.
        gradients: of the whole step.
        rates: [K] float32.
        active: [K] bool.
        recipe: names the optimiser.
    """

    def one(adapter: Any, own: Any, gradient: Any, rate: jax.Array, moves: jax.Array) -> tuple[Any, Any]:
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies its integer step count by floats
            updates, after = optimizer_of(recipe).update(gradient, own, adapter)
        moved = jax.tree.map(lambda p, u: p - rate * u, adapter, updates)
        return jax.tree.map(lambda new, old: jnp.where(moves, new, old), (moved, after), (adapter, own))

    return jax.vmap(one)(adapters, state, gradients, rates, active)


def optimizer_of(recipe: LoraRecipe | SoftPromptRecipe) -> optax.GradientTransformation:
    """AdamW without the learning rate, which differs from adapter to adapter; LoRA's gradient is clipped first."""
    adam = optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)
    if isinstance(recipe, SoftPromptRecipe):
        return adam
    return optax.chain(optax.clip_by_global_norm(recipe.clip), adam, optax.add_decayed_weights(recipe.weight_decay))


@dataclass(frozen=True)
class Group:
    """Trainings that run together: of one recipe, about as long as each other.

    Attributes:
        names: of the adapters.
        requests: what is trained, in the same order.
        rows: R of a micro-batch.
        length: T of a row.
    """

    names: tuple[str, ...]
    requests: tuple[Training, ...]
    rows: int
    length: int

    @property
    def steps(self) -> int:
        """Steps of the longest."""
        return max(map(steps_of, self.requests))


def train(
    group: Group,
    starts: Sequence[Any],
    params: nnx.State,
    mesh: Mesh,
    checkpoints: Checkpoints,
    *,
    graph: nnx.GraphDef,
    loss: Loss,
    advance: Callable[[int], None] = lambda steps: None,
) -> tuple[list[Any], list[np.ndarray]]:
    """Trains a group to its end, going on from the last checkpoint if there is one.

    Args:
        group: what to train.
        starts: each adapter before its first step, as numpy arrays.
        params: the base's weights, on `mesh`.
        mesh: from `make_mesh`.
        checkpoints: of this group.
        graph: the base without its weights.
        loss: of one adapter's rows.
        advance: is told how many steps are done.

    Returns:
        The trained adapters as numpy arrays, and the losses of each one's steps, [steps] float32.

    Raises:
        OlmoDetectError: a loss is not finite, or a batch does not fit the device's memory.
    """
    recipe = group.requests[0].recipe
    everywhere = NamedSharding(mesh, P())
    adapters = jax.device_put(jax.tree.map(lambda *a: np.stack(a), *starts), everywhere)
    state = jax.jit(jax.vmap(optimizer_of(recipe).init), out_shardings=everywhere)(adapters)
    losses = np.full((group.steps, len(group.names)), np.nan, np.float32)
    first, (adapters, state, losses) = checkpoints.latest((adapters, state, losses))
    advance(first)
    rates = [rates_of(request) for request in group.requests]
    for step in range(first, group.steps):
        active = np.array([step < len(own) for own in rates])
        with jax.set_mesh(mesh), device_errors_named(group.rows * len(group.names), group.length):
            gradients, values = _step_gradients(group, params, adapters, mesh, step, graph=graph, loss=loss)
            losses[step] = np.where(active, np.asarray(values["loss"]), np.nan)
            _refuse_non_finite(group, losses[step], active, step, checkpoints)
            rate = np.array([own[step] if step < len(own) else 0 for own in rates], np.float32)
            adapters, state = move(adapters, state, gradients, rate, active, recipe=recipe)
        checkpoints.keep(step + 1, group.steps, lambda now=(adapters, state, losses): now)
        advance(1)
    host = jax.tree.map(np.asarray, adapters)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(host)):
        raise OlmoDetectError(
            f"{group.requests[0].origin.attack}: after the last step an adapter holds numbers that are not finite; try "
            "a smaller learning rate"
        )
    each = [jax.tree.map(lambda a, k=k: a[k], host) for k in range(len(group.names))]
    return each, [losses[: len(own), k] for k, own in enumerate(rates)]


def _step_gradients(
    group: Group, params: nnx.State, adapters: Any, mesh: Mesh, step: int, *, graph: nnx.GraphDef, loss: Loss
) -> Any:
    """Gradients, and losses with their parts, of a whole step."""
    own = [
        rows_of(request, step, group.rows, group.length) if step < steps_of(request) else []
        for request in group.requests
    ]
    total = _zeros(adapters, loss=loss)
    for part in range(max(map(len, own))):
        micro = [rows[part] if part < len(rows) else no_rows(group.rows, group.length) for rows in own]
        stacked = Rows(*(np.stack(arrays) for arrays in zip(*micro, strict=True)))
        placed = jax.device_put(stacked, NamedSharding(mesh, P(None, *RULES.rows)))
        total = add_gradients(params, adapters, total, placed, np.uint32(step), graph=graph, loss=loss)
    return total


@functools.partial(jax.jit, static_argnames=("loss",))
def _zeros(adapters: Any, *, loss: Loss) -> Any:
    """The total before the first micro-batch."""
    K = jax.tree.leaves(adapters)[0].shape[0]
    parts = () if isinstance(loss, LoraLoss) else ("contrast", "excess") if loss.unaligned else ("llm", "clf", "err")
    return jax.tree.map(jnp.zeros_like, adapters), {name: jnp.zeros(K, jnp.float32) for name in ("loss", *parts)}


def _refuse_non_finite(
    group: Group, losses: np.ndarray, active: np.ndarray, step: int, checkpoints: Checkpoints
) -> None:
    for k, request in enumerate(group.requests):
        if active[k] and not math.isfinite(losses[k]):
            origin = request.origin
            texts = ", ".join(str(i) for i in places_of(request, step))
            raise OlmoDetectError(
                f"{origin.attack} {origin.setting} for {origin.trained_for}: the loss of step {step + 1} of "
                f"{steps_of(request)} is {losses[k]}, on the training texts {texts} (from 0); "
                f"{checkpoints.what_is_kept()}. Try --dtype float32 or a smaller learning rate"
            )
