"""Dev and test: a tenth of the records and a tenth of the tokens of each class (construction spec, section 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from olmodetect_jax.construction.candidates import Texts, shuffled
from olmodetect_jax.construction.token_sums import closest
from olmodetect_jax.errors import DataError

MARGIN = 250  # tokens between the development texts of both classes
_SHARE = 0.01  # of its target that the non-members' development split may miss


@dataclass(frozen=True, eq=False)
class Split:
    """The development records of one class; all others are test records.

    Attributes:
        dev: their positions, sorted.
        target: tokens that were wanted.
        tokens: tokens they have.
        met: whether the difference is within what is allowed.
    """

    dev: np.ndarray
    target: float
    tokens: int
    met: bool


def dev_sizes(n: int) -> tuple[int, int]:
    """Least and largest number of development records of a class with n records.

    Raises:
        DataError: fewer than two records.
    """
    if n < 2:
        raise DataError(f"{n} records cannot be split into dev and test; at least 2 are needed")
    middle, width = round(n / 10), max(1, 15 * n // 1000)
    return max(1, middle - width), min(n - 1, middle + width)


def split_non_members(texts: Texts, *, seed: int, name: str) -> Split:
    """Chooses the number of development records and the records: tokens within 1% of a tenth.

    Numbers nearest a tenth of the records are tried first. If none comes that near, the nearest of all is taken.

    Args:
        texts: all non-members of a subset.
        seed: of the draw.
        name: of the subset, for the draw.
    """
    order = shuffled(texts.keys, seed, f"split/{name}")
    lengths = texts.n_tokens[order]
    target = int(lengths.sum()) / 10
    least, largest = dev_sizes(len(lengths))
    middle = round(len(lengths) / 10)
    found = []
    for n in sorted(range(least, largest + 1), key=lambda n: (abs(n - middle), n)):
        split = _split(lengths, order, n, target, target * _SHARE)
        if split.met:
            return split
        found.append(split)
    return min(found, key=lambda s: abs(s.tokens - s.target))


def split_members(texts: Texts, non_members: Split, *, seed: int, name: str) -> Split:
    """As many development records as the non-members have, with as many tokens to within 250."""
    order = shuffled(texts.keys, seed, f"split/{name}")
    return _split(texts.n_tokens[order], order, len(non_members.dev), non_members.tokens, MARGIN)


def _split(lengths: np.ndarray, order: np.ndarray, n: int, target: float, allowed: float) -> Split:
    chosen = closest(lengths, n, target)
    tokens = int(lengths[chosen].sum())
    return Split(np.sort(order[chosen]), target, tokens, abs(tokens - target) <= allowed)
