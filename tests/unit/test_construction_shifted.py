"""Shifted members against `construction_annealing.json`, brute force, and the rule of its first phase."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.construction.candidates import Texts
from olmodetect_jax.construction.shifted import draw_shifted, exchange_until
from olmodetect_jax.errors import DataError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "construction_annealing.json").read_text())
CASES = [
    pytest.param(i, e, id=name)
    for name, i, e in zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True)
    if i["kind"] == "phase_1_replay"
]


def pool_of(lengths):
    return Texts(
        [np.zeros(n, np.uint32) for n in lengths], np.full(len(lengths), np.nan), [f"{i}" for i in range(len(lengths))]
    )


def place(array, value):
    return int(np.flatnonzero(array == value)[0])


@pytest.mark.parametrize("given, expected", CASES)
def test_shifted_replay(given, expected):
    lengths, chosen = np.array(given["token_counts"]), np.array(given["start"])
    rest = np.setdiff1d(np.arange(len(lengths)), chosen)
    accepted, looked = [], 0
    for out, into in given["proposals_out_in"]:
        proposal = place(chosen, out), place(rest, into)
        if not exchange_until(lengths, chosen, rest, [proposal], given["target_tokens"], given["margin"]):
            break
        looked += 1
        accepted.append(into in chosen)
    assert (accepted, looked) == (expected["accepted"], expected["stopped_after"])
    assert sorted(chosen) == expected["final_subset"]
    assert abs(lengths[chosen].sum() - given["target_tokens"]) == expected["final_gap"]


@given(st.lists(st.integers(1, 50), min_size=4, max_size=10), st.integers(1, 150), st.integers(0, 20), st.data())
def test_shifted_members_have_the_tokens_or_an_error(lengths, target, margin, data):
    n = data.draw(st.integers(1, len(lengths) - 1))
    pool = pool_of(lengths)
    sums = [sum(c) for c in itertools.combinations(lengths, n)]
    try:
        found = draw_shifted(pool, n, target, margin=margin, seed=1, name="x")
    except DataError:
        if max(sums) - min(sums) < margin:  # else the random walk may end where no single exchange helps
            assert min(abs(s - target) for s in sums) > margin
        return
    assert len(set(found.tolist())) == n
    assert abs(pool.n_tokens[found].sum() - target) <= margin


@pytest.mark.parametrize(
    "other, margin, looked, exchanged",
    [(10, 7, 0, False), (19, 6, 1, True), (7, 6, 1, False), (6, 6, 1, False), (20, 6, 1, False)],
    ids=["already at the margin", "closer", "same tokens", "further", "as far on the other side"],
)
def test_one_proposal(other, margin, looked, exchanged):
    """A text of 7 tokens where 14 are wanted (13.5 for the last: as far above as below)."""
    target = 14 if other != 20 else 13.5
    chosen, rest = np.array([0]), np.array([1])
    assert exchange_until(np.array([7, other]), chosen, rest, [(0, 0)], target, margin) == looked
    assert (chosen[0] == 1) == exchanged


def test_it_stops_as_soon_as_the_margin_is_reached():
    lengths, chosen, rest = np.array([1, 8, 10]), np.array([0]), np.array([1, 2])
    assert exchange_until(lengths, chosen, rest, [(0, 0), (0, 1)], 10, 2) == 1
    assert chosen.tolist() == [1]


def test_the_order_of_the_pool_does_not_matter_and_the_seed_does():
    rng = np.random.default_rng(3)
    pool = pool_of(rng.integers(50, 150, 40).tolist())
    drawn = {seed: draw_shifted(pool, 10, 1300, margin=5, seed=seed, name="x").tolist() for seed in (1, 2)}
    order = rng.permutation(40)
    again = draw_shifted(pool.take(order), 10, 1300, margin=5, seed=1, name="x")
    assert sorted(order[again].tolist()) == drawn[1] != drawn[2]


def test_a_pool_that_cannot_fit_says_how_far():
    with pytest.raises(DataError, match="pool holds 1 members, 2 are needed"):
        draw_shifted(pool_of([100]), 2, 200, margin=10, seed=0, name="x")
    with pytest.raises(DataError, match="the 2 longest members of the pool have 90 tokens, 110 away"):
        draw_shifted(pool_of([40, 45, 45]), 2, 200, margin=100, seed=0, name="x")
    with pytest.raises(DataError, match="the shifted members have 10 tokens fewer than the non-members, at most 5"):
        draw_shifted(pool_of([3, 10, 30]), 1, 20, margin=5, seed=1, name="x")
