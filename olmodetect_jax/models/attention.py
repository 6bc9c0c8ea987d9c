"""Causal attention over one text, with grouped key/value heads."""

from __future__ import annotations

import jax
import jax.numpy as jnp

_MASKED = -1e30  # finite: a row without a visible key must not become NaN


_CHUNK = 256  # queries whose scores exist at once


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Softmax attention in which each position sees itself and those before it.

    Queries go in chunks, each against the keys up to its own end: half the work of the full square, and
    [chunk, T] scores instead of [T, T]. Padding on the right needs no mask: positions after a text's end are
    seen by nothing that is scored. Scores and softmax are float32 whatever the inputs' dtype.

    Args:
        q: [B, T, N, H].
        k: [B, T, K, H] with N a multiple of K; query head n reads key/value head n // (N/K).
        v: [B, T, K, H].

    Returns:
        [B, T, N, H] in the dtype of q.
    """
    B, T, N, H = q.shape
    K = k.shape[2]
    q = q.reshape(B, T, K, N // K, H)
    ends = [*range(_CHUNK, T, _CHUNK), T]
    starts = [0, *ends[:-1]]
    chunks = [_attend(q[:, a:b], k[:, :b], v[:, :b], first=a) for a, b in zip(starts, ends, strict=True)]
    return jnp.concatenate(chunks, axis=1).reshape(B, T, N, H)


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, *, first: int) -> jax.Array:
    """Attention of q [B, T, K, G, H], its first row at position `first`, over k and v [B, S, K, H] from position 0."""
    T, S, H = q.shape[1], k.shape[1], q.shape[-1]
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * (H**-0.5)
    visible = first + jnp.arange(T)[:, None] >= jnp.arange(S)[None, :]
    weights = jax.nn.softmax(jnp.where(visible[None, None, None], scores, _MASKED), axis=-1)
    return jnp.einsum("bkgts,bskh->btkgh", weights.astype(v.dtype), v)
