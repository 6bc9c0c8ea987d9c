"""Soft prompts: trained vectors that stand where tokens' embeddings do, before all else (supervised spec, 2.2)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from olmodetect_jax.models.sharding import RULES


def prompted_hidden(model: Any, prompt: jax.Array, ids: jax.Array) -> jax.Array:
    """Final hidden states of texts after a soft prompt, which each row reads anew: for training.

    Args:
        model: has `embed` and `hidden_of`.
        prompt: [P, D] float32; it has the positions 0 to P-1.
        ids: [B, T] int32.

    Returns:
        [B, T, D]; position t is what predicts token t, the first one too.
    """
    x = model.embed(ids)
    before = jnp.broadcast_to(prompt.astype(x.dtype)[None], (x.shape[0], *prompt.shape))
    first = prompt.shape[0] - 1
    return model.hidden_of(jnp.concatenate([before, x], axis=1))[:, first : first + ids.shape[1]]


def hidden_after_prompt(model: Any, prompt: jax.Array, ids: jax.Array) -> jax.Array:
    """The same with the prompt read once for all rows, and one position more: for scoring.

    Args:
        model: has `prefill_of` and `hidden_after`.
        prompt: [P, D] float32.
        ids: [B, T] int32.

    Returns:
        [B, T+1, D]; position t is what predicts token t, the last one what comes after the row.
    """
    vectors = prompt.astype(model.embed(ids[:1, :1]).dtype)[None]
    length = jnp.full((1,), prompt.shape[0], jnp.int32)
    prefix = model.prefill_of(vectors, length, P(None))
    after = model.hidden_after(prefix, ids[None], RULES.rows)[0]
    before = jnp.broadcast_to(prefix.last[:, None], (ids.shape[0], 1, after.shape[2]))
    return jnp.concatenate([before, after], axis=1)
