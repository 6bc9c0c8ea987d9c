"""The losses of FSD and of MIA-Tuner, as sums over the rows of a micro-batch (supervised spec, 1.2, 2.4 and 2.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from olmodetect_jax.models.lora import Adapter, attach
from olmodetect_jax.models.soft_prompt import prompted_hidden
from olmodetect_jax.tuning.steps import Rows

CERTAIN = 1 - 1e-6  # a probability above it teaches nothing more
CONTRAST_SCALE = 10.0  # of differences of losses


def token_losses(hidden: jax.Array, head: jax.Array, targets: jax.Array, *, tile: int) -> jax.Array:
    """Minus log p of each target; logits exist for `tile` positions of all rows at a time, going back too.

    Args:
        hidden: [B, T, D].
        head: [D, V].
        targets: [B, T] int32.
        tile: positions a tile, a divisor of T.

    Returns:
        [T, B] float32: the time first.
    """
    B, T = targets.shape
    hidden = jnp.swapaxes(hidden, 0, 1).reshape(T // tile, tile, B, -1)
    targets = targets.T.reshape(T // tile, tile, B)

    @jax.checkpoint
    def of_tile(h: jax.Array, y: jax.Array) -> jax.Array:
        logits = jnp.einsum("tbd,dv->tbv", h, head, preferred_element_type=jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    return jax.lax.map(lambda a: of_tile(*a), (hidden, targets)).reshape(T, B)


@dataclass(frozen=True)
class LoraLoss:
    """Next-token loss under an adapter, one mean over the tokens of the step.

    Attributes:
        scaling: alpha / rank.
        dropout: of the branch's input.
        seed: of dropout.
        tile: of `token_losses`.
    """

    scaling: float
    dropout: float
    seed: int
    tile: int

    def __call__(
        self, model: Any, adapter: Adapter, rows: Rows, step: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The rows' part of the step's loss, [] float32, and what it is made of.

        Args:
            model: made in this trace; the adapter is put beside its weights.
            adapter: see `models.lora`.
            rows: [R, ...].
            step: [] uint32, with the rows' places what the masks of dropout are drawn by.
        """
        key = jax.random.fold_in(jax.random.key(self.seed), step) if self.dropout else None
        attach(model, adapter, scaling=self.scaling, dropout=self.dropout, key=key, places=rows.places)
        targets = jnp.concatenate([rows.ids[:, 1:], rows.ids[:, :1]], axis=1)  # the last one weighs nothing
        losses = token_losses(model.hidden(rows.ids), model.head_kernel(), targets, tile=self.tile)
        loss = jnp.sum(losses.T * rows.weights)
        return loss, {"loss": loss}


@dataclass(frozen=True)
class SoftPromptLoss:
    """MIA-Tuner's loss: of the language model, of the answer's two logits, and of the wrong answer.

    Attributes:
        yes: id of the answer to members.
        no: id of the answer to non-members.
        unaligned: the contrastive loss instead; all rows of a step must then come together.
        tile: of `token_losses`.
    """

    yes: int
    no: int
    unaligned: bool
    tile: int

    def __call__(
        self, model: Any, adapter: jax.Array, rows: Rows, step: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The rows' part of the step's loss, [] float32, and what it is made of.

        Args:
            model: made in this trace.
            adapter: [P, D] float32, the soft prompt.
            rows: [R, ...].
            step: unused: nothing is drawn.
        """
        del step
        hidden = prompted_hidden(model, adapter, rows.ids)
        losses = token_losses(hidden, model.head_kernel(), rows.ids, tile=self.tile).T * rows.weights
        if self.unaligned:
            return contrastive(jnp.sum(losses, axis=1), rows.members, rows.shares)
        at_answer = jnp.take_along_axis(hidden, rows.answers[:, None, None], axis=1)[:, 0]
        logits = jnp.einsum("bd,dv->bv", at_answer, model.head_kernel(), preferred_element_type=jnp.float32)
        log_p = jax.nn.log_softmax(logits, axis=-1)
        clf, err = answer_losses(-log_p[:, self.yes], -log_p[:, self.no], rows.members)
        parts = {"llm": jnp.sum(losses), "clf": jnp.sum(clf * rows.shares) / 2, "err": jnp.sum(err * rows.shares)}
        return parts["llm"] + parts["clf"] + parts["err"], parts


def answer_losses(yes: jax.Array, no: jax.Array, members: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two losses of an answer, a row each.

    Args:
        yes: [R] float32, minus log p of the answer to members.
        no: the same of the other answer.
        members: [R] float32, 1 for members.

    Returns:
        The classification's [R], and that of the wrong answer [R].
    """
    right, wrong = jnp.where(members > 0, yes, no), jnp.where(members > 0, no, yes)
    return jax.nn.softplus(right - wrong), -jnp.log1p(-jnp.minimum(jnp.exp(-wrong), CERTAIN))


def contrastive(losses: jax.Array, members: jax.Array, shares: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of plain texts: those of one class should have alike losses, and members not larger ones.

    Args:
        losses: [R] float32, mean loss of each text.
        members: [R] float32, 1 for members.
        shares: [R] float32, one over the pairs for a text and 0 for a row without one.

    Returns:
        The loss, and its parts: the contrast, and by how much members lose more. A text without another of its class
        has no contrast.
    """
    real = shares > 0
    likeness = jnp.exp(-jnp.abs(losses[:, None] - losses[None, :]) / CONTRAST_SCALE)
    others = real[None, :] & ~jnp.eye(len(losses), dtype=bool)
    alike = others & (members[:, None] == members[None, :])
    near = jnp.sum(jnp.where(alike, jnp.exp(likeness), jnp.float32(0)), axis=1)
    far = jnp.sum(jnp.where(others, jnp.exp(likeness), jnp.float32(0)), axis=1)
    taught = real & (near > 0)
    ratio = jnp.where(taught, near, jnp.float32(1)) / jnp.where(taught, far, jnp.float32(1))
    contrast = -jnp.sum(jnp.log(ratio)) / jnp.maximum(jnp.sum(taught.astype(jnp.float32)), jnp.float32(1))
    excess = jax.nn.relu(jnp.sum(losses * shares * (2 * members - 1)))
    return contrast + excess, {"contrast": contrast, "excess": excess}
