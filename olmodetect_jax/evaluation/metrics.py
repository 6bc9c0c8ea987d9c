"""Metrics of one attack on one subset: AUC, TPR at a low FPR, partial AUC and DeLong's variance.

A score is higher for a likelier member, always; members are the positive class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from olmodetect_jax.errors import DataError

LOW_FPR = 0.05
LOWEST_FPR = 0.01
_NORMAL_95 = 1.959963984540054  # 97.5th percentile of the normal distribution

Floats = NDArray[np.float64]


def is_valid_score(value: Any) -> bool:
    """Whether a value read from JSON is a usable score: a finite number, not a boolean and not a string."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


@dataclass(frozen=True, eq=False)
class ClassScores:
    """The valid scores of both classes.

    Attributes:
        member: scores of the members, any order.
        non_member: scores of the non-members, any order.
        what: what the scores are of, for messages: "ppl on gsm8k".

    Raises:
        DataError: a class has no score, or a score is not finite; names `what`.
    """

    member: Floats
    non_member: Floats
    what: str = "scores"

    def __post_init__(self) -> None:
        """Checks the scores and makes them float64 arrays."""
        member = np.asarray(self.member, dtype=np.float64)
        non_member = np.asarray(self.non_member, dtype=np.float64)
        if not member.size or not non_member.size:
            raise DataError(
                f"{self.what}: {member.size} members and {non_member.size} non-members have a score; "
                "an AUC needs at least one of each"
            )
        if not (np.isfinite(member).all() and np.isfinite(non_member).all()):
            raise DataError(f"{self.what}: a score is not finite; leave such records out and report them")
        object.__setattr__(self, "member", member)
        object.__setattr__(self, "non_member", non_member)


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Corners of a ROC curve, from (0, 0) to (1, 1); both arrays have the same length and never fall."""

    fpr: Floats
    tpr: Floats


def auc(scores: ClassScores) -> float:
    """Area under the ROC curve (Mann-Whitney): the share of member/non-member pairs in the right order, ties 1/2.

    Counted in integers and divided once, so the result is the float nearest to the exact fraction.
    """
    ordered = np.sort(scores.non_member)
    below = np.searchsorted(ordered, scores.member, "left")
    not_above = np.searchsorted(ordered, scores.member, "right")
    half_wins = int(below.sum()) + int(not_above.sum())
    return half_wins / (2 * scores.member.size * scores.non_member.size)


def roc_curve(scores: ClassScores) -> RocCurve:
    """The ROC curve with scikit-learn's default points: one per distinct score, midpoints of equal steps dropped."""
    thresholds = np.unique(np.concatenate([scores.member, scores.non_member]))[::-1]
    n_member, n_non_member = scores.member.size, scores.non_member.size
    true_positives = n_member - np.searchsorted(np.sort(scores.member), thresholds, "left")
    false_positives = n_non_member - np.searchsorted(np.sort(scores.non_member), thresholds, "left")
    corner = np.ones(thresholds.size, dtype=bool)
    corner[1:-1] = (np.diff(true_positives, 2) != 0) | (np.diff(false_positives, 2) != 0)
    fpr = np.concatenate([[0.0], false_positives[corner] / n_non_member])
    tpr = np.concatenate([[0.0], true_positives[corner] / n_member])
    return RocCurve(fpr, tpr)


def tpr_at_fpr(curve: RocCurve, fpr: float = LOW_FPR) -> float:
    """TPR where the linearly interpolated ROC curve has this FPR: the tables' TPR@5%FPR.

    On a vertical step it is the step's top. Where all scores are equal the curve is the diagonal and the result `fpr`.
    """
    return float(np.interp(fpr, curve.fpr, curve.tpr))


def tpr_at_fpr_quantile(scores: ClassScores, fpr: float = LOW_FPR) -> float:
    """Share of members strictly above the (1 - fpr) quantile of the non-members: the released bootstrap's TPR."""
    return float(np.mean(scores.member > np.quantile(scores.non_member, 1 - fpr)))


def partial_auc(curve: RocCurve, max_fpr: float = LOW_FPR) -> float:
    """Area under the ROC curve for FPR <= `max_fpr`; between 0 and `max_fpr`."""
    inside = curve.fpr <= max_fpr
    fpr = np.append(curve.fpr[inside], max_fpr)
    tpr = np.append(curve.tpr[inside], tpr_at_fpr(curve, max_fpr))
    return float(np.trapezoid(tpr, fpr))


def standardised_partial_auc(curve: RocCurve, max_fpr: float = LOW_FPR) -> float:
    """Partial AUC in McClish's form: 0.5 for the diagonal, 1 for a perfect attack (scikit-learn's `max_fpr`)."""
    chance = 0.5 * max_fpr**2
    return 0.5 * (1 + (partial_auc(curve, max_fpr) - chance) / (max_fpr - chance))


def balanced_accuracy(curve: RocCurve) -> float:
    """Mean of TPR and 1 - FPR at the threshold where it is largest: optimistic, chosen on the labels that judge."""
    return float(np.max(curve.tpr - curve.fpr + 1) / 2)


def _placements(scores: ClassScores) -> tuple[Floats, Floats]:
    """Each member's share of non-members below it, and each non-member's share of members above it, ties 1/2."""

    def share_below(values: Floats, others: Floats) -> Floats:
        ordered = np.sort(others)
        twice = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
        return twice / (2 * others.size)

    return share_below(scores.member, scores.non_member), share_below(-scores.non_member, -scores.member)


def delong_variance(scores: ClassScores) -> float | None:
    """DeLong's variance of the AUC, with n - 1; None if a class has fewer than two scores."""
    return _covariance(_placements(scores), _placements(scores))


def delong_interval(scores: ClassScores) -> tuple[float, float] | None:
    """95% interval of the AUC from DeLong's variance, inside [0, 1]; None if a class has fewer than two scores."""
    variance = delong_variance(scores)
    if variance is None:
        return None
    middle, half = auc(scores), _NORMAL_95 * math.sqrt(variance)
    return max(0.0, middle - half), min(1.0, middle + half)


def _covariance(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> float | None:
    total = 0.0
    for a, b in zip(first, second, strict=True):
        if a.size < 2:
            return None
        total += float(np.dot(a - a.mean(), b - b.mean())) / (a.size - 1) / a.size
    return total


@dataclass(frozen=True)
class DelongComparison:
    """Two AUCs on the same records (DeLong et al. 1988).

    Attributes:
        difference: first AUC minus second.
        variance_1: variance of the first AUC.
        variance_2: variance of the second AUC.
        covariance: of the two AUCs.
        variance_of_difference: of `difference`.
        z: difference over its standard error; None if that is zero.
        p_two_sided: normal p-value of z; None if there is no z.
    """

    difference: float
    variance_1: float
    variance_2: float
    covariance: float
    variance_of_difference: float
    z: float | None
    p_two_sided: float | None


def delong_compare(first: ClassScores, second: ClassScores) -> DelongComparison:
    """Compares the AUCs of two attacks on the same records, in the same order.

    Raises:
        DataError: the two have different numbers of records, or a class has fewer than two.
    """
    if first.member.size != second.member.size or first.non_member.size != second.non_member.size:
        raise DataError(f"{first.what} and {second.what}: paired AUCs need the same records in the same order")
    if min(first.member.size, first.non_member.size) < 2:
        raise DataError(f"{first.what}: DeLong's variance needs at least two members and two non-members")
    one, two = _placements(first), _placements(second)
    # The variance of the difference from the placements' differences: never negative, exactly 0 for equal ranks.
    apart = (one[0] - two[0], one[1] - two[1])
    variance_1, variance_2, covariance, variance = (
        _covariance(a, b) or 0.0 for a, b in ((one, one), (two, two), (one, two), (apart, apart))
    )
    difference = auc(first) - auc(second)
    z = difference / math.sqrt(variance) if variance > 0 else None
    p = None if z is None else math.erfc(abs(z) / math.sqrt(2))
    return DelongComparison(difference, variance_1, variance_2, covariance, variance, z, p)


def is_incomplete(n_scored: int, texts: Sequence[str]) -> bool:
    """The coverage flag: the number of scored records is not the number of distinct texts.

    Args:
        n_scored: records with a valid score.
        texts: the stripped texts, or their hashes, of every record; a text that stands there twice counts once.
    """
    return n_scored != len(set(texts))
