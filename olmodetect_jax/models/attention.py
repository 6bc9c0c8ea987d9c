"""Attention with grouped key/value heads: causal over one text, and of many texts after one shared prefix.

Scores and softmax are float32 whatever the inputs' dtype. Dimensions: B batch, T query position, S key position,
K key/value heads, G = N/K query heads of each, H head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_MASKED = -1e30  # finite: a row without a visible key must not become NaN
_CHUNK = 256  # queries whose scores exist at once


class Prefix(NamedTuple):
    """R prefixes that were read.

    Attributes:
        keys: [L, R, P, K, H], rotated.
        values: [L, R, P, K, H].
        lengths: [R] int32, tokens of each; the rest of P is padding.
        last: [R, D], final normed hidden state of each prefix's last token: what predicts a text's first token.
    """

    keys: jax.Array
    values: jax.Array
    lengths: jax.Array
    last: jax.Array


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Softmax attention in which each position sees itself and those before it.

    Queries go in chunks, each against the keys up to its own end: half the work of the full square, and
    [chunk, T] scores instead of [T, T]. Padding on the right needs no mask: positions after a text's end are
    seen by nothing that is scored.

    Args:
        q: [B, T, N, H].
        k: [B, T, K, H] with N a multiple of K; query head n reads key/value head n // (N/K).
        v: [B, T, K, H].

    Returns:
        [B, T, N, H] in the dtype of q.
    """
    grouped = _grouped(q, k.shape[2])
    chunks = [_attend(grouped[:, a:b], k[:, :b], v[:, :b], _causal(a, b)) for a, b in _chunks(q.shape[1])]
    return jnp.concatenate(chunks, axis=1).reshape(q.shape)


def attention_after(
    q: jax.Array, k: jax.Array, v: jax.Array, prefix_k: jax.Array, prefix_v: jax.Array, lengths: jax.Array
) -> jax.Array:
    """Attention of many texts, each over a prefix that they share and causally over itself.

    The prefix's keys and values exist once: all texts' queries meet them as one long query, and the two parts are
    merged by their log-sum-exps. JAX's own `is_causal` over [prefix | text] keys aligns at the top left: wrong here.

    Args:
        q: [R, B, T, N, H], B texts after each of R prefixes.
        k: [R, B, T, K, H].
        v: [R, B, T, K, H].
        prefix_k: [R, P, K, H], padded on the right.
        prefix_v: [R, P, K, H].
        lengths: [R] int32, tokens of each prefix.

    Returns:
        [R, B, T, N, H] in the dtype of q.
    """
    R, B, T, N, H = q.shape
    K = k.shape[3]
    own = [x.reshape(R * B, T, -1, H) for x in (q, k, v)]
    grouped = _grouped(own[0], K)
    seen = (jnp.arange(prefix_k.shape[1])[None, :] < lengths[:, None])[:, None, None, None, :]  # over K, G and T
    chunks = []
    for a, b in _chunks(T):
        queries = grouped[:, a:b]
        folded = queries.reshape(R, B * (b - a), K, N // K, H)
        before, before_lse = _partial(folded, prefix_k, prefix_v, seen)
        self_, self_lse = _partial(queries, own[1][:, :b], own[2][:, :b], _causal(a, b))
        # The weight of the prefix's part in the whole softmax: e^before / (e^before + e^self).
        share = jax.nn.sigmoid(before_lse.reshape(self_lse.shape) - self_lse)[..., None]
        before = before.reshape(self_.shape)
        chunks.append((before * share + self_ * (1 - share)).astype(q.dtype))
    return jnp.concatenate(chunks, axis=1).reshape(q.shape)


def _grouped(q: jax.Array, kv_heads: int) -> jax.Array:
    B, T, N, H = q.shape
    return q.reshape(B, T, kv_heads, N // kv_heads, H)


def _chunks(T: int) -> list[tuple[int, int]]:
    ends = [*range(_CHUNK, T, _CHUNK), T]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _causal(first: int, last: int) -> jax.Array:
    """Which of the keys 0 … last-1 the queries first … last-1 see; [1, 1, 1, T, S]."""
    return (jnp.arange(first, last)[:, None] >= jnp.arange(last)[None, :])[None, None, None]


def _scores(q: jax.Array, k: jax.Array, seen: jax.Array) -> jax.Array:
    """[B, K, G, T, S] float32 of q [B, T, K, G, H] and k [B, S, K, H]."""
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * (q.shape[-1] ** -0.5)
    return jnp.where(seen, scores, _MASKED)


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
    """Attention of q [B, T, K, G, H] over k and v [B, S, K, H]."""
    weights = jax.nn.softmax(_scores(q, k, seen), axis=-1)
    return jnp.einsum("bkgts,bskh->btkgh", weights.astype(v.dtype), v)


def _partial(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same over some of the keys, with the log-sum-exp of its scores: [B, T, K, G, H] and [B, T, K, G], float32."""
    scores = _scores(q, k, seen)
    peak = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - peak)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    out = jnp.einsum("bkgts,bskh->btkgh", (weights / total).astype(v.dtype), v, preferred_element_type=jnp.float32)
    return out, jnp.moveaxis((peak + jnp.log(total))[..., 0], 3, 1)
