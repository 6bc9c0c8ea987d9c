"""EMMIA's arithmetic: from a matrix of ratios and first scores to the scores after ten steps (likelihood spec, 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Aucs = Callable[[NDArray[np.bool_]], Floats]

STEPS = 10
POOL_SEED = 42  # of the released code


def exact_aucs(rows: np.ndarray) -> Aucs:
    """The AUC of every row of [N, K] finite values, as a function of which columns are positive ([K] bool).

    Each row is sorted once. With doubled midranks everything is counted in integers and divided once, so rows that
    tie exactly get the same number. NaN for every row if a class is absent.
    """
    from scipy.stats import rankdata  # slow to import, and not every command ranks

    doubled = np.rint(2 * rankdata(rows, axis=1)).astype(np.int64)  # a midrank is a whole or a half

    def aucs(positive: NDArray[np.bool_]) -> Floats:
        n1 = int(positive.sum())
        n0 = len(positive) - n1
        if not n1 or not n0:
            return np.full(len(doubled), np.nan)
        half_wins = doubled[:, positive].sum(axis=1) - n1 * (n1 + 1)
        return half_wins / (2 * n1 * n0)

    return aucs


def sklearn_aucs(rows: np.ndarray) -> Aucs:
    """The same from scikit-learn's trapezoids, whose last bit differs between rows that tie exactly."""
    from sklearn.metrics import auc, roc_curve

    def aucs(positive: NDArray[np.bool_]) -> Floats:
        if positive.all() or not positive.any():
            return np.full(len(rows), np.nan)
        return np.asarray([auc(*roc_curve(positive, row)[:2]) for row in rows], np.float64)

    return aucs


@dataclass(frozen=True, eq=False)
class Run:
    """What the steps went through.

    Attributes:
        trajectory: [STEPS + 1, N] float64; row 0 holds the base scores with NaN replaced by 0, the last one the
            final scores. Higher means more likely a member.
        degenerate: whether the last step found no score above the median: all scores are then 0.
    """

    trajectory: Floats
    degenerate: bool

    @property
    def scores(self) -> Floats:
        """[N], after the last step."""
        return self.trajectory[-1]


def iterate(aucs: Aucs, base: np.ndarray, pool: NDArray[np.intp]) -> Run:
    """Ten steps: the texts above the median are taken for members; a prefix that finds them is no member.

    Args:
        aucs: of each text's row of ratios, from `exact_aucs` or `sklearn_aucs`.
        base: [N] base scores.
        pool: [K], which of the N texts are the columns of the rows; the median is theirs.

    Returns:
        The steps, not stopped early.
    """
    trajectory = [np.nan_to_num(np.asarray(base, np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)]
    for _ in range(STEPS):
        positive = _above_median(trajectory[-1][pool])
        trajectory.append(0.0 - np.nan_to_num(aucs(positive), nan=0.0))
    return Run(np.stack(trajectory), degenerate=not positive.any())


def _above_median(scores: Floats) -> NDArray[np.bool_]:
    return scores > np.median(scores)


def best_of_four(final: Mapping[str, Floats], members: NDArray[np.bool_]) -> str:
    """The base whose final scores have the largest AUC on the true labels; the first of equals.

    Args:
        final: base to [N] final scores.
        members: [N], the true labels; both classes are there.
    """
    best = np.argmax([exact_aucs(scores[None])(members)[0] for scores in final.values()])
    return list(final)[int(best)]


def draw_pool(n_member: int, n_non_member: int, size: int) -> NDArray[np.intp]:
    """Which texts are targets where only `size` of them shall be: half of each class, as far as there are.

    Returns:
        Places among the members, followed by those among the non-members counted on from the last member; each
        sorted. Drawn as the released code draws.
    """
    members = min(size // 2, n_member)
    non_members = min(size - members, n_non_member)
    members = min(size - non_members, n_member)
    random = np.random.default_rng(POOL_SEED)
    of_members = np.sort(random.choice(n_member, members, replace=False))
    of_non_members = np.sort(random.choice(n_non_member, non_members, replace=False))
    return np.concatenate([of_members, n_member + of_non_members])


def texts_in_the_way(ratios: np.ndarray, pool: NDArray[np.intp], broken: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The texts to leave out so that every remaining ratio is a finite number.

    After the broken ones, those with the most bad entries in row and column go first: a bad prefix has an entry in
    everybody's column, and takes nobody with it.

    Args:
        ratios: [N, K].
        pool: [K], which text each column is.
        broken: [N], texts that are out already.

    Returns:
        [N] bool, the broken ones included.
    """
    out, bad = broken, ~np.isfinite(ratios)
    while True:
        bad &= ~out[:, None] & ~out[pool]
        if not bad.any():
            return out
        count = bad.sum(axis=1) + np.bincount(pool, bad.sum(axis=0), minlength=len(ratios))
        out = out | (count == count.max())


Method = Literal["exact", "sklearn"]
AUCS: dict[Method, Callable[[np.ndarray], Aucs]] = {"exact": exact_aucs, "sklearn": sklearn_aucs}
