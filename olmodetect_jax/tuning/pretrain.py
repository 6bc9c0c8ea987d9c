"""Next-token training from scratch in stages, for the small model of the embedded sample.

Texts of a stage are shuffled anew each epoch, joined with an end-of-text token after each, and cut into rows of
equal length, as language models are trained. Every draw comes from the recipe's seed, so the same texts, recipe
and machine give the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from olmodetect_jax.models.olmo2 import Olmo2, Olmo2Config
from olmodetect_jax.tuning.losses import token_losses


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Attributes:
        name: for messages and the history.
        epochs: times each text is seen.
        learning_rate: peak; reached after `warmup` of the stage's steps, then a cosine down to a tenth of it.
    """

    name: str
    epochs: int
    learning_rate: float
    warmup: float = 0.05


@dataclass(frozen=True)
class Recipe:
    """What a training run is made of, apart from its texts. Recorded with the weights.

    Attributes:
        seed: of the initial weights and of every shuffle.
        row_length: tokens a row.
        rows_per_step: rows a step.
        weight_decay: of AdamW, on matrices only.
        clip: largest global norm of the gradient.
    """

    stages: tuple[Stage, ...]
    seed: int
    row_length: int
    rows_per_step: int
    weight_decay: float
    clip: float


def pack(documents: Sequence[np.ndarray], *, eos_id: int, length: int, epochs: int, seed: Sequence[int]) -> np.ndarray:
    """Shuffles, joins and cuts documents into training rows.

    Args:
        documents: [T_i] int32 each.
        eos_id: put after every document.
        length: tokens a row.
        epochs: passes over the documents, each in its own order; rows run on from one pass into the next.
        seed: entropy of the orders.

    Returns:
        [rows, length] int32; the last, unfilled row is dropped.

    Raises:
        ValueError: the documents do not fill one row.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    end = np.array([eos_id], np.int32)
    stream = np.concatenate(
        [a for _ in range(epochs) for i in rng.permutation(len(documents)) for a in (documents[i], end)]
    )
    if len(stream) < length:
        raise ValueError(f"{len(stream)} tokens do not fill a row of {length}")
    return stream[: len(stream) // length * length].reshape(-1, length)


def next_token_loss(model: Olmo2, rows: jax.Array, *, tile: int) -> jax.Array:
    """Mean negative log-probability of every token but each row's first.

    The logits exist for `tile` positions of all rows at a time; the backward pass makes them again.

    Args:
        model: the model.
        rows: [B, T] int32, T a multiple of `tile`.
        tile: positions a tile.

    Returns:
        [] float32.
    """
    targets = jnp.concatenate([rows[:, 1:], rows[:, :1]], axis=1)
    losses = token_losses(model.hidden(rows), model.head_kernel(), targets, tile=tile)
    return jnp.mean(losses[:-1])  # the last target wrapped around


def train(
    config: Olmo2Config,
    documents: Sequence[Sequence[np.ndarray]],
    recipe: Recipe,
    *,
    eos_id: int,
    report: Callable[[str, int, int, float], None] = lambda stage, step, steps, loss: None,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Trains a model from random weights through all stages.

    Args:
        config: shape of the model.
        documents: the token ids of each stage's texts, in a fixed order.
        recipe: stages (as many as in `documents`), seeds, sizes.
        eos_id: id of the end-of-text token.
        report: called after every step with the stage's name, the step, the stage's steps and the loss.

    Returns:
        The weights as a pure dict of float32 arrays, and the losses of every step by stage.
    """
    model = Olmo2(config, rngs=nnx.Rngs(recipe.seed))
    graph, params = nnx.split(model, nnx.Param)
    history: dict[str, list[float]] = {}
    for index, (stage, texts) in enumerate(zip(recipe.stages, documents, strict=True)):
        rows = pack(texts, eos_id=eos_id, length=recipe.row_length, epochs=stage.epochs, seed=(recipe.seed, index))
        batches = [rows[i : i + recipe.rows_per_step] for i in range(0, len(rows), recipe.rows_per_step)]
        batches = [b for b in batches if len(b) == recipe.rows_per_step]
        params, history[stage.name] = _train_stage(graph, params, batches, stage, recipe, report)
    return nnx.to_pure_dict(params), history


def _train_stage(
    graph: nnx.GraphDef,
    params: nnx.State,
    batches: Sequence[np.ndarray],
    stage: Stage,
    recipe: Recipe,
    report: Callable[[str, int, int, float], None],
) -> tuple[nnx.State, list[float]]:
    steps = len(batches)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, stage.learning_rate, max(1, round(stage.warmup * steps)), steps, stage.learning_rate / 10
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(recipe.clip),
        # Gains and stacked gains have the axes [width] and [L, width]; only kernels and embeddings decay.
        optax.adamw(schedule, b2=0.95, weight_decay=recipe.weight_decay, mask=_decayed),
    )

    @jax.jit
    def step(params: nnx.State, state: optax.OptState, rows: jax.Array) -> tuple[nnx.State, optax.OptState, jax.Array]:
        def loss_of(params: nnx.State) -> jax.Array:
            return next_token_loss(nnx.merge(graph, params), rows, tile=128)

        loss, gradient = jax.value_and_grad(loss_of)(params)
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies its integer step count by floats
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, loss

    state = optimizer.init(params)
    losses = []
    for number, rows in enumerate(batches):
        params, state, loss = step(params, state, jnp.asarray(rows))
        losses.append(float(loss))
        report(stage.name, number + 1, steps, losses[-1])
    return params, losses


def _decayed(params: nnx.State) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not jax.tree_util.keystr(path, simple=True, separator="/").endswith(("scale", "scale/value")),
        params,
    )
