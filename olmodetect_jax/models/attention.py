"""Attention with grouped key/value heads: over a text, of texts after a shared prefix, of one new token of many texts.

Scores and softmax are float32 whatever the inputs' dtype. Dimensions: B batch, T query position, S key position,
K key/value heads, G = N/K query heads of each, H head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_MASKED = -1e30  # finite: a row without a visible key must not become NaN
_CHUNK = 128  # queries whose scores exist at once, at least; a long text is cut into 16 chunks


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
    queries, keys, values = _grouped(q, k.shape[2]), _heads_first(k), _heads_first(v)
    chunks = [_finish(_causal(queries, keys, values, a, b)) for a, b in _chunks(q.shape[1])]
    return _ungrouped(jnp.concatenate(chunks, axis=3)).astype(q.dtype)


def attention_after(
    q: jax.Array, k: jax.Array, v: jax.Array, prefix_k: jax.Array, prefix_v: jax.Array, lengths: jax.Array
) -> jax.Array:
    """Attention of many texts, each over a prefix that they share and causally over itself.

    The prefix's keys and values exist once: all texts' queries meet them as one long query, and the two parts are
    merged. JAX's own `is_causal` over [prefix | text] keys aligns at the top left: wrong here.

    Args:
        q: [R, B, T, N, H], B texts after each of R prefixes.
        k: [R, B, T, K, H].
        v: [R, B, T, K, H].
        prefix_k: [R, P, K, H], padded on the right.
        prefix_v: [R, P, K, H].
        lengths: [R] int32, tokens of each prefix; after a prefix of none a text sees itself only.

    Returns:
        [R, B, T, N, H] in the dtype of q.
    """
    R, B, T, _, H = q.shape
    K = k.shape[3]
    queries, keys, values = (x.reshape(R * B, T, -1, H) for x in (q, k, v))
    queries, keys, values = _grouped(queries, K), _heads_first(keys), _heads_first(values)
    prefix_k, prefix_v = _heads_first(prefix_k), _heads_first(prefix_v)
    seen = (jnp.arange(prefix_k.shape[2])[None, :] < lengths[:, None])[:, None, None, None, :]
    chunks = []
    for a, b in _chunks(T):
        folded = jnp.moveaxis(queries[:, :, :, a:b].reshape(R, B, K, -1, b - a, H), 1, 3)  # [R, K, G, B, T, H]
        before = _partial(folded.reshape(R, K, -1, B * (b - a), H), prefix_k, prefix_v, seen)
        before = Part(*(jnp.moveaxis(x.reshape(R, K, -1, B, b - a, x.shape[-1]), 3, 1) for x in before))
        own = _causal(queries, keys, values, a, b)
        chunks.append(_finish(_merge(Part(*(x.reshape(y.shape) for x, y in zip(before, own, strict=True))), own)))
    return _ungrouped(jnp.concatenate(chunks, axis=3)).astype(q.dtype).reshape(q.shape)


def attention_step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    prefix_k: jax.Array,
    prefix_v: jax.Array,
    starts: jax.Array,
    own_k: jax.Array,
    own_v: jax.Array,
    own_seen: jax.Array,
) -> jax.Array:
    """Attention of one new token of each text over the prompt it continues, its own earlier tokens, and itself.

    A prompt's keys and values exist once for the W texts that continue it.

    Args:
        q: [G, W, N, H], a token of each of W texts after each of G prompts.
        k: [G, W, K, H].
        v: [G, W, K, H].
        prefix_k: [G, K, P, H], of the prompts.
        prefix_v: [G, K, P, H].
        starts: [G, W] int32, how many of the prompt's tokens each text follows.
        own_k: [G, W, K, S, H], of the texts' earlier tokens, in any order.
        own_v: [G, W, K, S, H].
        own_seen: [G, W, S] bool, which of these there are.

    Returns:
        [G, W, N, H] in the dtype of q.
    """
    G, W, N, H = q.shape
    K = k.shape[2]
    grouped = q.reshape(G, W, K, N // K, H)
    seen = jnp.arange(prefix_k.shape[2])[None, None, :] < starts[:, :, None]
    before = _partial(jnp.moveaxis(grouped, 1, 3), prefix_k, prefix_v, seen[:, None, None])
    before = Part(*(jnp.moveaxis(x, 3, 1)[:, :, :, :, None] for x in before))  # [G, W, K, N/K, 1, ...]
    flat = grouped.reshape(G * W, K, N // K, 1, H)
    own = _partial(flat, own_k.reshape(G * W, *own_k.shape[2:]), own_v.reshape(G * W, *own_v.shape[2:]),
                   own_seen.reshape(G * W, 1, 1, 1, -1))  # fmt: skip
    everything = jnp.ones((1, 1, 1, 1, 1), bool)
    itself = _partial(flat, k.reshape(G * W, K, 1, H), v.reshape(G * W, K, 1, H), everything)
    own = _merge(own, itself)
    merged = _merge(before, Part(*(x.reshape(y.shape) for x, y in zip(own, before, strict=True))))
    return _finish(merged).reshape(q.shape).astype(q.dtype)


class Part(NamedTuple):
    """Attention over some of the keys, not yet divided by its total; all float32.

    Attributes:
        out: [B, K, G, T, H], sum of e^(score - peak) times the values.
        total: [B, K, G, T, 1], sum of e^(score - peak).
        peak: [B, K, G, T, 1], the largest score.
    """

    out: jax.Array
    total: jax.Array
    peak: jax.Array


def _merge(one: Part, other: Part) -> Part:
    """Attention over the keys of both."""
    peak = jnp.maximum(one.peak, other.peak)
    a, b = jnp.exp(one.peak - peak), jnp.exp(other.peak - peak)
    return Part(one.out * a + other.out * b, one.total * a + other.total * b, peak)


def _finish(part: Part) -> jax.Array:
    return part.out / part.total


def _causal(q: jax.Array, k: jax.Array, v: jax.Array, first: int, last: int) -> Part:
    """The queries first … last-1 over the keys that each of them sees."""
    seen = (jnp.arange(first, last)[:, None] >= jnp.arange(last)[None, :])[None, None, None]
    return _partial(q[:, :, :, first:last], k[:, :, :last], v[:, :, :last], seen)


def _partial(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> Part:
    """Queries [B, K, G, T, H] over k and v [B, K, S, H]; `seen` broadcasts to the scores [B, K, G, T, S]."""
    scores = jnp.einsum("bkgth,bksh->bkgts", q, k, preferred_element_type=jnp.float32) * (q.shape[-1] ** -0.5)
    scores = jnp.where(seen, scores, _MASKED)
    peak = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - peak)
    out = jnp.einsum("bkgts,bksh->bkgth", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return Part(out, jnp.sum(weights, axis=-1, keepdims=True), peak)


def _grouped(q: jax.Array, kv_heads: int) -> jax.Array:
    """[B, T, N, H] to [B, K, G, T, H]: matrix products want the heads in front."""
    B, T, N, H = q.shape
    return jnp.moveaxis(q.reshape(B, T, kv_heads, N // kv_heads, H), 1, 3)


def _ungrouped(out: jax.Array) -> jax.Array:
    """[B, K, G, T, H] to [B, T, N, H]."""
    B, K, G, T, H = out.shape
    return jnp.moveaxis(out, 3, 1).reshape(B, T, K * G, H)


def _heads_first(x: jax.Array) -> jax.Array:
    """[B, S, K, H] to [B, K, S, H]."""
    return jnp.moveaxis(x, 1, 2)


def _chunks(T: int) -> list[tuple[int, int]]:
    size = max(_CHUNK, -(-T // 16))
    ends = [*range(size, T, size), T]
    return list(zip([0, *ends[:-1]], ends, strict=True))
