"""Hidden states × head → log-probability, mean and variance per token, never holding [B, T, V].

With l the V logits of one position, p their softmax and y the token that came:

    log_prob = l_y - logZ      mean = E_p[log p]      variance = Var_p[log p]

all over every logit column, padding rows of the embedding included (likelihood spec, 1.3). The head's matrix
product and the reductions run over tiles of positions with the whole vocabulary each; the variance is the second
moment about the mean, because E[x²] - E[x]² loses all digits where the model is nearly uniform or certain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

Rounding = Literal["none", "logits", "all"]  # to bfloat16: nothing, the logits alone, or every step from them on


class Statistics(NamedTuple):
    """Per position, float32, natural logarithms; each of the targets' shape."""

    log_prob: jax.Array
    mean: jax.Array
    variance: jax.Array


def token_statistics(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    tile: int,
    group: int | None = None,
    rounding: Rounding = "none",
) -> Statistics:
    """Statistics of `targets` under the logits `hidden @ head`.

    Args:
        hidden: [B, T, D].
        head: [D, V].
        targets: [B, T] int32, the token that follows each position.
        tile: rows of logits that exist at once, at least B. Tiles run along T, never over flattened rows, so that
            each device computes its own rows of the batch only.
        group: rows of a tile that are reduced at once; None reduces the whole tile. On a CPU a group that fits the
            cache makes the reductions nearly free (see `sizes`).
        rounding: `none` keeps the float32 accumulator; `logits` and `all` round as the released code does.

    Returns:
        Three [B, T] float32 arrays.
    """
    return _by_tiles(_rounded(rounding, logit_statistics, released_statistics), hidden, head, targets, tile, group)


def token_log_probs(
    hidden: jax.Array,
    head: jax.Array,
    targets: jax.Array,
    *,
    tile: int,
    group: int | None = None,
    rounding: Rounding = "none",
) -> jax.Array:
    """Log-probabilities of `targets` alone, without the moments: what a pair of prefix and text needs.

    Args:
        hidden: as for `token_statistics`.
        head: the same.
        targets: the same.
        tile: the same.
        group: the same.
        rounding: the same.

    Returns:
        [B, T] float32.
    """
    return _by_tiles(_rounded(rounding, logit_log_probs, released_log_probs), hidden, head, targets, tile, group)


def _rounded(rounding: Rounding, exact: Callable, released: Callable) -> Callable:
    if rounding == "logits":
        return lambda logits, targets: exact(_bfloat16(logits), targets)
    return exact if rounding == "none" else released


def _by_tiles(
    reduce: Callable, hidden: jax.Array, head: jax.Array, targets: jax.Array, tile: int, group: int | None
) -> Any:
    """`reduce` over tiles of logits; it makes one or several [T, B] arrays, which come back as [B, T]."""
    B, T = targets.shape
    length = T // _steps(T, tile // B)

    def one_tile(start: jax.Array) -> Any:
        # Time first: then groups are slices of the leading axis, and no logits are copied to cut them.
        h = jnp.swapaxes(jax.lax.dynamic_slice_in_dim(hidden, start, length, axis=1), 0, 1)
        y = jax.lax.dynamic_slice_in_dim(targets, start, length, axis=1).T
        logits = jnp.einsum("tbd,dv->tbv", h, head, preferred_element_type=jnp.float32)
        steps = 1 if group is None else _steps(length, group // B)
        if steps == 1:
            return reduce(logits, y)
        cut = (logits.reshape(steps, length // steps, B, -1), y.reshape(steps, length // steps, B))
        return jax.tree.map(lambda s: s.reshape(length, B), jax.lax.map(lambda part: reduce(*part), cut))

    tiles = jax.lax.map(one_tile, jnp.arange(0, T, length))
    return jax.tree.map(lambda s: s.reshape(T, B).T, tiles)


def sizes(platform: str, vocabulary: int) -> tuple[int, int | None]:
    """Tile and group for `token_statistics`: at most 128 MiB of logits a tile on a CPU, 512 MiB on an accelerator."""
    if platform == "cpu":  # 512 rows fill a matrix product; more of a small vocabulary's only leave the cache
        return max(1, min(512, 2**25 // vocabulary)), max(1, 2**18 // vocabulary)
    return max(1, 2**27 // vocabulary), None


def _steps(length: int, most: int) -> int:
    """The smallest number of equal steps along `length` of at most `most` positions each (at least one)."""
    return next(n for n in range(1, length + 1) if length % n == 0 and (length // n <= most or n == length))


def logit_statistics(logits: jax.Array, targets: jax.Array) -> Statistics:
    """Statistics from logits.

    Args:
        logits: [T, B, V] float32.
        targets: [T, B] int32.

    Returns:
        Three [T, B] float32 arrays.
    """
    logits, peak, shifted = _lanes(logits)
    # One pass gives the total and the first moment, so each exponential is taken once in it.
    weight = jnp.exp(shifted)
    zero = jnp.float32(0)
    totals, firsts = jax.lax.reduce(
        (weight, weight * shifted), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (2,)
    )
    total = jnp.sum(totals, axis=2)
    centre = jnp.sum(firsts, axis=2) / total
    second = weight * jnp.square(shifted - centre[:, :, None, None])
    variance = jnp.sum(jnp.sum(second, axis=2), axis=2) / total
    return Statistics(_chosen(logits, targets) - peak - jnp.log(total), centre - jnp.log(total), variance)


def logit_log_probs(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The first of `logit_statistics` alone, [T, B] float32."""
    logits, peak, shifted = _lanes(logits)
    total = jnp.sum(jnp.sum(jnp.exp(shifted), axis=2), axis=2)
    return _chosen(logits, targets) - peak - jnp.log(total)


def _lanes(logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logits as [T, B, V/n, n], their peaks [T, B], and the logits less their peak."""
    logits = in_lanes(logits)
    peak = jnp.max(jnp.max(logits, axis=2), axis=2)
    return logits, peak, logits - peak[:, :, None, None]


def in_lanes(x: jax.Array) -> jax.Array:
    """[..., V] as [..., V/n, n].

    Reducing over rows of lanes first, then over the lanes, lets a CPU use its vector units; it also keeps float32 sums
    short.
    """
    V = x.shape[-1]
    lanes = next(n for n in range(min(V, 256), 0, -1) if V % n == 0)
    return x.reshape(*x.shape[:-1], V // lanes, lanes)


def _chosen(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """[T, B], the targets' values among logits cut into lanes."""
    whole = logits.reshape(*targets.shape, logits.shape[2] * logits.shape[3])
    return jnp.take_along_axis(whole, targets[..., None], axis=2)[..., 0]


def released_statistics(logits: jax.Array, targets: jax.Array) -> Statistics:
    """The same with every step rounded to bfloat16, in the released code's order (likelihood spec, 1.4).

    Reductions accumulate in float32. The variance is the difference of two rounded moments and may be negative;
    attacks clamp it.

    Args:
        logits: [T, B, V] float32.
        targets: [T, B] int32.

    Returns:
        Three [T, B] float32 arrays of bfloat16 values.
    """
    log_p = log_softmax(logits, "all")
    p = _bfloat16(jnp.exp(log_p))
    mean = _bfloat16(jnp.sum(_bfloat16(p * log_p), axis=-1))
    second = _bfloat16(jnp.sum(_bfloat16(p * _bfloat16(log_p * log_p)), axis=-1))
    variance = _bfloat16(second - _bfloat16(mean * mean))
    return Statistics(jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0], mean, variance)


def released_log_probs(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The first of `released_statistics` alone, [T, B] float32."""
    return jnp.take_along_axis(log_softmax(logits, "all"), targets[..., None], axis=-1)[..., 0]


def round_logits(logits: jax.Array, rounding: Rounding) -> jax.Array:
    """Logits as a model in bfloat16 hands them out, unless nothing is rounded."""
    return logits if rounding == "none" else _bfloat16(logits)


def log_softmax(logits: jax.Array, rounding: Rounding) -> jax.Array:
    """Log-probabilities of every token, [..., V] float32: for a few positions only."""
    if rounding == "none":
        return jax.nn.log_softmax(logits, axis=-1)
    log_p = jax.nn.log_softmax(_bfloat16(logits), axis=-1)
    return log_p if rounding == "logits" else _bfloat16(log_p)


def _bfloat16(x: jax.Array) -> jax.Array:
    # reduce_precision, not a cast there and back: a compiler may elide the casts.
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
