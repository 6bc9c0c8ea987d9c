"""Jensen-Shannon divergence of two sets of texts over their tokens (construction spec, section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from olmodetect_jax.errors import DataError


def js_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Divergence in bits, between 0 and 1; nothing is smoothed.

    Args:
        p: [V] counts of one side.
        q: [V] counts of the other, over the same tokens.

    Raises:
        DataError: a side has no token.
    """
    if not p.sum() or not q.sum():
        raise DataError("the divergence of texts without a single token is not defined")
    p, q = p / p.sum(), q / q.sum()
    m = (p + q) / 2
    halves = [np.sum(side[side > 0] * np.log2(side[side > 0] / m[side > 0])) for side in (p, q)]
    return max(0.0, float(sum(halves)) / 2)


def divergence_of_texts(members: Sequence[np.ndarray], non_members: Sequence[np.ndarray]) -> float:
    """The divergence of two sets of texts, by the pooled shares of their tokens: long texts weigh more.

    Args:
        members: token ids of each text.
        non_members: the same.

    Raises:
        DataError: a side has no token.
    """
    sides = [np.concatenate([np.zeros(0, np.int64), *side]).astype(np.int64) for side in (members, non_members)]
    _, places = np.unique(np.concatenate(sides), return_inverse=True)
    size = int(places.max(initial=-1)) + 1
    first = len(sides[0])
    return js_divergence(np.bincount(places[:first], minlength=size), np.bincount(places[first:], minlength=size))
