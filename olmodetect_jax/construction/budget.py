"""Token budgets: how many tokens each subset gets, and which non-members fill them (construction spec, section 5)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from olmodetect_jax.construction.candidates import Texts, shuffled
from olmodetect_jax.construction.token_sums import exchange_towards
from olmodetect_jax.errors import DataError

TOLERANCE = 300  # tokens between a subset and its target


def targets(budget: int, training_tokens: Mapping[str, int], available: Mapping[str, int]) -> dict[str, int]:
    """Splits a domain's budget among its subsets by their share of the training tokens.

    A subset that has fewer tokens than its share is taken whole, and the others share what is left. Shares are
    rounded half to even; the subset with the largest share takes the remainder.

    Args:
        budget: tokens of the domain.
        training_tokens: of each subset, in any unit.
        available: tokens of each subset's whole pool.

    Raises:
        DataError: all pools together hold too little.
    """
    whole: dict[str, int] = {}
    while True:
        left = budget - sum(whole.values())
        shared = {name: n for name, n in training_tokens.items() if name not in whole}
        if not shared:
            if left > TOLERANCE:
                raise DataError(
                    f"{', '.join(training_tokens)}: the pools hold {budget - left:,} tokens in all, {left:,} fewer "
                    f"than the budget of {budget:,}; lower the budget or add candidates"
                )
            return {name: whole[name] for name in training_tokens}
        found = _shares(left, shared)
        small = {name: available[name] for name, n in found.items() if available[name] < n}
        if not small:
            return {name: whole[name] if name in whole else found[name] for name in training_tokens}
        whole |= small


def _shares(budget: int, weights: Mapping[str, int]) -> dict[str, int]:
    total = sum(weights.values())
    found = {name: _half_to_even(budget * weight, total) for name, weight in weights.items()}
    largest = max(weights, key=weights.__getitem__)
    found[largest] += budget - sum(found.values())
    return found


def _half_to_even(numerator: int, denominator: int) -> int:
    """The quotient of two integers, rounded exactly (a float64 would round training tokens first)."""
    whole, rest = divmod(numerator, denominator)
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2 == 1))


def fill(pool: Texts, target: int, *, min_records: int, seed: int, name: str) -> np.ndarray:
    """Draws records until the next would overshoot, then exchanges single ones until the sum is nearest the target.

    Args:
        pool: the candidates.
        target: tokens wanted.
        min_records: fewer are an error.
        seed: of the draw.
        name: of the subset, for messages.

    Returns:
        Positions of the chosen records, sorted.

    Raises:
        DataError: the pool is too small, too few records fit, or the sum stays more than 300 tokens from the target;
            says how far.
    """
    lengths = pool.n_tokens
    available = int(lengths.sum())
    if available < target - TOLERANCE:
        raise DataError(
            f"{name}: the pool holds {available:,} tokens in {len(lengths)} records, {target - available:,} fewer than "
            f"the target of {target:,}; lower the budget or add candidates"
        )
    order = shuffled(pool.keys, seed, f"budget/{name}")
    drawn = lengths[order]
    first = np.arange(int(np.searchsorted(np.cumsum(drawn), target, side="right")))
    if len(first) < min_records:  # long records came first: pass over those that do not fit
        first = _that_fit(drawn, target)
    if len(first) < min_records:
        at_most = int(np.searchsorted(np.cumsum(np.sort(lengths)), target, side="right"))
        raise DataError(
            f"{name}: {len(first)} records fill the target of {target:,} tokens, at least {min_records} are needed (at "
            f"most {at_most} fit, the shortest ones); raise the budget, or lower min_records"
        )
    chosen = exchange_towards(drawn, first, target)
    found = int(drawn[chosen].sum())
    if abs(found - target) > TOLERANCE:
        raise DataError(
            f"{name}: the nearest that exchanges come to the target of {target:,} tokens is {found:,}, "
            f"{abs(found - target):,} away (at most {TOLERANCE} are allowed); add candidates or change the budget"
        )
    return np.sort(order[chosen])


def _that_fit(lengths: np.ndarray, target: int) -> np.ndarray:
    chosen, left = [], target
    for i, n in enumerate(lengths.tolist()):
        if n <= left:
            chosen.append(i)
            left -= n
    return np.array(chosen, np.int64)
