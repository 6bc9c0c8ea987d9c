"""Annealing against `construction_annealing.json` and full recomputation."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmodetect_jax.construction.annealing import AnnealingSettings, Search, anneal
from olmodetect_jax.construction.candidates import Texts
from olmodetect_jax.construction.dates import days, temporal_term
from olmodetect_jax.construction.jsd import divergence_of_texts
from olmodetect_jax.errors import DataError, OlmoDetectError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "construction_annealing.json").read_text())
CASES = list(zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True))


def of_kind(*kinds):
    return [pytest.param(i, e, id=name) for name, i, e in CASES if i["kind"] in kinds]


def near(value):
    if isinstance(value, dict):
        return float(value["$float"])
    return pytest.approx(value, rel=GOLDEN["tolerance"]["rel"], abs=GOLDEN["tolerance"]["abs"])


def texts(records):
    ids = [np.repeat(*np.array(r["counts"], np.int64).T).astype(np.uint32) for r in records]
    dates = np.array([np.nan if (d := days(r["date"])) is None else d for r in records])
    return Texts(ids, dates, [f"{i}" for i in range(len(records))])


def search_of(given, chosen, **changes):
    pool, others = texts(given["pool"]), texts(given["non_members"])
    options = AnnealingSettings(margin=given.get("margin", 0), dates=given["use_dates"], **changes)
    chosen = np.array(chosen)
    return Search(pool, others, options, chosen, np.setdiff1d(np.arange(len(pool.ids)), chosen))


@pytest.mark.parametrize("given, expected", of_kind("losses"))
def test_losses(given, expected):
    target = sum(len(t) for t in texts(given["non_members"]).ids)
    for subset, wanted in zip(given["subsets"], expected["subsets"], strict=True):
        search = search_of(given, subset)
        assert search.jsd() == near(wanted["jsd"])
        assert search.temporal() == near(wanted["temporal"])
        assert search.loss == near(wanted["loss"])
        assert (search.tokens, abs(search.tokens - target)) == (wanted["tokens"], wanted["gap"])


def place(array, value):
    return np.flatnonzero(array == value)


@pytest.mark.parametrize("given, expected", of_kind("swaps"))
def test_change_of_loss(given, expected):
    for (out, into), wanted in zip(given["swaps"], expected["swaps"], strict=True):
        search = search_of(given | {"margin": 10**6}, given["subset"])
        assert search.loss == near(expected["loss_before"])
        search.propose(place(search.chosen, out), place(search.rest, into), np.zeros(1))
        assert search.change == near(wanted["change"])
        if wanted["change"] < 0.5:  # else exp(-change / t0) may be exactly 0, and no uniform is below it
            assert search.loss == near(wanted["loss_after"]) and search.tokens == wanted["tokens_after"]


@pytest.mark.parametrize("given, expected", of_kind("replay"))
def test_replay(given, expected):
    search = search_of(given, given["start"], t0=given["t0"], factor=given["factor"])
    target = sum(len(t) for t in texts(given["non_members"]).ids)
    used = 0
    for (out, into), wanted in zip(given["proposals_out_in"], expected["steps"], strict=True):
        gap = abs(search.tokens - target)
        assert (2 if gap <= given["margin"] else 1, gap) == (wanted["phase"], wanted["gap_before"])
        swapped = search.tokens + len(texts(given["pool"]).ids[into]) - len(texts(given["pool"]).ids[out])
        assert abs(swapped - target) == wanted["gap_after"]
        search.propose(place(search.chosen, out), place(search.rest, into), np.array(given["uniforms"][used:]))
        assert bool(search.used) == wanted["uniform_used"]
        assert (into in search.chosen) == wanted["accepted"]
        assert search.temperature == near(wanted["temperature_after"])
        if wanted["change"] is not None:
            assert search.change == near(wanted["change"])
        used += search.used
    assert sorted(search.chosen) == expected["final_subset"]
    search.check("x")
    assert search.loss == near(expected["final_loss"])
    assert (used, search.accepted) == (expected["n_uniforms_used"], expected["n_accepted_phase_2"])


def lengths_only(lengths):
    return Texts([np.full(n, 7, np.uint32) for n in lengths], np.full(len(lengths), np.nan), list(map(str, lengths)))


@pytest.mark.parametrize("given, expected", of_kind("phase"))
def test_phases(given, expected):
    """One pool a case: the members' one text leaves, and the other comes."""
    base = 2000
    for margin, before, after, phase, action in zip(
        given["margin"], given["token_difference_before"], given["token_difference_after"], expected["phase"],
        expected["action"], strict=True,
    ):  # fmt: skip
        pool = lengths_only([base + before, base + after])
        search = Search(pool, lengths_only([base]), AnnealingSettings(margin=margin), np.array([0]), np.array([1]))
        search.propose(np.array([0]), np.array([0]), np.zeros(1))
        swapped = search.chosen[0] == 1
        assert phase == (1 if abs(before) > margin else 2)
        assert swapped == (action in {"swap", "metropolis"})
        assert (search.exchanges, search.accepted) == (action == "swap", action == "metropolis")


@pytest.mark.parametrize("given, expected", of_kind("acceptance"))
def test_acceptance(given, expected, monkeypatch):
    """The loss before is set so that the change is the given one (the loss after is exactly 0)."""
    from olmodetect_jax.construction import annealing_kernel as kernel

    for change, temperature, uniform, accepted, drawn in zip(
        given["change_of_loss"], given["temperature"], given["uniform"], expected["accepted"],
        expected["uniform_is_drawn"], strict=True,
    ):  # fmt: skip
        change = float(change["$float"]) if isinstance(change, dict) else change
        search = Search(
            lengths_only([100, 100]), lengths_only([100]), AnnealingSettings(), np.array([0]), np.array([1])
        )
        assert search.loss == 0
        if np.isnan(change):  # infinite before and after
            search = undated_members()
        else:
            search._state[kernel.LOSS] = -change
        search._state[kernel.TEMPERATURE] = temperature
        search.propose(np.array([0]), np.array([0]), np.array([uniform]))
        assert (search.chosen[0] == 1, bool(search.used)) == (accepted, drawn), change


def undated_members():
    dated = Texts([np.full(100, 7, np.uint32)], np.array([737000.0]), ["x"])
    return Search(lengths_only([100, 100]), dated, AnnealingSettings(), np.array([0]), np.array([1]))


@pytest.mark.parametrize("given, expected", of_kind("temperature", "temperature_power"))
def test_temperature(given, expected):
    """Only accepted exchanges of the second phase cool it."""
    events = {"reject": 0, "phase_1_swap": 0, "phase_1_skip": 0, "out_of_margin": 0}
    if given["kind"] == "temperature":
        accepted = [sum(events.get(e, 1) for e in sequence) for sequence in given["sequences"]]
    else:
        accepted = given["n_accepted"]
    pool, others = lengths_only([100, 100]), lengths_only([100])
    for n, wanted in zip(accepted, expected["temperature"], strict=True):
        options = AnnealingSettings(t0=given["t0"], factor=given["factor"])
        search = Search(pool, others, options, np.array([0]), np.array([1]))
        zeros = np.zeros(n, np.int64)
        search.propose(zeros, zeros, np.zeros(n))  # the change is 0, so each is accepted
        assert search.accepted == n
        assert search.temperature == near(wanted)


def annealed(given, seed, name="x"):
    options = AnnealingSettings(
        n_steps=given.get("max_steps", 1000), margin=given["margin"], dates=given["use_dates"],
        t0=given.get("t0", 1e-3), factor=given.get("factor", 1.0), seed=seed,
    )  # fmt: skip
    return anneal(texts(given["pool"]), texts(given["non_members"]), options, name=name)


@pytest.mark.parametrize("given, expected", of_kind("optimum"))
def test_optimum(given, expected):
    seeds = range(6)
    if expected["error"]:
        message = {
            "pool_smaller_than_n": f"pool holds {len(given['pool'])} members, {given['n']} are needed",
            "margin_not_reached": f"at most {given['margin']}",
        }[expected["error"]]
        for seed in seeds:
            with pytest.raises(DataError, match=message):
                annealed(given, seed)
        return
    found = [annealed(given, seed) for seed in seeds]
    best = [f.chosen.tolist() == expected["best_subset"] for f in found]
    for f, is_best in zip(found, best, strict=True):
        if is_best:
            assert (f.jsd, f.temporal, f.loss) == tuple(
                near(expected[f"best_{n}"]) for n in ("jsd", "temporal", "loss")
            )
            assert abs(f.gap) == expected["best_gap"]
        if "loss_every_run_should_reach" in expected:
            assert f.loss <= expected["loss_every_run_should_reach"] + 1e-12
    assert all(best) if expected.get("must_equal_best", True) else sum(best) > len(best) / 2


def test_every_golden_case_is_used():
    """The last kind in the tests of shifted members."""
    used = {
        "losses", "swaps", "replay", "phase", "acceptance", "temperature", "temperature_power", "optimum",
        "phase_1_replay",
    }  # fmt: skip
    assert {i["kind"] for _, i, _ in CASES} == used


def random_texts(rng, n, low, high, dated, vocabulary=200, prefix=""):
    ids = [
        (rng.zipf(1.3, rng.integers(low, high)) % vocabulary + 65_500).astype(np.uint32) for _ in range(n)
    ]  # ids beyond 16 bits
    dates = np.where(rng.random(n) < 0.2, np.nan, 737_000 + rng.normal(0, 90, n)) if dated else np.full(n, np.nan)
    return Texts(ids, dates, [f"{prefix}{i}" for i in range(n)])


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_the_loss_kept_up_is_the_loss_computed_anew(seed, dated, long):
    """With the series (many tokens, little margin) and without (few tokens)."""
    from olmodetect_jax.construction import annealing_kernel as kernel

    rng = np.random.default_rng(seed)
    low, high = (300, 320) if long else (3, 30)
    pool, others = random_texts(rng, 14, low, high, dated), random_texts(rng, 6, low, high, dated)
    options = AnnealingSettings(margin=19 if long else 10**6, t0=0.05, factor=0.999, dates=dated)
    search = Search(pool, others, options, np.arange(6), np.arange(6, 14))
    for _ in range(20):
        search.propose(rng.integers(0, 6, 10), rng.integers(0, 8, 10), rng.random(10))
        kept = search.loss
        if np.isnan(kept):
            continue
        now = pool.take(search.chosen)
        jsd = divergence_of_texts(now.ids, others.ids)
        assert search.jsd() == pytest.approx(jsd, abs=1e-12)
        sums = kernel.all_sums(search._members, search._others, search._logs)
        assert search._sums == pytest.approx(sums, rel=1e-12, abs=1e-9)
        temporal = temporal_term(now.days, others.days)
        if np.isfinite(temporal):
            assert kept == pytest.approx(jsd + temporal, abs=1e-9)
        else:
            assert kept == temporal


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(5)
    return random_texts(rng, 60, 80, 200, True), random_texts(rng, 25, 80, 200, True, prefix="o")


def test_the_same_seed_gives_the_same_members_whatever_the_order(problem):
    pool, others = problem
    options = AnnealingSettings(n_steps=100_000, margin=20)
    one = anneal(pool, others, options, name="x")
    order = np.random.default_rng(0).permutation(60)
    two = anneal(pool.take(order), others, options, name="x")
    assert sorted(order[two.chosen]) == one.chosen.tolist()
    assert two.loss == pytest.approx(one.loss, abs=1e-12)
    other_seed = anneal(pool, others, AnnealingSettings(n_steps=100_000, margin=20, seed=1), name="x")
    assert other_seed.chosen.tolist() != one.chosen.tolist()
    assert one.loss < one.start_loss and one.drift < 1e-9 and abs(one.gap) <= 20


def test_a_stale_loss_lasts_until_the_first_exchange_of_the_second_phase(problem):
    from olmodetect_jax.construction import annealing_kernel as kernel

    pool, others = problem
    lengths = pool.n_tokens
    order = np.argsort(lengths)[::-1]  # the longest first: far outside the margin
    for stale in (False, True):
        options = AnnealingSettings(margin=30, stale_loss=stale)
        search = Search(pool, others, options, order[:25], order[25:])
        start, rng = search.loss, np.random.default_rng(0)
        while abs(search.tokens - others.n_tokens.sum()) > 30:
            search.propose(rng.integers(0, 25, 1), rng.integers(0, 35, 1), np.ones(1))
        assert search.exchanges > 0
        search.check("x")
        assert (search._state[kernel.LOSS] == start) == stale


def test_a_pool_that_cannot_fit_says_how_far():
    others = lengths_only([100, 100])
    with pytest.raises(DataError, match=r"the 2 shortest members of the pool have 320 tokens, 120 away from .* 200"):
        anneal(lengths_only([150, 170, 180]), others, AnnealingSettings(margin=100), name="x")
    with pytest.raises(DataError, match=r"the 2 longest members of the pool have 90 tokens, 110 away"):
        anneal(lengths_only([40, 45, 45]), others, AnnealingSettings(margin=100), name="x")
    with pytest.raises(DataError, match="pool holds 1 members, 2 are needed"):
        anneal(lengths_only([100]), others, AnnealingSettings(), name="x")
    with pytest.raises(DataError, match="without a single token"):
        anneal(lengths_only([0, 0]), lengths_only([0]), AnnealingSettings(), name="x")


def dated_texts(rng, dates, prefix=""):
    texts = random_texts(rng, len(dates), 80, 200, False, prefix=prefix)
    return Texts(texts.ids, np.round(np.asarray(dates) * 86400) / 86400, texts.keys)


@pytest.mark.parametrize("seed", range(3))
def test_members_of_one_day_among_years_keep_the_digits_of_their_spread(seed):
    """The variance is then a small difference of large sums, and its root shows what rounding left of it."""
    rng = np.random.default_rng(seed)
    pool = dated_texts(rng, np.r_[np.full(30, 737_400.0), 735_000 + rng.normal(0, 400, 30)])
    others = dated_texts(rng, np.full(25, 737_400.0), prefix="o")
    found = anneal(pool, others, AnnealingSettings(n_steps=200_000, margin=100, seed=seed, t0=0.05), name="x")
    assert found.temporal == 0 and found.drift < 1e-9


def test_one_dated_member_has_no_spread():
    rng = np.random.default_rng(1)
    dates = np.r_[np.full(8, np.nan), np.full(6, 700_000.3), np.full(6, 760_000.7)]
    dates[3] = 730_123.456
    pool = dated_texts(rng, dates)
    others = dated_texts(rng, 737_000 + rng.normal(0, 90, 8), prefix="o")
    search = Search(pool, others, AnnealingSettings(margin=10**6, t0=1e9), np.arange(8), np.arange(8, 20))
    for out in (0, 1):  # undated ones leave for a dated one, and it leaves again
        for place_in in (0, 0):
            search.propose(np.array([out]), np.array([place_in]), np.zeros(1))
            now = pool.take(search.chosen)
            assert search.loss == pytest.approx(
                divergence_of_texts(now.ids, others.ids) + temporal_term(now.days, others.days), abs=1e-10
            )


def test_non_members_of_one_date_are_compared_in_days():
    rng = np.random.default_rng(2)
    pool = dated_texts(rng, 737_000 + rng.normal(0, 90, 12))
    others = dated_texts(rng, np.full(5, 737_000.5), prefix="o")
    search = Search(pool, others, AnnealingSettings(), np.arange(5), np.arange(5, 12))
    assert search.temporal() == pytest.approx(temporal_term(pool.days[:5], others.days), rel=1e-12)


def test_drift_is_measured_against_a_large_loss():
    """Non-members seconds apart make the temporal term so large that a double has no digit at 1e-9."""
    rng = np.random.default_rng(0)
    pool = dated_texts(rng, 737_000 + rng.normal(0, 1000, 60))
    others = dated_texts(rng, 737_000.5 + rng.integers(-2, 3, 25) / 86400, prefix="o")
    options = AnnealingSettings(n_steps=200_000, margin=100, t0=1e9, factor=1.0)
    assert anneal(pool, others, options, name="x").loss > 1e6


@pytest.mark.parametrize("stale", [False, True])
def test_a_loss_that_drifted_is_an_error(problem, stale):
    from olmodetect_jax.construction import annealing_kernel as kernel

    pool, others = problem
    options = AnnealingSettings(margin=10**6, t0=1e9, stale_loss=stale)
    search = Search(pool, others, options, np.arange(25), np.arange(25, 60))
    search.propose(np.array([0]), np.array([0]), np.zeros(1))
    assert search.accepted == 1
    search._state[kernel.LOSS] += 1e-6
    with pytest.raises(OlmoDetectError, match="x: the annealing's loss drifted by"):
        search.check("x")


@pytest.mark.parametrize("n", [0, 3])
def test_no_non_members_at_all_is_an_error(n):
    with pytest.raises(DataError, match="without a single token"):
        anneal(lengths_only([5] * n), lengths_only([]), AnnealingSettings(), name="x")
