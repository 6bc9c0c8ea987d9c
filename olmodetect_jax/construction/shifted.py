"""Shifted members: at random, alike in nothing but the number of tokens (construction spec, section 8)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from olmodetect_jax.construction.annealing import check_reachable
from olmodetect_jax.construction.candidates import Texts, shuffled
from olmodetect_jax.construction.token_sums import best_exchange
from olmodetect_jax.errors import DataError

_BLOCK = 1 << 12  # proposals that are drawn at once


def draw_shifted(pool: Texts, n: int, target: int, *, margin: int, seed: int, name: str) -> np.ndarray:
    """Draws members, and exchanges them at random until their tokens are within the margin.

    Args:
        pool: candidates, of no boundary rule.
        n: members wanted.
        target: tokens of the non-members.
        margin: tokens they may differ.
        seed: of the draw and of the exchanges.
        name: of the subset, for messages.

    Returns:
        [n] positions, sorted.

    Raises:
        DataError: the pool is too small, or the margin cannot be or was not met; says how far.
    """
    lengths = pool.n_tokens
    check_reachable(lengths, n, target, margin, name=name)
    order = shuffled(pool.keys, seed, "shifted")
    chosen, rest = order[:n].copy(), order[n:].copy()
    draws, gap = np.random.Generator(np.random.PCG64(seed)), int(lengths[chosen].sum()) - target
    while abs(gap) > margin and _can_come_closer(lengths, chosen, gap):
        proposals = zip(
            draws.integers(0, n, _BLOCK).tolist(), draws.integers(0, len(rest), _BLOCK).tolist(), strict=True
        )
        exchange_until(lengths, chosen, rest, proposals, target, margin)
        gap = int(lengths[chosen].sum()) - target
    if abs(gap) > margin:
        raise DataError(
            f"{name}: the shifted members have {abs(gap):,} tokens {'more' if gap > 0 else 'fewer'} than the "
            f"non-members, at most {margin:,} are allowed; add candidates or raise the margin"
        )
    return np.sort(chosen)


def exchange_until(
    lengths: np.ndarray,
    chosen: np.ndarray,
    rest: np.ndarray,
    proposals: Iterable[tuple[int, int]],
    target: int,
    margin: int,
) -> int:
    """Takes proposals that bring the tokens strictly closer, until they are within the margin.

    Args:
        lengths: [N] tokens of each text.
        chosen: positions; changed in place.
        rest: positions of the others; changed in place.
        proposals: places in `chosen` and in `rest`.
        target: tokens wanted.
        margin: at which it stops.

    Returns:
        How many proposals were looked at.
    """
    gap, looked = int(lengths[chosen].sum()) - target, 0
    for out, into in proposals:
        if abs(gap) <= margin:
            break
        looked += 1
        after = gap - int(lengths[chosen[out]]) + int(lengths[rest[into]])
        if abs(after) < abs(gap):
            chosen[out], rest[into] = rest[into], chosen[out]
            gap = after
    return looked


def _can_come_closer(lengths: np.ndarray, chosen: np.ndarray, gap: int) -> bool:
    inside = np.zeros(len(lengths), bool)
    inside[chosen] = True
    return best_exchange(lengths, inside, -gap) is not None
