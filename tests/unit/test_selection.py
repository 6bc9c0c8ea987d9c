"""The choice of a hyperparameter on development scores, against golden curves."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.attacks.pac import polarised_distance, score_of
from olmodetect_jax.evaluation.selection import Candidate, Choice, choose

TUNE_AUC = 1e-12  # likelihood_tune.json states abs 1e-12
PAC_TUNE = 1e-9  # pac_tune.json states rtol and atol 1e-9
EMMIA_AUC = 1e-9  # likelihood_emmia.json states abs 1e-9

GOLDEN = Path(__file__).parents[1] / "golden"


def load(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def numbers(values):
    return [float(v) for v in values]


@pytest.mark.parametrize("case", load("likelihood_tune")["cases"], ids=lambda c: c["name"])
def test_golden_curves(case):
    grid = {
        name: (numbers(case["inputs"]["scores"][name]["member"]), numbers(case["inputs"]["scores"][name]["nonmember"]))
        for name in case["inputs"]["grid"]
    }
    choice = choose(grid, rule=case["rule"])
    assert choice.best == case["expected"]["selected"]
    assert [c.value for c in choice.curve] == case["inputs"]["grid"]
    for candidate in choice.curve:
        expected = float(case["expected"]["auc"][candidate.value])
        assert candidate.auc == pytest.approx(expected, abs=TUNE_AUC, nan_ok=True)
        assert candidate.non_finite == int(np.sum(~np.isfinite(np.concatenate(grid[candidate.value]))))


def test_pac_over_its_grid():
    data = load("pac_tune")

    def scores(texts, far, near):
        for text in texts:
            own, *others = (
                polarised_distance(np.sort(np.asarray(x, np.float64)), far, near)
                for x in (text["orig"], *text["neighbours"])
            )
            yield score_of(own, others)

    inputs, expected = data["inputs"], data["expected"]
    pairs = [(far, near) for far in inputs["k1_grid"] for near in inputs["k2_grid"]]
    classes = [inputs[key] for key in inputs if "member" in key]
    assert len(classes) == 2 and "non" not in [key for key in inputs if "member" in key][0]
    choice = choose({pair: tuple(list(scores(c, *pair)) for c in classes) for pair in pairs})
    assert choice.best == (expected["best"]["k1_far"], expected["best"]["k2_near"])
    for candidate in choice.curve:
        far, near = candidate.value
        assert candidate.auc == pytest.approx(expected["auc"][f"{far}|{near}"], rel=PAC_TUNE, abs=PAC_TUNE)


def test_em_mia_base_on_pooled_development_scores():
    selection = load("likelihood_emmia")["selection"]
    inputs, expected = selection["inputs"], selection["expected"]
    bases = list(inputs["dev_subsets"][0]["final_scores"])
    grid = {
        base: tuple(
            [
                s
                for d in inputs["dev_subsets"]
                for s, y in zip(d["final_scores"][base], d["labels"], strict=True)
                if y == c
            ]
            for c in (1, 0)
        )
        for base in bases
    }
    choice = choose(grid)
    assert choice.best == expected["dev_pick"]
    for candidate in choice.curve:
        assert candidate.auc == pytest.approx(expected["pooled_dev_auc"][candidate.value], abs=EMMIA_AUC)
    for subset, auc in zip(inputs["test_subsets"], expected["dev_selected_auc_per_subset"], strict=True):
        labels, scores = np.asarray(subset["labels"]), np.asarray(subset["final_scores"][choice.best])
        (candidate,) = choose({0: (scores[labels == 1], scores[labels == 0])}).curve
        assert candidate.auc == pytest.approx(auc, abs=EMMIA_AUC)


def test_the_two_rules_for_what_is_not_finite():
    grid = {"a": ([math.nan, -1.0, math.inf], [-2.0, -math.inf])}
    (dropped,), (filled,) = choose(grid).curve, choose(grid, rule="fill").curve
    assert dropped == Candidate("a", 1.0, 3) and filled == Candidate("a", 1.0, 3)
    # NaN filled by 0 beats a log-likelihood, as dropping does not show
    grid = {"a": ([-1.0], [math.nan, -2.0])}
    assert [choose(grid, rule=rule).curve[0].auc for rule in ("drop", "fill")] == [1.0, 0.5]


def test_nothing_to_choose_from():
    assert choose({}) == Choice(None, ())
    empty_class = choose({1: ([1.0], []), 2: ([math.nan], [0.0])})
    assert empty_class.best is None and [c.non_finite for c in empty_class.curve] == [0, 1]
    assert choose({1: ([1.0], []), 2: ([0.0], [1.0])}).best == 2


@given(st.lists(st.tuples(*[st.lists(st.integers(0, 3), min_size=1, max_size=5)] * 2), min_size=1, max_size=5))
def test_the_first_largest_wins(classes):
    choice = choose(dict(enumerate(classes)))
    curve = [c.auc for c in choice.curve]
    assert choice.best == curve.index(max(curve))
