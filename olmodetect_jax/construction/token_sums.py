"""Choosing records so that their tokens add up to a target: exchanges of single records, and exact search if few."""

from __future__ import annotations

import itertools
import math

import numpy as np

_FEW = 20_000  # choices that are tried one by one


def exchange_towards(lengths: np.ndarray, chosen: np.ndarray, target: float) -> np.ndarray:
    """Exchanges one chosen for one other record, the best exchange first, until none brings the sum closer.

    Args:
        lengths: [N] int64, tokens of each record; of equally good exchanges the first in this order is taken.
        chosen: positions to start from.
        target: tokens wanted.

    Returns:
        As many positions, sorted.
    """
    inside = np.zeros(len(lengths), bool)
    inside[chosen] = True
    while True:
        gap = target - int(lengths[inside].sum())
        found = best_exchange(lengths, inside, gap)
        if found is None:
            return np.flatnonzero(inside)
        out, into = found
        inside[out], inside[into] = False, True


def best_exchange(lengths: np.ndarray, inside: np.ndarray, gap: float) -> tuple[int, int] | None:
    """The exchange that comes nearest to making up for a gap.

    Args:
        lengths: [N] int64.
        inside: [N] bool, the chosen records.
        gap: tokens that are missing.

    Returns:
        Positions out and in, or None if no exchange makes the gap smaller.
    """
    members, others = np.flatnonzero(inside), np.flatnonzero(~inside)
    if not len(members) or not len(others):
        return None
    others = others[np.argsort(lengths[others], kind="stable")]
    available = lengths[others]
    wanted = lengths[members] + gap
    above = np.searchsorted(available, wanted)  # the first of those at least as long
    best, exchange = abs(gap), None
    for place in (np.clip(above, 0, len(others) - 1), np.clip(above - 1, 0, len(others) - 1)):
        left = np.abs(wanted - available[place])
        i = int(np.argmin(left))
        if left[i] < best:
            first = int(np.searchsorted(available, available[place[i]]))
            best, exchange = left[i], (int(members[i]), int(others[first]))
    return exchange


def closest(lengths: np.ndarray, n: int, target: float) -> np.ndarray:
    """Records whose tokens add up to nearly the target: exactly the nearest sum if the choices are few.

    Args:
        lengths: [N] int64, in a seeded order.
        n: records to choose.
        target: tokens wanted.

    Returns:
        [n] positions, sorted.
    """
    if math.comb(len(lengths), n) <= _FEW:
        choices = itertools.combinations(range(len(lengths)), n)
        return np.array(min(choices, key=lambda c: abs(target - int(lengths[list(c)].sum()))), np.int64)
    return exchange_towards(lengths, np.arange(n), target)
