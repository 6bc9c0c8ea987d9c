"""CAMIA against the golden files `camia_*.json`, its fast algorithms against plain ones, and the attack end to end."""

import dataclasses
import hashlib
import json
import math
import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from olmodetect_jax.attacks.base import LEFT_OUT, Group
from olmodetect_jax.attacks.camia import Camia
from olmodetect_jax.attacks.camia_p_values import COMPOSITIONS, compose, directions, p_values
from olmodetect_jax.attacks.camia_signals import (
    BLOCKS,
    DIFFERENCES,
    NO_SIGNALS,
    approximate_entropy,
    count_above_pre,
    lz_complexity,
    occurrences,
    slope,
    text_signals,
)
from olmodetect_jax.compiled import compiled
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import Record
from olmodetect_jax.requests import TokenStatistics
from olmodetect_jax.tokenization import TokenizedText

# As the golden files state: float64 arithmetic on given numbers.
SIGNALS = {"rtol": 1e-9, "atol": 1e-9}
P_VALUES = {"rtol": 1e-9, "atol": 1e-9}
SCORES = {"rtol": 1e-7, "atol": 0}  # scores span hundreds of decades: relative, without any slack near 0
SMALLEST = 1e-290  # below it combined p-values leave float64 and the statistic is compared instead
AUC = {"rtol": 1e-9, "atol": 1e-9}

AUDITED = load_protocol("audited")


def load(name):
    """camia_signals_short.json, camia_signals_long.json, camia_original.json, camia_pvalues.json,
    camia_compose_extreme.json and camia_tune.json by what stands between `camia_` and the dot."""
    return json.loads((Path(__file__).parents[1] / "golden" / f"camia_{name}.json").read_text())


def array(values):
    return np.array(values, np.float64)  # null becomes NaN


def arrays(case):
    lp, repeated = array(case["lp"]), array(case["rep_lp"])
    return lp, np.array(case["ids_full"], np.int32), repeated, np.array(case["rep_ids_full"], np.int32)


def check_signals(got, expected):
    assert got.shape == (25, 3) and got.dtype == np.float64
    assert set(expected) <= set(BLOCKS)
    for name, values in zip(BLOCKS, got, strict=True):
        wanted = array(expected.get(name, [None] * 3))
        np.testing.assert_allclose(values, wanted, **SIGNALS, err_msg=name)
        if name.endswith("count_mean"):  # a number of tokens, not nearly one
            np.testing.assert_array_equal(values, wanted, err_msg=name)


def signal_cases():
    for name in ("signals_short", "signals_long"):
        data = load(name)
        for case in data["inputs"]["cases"]:
            yield pytest.param(case, data["expected"][case["name"]], id=case["name"])


@pytest.mark.parametrize(("case", "expected"), list(signal_cases()))
def test_signals(case, expected):
    check_signals(text_signals(*arrays(case)), expected["camia_blocks"])
    starts, length = occurrences(np.array(case["ids_full"][1:]), np.array(case["rep_ids_full"][1:]))
    if expected["occurrences"] is None:
        assert (len(starts), length) == (0, 0)
    else:
        assert {"starts": starts[:3].tolist(), "length": length} == expected["occurrences"]


def test_every_signal_case_is_there():
    assert len(list(signal_cases())) == 26


@pytest.mark.parametrize("variant", ["paper", "original"])
def test_variants(variant):
    data = load("original")
    assert len(data["inputs"]["cases"]) == 4
    for case in data["inputs"]["cases"]:
        check_signals(text_signals(*arrays(case), variant), data["expected"][case["name"]][variant])


def test_the_original_needs_two_matches_more():
    ids = np.arange(10, dtype=np.int32)
    for copies, found in ((4, False), (5, True)):
        repeated = np.tile(ids, copies)
        lp = -np.linspace(1, 2, len(repeated) - 1)
        got = dict(zip(BLOCKS, text_signals(lp[:9], ids, lp, repeated, "original"), strict=True))
        assert all(np.isfinite(got[name]).all() == found for name in DIFFERENCES)


def test_an_original_slice_is_as_long_as_the_whole_pattern():
    """The copies differ in their third token, so the pattern loses one; the slices take as many values all the same."""
    ids = np.arange(100, 110, dtype=np.int32)
    repeated = np.tile(ids, 6)
    repeated[2::10] += 50
    lp = -(np.arange(1, len(repeated), dtype=np.float64) ** 1.1)
    got = dict(zip(BLOCKS, text_signals(lp[:9], ids, lp, repeated, "original"), strict=True))
    copies = [lp[start - 1 : start - 1 + 8] for start in (3, 13, 23)]
    assert got["overall_diff_2_loss"][0] == pytest.approx(copies[0][:-1].mean() - copies[2][:-1].mean(), rel=1e-12)


def test_no_tokens_no_signals():
    empty = np.zeros(0)
    assert text_signals(empty, np.array([5]), np.array([-1.0, -2.0]), np.array([5, 6, 6])) is NO_SIGNALS
    assert np.isnan(NO_SIGNALS).all() and NO_SIGNALS.shape == (25, 3)
    assert np.isnan(lz_complexity(empty)).all()
    assert np.isnan(count_above_pre(np.array([-1.0]))).all()


def test_slope():
    assert math.isnan(slope(array([-1, -2])))
    assert slope(array([-1, -2, -4])) == pytest.approx(-1.5, rel=1e-12)


def test_an_overflowing_perplexity_is_a_signal_that_is_not_finite():
    ids = np.array([1, 2, 3, 4], np.int32)
    repeated = np.tile(ids, 3)
    got = dict(zip(BLOCKS, text_signals(np.full(3, -1e4), ids, np.full(11, -1e4), repeated), strict=True))
    assert np.isposinf(got["ppl"]).all() and np.isnan(got["overall_diff_1_ppl"]).all()
    assert np.isfinite(got["loss"]).all()


# Values with many ties, and so differences that equal the tolerance or nothing at all.
tied = st.lists(st.sampled_from([0.0, -0.25, -0.5, -1.0, -2.0, -4.0]), min_size=0, max_size=60)
smooth = st.lists(st.floats(-20, 0), min_size=0, max_size=60)


def naive_entropy(x, m, r):
    n, allowed = len(x), r * np.std(x) if len(x) else 0
    if n <= m + 1 or allowed == 0:
        return 0.0

    def phi(k):
        windows = [x[i : i + k] for i in range(n - k + 1)]
        shares = [np.mean([np.max(np.abs(a - b)) <= allowed for b in windows]) for a in windows]
        return np.mean(np.log(shares))

    return abs(phi(m) - phi(m + 1))


@settings(deadline=None, max_examples=60)
@given(x=tied | smooth, m=st.integers(1, 8), r=st.sampled_from([0.2, 0.8, 1.0, 2.0]))
@example(x=[0.0, -1.0] * 8, m=2, r=2.0)  # the tolerance is exactly 1
@example(x=[0.0, -1.0, 0.0, 0.0, -1.0], m=4, r=0.8)  # as many values as are still too few
@example(x=[-0.5] * 20, m=2, r=0.8)
def test_entropy_is_the_definition(x, m, r):
    assert approximate_entropy(array(x), m, r) == pytest.approx(naive_entropy(array(x), m, r), abs=1e-12)


def test_kernels_work_where_nothing_can_be_cached():
    namespace = {}
    exec("def double(x):\n    return 2 * x", namespace)  # without a file, it has no place for a cache either
    assert compiled()(namespace["double"])(21) == 42


def naive_lz(x, bins):
    edges = np.linspace(min(x), 0, 100)
    levels = [sum(edge < value for edge in edges) for value in x]
    bounds = np.linspace(min(levels), max(levels), bins + 1)[1:]
    symbols = [next(i for i, bound in enumerate(bounds) if bound >= level) for level in levels]
    known, phrase = set(), ()
    for symbol in symbols:
        phrase = (*phrase, symbol)
        if phrase not in known:
            known.add(phrase)
            phrase = ()
    return len(known) / len(x)


@settings(deadline=None)
@given(x=(tied | smooth).filter(len))
def test_lz_is_the_definition(x):
    assert lz_complexity(array(x)).tolist() == [naive_lz(x, bins) for bins in (3, 4, 5)]


def naive_occurrences(pattern, ids, needed):
    while len(pattern) >= 3:
        starts = [s for s in range(len(ids) - len(pattern) + 1) if ids[s : s + len(pattern)] == pattern]
        if len(starts) >= needed:
            return starts, len(pattern)
        pattern = pattern[1:]
    return [], 0


few_ids = st.lists(st.integers(0, 2), max_size=40)


@settings(deadline=None, max_examples=300)
@given(pattern=few_ids, before=few_ids, gap=few_ids, copies=st.integers(0, 6), needed=st.sampled_from([3, 5]))
def test_occurrences_are_a_plain_scan(pattern, before, gap, copies, needed):
    ids = before + (pattern + gap) * copies
    starts, length = occurrences(np.array(pattern, np.int32), np.array(ids, np.int32), needed)
    assert (starts.tolist(), length) == naive_occurrences(pattern, ids, needed)


@settings(deadline=None)
@given(x=st.lists(st.floats(-20, 0), min_size=2, max_size=50))
def test_count_above_pre_is_the_definition(x):
    means = [sum(x[:t]) / t for t in range(1, len(x))]
    assert count_above_pre(array(x))[0] == np.mean(array(x[1:]) > means)


def stacked(blocks, names):
    """Blocks of (variations x) texts as [texts, blocks, variations]."""
    return np.stack([np.atleast_2d(array(blocks[name])).T for name in names], axis=1)


def auc(scores, labels):
    members, others = scores[labels == 1][:, None], scores[labels == 0][None]
    return float(np.mean((members > others) + 0.5 * (members == others)))


def pvalues_columns():
    data = load("pvalues")
    assert set(data["inputs"]["member_dev"]) <= set(BLOCKS)
    missing = {k: [[None] * len(rows[0])] * 3 for k, rows in ((b, data["inputs"]["target"]["loss"]) for b in BLOCKS)}
    groups = [stacked(missing | data["inputs"][g], BLOCKS) for g in ("member_dev", "nonmember_dev", "target")]
    signs = directions(groups[0], groups[1])
    return data, signs, [(g * signs[:, None]).reshape(len(g), -1) for g in groups]


def test_directions():
    data, signs, _ = pvalues_columns()
    assert dict(zip(BLOCKS, signs, strict=True)) == data["expected"]["direction"]


@pytest.mark.parametrize(("ties", "key"), [("mid", "p_mid"), ("rank", "p_rank_original")])
def test_p_values_and_scores(ties, key):
    data, _, (_, reference, target) = pvalues_columns()
    expected = data["expected"]
    p = p_values(target, reference, ties)
    kept = np.isfinite(reference).any(axis=0)
    names = [f"{name}|{v}" for name in BLOCKS for v in range(3)]
    assert [name for name, k in zip(names, kept, strict=True) if k] == expected["rows"]
    np.testing.assert_allclose(p.T, array(expected[key]), **P_VALUES)
    labels = np.array(data["inputs"]["target_label"])
    wanted = expected[f"scores_from_{key}"]
    for composition in COMPOSITIONS:
        got = compose(p, composition)
        assert (np.abs(array(wanted[composition])) > SMALLEST).all()
        np.testing.assert_allclose(got, wanted[composition], **SCORES)
        if key == "p_mid":
            assert auc(got, labels) == pytest.approx(expected["auc_from_p_mid"][composition], abs=1e-12)
    if key == "p_mid":
        for composition in ("fisher", "george"):
            got = compose(p, composition, "statistic")
            np.testing.assert_allclose(got, wanted[f"{composition}_statistic"], **SCORES)
            assert auc(got, labels) == pytest.approx(expected["auc_from_p_mid"][f"{composition}_statistic"], abs=1e-12)


def test_extreme_compositions():
    data = load("compose_extreme")
    p, expected = array(data["inputs"]["p_values_per_sample"]), data["expected"]
    for composition in COMPOSITIONS:
        got, wanted = compose(p, composition), array(expected[composition])
        assert got.dtype == np.float64
        comparable = np.abs(wanted) > SMALLEST
        assert comparable.sum() >= 7
        np.testing.assert_allclose(got[comparable], wanted[comparable], **SCORES)
        assert (np.abs(got[~comparable]) <= SMALLEST).all()
        if f"{composition}_statistic" in expected:
            np.testing.assert_allclose(
                compose(p, composition, "statistic"), expected[f"{composition}_statistic"], **SCORES
            )
    assert compose(p, "george").min() == -1.0


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_the_statistic_keeps_the_order(composition):
    p = np.random.default_rng(1).uniform(size=(30, 75)) ** np.linspace(0.8, 1.2, 30)[:, None]
    score, statistic = compose(p, composition), compose(p, composition, "statistic")
    np.testing.assert_array_equal(np.argsort(score, kind="stable"), np.argsort(statistic, kind="stable"))


def test_an_unknown_composition():
    with pytest.raises(ValueError, match="'stouffer'"):
        compose(np.full((1, 3), 0.2), "stouffer")
    with pytest.raises(UsageError, match="edgington, fisher, george, pearson"):
        Camia("stouffer")


def test_tuning():
    data = load("tune")
    inputs, expected = data["inputs"], data["expected"]
    names = sorted(inputs["member_dev"])
    members, others = (stacked(inputs[k], names) for k in ("member_dev", "nonmember_dev"))
    signs = directions(members, others)
    assert dict(zip(names, signs, strict=True)) == expected["direction"]
    members, others = ((g * signs[:, None]).reshape(len(g), -1) for g in (members, others))
    null, rest = np.split(others, [inputs["null_size"]])
    labels = np.repeat([1, 0], [len(members), len(rest)])
    for key, ties, form in (
        ("paper_tune (weak p-values, fisher=statistic)", "weak", "statistic"),
        ("consistent (mid p-values, fisher=-pvalue)", "mid", "p_value"),
    ):
        p = p_values(np.concatenate([members, rest]), null, ties)
        got = {c: auc(compose(p, c, form if c == "fisher" else "p_value"), labels) for c in expected[key]["auc"]}
        for composition, value in expected[key]["auc"].items():
            np.testing.assert_allclose(got[composition], value, **AUC)
        assert max(("edgington", "fisher", "george"), key=got.get) == expected[key]["best"]


def test_directions_without_a_side():
    nan, one, two = (np.full((2, 1, 3), v) for v in (math.nan, 1.0, 2.0))
    assert directions(two, one).tolist() == [-1.0]
    assert directions(one, two).tolist() == directions(one, one).tolist() == [1.0]
    assert directions(nan, one).tolist() == directions(two, nan).tolist() == [1.0]


def test_directions_do_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 20, 3))
    for _ in range(20):
        assert (directions(values, rng.permutation(values)) == 1.0).all()


columns = st.lists(st.sampled_from([0.0, 1.0, 2.0, math.nan]), min_size=2, max_size=12)


@settings(deadline=None)
@given(values=columns, target=st.sampled_from([0.5, 1.0, 2.0, math.nan]), ties=st.sampled_from(["mid", "rank", "weak"]))
def test_a_row_of_its_own_is_as_if_it_were_not_there(values, target, ties):
    reference = array(values)[:, None]
    for row, value in enumerate(values):
        got = p_values(array([[value], [target]]), reference, ties, np.array([row, -1]))
        without = np.delete(reference, row, axis=0)
        if np.isfinite(without).any():
            assert got[0] == p_values(array([[value]]), without, ties)[0]
            assert got[1] == p_values(array([[target]]), reference, ties)[0]
        elif np.isfinite(value):
            assert got[0, 0] == 0.5


def test_p_values_by_hand():
    reference = array([[1.0], [2.0], [2.0], [math.nan]])
    target = array([[0.0], [1.0], [2.0], [3.0], [math.nan], [math.inf]])
    p = {ties: p_values(target, reference, ties)[:, 0].tolist() for ties in ("mid", "rank", "weak")}
    assert p["mid"] == [0, 1 / 6, 4 / 6, 1, 0.5, 0.5]
    assert p["rank"] == [0, 2 / 6, 5 / 6, 1, 0.5, 0.5]
    assert p["weak"] == [0, 1 / 3, 1, 1, 0.5, 0.5]


# --- the attack -------------------------------------------------------------------------------------------------------


class Words:
    """Each word is a token; those of `odd` are other tokens where a word follows."""

    eos_id = None
    special_ids = frozenset({zlib.crc32(b"special") % 2**20})

    def __init__(self, odd=()):
        self.odd = set(odd)

    def encode_all(self, texts, max_tokens):
        assert max_tokens > 0
        return [self._encode(text, max_tokens) for text in texts]

    def _encode(self, text, max_tokens):
        words = text.split()
        last = len(words) - 1
        ids = [self._id(w + "'" if w in self.odd and i < last else w) for i, w in enumerate(words)]
        span = text if len(ids) <= max_tokens else " ".join(words[:max_tokens])
        return TokenizedText(np.array(ids[:max_tokens], np.int32), len(ids), span)

    def _id(self, word):
        return zlib.crc32(word.encode()) % 2**20

    def cut(self, text, max_tokens):
        words = text.split()
        return text if len(words) <= max_tokens else " ".join(words[:max_tokens])


def statistics(request, broken=()):
    """A causal stand-in for a model: each value depends on the ids up to its own alone."""
    mixed = np.cumsum((request.ids.astype(np.int64) + 1) * 2654435761 % 1013)
    log_prob = (-0.01 - (mixed[1:] % 997) / 150).astype(np.float32)
    for position in broken:
        if position < len(log_prob):
            log_prob[position] = np.nan
    zeros = np.zeros_like(log_prob)
    return TokenStatistics(log_prob, zeros, zeros)


def record(text, label, number=0, subset="java"):
    return Record(f"sample_{number}", text, label, subset, f"{subset}.jsonl, line {number + 1}")


def texts(count, seed, words=40):
    rng = random.Random(seed)
    return [" ".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(5, words))) for _ in range(count)]


def labelled(members, others, seed):
    found = texts(members + others, seed)
    return [record(t, int(i < members), i) for i, t in enumerate(found)]


def answers_of(group, protocol=AUDITED, tokenizer=None, answer=statistics):
    """What the generator returns, and what it asked for."""
    job = Camia("edgington").requests(group, tokenizer or Words(), protocol)
    asked = next(job)
    try:
        job.send([answer(request) for request in asked])
    except StopIteration as stop:
        return stop.value, asked
    raise AssertionError("asked twice")


def scores_of(group, composition="edgington", protocol=AUDITED, **kwargs):
    answers, _ = answers_of(group, protocol, **kwargs)
    return Camia(composition).score(group, answers, protocol)


def with_(**changes):
    return dataclasses.replace(AUDITED, **changes)


def expected_scores(group, answers, composition, null, ties="mid", form="p_value"):
    """The same by its definition: each record against `null(record)`."""

    def signals(records):
        return np.stack([answers[r.text].signals for r in records])

    classes = [[r for r in group.dev if r.label == label] for label in (1, 0)]
    signs = directions(*(signals(c) for c in classes))
    values = []
    for r in group.records:
        target, against = ((signals(rs) * signs[:, None]).reshape(len(rs), -1) for rs in ([r], null(r)))
        values.append(float(compose(p_values(target, against, ties), composition, form)[0]))
    return values


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize(("ties", "form"), [("mid", "p_value"), ("rank", "statistic")])
def test_scores_follow_the_protocol(composition, ties, form):
    group = Group(labelled(6, 7, 1), labelled(8, 9, 2))
    protocol = with_(camia_p_value=ties, camia_score=form)
    answers, _ = answers_of(group, protocol)
    scores = Camia(composition).score(group, answers, protocol)
    others = [r for r in group.dev if r.label == 0]
    assert [s.value for s in scores] == expected_scores(group, answers, composition, lambda _: others, ties, form)
    assert all(s.missing is None for s in scores)


def test_the_reference_is_150_by_hash():
    group = Group(labelled(2, 2, 1), labelled(3, 160, 2))
    answers, _ = answers_of(group)
    others = [r for r in group.dev if r.label == 0]
    others.sort(key=lambda r: hashlib.sha256(r.text.encode()).hexdigest())
    others = others[:150]
    values = [s.value for s in Camia("fisher").score(group, answers, AUDITED)]
    assert values == expected_scores(group, answers, "fisher", lambda _: others)
    turned = Group(group.records, group.dev[::-1])
    assert [s.value for s in Camia("fisher").score(turned, answers, AUDITED)] == values


def test_tuning_leaves_one_out():
    dev = labelled(5, 6, 3)
    group = Group(dev, dev)
    answers, _ = answers_of(group)
    values = [s.value for s in Camia("george").score(group, answers, AUDITED)]
    null = [r for r in dev if r.label == 0]
    assert values == expected_scores(group, answers, "george", lambda r: [o for o in null if o is not r])
    # "released" is about tuning: a development split that is scored otherwise still leaves one out
    assert [s.value for s in Camia("george").score(group, answers, with_(camia_tuning="released"))] == values
    same_text_member = Group([dataclasses.replace(null[0], label=1)], dev)
    assert [s.value for s in Camia("george").score(same_text_member, answers, AUDITED)] == expected_scores(
        same_text_member, answers, "george", lambda r: [o for o in null if o.text != r.text]
    )


@pytest.mark.parametrize("label", [0, 1, None])
def test_no_label_of_an_evaluated_record_counts(label):
    """A text that stands among the development non-members is held against the others, whatever its own label."""
    dev = labelled(5, 6, 3)
    null = [r for r in dev if r.label == 0]
    group = Group([dataclasses.replace(null[2], label=label)], dev)
    answers, _ = answers_of(group)
    (score,) = Camia("edgington").score(group, answers, AUDITED)
    assert [score.value] == expected_scores(group, answers, "edgington", lambda _: [r for r in null if r != null[2]])
    assert [score.value] != expected_scores(group, answers, "edgington", lambda _: null)


@pytest.mark.parametrize(
    ("composition", "form"), [("edgington", "p_value"), ("fisher", "statistic"), ("george", "p_value")]
)
@pytest.mark.parametrize(("others", "size"), [(6, 5), (104, 100)])
def test_tuning_as_released(composition, form, others, size):
    dev = labelled(5, others, 4)
    group, protocol = Group(dev, dev, tuning=True), with_(camia_tuning="released", camia_p_value="rank")
    answers, _ = answers_of(group, protocol)
    scores = Camia(composition).score(group, answers, protocol)
    null = [r for r in dev if r.label == 0][:size]
    expected = expected_scores(group, answers, composition, lambda _: null, "weak", form)
    for r, score, value in zip(dev, scores, expected, strict=True):
        if r in null:
            assert math.isnan(score.value) and score.missing.startswith(f"{LEFT_OUT}one of the {size} ")
        else:
            assert score.value == value and score.missing is None
    test = Group([*labelled(3, 3, 5), null[0]], dev)  # any other records are scored as ever, against all
    answers, _ = answers_of(test, protocol)
    values = [s.value for s in Camia(composition).score(test, answers, protocol)]
    assert values == expected_scores(
        test, answers, composition, lambda own: [r for r in dev if not r.label and r.text != own.text], "rank"
    )


def test_directions_from_the_evaluated_labels():
    group, protocol = Group(labelled(6, 7, 1), labelled(8, 9, 2)), with_(camia_directions="evaluated")
    answers, _ = answers_of(group, protocol)
    got = [s.value for s in Camia("edgington").score(group, answers, protocol)]
    swapped = [dataclasses.replace(r, label=1 - r.label) for r in group.records]
    turned = [s.value for s in Camia("edgington").score(Group(swapped, group.dev), answers, protocol)]
    assert got != [s.value for s in Camia("edgington").score(group, answers, AUDITED)]
    # Turning every block the other way mirrors every p-value.
    np.testing.assert_allclose(np.add(got, turned), -1, atol=1e-12)
    unlabelled = Group([*group.records, record("a b c", None, 99)], group.dev)
    with pytest.raises(DataError, match=r"line 100 .*--set camia_directions=dev"):
        answers_of(unlabelled, protocol)
    with pytest.raises(DataError, match="java: 0 evaluated members"):
        answers_of(Group([r for r in group.records if not r.label], group.dev), protocol)


def test_unlabelled_records_are_scored():
    group = Group([record(t, None, i) for i, t in enumerate(texts(3, 8))], labelled(4, 4, 2))
    assert all(math.isfinite(s.value) for s in scores_of(group))


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), composition=st.sampled_from(COMPOSITIONS))
def test_order_changes_nothing(seed, composition):
    records, dev = labelled(4, 5, seed), labelled(5, 6, seed + 1)
    for group in (Group(records, dev), Group(dev, dev)):
        before = [s.value for s in scores_of(group, composition)]
        order = random.Random(seed).sample(range(len(group.records)), len(group.records))
        shuffled = Group([group.records[i] for i in order], random.Random(seed).sample(dev, len(dev)))
        after = [s.value for s in scores_of(shuffled, composition)]
        assert np.array(after).tobytes() == np.array([before[i] for i in order]).tobytes()


def test_a_score_does_not_depend_on_its_neighbours():
    group = Group(labelled(20, 20, 1), labelled(8, 9, 2))
    answers, _ = answers_of(group)
    for composition in COMPOSITIONS:
        scores = Camia(composition).score(group, answers, AUDITED)
        alone = [Camia(composition).score(Group([r], group.dev), answers, AUDITED)[0] for r in group.records]
        assert np.array([s.value for s in scores]).tobytes() == np.array([s.value for s in alone]).tobytes()


def test_one_request_a_distinct_text():
    dev = labelled(3, 3, 1)
    group = Group([*dev[:2], record("a b c d", 0, 9), record("a b c d", 0, 10)], dev)
    answers, asked = answers_of(group)
    assert set(answers) == {r.text for r in (*group.records, *dev)} and len(asked) == len(answers)
    tokenizer = Words()
    _, asked = answers_of(group, tokenizer=tokenizer)
    ids = [
        i for t in dict.fromkeys(r.text for r in (*group.records, *dev)) for i in [tokenizer.encode_all([t], 99)[0].ids]
    ]
    for request, plain in zip(asked, ids, strict=True):
        np.testing.assert_array_equal(request.ids, np.tile(plain, 3))


@pytest.mark.parametrize(
    ("changes", "tokens", "copies"),
    [
        ({"camia_max_tokens": 20}, 20, 3),
        ({"max_tokens": 15}, 15, 3),
        ({"window": 98}, 30, 3),
        ({"window": 98, "camia_copies": 5}, 18, 5),
        ({"camia_max_tokens": 20, "camia_variant": "original"}, 20, 6),
    ],
)
def test_texts_are_cut_first(changes, tokens, copies):
    long = record(" ".join("abcdefghijklmnop"[i % 13] for i in range(60)), 0, 0)
    short = record("a b c d", 1, 1)
    group = Group([long, short], labelled(2, 2, 1))
    tokenizer = Words()
    answers, asked = answers_of(group, with_(**changes), tokenizer)
    np.testing.assert_array_equal(asked[0].ids, np.tile(tokenizer.encode_all([long.text], tokens)[0].ids, copies))
    score, other = Camia("edgington").score(group, answers, with_(**changes))
    assert (score.n_tokens, score.n_scored, score.truncated) == (60, tokens - 1, True)
    assert (other.n_tokens, other.n_scored, other.truncated) == (4, 3, False)
    ids, lp = asked[0].ids, statistics(asked[0]).log_prob
    signals = text_signals(lp[: tokens - 1], ids[:tokens], lp, ids, with_(**changes).camia_variant)
    np.testing.assert_array_equal(answers[long.text].signals, signals)
    assert np.isfinite(signals).all()


def test_a_window_without_room():
    with pytest.raises(UsageError, match="at least 14 tokens"):
        answers_of(Group(labelled(1, 1, 0), labelled(2, 2, 1)), with_(window=13))


def test_a_text_that_reads_differently_alone():
    """Its own pass gives the standalone signals; the copies give the rest."""
    group = Group([record("a b c d e", 1, 0), record("a b c d x", 1, 1)], labelled(2, 2, 1))
    tokenizer = Words(odd=["x"])
    answers, asked = answers_of(group, tokenizer=tokenizer)
    assert len(asked) == len(answers) + 1
    copies, alone = asked[1:3]
    assert (len(copies.ids), len(alone.ids)) == (15, 5) and copies.ids[4] != alone.ids[4]
    got = answers[group.records[1].text]
    np.testing.assert_array_equal(got.plain.log_prob, statistics(alone).log_prob)
    expected = text_signals(statistics(alone).log_prob, alone.ids, statistics(copies).log_prob, copies.ids)
    np.testing.assert_array_equal(got.signals, expected)


def test_holes_have_names():
    dev = labelled(3, 3, 1)
    records = [
        record("", 0, 0),
        record("", 1, 1),
        record("b r o k e n", 1, 2),
        record("l a t e r", 1, 3),
        record("f i n e", 1, 4),
    ]
    group, tokenizer = Group(records, dev), Words()
    broken, later = (tokenizer.encode_all([records[i].text], 99)[0].ids for i in (2, 3))

    def answer(request):
        for ids, position in ((broken, 2), (later, len(later) + 1)):
            if len(request.ids) == 3 * len(ids) and (request.ids[: len(ids)] == ids).all():
                return statistics(request, [position])
        return statistics(request)

    scores = scores_of(group, tokenizer=tokenizer, answer=answer)
    assert [s.missing for s in scores[:2]] == ["the record has no text"] * 2
    assert scores[2].missing.startswith("the model's statistics are not finite numbers")
    assert scores[3].missing.startswith("in its copies: the model's statistics are not finite numbers")
    assert all(math.isnan(s.value) for s in scores[:4]) and math.isfinite(scores[4].value)

    # Among development records such texts are as good as absent.
    values = [s.value for s in scores_of(Group(records[4:], dev), tokenizer=Words())]
    with_holes = Group(records[4:], [*records[:4], record("b r o k e n", 0, 5), *dev])
    assert [s.value for s in scores_of(with_holes, tokenizer=tokenizer, answer=answer)] == values


@pytest.mark.parametrize("form", ["p_value", "statistic"])
def test_a_text_of_one_token_has_every_p_value_at_a_half(form):
    dev = labelled(3, 4, 1)
    group, protocol = Group([record("alone", None, 0), record("f i n e", 1, 1)], dev), with_(camia_score=form)
    answers, asked = answers_of(group, protocol)
    assert len(asked) == len(answers) - 1 and np.isnan(answers["alone"].signals).all()
    for composition in COMPOSITIONS:
        score, fine = Camia(composition).score(group, answers, protocol)
        (value,) = compose(np.full((1, 75), 0.5), composition, form)
        assert score.value == value and score.missing is None and score.note.startswith("one token")
        assert (score.n_tokens, score.n_scored, score.truncated) == (1, 0, False)
        assert math.isfinite(fine.value) and fine.missing is fine.note is None
    assert Camia("edgington").score(group, answers, protocol)[0].value == -0.5

    # Nobody learns from such a text: it has no signal.
    values = [s.value for s in scores_of(group, protocol=protocol)]
    more = Group(group.records, [record("one", 0, 9), record("other", 1, 10), *dev])
    assert [s.value for s in scores_of(more, protocol=protocol)] == values
    with pytest.raises(DataError, match="java: 0 development non-members"):
        scores_of(Group(group.records, [record("one", 0, 9), *dev[:3]]))


def test_special_tokens_are_counted():
    tokenizer = Words()
    group = Group([record("a special b special", 1)], labelled(2, 2, 1))
    assert scores_of(group, tokenizer=tokenizer)[0].special_ids == 2
    (tokenizer.eos_id,) = tokenizer.special_ids
    assert scores_of(group, tokenizer=tokenizer)[0].special_ids == 1


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ([], "subset java: 0 development members"),
        (labelled(3, 0, 1), "subset java: 0 development non-members"),
        (labelled(0, 3, 1), "subset java: 0 development members"),
        ([record("a b", 1), record("", 0)], "subset java: 0 development non-members"),
    ],
)
def test_a_development_set_of_one_class(dev, message):
    with pytest.raises(DataError, match=message + ".*--attacks"):
        scores_of(Group(labelled(1, 1, 0), dev))


def test_one_development_non_member():
    dev = labelled(3, 1, 1)
    scores = scores_of(Group(dev, dev))
    assert [s.missing is None for s in scores] == [True, True, True, False]
    assert scores[3].missing.startswith("the only development non-member")
    with pytest.raises(DataError, match="1 development non-members .* at least 2"):
        scores_of(Group(dev, dev, tuning=True), protocol=with_(camia_tuning="released"))


def test_nothing_to_score():
    assert scores_of(Group([], labelled(2, 2, 1))) == []
