"""Laws of the metrics, and agreement with scikit-learn, on generated scores with many ties."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from olmodetect_jax.evaluation import metrics as m

NEARBY = st.integers(-6, 6).map(lambda i: i / 4)  # few values, so ties are common
ANY = st.floats(allow_nan=False, allow_infinity=False)
SIDE = st.lists(NEARBY, min_size=1, max_size=45) | st.lists(ANY, min_size=1, max_size=25)
SCORES = st.builds(m.ClassScores, SIDE, SIDE)


def labelled(scores: m.ClassScores) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat([1, 0], [scores.member.size, scores.non_member.size])
    return labels, np.concatenate([scores.member, scores.non_member])


@given(SCORES)
def test_auc_counts_pairs(scores: m.ClassScores) -> None:
    wins = sum(Fraction(int(a > b)) + Fraction(int(a == b), 2) for a in scores.member for b in scores.non_member)
    assert m.auc(scores) == float(wins / (scores.member.size * scores.non_member.size))


@given(SCORES)
def test_only_the_order_counts(scores: m.ClassScores) -> None:
    ranks = np.unique(labelled(scores)[1])
    monotone = m.ClassScores(
        *(np.searchsorted(ranks, side).astype(float) ** 3 - 7 for side in (scores.member, scores.non_member))
    )
    assert m.auc(monotone) == m.auc(scores)
    assert m.tpr_at_fpr(m.roc_curve(monotone)) == m.tpr_at_fpr(m.roc_curve(scores))
    assert m.delong_variance(monotone) == m.delong_variance(scores)


@given(SCORES)
def test_flipping_signs_or_classes_mirrors_the_auc(scores: m.ClassScores) -> None:
    assert m.auc(m.ClassScores(-scores.member, -scores.non_member)) == pytest.approx(1 - m.auc(scores), abs=1e-15)
    assert m.auc(m.ClassScores(-scores.non_member, -scores.member)) == m.auc(scores)


@given(SCORES)
def test_scikit_learn_agrees(scores: m.ClassScores) -> None:
    labels, values = labelled(scores)
    fpr, tpr, _ = sklearn_roc_curve(labels, values)
    curve = m.roc_curve(scores)
    np.testing.assert_array_equal(curve.fpr, fpr)
    np.testing.assert_array_equal(curve.tpr, tpr)
    assert m.tpr_at_fpr(curve) == np.interp(0.05, fpr, tpr)
    assert m.auc(scores) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)
    standardised = roc_auc_score(labels, values, max_fpr=0.05)
    assert m.standardised_partial_auc(curve) == pytest.approx(standardised, abs=1e-12)


@given(SCORES)
def test_ranges(scores: m.ClassScores) -> None:
    curve = m.roc_curve(scores)
    assert (curve.fpr[0], curve.tpr[0], curve.fpr[-1], curve.tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (np.diff(curve.fpr) >= 0).all() and (np.diff(curve.tpr) >= 0).all()
    assert 0 <= m.partial_auc(curve) <= 0.05
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(m.auc(scores), abs=1e-12)


@given(NEARBY, st.integers(1, 30), st.integers(1, 30))
def test_equal_scores_are_chance(value: float, n_member: int, n_non_member: int) -> None:
    scores = m.ClassScores([value] * n_member, [value] * n_non_member)
    assert m.auc(scores) == 0.5
    assert m.tpr_at_fpr(m.roc_curve(scores)) == 0.05


@given(SIDE, SIDE, st.randoms(use_true_random=False))
def test_order_of_records_does_not_count(member: list[float], non_member: list[float], random: object) -> None:
    def metrics() -> tuple[float, float]:
        scores = m.ClassScores(member, non_member)
        return m.auc(scores), m.tpr_at_fpr(m.roc_curve(scores))

    before = metrics()
    random.shuffle(member)  # type: ignore[attr-defined]
    random.shuffle(non_member)  # type: ignore[attr-defined]
    assert metrics() == before


@given(SCORES)
def test_balanced_accuracy_is_that_of_the_best_threshold(scores: m.ClassScores) -> None:
    thresholds = np.append(np.unique(np.concatenate([scores.member, scores.non_member])), np.inf)
    accuracies = [(np.mean(scores.member >= t) + np.mean(scores.non_member < t)) / 2 for t in thresholds]
    assert m.balanced_accuracy(m.roc_curve(scores)) == pytest.approx(max(accuracies), abs=1e-12)


@given(SCORES)
def test_delongs_interval_is_around_the_auc_and_inside_the_unit(scores: m.ClassScores) -> None:
    interval, variance = m.delong_interval(scores), m.delong_variance(scores)
    if variance is None:
        assert interval is None
        return
    low, high = interval
    assert 0 <= low <= m.auc(scores) <= high <= 1
    if low > 0 and high < 1:
        assert high - low == pytest.approx(2 * 1.959964 * variance**0.5, rel=1e-6, abs=1e-12)


def test_members_are_the_positive_class() -> None:
    """The AUC is the same when classes and signs turn together; the TPR at a low FPR is not."""
    member, other = np.concatenate([np.full(10, 5.0), np.linspace(0, 1, 30)]), np.linspace(0, 1, 40)
    ours, turned = m.ClassScores(member, other), m.ClassScores(-other, -member)
    assert m.auc(ours) == m.auc(turned) == 0.625
    assert m.tpr_at_fpr(m.roc_curve(ours)) == pytest.approx(0.300)
    assert m.tpr_at_fpr(m.roc_curve(turned)) == pytest.approx(0.075)
