"""PAC: the swaps' random stream and the scores against golden files; what the attack asks and how it seeds."""

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.pac import (
    COPIES,
    Pac,
    polarised_distance,
    score_of,
    seed_of,
    swapped_copies,
    swapped_order,
    swaps_of,
)
from olmodetect_jax.protocol import load_protocol
from tests.stub_attacks import StubTokenizer, answer, records, run

PAC = 1e-9  # pac_scores.json states rtol and atol 1e-9

GOLDEN = Path(__file__).parents[1] / "golden"
AUDITED = load_protocol("audited")
FILE = load_protocol("audited", {"pac_seed": "file"})


def load(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("case", load("pac_scores")["inputs"]["cases"], ids=lambda c: c["name"])
def test_golden_scores(case):
    for pair, expected in load("pac_scores")["expected"][case["name"]].items():
        far, near = map(float, pair.split("|"))
        own, *others = (
            polarised_distance(np.sort(np.asarray(x, np.float64)), far, near)
            for x in (case["orig"], *case["neighbours"])
        )
        close = {"rel": PAC, "abs": PAC}
        assert own == pytest.approx(expected["pd"], **close)
        assert others == pytest.approx(expected["pd_neighbours"], **close)
        assert score_of(own, others) == pytest.approx(expected["score"], **close)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_golden_swaps(seed):
    """One stream over all texts: every single draw is where the released code has it."""
    orders, copies = Random(int(seed)), Random(int(seed))
    for case in load("pac_swaps")["expected"][seed]:
        n = case["n_words"]
        generated = [swapped_order(n, orders) for _ in range(COPIES)]
        assert generated == case["generated"]
        orders.shuffle(generated)
        assert generated == case["after_shuffle"]
        text = " ".join(f"w{i}" for i in range(n))
        assert swapped_copies(text, copies) == [" ".join(f"w{i}" for i in p) for p in case["after_shuffle"]]


@given(st.integers(1, 80), st.integers(0, 1000))
def test_orders_are_few_swaps(n, seed):
    order = swapped_order(n, Random(seed))
    assert sorted(order) == list(range(n))
    assert sum(i != p for i, p in enumerate(order)) <= 2 * max(1, int(0.3 * n))
    assert order == swapped_order(n, Random(seed))


@given(st.text(alphabet="ab \n\t", max_size=40), st.integers(0, 50))
def test_copies_keep_their_words(text, seed):
    copies = swapped_copies(text, Random(seed))
    assert len(copies) == 5
    for copy in copies:
        assert Counter(copy.split(" ")) == Counter(text.split(" "))
        assert len(copy) == len(text)
    if " " not in text:
        assert set(copies) == {text}
    assert copies == swapped_copies(text, Random(seed))


@given(st.lists(st.floats(-30, 0), max_size=60), st.sampled_from([0.05, 0.1, 0.2]), st.sampled_from([0.1, 0.3, 0.4]))
def test_distances_are_not_negative(values, far, near):
    distance = polarised_distance(np.sort(np.asarray(values, np.float32)), far, near)
    assert distance >= 0
    if len(set(values)) < 2:
        assert distance == 0


@given(st.floats(0.01, 9), st.integers(1, 9))
def test_copies_like_the_text_score_exactly_0(own, count):
    assert score_of(own, [own] * count) == 0


def test_the_limit_is_the_smaller_one():
    text = "one two three four five"
    for changes in ({"pac_max_tokens": 11}, {"max_tokens": 11}):
        scores, (asked,) = run(Pac(0.05, 0.1), Group(records(text)), dataclasses.replace(AUDITED, **changes))
        copies = swapped_copies(text[:11], Random(seed_of(text[:11])))
        assert texts_of(asked) == Counter([text[:11], *copies]) and scores[0].n_scored == 10


def texts_of(asked):
    return Counter(StubTokenizer.text(r.ids) for r in asked)


def test_one_list_of_texts_and_copies():
    texts = ["one two three four five six", "seven eight"]
    scores, asked = run(Pac(0.05, 0.1), Group(records(*texts)), AUDITED)
    assert len(asked) == 1 and len(asked[0]) == 12
    expected = Counter([*texts, *(c for t in texts for c in swapped_copies(t, Random(seed_of(t))))])
    assert texts_of(asked[0]) == expected
    # the score itself, from the same answers
    for text, score in zip(texts, scores, strict=True):
        distances = [
            polarised_distance(np.sort(answer(StubTokenizer.request(t)).log_prob), 0.05, 0.1)
            for t in (text, *swapped_copies(text, Random(seed_of(text))))
        ]
        assert score.value == score_of(distances[0], distances[1:]) and score.missing is None
        assert (score.n_tokens, score.n_scored) == (len(text), len(text) - 1)


def test_the_span_or_the_whole_text_is_swapped():
    cut = dataclasses.replace(AUDITED, max_tokens=11)
    text = "one two three four five"
    for protocol, seen in ((cut, "one two thr"), (dataclasses.replace(cut, text_span="full"), text)):
        scores, (asked,) = run(Pac(0.05, 0.1), Group(records(text)), protocol)
        copies = swapped_copies(seen, Random(seed_of(seen)))
        assert texts_of(asked) == Counter([text[:11], *(c[:11] for c in copies)])
        assert scores[0].truncated and scores[0].n_scored == 10


def test_one_word_and_one_token():
    scores, asked = run(Pac(0.05, 0.1), Group(records("word", "x", "", "x y")), AUDITED)
    assert scores[0].value == 0 and scores[0].missing is None and scores[0].note is None
    assert scores[1].value == 0 and scores[1].missing is None and "one token" in scores[1].note
    assert math.isnan(scores[2].value) and scores[2].missing == "the record has no text"
    assert scores[3].missing is None
    assert len(asked[0]) == 12  # nothing is asked for one token or none


@pytest.mark.parametrize("broken", ["a b c d", "copy"])
def test_what_is_not_finite_is_named(broken):
    text = "a b c d"

    def bad(request):
        a = answer(request)
        hit = (StubTokenizer.text(request.ids) == text) == (broken == text)
        return dataclasses.replace(a, log_prob=a.log_prob * np.float32(np.nan)) if hit else a

    scores, _ = run(Pac(0.05, 0.1), Group(records(text)), AUDITED, answer=bad)
    assert math.isnan(scores[0].value) and "not finite" in scores[0].missing


WORDS = [f"{a} {b} {a}{b} x y z" for a in "abc" for b in "de"]


def test_files_are_streams_of_their_own():
    mixed = records(*WORDS[:3], "", labels=[1, 0, 1, 0]) + records(*WORDS[3:], labels=[0, None, None], start=4)
    texts = [r.text for r in mixed]
    got = swaps_of(Group(mixed), texts, FILE)
    for places in ([0, 2], [1, 4], [5, 6]):
        stream = Random(0)
        assert [got[i] for i in places] == [tuple(swapped_copies(texts[i], stream)) for i in places]
    assert got[3] == ()
    # the development split is like any other, unless it is tuned on
    assert swaps_of(Group(mixed, mixed), texts, FILE) == got
    assert swaps_of(Group(mixed, mixed, tuning=True), texts, AUDITED) == swaps_of(Group(mixed), texts, AUDITED)


@pytest.mark.parametrize(
    ("seed", "tuning", "streams"),
    [
        ("file", False, [(0, [1, 3]), (0, [0, 4]), (0, [2, 5])]),
        ("file", True, [(0, [1, 3]), (1, [0, 4]), (0, [2, 5])]),
        ("file_42", False, [(42, [1, 3]), (42, [0, 4]), (42, [2, 5])]),
        ("file_42", True, [(42, [1, 3]), (43, [0, 4]), (42, [2, 5])]),
        ("list", False, [(0, [1, 3, 0, 4, 2, 5])]),
        ("list", True, [(0, [1, 3, 0, 4, 2, 5])]),
    ],
)
def test_each_streams_seed_and_order(seed, tuning, streams):
    group = Group(records(*WORDS, labels=[0, 1, None, 1, 0, None]), tuning=tuning)
    got = swaps_of(group, WORDS, load_protocol("audited", {"pac_seed": seed}))
    for start, places in streams:
        stream = Random(start)
        assert [got[i] for i in places] == [tuple(swapped_copies(WORDS[i], stream)) for i in places]


@given(st.permutations(range(len(WORDS))), st.lists(st.sampled_from([0, 1, None]), min_size=6, max_size=6))
def test_order_and_labels_change_nothing(order, labels):
    plain, _ = run(Pac(0.05, 0.1), Group(records(*WORDS)), AUDITED)
    shuffled, _ = run(Pac(0.05, 0.1), Group(records(*(WORDS[i] for i in order), labels=labels)), AUDITED)
    assert [s.value.hex() for s in shuffled] == [plain[i].value.hex() for i in order]


def test_every_pair_takes_the_same_answers():
    group = Group(records(*WORDS))
    _, asked = run(Pac(0.05, 0.1), group, AUDITED)
    _, others = run(Pac(0.2, 0.4), group, AUDITED)
    assert [r.digest for r in asked[0]] == [r.digest for r in others[0]]
