"""Resampled metrics against the golden draws, against the metrics themselves, and how records are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.intervals import Interval, best
from olmodetect_jax.evaluation.metrics import ClassScores
from olmodetect_jax.evaluation.resampling import Population, counts_of, resampled
from tests.golden_cases import assert_close, golden

FILE = "evaluation_bootstrap"
NEARBY = st.integers(-4, 4).map(lambda i: i / 2)
SIDE = st.lists(NEARBY, min_size=1, max_size=30)


def intervals(draws):
    ends = {}
    for level, name in ((0.95, "95"), (0.99, "99")):
        interval = Interval.of(np.asarray(draws), level)
        ends |= {f"low{name}": interval.low, f"high{name}": interval.high}
    return ends


@pytest.mark.parametrize("case, expected", golden(FILE, "leaf"))
def test_leaf(case, expected):
    scores = ClassScores(case["member"], case["nonmember"])
    counts = [counts_of(case[f"{side}_index"], len(case[side])) for side in ("member", "nonmember")]
    draws, _ = resampled(scores, *counts)
    assert_close(FILE, {"point": m.auc(scores), "draws": draws, **intervals(draws)}, expected)


@pytest.mark.parametrize("case, expected", golden(FILE, "em_mia_leaf"))
def test_the_best_base_is_chosen_in_each_resample(case, expected):
    counts = [counts_of(case[f"{side}_index"], len(case[side]["loss"])) for side in ("member", "nonmember")]
    bases = [ClassScores(case["member"][b], case["nonmember"][b]) for b in case["member"]]
    draws, tpr = best([resampled(scores, *counts) for scores in bases])
    assert_close(FILE, {"point": max(map(m.auc, bases)), "draws": draws, **intervals(draws)}, expected)
    tprs = [resampled(scores, *counts)[1] for scores in bases]
    assert all(tpr[b] in [t[b] for t in tprs] for b in range(len(tpr)))


@given(SIDE, SIDE, st.integers(0, 2**32 - 1))
def test_a_resample_has_the_metrics_of_its_records(member, non_member, seed):
    rng = np.random.default_rng(seed)
    indices = [rng.integers(0, len(side), (3, len(side))) for side in (member, non_member)]
    scores = ClassScores(member, non_member)
    auc, tpr = resampled(scores, *(counts_of(i, i.shape[1]) for i in indices))
    for b in range(3):
        drawn = ClassScores(scores.member[indices[0][b]], scores.non_member[indices[1][b]])
        assert auc[b] == m.auc(drawn)
        assert tpr[b] == pytest.approx(m.tpr_at_fpr(m.roc_curve(drawn)), abs=1e-15)


def test_records_alone_decide_the_draws():
    population = Population(tuple((f"r{i}", "sha") for i in range(50)), tuple(range(50)))
    draws = population.draws(100, 0, "gsm8k member")
    assert draws.sum(axis=1).tolist() == [50] * 100
    assert np.array_equal(draws, population.draws(100, 0, "gsm8k member"))
    others = [population.draws(100, 1, "gsm8k member"), population.draws(100, 0, "gsm8k non-member")]
    others.append(Population((("r", "sha"), *population.keys[1:]), population.clusters).draws(100, 0, "gsm8k member"))
    assert not any(np.array_equal(draws, other) for other in others)
    assert abs(draws.mean() - 1) == 0 and 0.85 < draws.var() < 1.15  # nearly a Poisson number each


def test_many_records_are_counted_in_parts(monkeypatch):
    population = Population(tuple((f"r{i}",) for i in range(40)), tuple(range(40)))
    whole = population.draws(90, 0, "x")
    monkeypatch.setattr("olmodetect_jax.evaluation.resampling._AT_ONCE", 7 * 40)
    assert np.array_equal(whole, population.draws(90, 0, "x"))


def test_records_of_a_cluster_move_together():
    clusters = (0, 0, 1, 1, 2)
    draws = Population(tuple((f"r{c}", str(i)) for i, c in enumerate(clusters)), clusters).draws(200, 0, "x")
    assert np.array_equal(draws[:, 0], draws[:, 1]) and np.array_equal(draws[:, 2], draws[:, 3])
    assert (draws[:, [0, 2, 4]].sum(axis=1) == 3).all()
