"""Token budgets and dev/test splits against `construction_splits.json` and brute force."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.construction.budget import TOLERANCE, fill, targets
from olmodetect_jax.construction.candidates import Texts
from olmodetect_jax.construction.splits import dev_sizes, split_members, split_non_members
from olmodetect_jax.construction.token_sums import closest, exchange_towards
from olmodetect_jax.errors import DataError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "construction_splits.json").read_text())
CASES = [
    pytest.param(i, e, id=name)
    for name, i, e in zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True)
]
LENGTHS = st.lists(st.integers(1, 60), min_size=3, max_size=12)


def of_kind(*kinds):
    return [case for case in CASES if case.values[0]["kind"] in kinds]


def texts(lengths):
    """Texts of the given lengths; ids do not matter here."""
    return Texts([np.zeros(n, np.uint32) for n in lengths], np.full(len(lengths), np.nan), list(map(str, lengths)))


def improving_swap(lengths, chosen, target):
    lengths = np.asarray(lengths)
    rest = np.setdiff1d(np.arange(len(lengths)), chosen)
    gap = target - lengths[chosen].sum()
    changes = lengths[rest][None] - lengths[chosen][:, None]
    return changes.size and np.abs(gap - changes).min() < abs(gap)


@pytest.mark.parametrize("given, expected", of_kind("budget_targets"))
def test_targets(given, expected):
    plenty = dict.fromkeys(given["training_tokens"], given["budget"])
    assert targets(given["budget"], given["training_tokens"], plenty) == expected["targets"]


@pytest.mark.parametrize("given, expected", of_kind("budget_domain"))
def test_a_small_subset_is_taken_whole(given, expected):
    available = {name: sum(lengths) for name, lengths in given["pools"].items()}
    found = targets(given["budget"], given["training_tokens"], available)
    assert found == expected["targets"]
    for name, lengths in given["pools"].items():
        chosen = fill(texts(lengths), found[name], min_records=given["min_records_per_subset"], seed=0, name=name)
        assert abs(np.asarray(lengths)[chosen].sum() - found[name]) <= TOLERANCE
        assert not improving_swap(lengths, chosen, found[name])
    assert len(fill(texts(given["pools"]["java"]), found["java"], min_records=50, seed=0, name="java")) == 56


@pytest.mark.parametrize("seed", [0, 42])
@pytest.mark.parametrize("given, expected", of_kind("budget"))
def test_budget(given, expected, seed):
    def draw():
        return fill(
            texts(given["token_counts"]), given["target"], min_records=given["min_records"], seed=seed, name="x"
        )

    if expected["error"]:
        with pytest.raises(DataError, match=f"at most {expected['n_that_can_fit_at_most']} fit"):
            draw()
        return
    chosen = draw()
    assert len(set(chosen)) == len(chosen) >= given["min_records"]
    assert abs(np.asarray(given["token_counts"])[chosen].sum() - given["target"]) <= TOLERANCE
    assert not improving_swap(given["token_counts"], chosen, given["target"])
    assert np.array_equal(chosen, draw())


def test_a_budget_that_cannot_be_met_says_how_far():
    with pytest.raises(DataError, match=r"500 tokens in 5 records, 1,500 fewer"):
        fill(texts([100] * 5), 2000, min_records=1, seed=0, name="x")
    with pytest.raises(DataError, match=r"nearest .* is 1,000, 900 away"):
        fill(texts([1000] * 5), 1900, min_records=1, seed=0, name="x")
    with pytest.raises(DataError, match="50 tokens in all, 950 fewer"):
        targets(1000, {"a": 1, "b": 1}, {"a": 20, "b": 30})


@given(LENGTHS, st.integers(1, 400), st.data())
def test_exchanges_end_where_none_helps(lengths, target, data):
    n = data.draw(st.integers(1, len(lengths)))
    found = exchange_towards(np.array(lengths), np.arange(n), target)
    assert len(found) == n
    assert not improving_swap(lengths, found, target)


@given(LENGTHS, st.integers(1, 400), st.data())
def test_few_records_are_searched_exactly(lengths, target, data):
    n = data.draw(st.integers(1, len(lengths) - 1))
    found = closest(np.array(lengths), n, target)
    best = min(abs(target - sum(c)) for c in itertools.combinations(lengths, n))
    assert abs(target - np.array(lengths)[found].sum()) == best


@pytest.mark.parametrize("given, expected", of_kind("dev_size_bands"))
def test_numbers_of_development_records(given, expected):
    found = [dev_sizes(n) for n in given["n"]]
    assert [f[0] for f in found] == expected["n_dev_min"]
    assert [f[1] for f in found] == expected["n_dev_max"]


@pytest.mark.parametrize("seed", [0, 42])
@pytest.mark.parametrize("given, expected", of_kind("dev_test"))
def test_dev_and_test(given, expected, seed):
    non = split_non_members(texts(given["non_member_token_counts"]), seed=seed, name="x")
    rule = expected["non_member"]
    assert rule["n_dev_min"] <= len(set(non.dev)) == len(non.dev) <= rule["n_dev_max"]
    assert non.target == pytest.approx(rule["dev_token_target"])
    assert non.tokens == np.asarray(given["non_member_token_counts"])[non.dev].sum()
    assert non.met and abs(non.tokens - rule["dev_token_target"]) <= rule["dev_token_tolerance"]
    members = split_members(texts(given["member_token_counts"]), non, seed=seed, name="x")
    assert len(set(members.dev)) == len(non.dev)
    assert members.tokens == np.asarray(given["member_token_counts"])[members.dev].sum()
    assert members.met and abs(members.tokens - non.tokens) <= expected["member_rule"]["dev_token_tolerance"]


@pytest.mark.parametrize("given, expected", of_kind("dev_test_small"))
def test_where_a_tenth_cannot_be_met_the_nearest_is_taken(given, expected):
    found = split_non_members(texts(given["non_member_token_counts"]), seed=0, name="x")
    assert abs(found.tokens - found.target) == pytest.approx(expected["best_reachable_gap"])
    assert found.met == expected["meets_tolerance"]


@pytest.mark.parametrize("given, expected", of_kind("dev_test_subsets"))
def test_each_subset_is_split_for_itself(given, expected):
    for name, lengths in given["non_member_token_counts"].items():
        found, rule = split_non_members(texts(lengths), seed=0, name=name), expected["non_member"][name]
        assert rule["n_dev_min"] <= len(found.dev) <= rule["n_dev_max"]
        assert abs(found.tokens - rule["dev_token_target"]) <= rule["dev_token_tolerance"]


def test_the_order_of_the_pool_does_not_count():
    lengths = [50 + 7 * i for i in range(90)]
    one, other = texts(lengths), texts(lengths[::-1])

    def keys(pool, chosen):
        return {pool.keys[i] for i in chosen}

    drawn = [fill(p, 9000, min_records=5, seed=3, name="x") for p in (one, other)]
    assert keys(one, drawn[0]) == keys(other, drawn[1])
    dev = [split_non_members(p, seed=3, name="x").dev for p in (one, other)]
    assert keys(one, dev[0]) == keys(other, dev[1])
    assert keys(one, drawn[0]) != keys(one, fill(one, 9000, min_records=5, seed=4, name="x"))


def test_one_record_cannot_be_split():
    with pytest.raises(DataError, match=re.escape("at least 2 are needed")):
        dev_sizes(1)


def test_every_golden_case_is_used():
    used = {
        "budget_targets",
        "budget_domain",
        "budget",
        "dev_size_bands",
        "dev_test",
        "dev_test_small",
        "dev_test_subsets",
    }
    assert {i["kind"] for i in GOLDEN["inputs"]} == used
