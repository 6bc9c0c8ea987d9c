"""Which token comes next: the most probable one, or one drawn from a warped distribution by one uniform number."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from olmodetect_jax.scoring.statistics import in_lanes


def warp(logits: jax.Array, temperature: jax.Array, *, top_k: int, top_p: float) -> jax.Array:
    """Logits of the distribution that is drawn from; -inf for tokens that cannot come (generative spec, section 4).

    Args:
        logits: [..., V] float32.
        temperature: [...] float32, above 0; it divides first.
        top_k: the k largest survive, and what ties with the k-th; 0 for all.
        top_p: then the most probable that together reach this probability, and what ties with the last; 1 for all.

    Returns:
        [..., V] float32, not normalised.
    """
    scaled = logits / temperature[..., None]
    if 0 < top_k < logits.shape[-1]:
        scaled = jnp.where(scaled < _least_of_top(scaled, top_k)[..., None], -jnp.inf, scaled)
    if top_p < 1:
        falling = -jnp.sort(-jax.nn.softmax(scaled, axis=-1), axis=-1)
        before = jnp.cumsum(falling, axis=-1) - falling
        least = jnp.min(jnp.where(before < top_p, falling, jnp.inf), axis=-1, keepdims=True)
        scaled = jnp.where(jax.nn.softmax(scaled, axis=-1) < least, -jnp.inf, scaled)
    return scaled


def _least_of_top(x: jax.Array, k: int) -> jax.Array:
    """A value that exactly the k largest of [..., V] reach, and what ties with the k-th; [...] float32.

    By halving the interval: some passes over x, where sorting 4,096 values takes ten times as long on a CPU.
    """
    tiles = in_lanes(x)

    def count(value: jax.Array) -> jax.Array:
        return _sum((tiles >= value[..., None, None]).astype(jnp.float32))

    def halve(bounds: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        low, high, reached = bounds
        middle = low + (high - low) / 2
        counted = count(middle)
        enough = counted >= k
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle), jnp.where(enough, counted, reached)

    def goes_on(bounds: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        low, high, reached = bounds
        middle = low + (high - low) / 2
        return jnp.any((reached > k) & (low < middle) & (middle < high))  # no float32 between: the k-th has ties

    # low is reached by at least k, high by fewer, unless k tie for the largest.
    high = jnp.max(jnp.max(tiles, axis=-2), axis=-1)
    low = jnp.where(count(high) >= k, high, jnp.min(jnp.min(tiles, axis=-2), axis=-1))
    return jax.lax.while_loop(goes_on, halve, (low, high, count(low)))[0]


def largest(x: jax.Array) -> jax.Array:
    """Index of the first largest of [..., V]; [...] int32."""
    tiles = in_lanes(x)
    peak = jnp.max(jnp.max(tiles, axis=-2), axis=-1)
    ids = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1).reshape(tiles.shape)
    return jnp.min(jnp.min(jnp.where(tiles == peak[..., None, None], ids, x.shape[-1] - 1), axis=-2), axis=-1)


def _sum(tiles: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sum(tiles, axis=-2), axis=-1)


def draw(warped: jax.Array, uniform: jax.Array) -> jax.Array:
    """The token at which the cumulated probability, in the order of ids, passes `uniform`.

    In two levels, blocks of ids first: a single running sum over V is slow, and loses digits.

    Args:
        warped: [..., V] float32 logits, -inf allowed.
        uniform: [...] float32, 0 <= u < 1.

    Returns:
        [...] int32; never a token of probability 0.
    """
    tiles = in_lanes(warped)
    weights = jnp.exp(tiles - jnp.max(jnp.max(tiles, axis=-2), axis=-1)[..., None, None])
    blocks = jnp.sum(weights, axis=-1)
    ends = jnp.cumsum(blocks, axis=-1)
    target = (uniform * ends[..., -1])[..., None]
    block = _first_above(ends, blocks, target)
    inside = jnp.take_along_axis(weights, block[..., None, None], axis=-2)[..., 0, :]
    begin = jnp.take_along_axis(ends - blocks, block[..., None], axis=-1)
    place = _first_above(begin + jnp.cumsum(inside, axis=-1), inside, target)
    return block * tiles.shape[-1] + place


def _first_above(ends: jax.Array, weights: jax.Array, target: jax.Array) -> jax.Array:
    """Index of the first positive weight whose running sum is above the target; rounding may leave the last only."""
    above = (ends > target) & (weights > 0)
    last = weights.shape[-1] - 1 - jnp.argmax(weights[..., ::-1] > 0, axis=-1)
    return jnp.where(jnp.any(above, axis=-1), jnp.argmax(above, axis=-1), last).astype(jnp.int32)


def uniforms(keys: jax.Array, steps: jax.Array) -> jax.Array:
    """One number for each text and step, whatever else is in the batch.

    Args:
        keys: [..., 2] uint32, a text's own.
        steps: [...] int32, how many tokens it has.

    Returns:
        [...] float32, 0 <= u < 1.
    """

    def one(key: jax.Array, step: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), step))

    flat = jax.vmap(one)(keys.reshape(-1, 2), steps.reshape(-1))
    return flat.reshape(steps.shape)
