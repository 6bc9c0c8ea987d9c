"""The contrast of curated mathematics with the rest against its golden file and scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.evaluation.aggregate import aggregate
from olmodetect_jax.evaluation.cross_stage import cross_stage, signed_rank
from tests.golden_cases import assert_close, golden, kinds

FILE = "evaluation_wilcoxon"
TREE = load_tree("olmo2")
STAGES = {"pre": "pretraining", "mid": "midtraining", "post": "posttraining"}


def test_every_kind_is_used():
    assert kinds(FILE) == {"cross_stage", "signed_rank"}


@pytest.mark.parametrize("case, expected", golden(FILE, "signed_rank"))
def test_signed_rank(case, expected):
    found = signed_rank(case["differences"])
    assert_close(FILE, {"n_used": found.n_used, "statistic": found.statistic, "p": found.p}, expected)


@pytest.mark.parametrize("case, expected", golden(FILE, "cross_stage"))
def test_cross_stage(case, expected):
    values = {a: [aggregate(of, TREE) for of in sizes.values()] for a, sizes in case["values"].items()}
    found = cross_stage(values, TREE, curated=case["curated"], effective_from=case["effective_from"])
    assert_close(FILE, dict(found.contrast), expected["contrast"])
    assert list(found.effective.attacks) == expected["effective"]
    for row, name in ((found.everything, "row_all"), (found.effective, "row_effective")):
        got = {
            "leaf": dict(row.subset),
            **{short: row.stage[stage] for short, stage in STAGES.items()},
            **{f"{short}_without_curated_math": row.stage_without_curated[stage] for short, stage in STAGES.items()},
            "curated": row.curated, "others": row.others, "delta": row.contrast, "n_positive": row.n_positive,
            "n_attacks": len(row.attacks),
            "wilcoxon": {"n_used": row.test.n_used, "statistic": row.test.statistic, "p": row.test.p},
        }  # fmt: skip
        assert_close(FILE, got, expected[name])


def test_an_attack_without_a_subset_is_left_out_and_none_is_none():
    whole = aggregate({s.id: 0.7 for s in TREE.subsets}, TREE)
    part = aggregate({"gsm8k": 0.9}, TREE)
    found = cross_stage({"ppl": [whole], "zlib": [whole, part]}, TREE)
    assert list(found.contrast) == ["ppl"]
    assert cross_stage({"zlib": [part]}, TREE) is None
    assert cross_stage({"ppl": [aggregate({s.id: 0.5 for s in TREE.subsets}, TREE)]}, TREE).effective is None


@given(st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=1, max_size=9))
def test_p_counts_every_pattern_of_signs(differences):
    found = signed_rank(differences)
    used = np.array([d for d in differences if d != 0])
    if not used.size:
        assert found.p == 1.0
        return
    ranks = np.array([np.mean(np.flatnonzero(np.sort(abs(used)) == abs(d)) + 1) for d in used])
    reached = ranks[used > 0].sum()
    sums = [ranks[np.array(signs)].sum() for signs in itertools.product([False, True], repeat=used.size)]
    assert found.p == pytest.approx(np.mean(np.array(sums) >= reached), abs=1e-12)


def test_scipy_agrees_where_no_difference_repeats():
    rng = np.random.default_rng(1)
    apart = rng.normal(0.3, 1, 12)
    assert signed_rank(apart).p == pytest.approx(wilcoxon(apart, alternative="greater").pvalue, abs=1e-12)
