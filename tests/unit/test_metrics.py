"""Metrics against the golden answers and the numbers of the public reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.records import Record

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "evaluation_metrics.json").read_text())
CASES = [
    pytest.param(case, expected, id=name)
    for name, case, expected in zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True)
]


def decode(value: Any) -> Any:
    return float(value["$float"]) if isinstance(value, dict) else value


def metrics_of(member: list[Any], non_member: list[Any]) -> dict[str, Any]:
    counts = {"n_member": len(member), "n_nonmember": len(non_member)}
    try:
        scores = m.ClassScores(member, non_member)
    except DataError:
        names = "auc tpr_at_5fpr tpr_at_5fpr_quantile partial_auc_5 partial_auc_5_standardised delong_variance"
        return {**counts, **dict.fromkeys(names.split())}
    curve = m.roc_curve(scores)
    return {
        **counts,
        "auc": m.auc(scores),
        "tpr_at_5fpr": m.tpr_at_fpr(curve),
        "tpr_at_5fpr_quantile": m.tpr_at_fpr_quantile(scores),
        "partial_auc_5": m.partial_auc(curve),
        "partial_auc_5_standardised": m.standardised_partial_auc(curve),
        "delong_variance": m.delong_variance(scores),
    }


def answer(case: dict[str, Any]) -> dict[str, Any]:
    kind = case["kind"]
    if kind == "metrics":
        return metrics_of(case["member"], case["nonmember"])
    if kind == "validity":
        sides = {name: [decode(v) for v in case[name]] for name in ("member", "nonmember")}
        kept = {name: [i for i, v in enumerate(values) if m.is_valid_score(v)] for name, values in sides.items()}
        valid = {name: [sides[name][i] for i in kept[name]] for name in sides}
        return {
            **{f"kept_{name}": kept[name] for name in sides},
            **{f"n_dropped_{name}": len(sides[name]) - len(kept[name]) for name in sides},
            **metrics_of(valid["member"], valid["nonmember"]),
        }
    if kind == "dpo":
        halves = [m.ClassScores(case[f"member_{half}"], case[f"nonmember_{half}"]) for half in ("chosen", "rejected")]
        pooled = m.ClassScores(
            np.concatenate([h.member for h in halves]), np.concatenate([h.non_member for h in halves])
        )
        two = [(m.auc(h), m.tpr_at_fpr(m.roc_curve(h))) for h in halves]
        return {
            "pooled": {"auc": m.auc(pooled), "tpr_at_5fpr": m.tpr_at_fpr(m.roc_curve(pooled))},
            "mean_of_two": {"auc": (two[0][0] + two[1][0]) / 2, "tpr_at_5fpr": (two[0][1] + two[1][1]) / 2},
        }
    if kind == "delong_pair":
        pair = (m.ClassScores(case[f"member_{i}"], case[f"nonmember_{i}"]) for i in (1, 2))
        return vars(m.delong_compare(*pair))
    assert kind == "coverage"
    hashes = [Record("r", text.strip(), 1, "s", "f").text_sha1 for text in case["texts"]]
    return {"n_unique": len(set(hashes)), "incomplete": [m.is_incomplete(n, hashes) for n in case["n_scored"]]}


def assert_close(got: Any, expected: Any) -> None:
    tolerance = GOLDEN["tolerance"]
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            assert_close(got[key], expected[key])
    elif isinstance(expected, float):
        assert math.isclose(got, expected, rel_tol=tolerance["rel"], abs_tol=tolerance["abs"])
    else:
        assert got == expected


@pytest.mark.parametrize(("case", "expected"), CASES)
def test_golden(case: dict[str, Any], expected: dict[str, Any]) -> None:
    assert_close(answer(case), expected)


def test_tpr_is_of_the_members() -> None:
    """The AUC cannot tell which class is positive, the TPR can."""
    member, non_member = [5.0] * 10 + list(np.linspace(0, 1, 30)), np.linspace(0, 1, 40)
    right, flipped = m.ClassScores(member, non_member), m.ClassScores(-non_member, -np.asarray(member))
    assert m.auc(right) == m.auc(flipped) == 0.625
    assert m.tpr_at_fpr(m.roc_curve(right)) == pytest.approx(0.300, abs=1e-12)
    assert m.tpr_at_fpr(m.roc_curve(flipped)) == pytest.approx(0.075, abs=1e-12)


def test_auc_is_the_nearest_float_to_the_exact_fraction() -> None:
    assert m.auc(m.ClassScores([0.0, 2.0, 4.0], [1.0, 3.0, 3.5])) == 4 / 9


def test_ends_of_the_float_range() -> None:
    assert m.auc(m.ClassScores([1e308, -1e308], [-1.7e308, 1.7e308])) == 0.5
    assert m.tpr_at_fpr(m.roc_curve(m.ClassScores([1.7e308], [-1.7e308]))) == 1.0


@pytest.mark.parametrize(("member", "non_member"), [([], [1.0]), ([1.0], []), ([], [])])
def test_one_class_is_an_error_that_says_what(member: list[float], non_member: list[float]) -> None:
    with pytest.raises(DataError, match=rf"ppl on gsm8k: {len(member)} members and {len(non_member)} non-members"):
        m.ClassScores(member, non_member, "ppl on gsm8k")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_an_error(bad: float) -> None:
    for sides in (([1.0, bad], [0.0]), ([1.0], [0.0, bad])):
        with pytest.raises(DataError, match="ppl on gsm8k: a score is not finite"):
            m.ClassScores(*sides, "ppl on gsm8k")


def test_an_integer_beyond_the_floats_is_no_score() -> None:
    assert not m.is_valid_score(10**400)


def test_paired_comparison_needs_the_same_records() -> None:
    two = m.ClassScores([1.0, 2.0], [0.0, 1.0])
    with pytest.raises(DataError, match="same records"):
        m.delong_compare(two, m.ClassScores([1.0, 2.0, 3.0], [0.0, 1.0]))
    one = m.ClassScores([1.0], [0.0, 1.0])
    with pytest.raises(DataError, match="at least two"):
        m.delong_compare(one, one)
