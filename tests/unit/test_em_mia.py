"""EMMIA: its iterations against golden files and scikit-learn; what the attack asks and which texts take part."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from olmodetect_jax.attacks.base import LEFT_OUT, Group, ScoredText
from olmodetect_jax.attacks.em_mia import BASES, EmMia, EmMiaBestOfFour, base_scores
from olmodetect_jax.attacks.em_mia_iterations import (
    STEPS,
    best_of_four,
    draw_pool,
    exact_aucs,
    iterate,
    sklearn_aucs,
    texts_in_the_way,
)
from olmodetect_jax.attacks.limited import Limited
from olmodetect_jax.attacks.rounds import Job, run_jobs
from olmodetect_jax.attacks.zlib import compressed_length
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.requests import ScoreTargets, ScoreTokens
from tests.stub_attacks import StubTokenizer, answer, kept_as, records, run

SCORES = 1e-9  # likelihood_emmia.json states abs 1e-9 for scores and AUCs

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "likelihood_emmia.json").read_text())
AUDITED = load_protocol("audited")
text = StubTokenizer.text


def protocol(**changes):
    return dataclasses.replace(AUDITED, **changes)


def close(expected):
    return pytest.approx(expected, abs=SCORES)


def aucs_of(inputs, make=exact_aucs):
    if "recall" in inputs:
        return make(np.asarray(inputs["recall"], np.float64))
    return make(np.asarray(inputs["cond_ll_prefix_by_target"], np.float64) / np.asarray(inputs["uncond_ll"]))


def steps(inputs, base, make=exact_aucs):
    base = np.asarray([float(b) for b in base])
    return iterate(aucs_of(inputs, make), base, np.arange(len(base)))


def auc(labels, scores):
    return exact_aucs(np.asarray(scores)[None])(np.asarray(labels) == 1)[0]


@pytest.mark.parametrize("make", [exact_aucs, sklearn_aucs])
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: c["name"])
def test_golden_iterations(case, make):
    inputs = case["inputs"]
    for name, expected in case["expected"].items():
        result = steps(inputs, inputs["init_scores"][name], make)
        assert len(result.trajectory) == inputs["iterations"] + 1
        assert result.scores.tolist() == close(expected["final_scores"])
        assert result.trajectory[1].tolist() == close(expected["after_iteration_1"])
        first = result.trajectory[0]
        assert (first > np.median(first)).astype(int).tolist() == expected["init_pseudo_labels"]
        assert auc(inputs["labels"], first) == close(expected["init_auc"])
        # to 12 digits: scikit-learn's rounding would break ties between the scores too
        assert auc(inputs["labels"], result.scores.round(12)) == close(expected["final_auc"])
        still = [np.array_equal(a, b) for a, b in zip(result.trajectory[1:], result.trajectory[2:], strict=False)]
        if make is exact_aucs and expected["first_iteration_equal_to_the_one_before"] is not None:
            assert still.index(True) + 2 == expected["first_iteration_equal_to_the_one_before"]
        assert not result.degenerate


@pytest.mark.parametrize("case", GOLDEN["degenerate"], ids=lambda c: c["name"])
def test_golden_degenerate_runs(case):
    inputs, expected = case["inputs"], case["expected"]
    result = steps(inputs, inputs["init"])
    if "init_pseudo_labels" in expected:
        first = result.trajectory[0]
        assert (first > np.median(first)).astype(int).tolist() == expected["init_pseudo_labels"]
    if "after_iteration_1" in expected:
        assert result.trajectory[1].tolist() == close(expected["after_iteration_1"])
    if "final_scores" in expected:
        assert result.scores.tolist() == close(expected["final_scores"])
        assert result.degenerate and not np.signbit(result.scores).any()
    if "auc_trajectory" in expected:
        assert [auc(inputs["labels"], s) for s in result.trajectory] == close(expected["auc_trajectory"])


def test_golden_tie_at_the_median():
    inputs, expected = GOLDEN["tie_sensitive"]["inputs"], GOLDEN["tie_sensitive"]["expected"]
    exact, rounding = steps(inputs, inputs["init"]), steps(inputs, inputs["init"], sklearn_aucs)
    assert exact.scores.tolist() == close(expected["exact_auc_final_scores"])
    assert rounding.scores.tolist() == close(expected["sklearn_auc_final_scores"])
    at = expected["first_iteration_that_differs"]
    assert exact.trajectory[at - 1].tolist() == close(expected["scores_before_that_iteration"])
    apart = [
        not np.allclose(a, b, atol=SCORES, rtol=0) for a, b in zip(exact.trajectory, rounding.trajectory, strict=True)
    ]
    assert apart.index(True) == at


def test_golden_best_of_four():
    selection = GOLDEN["selection"]
    expected = selection["expected"]
    for subset, aucs, best in zip(
        selection["inputs"]["test_subsets"],
        expected["test_auc_per_subset"],
        expected["best_of_four_per_subset"],
        strict=True,
    ):
        final = {name: np.asarray(scores) for name, scores in subset["final_scores"].items()}
        assert {name: auc(subset["labels"], s) for name, s in final.items()} == close(aucs)
        chosen = best_of_four(final, np.asarray(subset["labels"]) == 1)
        assert aucs[chosen] == close(best)
        assert chosen == next(name for name, value in aucs.items() if value == best)


@pytest.mark.parametrize("case", GOLDEN["reference_pool_option"])
def test_golden_pool(case):
    inputs = case["inputs"]
    assert draw_pool(inputs["n_member"], inputs["n_nonmember"], inputs["pool"]).tolist() == case["expected"]


def test_a_pool_takes_from_the_other_class_what_one_lacks():
    for n_member, n_non_member in ((3, 20), (20, 3), (2, 2)):
        pool = draw_pool(n_member, n_non_member, 12)
        assert len(pool) == len(set(pool)) == min(12, n_member + n_non_member)


matrices = st.integers(2, 9).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=1, max_size=5)
)


@given(matrices, st.data())
def test_aucs_are_the_nearest_to_the_exact_fractions(rows, data):
    positive = np.asarray(data.draw(st.lists(st.booleans(), min_size=len(rows[0]), max_size=len(rows[0]))))
    rows = np.asarray(rows, np.float64)
    got = exact_aucs(rows)(positive)
    if positive.all() or not positive.any():
        assert np.isnan(got).all() and np.isnan(sklearn_aucs(rows)(positive)).all()
        return
    for row, value in zip(rows, got, strict=True):
        wins = sum(2 * (a > b) + (a == b) for a in row[positive] for b in row[~positive])
        assert value == int(wins) / (2 * int(positive.sum()) * int((~positive).sum()))
        assert value == pytest.approx(roc_auc_score(positive, row), abs=1e-12)


@given(st.integers(1, 7), st.data())
def test_what_is_in_the_way_is_all_that_is(n, data):
    values = st.sampled_from([1.0, 2.0, 3.0, 4.0, math.nan, math.inf])
    ratios = np.asarray(data.draw(st.lists(st.lists(values, min_size=n, max_size=n), min_size=n, max_size=n)))
    before, pool = ratios.copy(), np.arange(n)
    broken = np.asarray(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    out = texts_in_the_way(ratios, pool, broken)
    assert out[broken].all()
    assert np.isfinite(ratios[~out][:, ~out]).all()
    np.testing.assert_array_equal(ratios, before)
    order = np.asarray(data.draw(st.permutations(range(n))))
    np.testing.assert_array_equal(texts_in_the_way(ratios[order][:, order], pool, broken[order]), out[order])


def test_one_bad_prefix_takes_nobody_with_it():
    ratios, none = np.ones((4, 4)), np.zeros(4, bool)
    ratios[2] = math.nan
    assert texts_in_the_way(ratios, np.arange(4), none).tolist() == [False, False, True, False]
    ratios[0, 1] = math.nan
    assert texts_in_the_way(ratios, np.arange(4), none).tolist() == [True, True, True, False]
    assert not none.any()
    # a text outside the pool has no column: its row and the target weigh the same, unless one is known to be broken
    column, target = np.asarray([[1.0], [math.nan], [1.0]]), np.asarray([2])
    assert texts_in_the_way(column, target, np.zeros(3, bool)).tolist() == [False, True, True]
    assert texts_in_the_way(column, target, np.arange(3) == 1).tolist() == [False, True, False]


TEXTS = [f"{a} text {b * i}{a}" for i, (a, b) in enumerate(["pq", "qr", "ab", "xy", "ns", "tu", "kl", "ba"])]
LABELS = [1, 1, 1, 1, 0, 0, 0, 0]


def split(asked):
    (only,) = asked
    return [r for r in only if isinstance(r, ScoreTokens)], [r for r in only if isinstance(r, ScoreTargets)]


def by_hand(texts, base, choices, width=None, pool=None, upcast=False):
    """Final scores straight from the definition."""
    pool = range(len(texts)) if pool is None else pool
    cut = [t[:width] for t in texts]
    read = [answer(StubTokenizer.request(t)) for t in cut]
    own = [np.mean(a.log_prob, dtype=np.float64) for a in read]
    first = {
        "loss": own,
        "zlib": [a.log_prob.astype(np.float64).sum() / compressed_length(t) for a, t in zip(read, cut, strict=True)],
    }[base]
    ratios = np.empty((len(texts), len(pool)))
    for p, prefix in enumerate(cut):
        targets = tuple(StubTokenizer.request(cut[x]).ids for x in pool)
        likelihoods = answer(ScoreTargets(StubTokenizer.request(prefix).ids, targets, upcast))
        ratios[p] = likelihoods.rest / np.asarray([own[x] for x in pool])
    scores = np.asarray(first)
    for _ in range(STEPS):
        positive = scores[list(pool)] > np.median(scores[list(pool)])
        scores = np.asarray([-roc_auc_score(positive, row) for row in ratios])
    return scores


@pytest.mark.parametrize("base", ["loss", "zlib"])
def test_from_requests_to_scores(base):
    scores, asked = run(EmMia(base), Group(records(*TEXTS, labels=LABELS)), AUDITED)
    plain, after = split(asked)
    assert [text(r.ids) for r in plain] == TEXTS and not any(r.upcast for r in [*plain, *after])
    assert [text(r.prefix) for r in after] == TEXTS
    assert all(sorted(text(t) for t in r.targets) == sorted(TEXTS) for r in after)
    assert all(r.targets is after[0].targets for r in after)  # checked and hashed once
    assert [s.value for s in scores] == pytest.approx(by_hand(TEXTS, base, AUDITED), abs=1e-12)
    assert all(s.missing is None and s.note is None and s.n_scored == s.n_tokens - 1 for s in scores)


def test_a_text_is_read_to_its_window():
    long = [t + " and so on" for t in TEXTS]
    narrow = protocol(em_mia_tokens=8, em_mia_tokens_rlvr=9)
    scores, asked = run(EmMia("zlib"), Group(records(*long)), narrow)
    plain, after = split(asked)
    assert [text(r.ids) for r in plain] == long  # the pass of the other attacks
    assert [text(r.prefix) for r in after] == [t[:8] for t in long]
    assert [s.value for s in scores] == pytest.approx(by_hand(long, "zlib", narrow, 8), abs=1e-12)
    assert all(s.truncated and s.n_scored == 7 and s.n_tokens == len(t) for s, t in zip(scores, long, strict=True))
    released = dataclasses.replace(narrow, score_dtype="bfloat16")
    plain, after = split(run(EmMia("loss"), Group(records(*long)), released)[1])
    assert [text(r.ids) for r in plain] == [t[:8] for t in long] and all(r.upcast for r in [*plain, *after])
    for changes, domain, width in (
        ({}, "rlvr", 9),
        ({"window": 15}, "rlvr", 7),
        ({"max_tokens": 6}, None, 6),
        ({"window": 15}, "gsm8k", 7),
    ):
        _, asked = run(EmMia("loss"), Group(records(*long), (), domain), dataclasses.replace(narrow, **changes))
        assert {len(r.prefix) for r in split(asked)[1]} == {width}


def test_zlib_compresses_the_window():
    steps = EmMia("zlib").requests(Group(records(*TEXTS)), StubTokenizer(), protocol(em_mia_tokens=5))
    with pytest.raises(StopIteration) as stop:
        steps.send([answer(r) for r in next(steps)])
    assert [t.span for t in stop.value.value.texts] == [t[:5] for t in TEXTS]
    assert [t.text for t in stop.value.value.texts] == TEXTS


def test_base_scores_by_their_own_rules():
    rng = np.random.default_rng(0)
    log_prob, mean = (-rng.random(14) - 0.1).astype(np.float32), (-rng.random(14)).astype(np.float32)
    variance = np.where(np.arange(14) % 5 == 0, -1e-3, rng.random(14)).astype(np.float32)
    scored = ScoredText("whole text", "span", np.arange(14), log_prob, mean, variance, 15, False, 0, False)
    l64, z = log_prob.astype(float), (log_prob.astype(float) - mean) / np.sqrt(np.maximum(variance.astype(float), 1e-9))
    got = base_scores(scored, AUDITED)
    assert tuple(got) == BASES
    assert got["loss"] == pytest.approx(l64.mean(), rel=1e-12)
    assert got["zlib"] == pytest.approx(l64.sum() / compressed_length("span"), rel=1e-12)
    assert got["mink"] == pytest.approx(np.sort(l64)[:2].mean(), rel=1e-12)  # 14 * 20 // 100
    assert got["minkpp"] == pytest.approx(np.sort(z)[:2].mean(), rel=1e-12)  # no 1e-9 beside sigma
    assert base_scores(scored, protocol(text_span="full"))["zlib"] == l64.sum() / compressed_length("whole text")
    one = dataclasses.replace(scored, log_prob=log_prob[:1], mean=mean[:1], variance=variance[:1])
    assert base_scores(one, AUDITED)["mink"] == float(log_prob[0])


def test_texts_that_take_no_part():
    texts = [TEXTS[0], "", TEXTS[1], "x", TEXTS[2], TEXTS[3]]

    def certain(request):
        """The model is certain of one text, and not a number after another."""
        a = answer(request)
        if isinstance(request, ScoreTokens):
            return dataclasses.replace(a, log_prob=a.log_prob * 0) if text(request.ids) == TEXTS[1] else a
        if text(request.prefix) == TEXTS[3]:
            return dataclasses.replace(a, rest=a.rest * np.float32(np.nan))
        return a

    scores, asked = run(EmMia("loss"), Group(records(*texts)), AUDITED, answer=certain)
    reasons = [s.missing for s in scores]
    assert reasons[1] == "the record has no text" and "nothing to score" in reasons[3]
    assert "0 or no finite number" in reasons[2] and "0 or no finite number" in reasons[5]
    assert reasons[0] is reasons[4] is None
    assert all(math.isnan(s.value) == (s.missing is not None) for s in scores)
    assert [scores[i].value for i in (0, 4)] == pytest.approx(by_hand([TEXTS[0], TEXTS[2]], "loss", AUDITED))
    assert len(split(asked)[1]) == 4

    def broken(request):
        a = answer(request)
        return dataclasses.replace(a, mean=a.mean * np.float32(np.nan)) if isinstance(request, ScoreTokens) else a

    scores, _ = run(EmMia("loss"), Group(records(*texts)), AUDITED, answer=broken)
    assert all(s.missing for s in scores) and "not finite" in scores[0].missing


@pytest.mark.parametrize("base", BASES)
def test_a_text_with_a_broken_moment_is_not_in_the_median(base):
    def broken(request):
        a = answer(request)
        hit = isinstance(request, ScoreTokens) and text(request.ids) == TEXTS[2]
        return dataclasses.replace(a, variance=a.variance * np.float32(np.nan)) if hit else a

    scores, _ = run(EmMia(base), Group(records(*TEXTS)), AUDITED, answer=broken)
    others = [t for t in TEXTS if t != TEXTS[2]]
    alone, _ = run(EmMia(base), Group(records(*others)), AUDITED)
    assert "not finite" in scores[2].missing
    assert [s.value for i, s in enumerate(scores) if i != 2] == [s.value for s in alone]


def test_a_broken_text_inside_and_outside_the_pool():
    order = [1, 0, 0, 1, 0, 1, 1, 0]
    group = Group(records(*TEXTS, labels=order))
    (target,) = split(run(EmMia("loss"), group, protocol(em_mia_pool=1))[1])[1][0].targets
    for broken in TEXTS:

        def certain(request, broken=broken):
            a = answer(request)
            hit = isinstance(request, ScoreTokens) and text(request.ids) == broken
            return dataclasses.replace(a, log_prob=a.log_prob * 0) if hit else a

        scores, _ = run(EmMia("loss"), group, protocol(em_mia_pool=1), answer=certain)
        missing = [s.missing is not None for s in scores]
        if broken == text(target):
            assert all(missing) and sum("no other can be used" in s.missing for s in scores) == 7
        else:
            assert missing == [t == broken for t in TEXTS]


def test_very_few_texts():
    for n in (2, 3):
        scores, _ = run(EmMia("loss"), Group(records(*TEXTS[:n])), AUDITED)
        assert all(math.isfinite(s.value) and s.missing is None for s in scores)
    (alone, other), _ = run(EmMia("loss"), Group(records(TEXTS[0], "x")), AUDITED)
    assert math.isnan(alone.value) and "no other can be used" in alone.missing and other.missing
    assert run(EmMia("loss"), Group([]), AUDITED)[0] == []
    (none,), asked = run(EmMia("loss"), Group(records("")), AUDITED)
    assert none.missing == "the record has no text" and not asked[0]
    (alone,), _ = run(EmMiaBestOfFour(), Group(records("text")), AUDITED)
    assert "no other can be used" in alone.missing


def test_identical_texts_are_degenerate():
    scores, asked = run(EmMia("loss"), Group(records(*["the same"] * 4)), AUDITED)
    assert all(s.value == 0 and s.missing is None and "degenerate" in s.note for s in scores)
    assert len({r.digest for r in split(asked)[1]}) == 1  # one prefix, one row


def limited(limit):
    return Limited(EmMia("loss"), limit, f"--em-mia-limit takes {limit} records of each class")


LIMITED = [*TEXTS, "", "x"]  # the last two cannot be used, and use up no place


@settings(max_examples=30)
@given(st.permutations(range(10)))
def test_the_limit_takes_the_smallest_hashes_of_each_class(order):
    labels = dict(zip(LIMITED, [1, 1, 1, 0, 0, 0, None, None, 1, 1], strict=True))
    texts = [LIMITED[i] for i in order]
    group = Group(records(*texts, labels=[labels[t] for t in texts]))
    scores, asked = run(limited(2), group, AUDITED)
    taken = {
        t
        for label in (1, 0, None)
        for t in sorted((t for t in TEXTS if labels[t] == label), key=lambda t: hashlib.sha256(t.encode()).hexdigest())[
            :2
        ]
    }
    assert {text(r.prefix) for r in split(asked)[1]} == taken
    for t, score in zip(texts, scores, strict=True):
        assert (score.missing is None) == (t in taken)
        if t in TEXTS and t not in taken:
            assert score.missing == LEFT_OUT + "--em-mia-limit takes 2 records of each class"
        if t in LIMITED[8:]:
            assert not score.left_out
    used = [i for i, t in enumerate(texts) if t in taken]
    assert [scores[i].value for i in used] == pytest.approx(by_hand([texts[i] for i in used], "loss", AUDITED))


def test_of_equal_texts_the_limit_takes_the_smaller_id():
    twins = records(TEXTS[0], TEXTS[0], TEXTS[4], labels=[1, 1, 0])
    for order in ([0, 1, 2], [1, 2, 0]):
        scores, _ = run(limited(1), Group([twins[i] for i in order]), AUDITED)
        assert {twins[i].record_id for i, s in zip(order, scores, strict=True) if s.missing is None} == {"r0", "r2"}


def two_sides():
    """Sides on which different bases are best, and a third one over both."""
    labels = [0, 1] * 8
    texts = [*TEXTS, *(t + "!" for t in TEXTS)]
    chosen = records(*texts, labels=labels)
    rejected = records(*(t + "?" for t in texts), labels=labels, start=16)
    mixed = [r for pair in zip(chosen, rejected, strict=True) for r in pair]
    return [dataclasses.replace(r, side="chosen" if r in chosen else "rejected") for r in mixed]


def run_sides(attack, mixed, choices=AUDITED):
    def engine(requests):
        return {r.digest: answer(r) for r in requests}

    return run_jobs({"dpo": Job(attack, Group(mixed), choices)}, StubTokenizer(), engine)["dpo"]


def test_one_base_is_chosen_for_both_sides():
    mixed = two_sides()
    labels = [r.label for r in mixed]
    each = {base: run_sides(EmMia(base), mixed) for base in BASES}
    # a named base is run on each side by itself
    for side in ("chosen", "rejected"):
        places = [i for i, r in enumerate(mixed) if r.side == side]
        alone, _ = run(EmMia("loss"), Group([mixed[i] for i in places]), AUDITED)
        assert [each["loss"][i] for i in places] == alone

    def best(places):
        return max(BASES, key=lambda b: auc([labels[i] for i in places], [each[b][i].value for i in places]))

    pooled = best(range(len(mixed)))
    apart = {best([i for i, r in enumerate(mixed) if r.side == side]) for side in ("chosen", "rejected")}
    assert apart != {pooled}  # or this would show nothing
    for attack, choices in (
        (EmMiaBestOfFour(), AUDITED),
        (Limited(EmMiaBestOfFour(), 16, "none is left out"), AUDITED),
        (EmMia("zlib"), protocol(em_mia_choice="best_of_four")),
    ):
        scores = run_sides(attack, mixed, choices)
        assert [s.value for s in scores] == [s.value for s in each[pooled]]
        assert all(f"base score {pooled}," in s.note for s in scores)


def test_a_side_that_cannot_be_run_has_no_say():
    mixed = two_sides()
    mixed = [r if r.side == "chosen" else dataclasses.replace(r, text="x") for r in mixed]
    scores = run_sides(EmMiaBestOfFour(), mixed)
    alone, _ = run(EmMiaBestOfFour(), Group([r for r in mixed if r.side == "chosen"]), AUDITED)
    assert [s for r, s in zip(mixed, scores, strict=True) if r.side == "chosen"] == alone
    assert all("nothing to score" in s.missing for r, s in zip(mixed, scores, strict=True) if r.side == "rejected")


def test_the_limit_counts_each_side():
    scores = run_sides(limited(3), two_sides())
    taken = [(r.side, r.label) for r, s in zip(two_sides(), scores, strict=True) if s.missing is None]
    assert {key: taken.count(key) for key in taken} == {
        (s, label): 3 for s in ("chosen", "rejected") for label in (0, 1)
    }


def test_the_best_of_four_is_chosen_on_the_labels():
    labels = [0, 1] * 8
    group = Group(records(*TEXTS, *(t + "!" for t in TEXTS), labels=labels))
    each = {base: [s.value for s in run(EmMia(base), group, AUDITED)[0]] for base in BASES}
    best = max(BASES, key=lambda b: auc(labels, each[b]))
    optimistic, asked = run(EmMiaBestOfFour(), group, AUDITED)
    assert [s.value for s in optimistic] == each[best] and all(best in s.note for s in optimistic)
    by_protocol, again = run(EmMia("minkpp"), group, protocol(em_mia_choice="best_of_four"))
    assert by_protocol == optimistic and [r.digest for r in again[0]] == [r.digest for r in asked[0]]
    assert best != BASES[0] and len({auc(labels, scores) for scores in each.values()}) > 2


@pytest.mark.parametrize("labels", [[1, 1, None, 0], [1] * 4, [0] * 4])
def test_labels_are_needed(labels):
    group = Group(records(*TEXTS[:4], labels=labels, subset="gsm8k"))
    expected = "line 3 .*no label" if None in labels else "gsm8k: no (non-)?member can be used"
    for attack, changes in (
        (EmMiaBestOfFour(), {}),
        (EmMia("loss"), {"em_mia_choice": "best_of_four"}),
        (EmMia("loss"), {"em_mia_pool": 2}),
    ):
        with pytest.raises(DataError, match=expected):  # before the model is asked
            next(attack.requests(group, StubTokenizer(), protocol(**changes)))
    run(EmMia("loss"), group, AUDITED)


def test_a_pool_of_targets():
    order = [1, 0, 0, 1, 0, 1, 1, 0]
    group = Group(records(*TEXTS, labels=order))
    scores, asked = run(EmMia("loss"), group, protocol(em_mia_pool=5))
    by_class = [i for i in range(8) if order[i]] + [i for i in range(8) if not order[i]]
    pool = [by_class[k] for k in draw_pool(4, 4, 5)]
    after = split(asked)[1]
    assert len(after) == 8 and all({text(t) for t in r.targets} == {TEXTS[i] for i in pool} for r in after)
    assert [s.value for s in scores] == pytest.approx(by_hand(TEXTS, "loss", AUDITED, pool=pool), abs=1e-12)


def test_a_final_end_of_text_counts_and_other_special_ids_are_told():
    texts = ["ab$", "a^b^c^d", "xyz"]
    scores, _ = run(EmMia("loss"), Group(records(*texts)), protocol(em_mia_tokens=4))
    assert [(s.n_scored, s.special_ids) for s in scores] == [(2, 0), (3, 2), (2, 0)]


def test_an_unknown_base():
    with pytest.raises(UsageError, match="em_mia_base.*loss, zlib, mink, minkpp"):
        EmMia("ref")


@settings(max_examples=30)
@given(st.permutations(range(8)), st.lists(st.sampled_from([0, 1, None]), min_size=8, max_size=8))
def test_order_and_labels_change_nothing(order, labels):
    for base in BASES:
        plain, before = run(EmMia(base), Group(records(*TEXTS)), AUDITED)
        shuffled, after = run(EmMia(base), Group(records(*(TEXTS[i] for i in order), labels=labels)), AUDITED)
        assert [s.value.hex() for s in shuffled] == [plain[i].value.hex() for i in order]
        assert {kept_as(r) for r in before[0]} == {kept_as(r) for r in after[0]}
