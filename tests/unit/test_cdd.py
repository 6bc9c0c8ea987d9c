"""CDD: peak, distance and prompt against golden files; what is asked in scoring and in tuning."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.cdd import Cdd, peak, prompt_tokens
from olmodetect_jax.attacks.hyperparameters import search_space
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import text_hash
from olmodetect_jax.requests import Continuation, Continuations, Sampling
from tests.stub_attacks import StubTokenizer, answer, records, run

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = {"abs": 1e-6, "rel": 1e-5}  # cdd_peak.json states these
AUDITED = load_protocol("audited")
text = StubTokenizer.text
TEXT = "a text of forty-one characters, not words"


def cases(name):
    file = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return [
        pytest.param(i, e, id=n) for i, e, n in zip(file["inputs"], file["expected"], file["case_names"], strict=True)
    ]


def protocol(**changes):
    return dataclasses.replace(AUDITED, **changes)


def rows(*ids):
    zeros = [np.zeros(len(i), np.float32) for i in ids]
    made = (Continuation(np.asarray(i, np.int32), z, z, ended=True) for i, z in zip(ids, zeros, strict=True))
    return Continuations(tuple(made))


@pytest.mark.parametrize(("inputs", "expected"), cases("cdd_peak.json"))
def test_golden_peaks(inputs, expected):
    for case in expected["peaks"]:
        attack = Cdd(0.5, case["length_cap"], case["alpha"])
        (score,), _ = run(attack, Group(records(TEXT)), AUDITED, lambda _: rows(inputs["greedy"], *inputs["samples"]))
        assert score.value == pytest.approx(case["peak"], **TOLERANCE)
    for cap in (50, 100):
        cut = [s[:cap] for s in inputs["samples"]]
        found = [Levenshtein.distance(inputs["greedy"][:cap], s) for s in cut]
        assert found == expected[f"distances_cap{cap}"]


@pytest.mark.parametrize(("inputs", "expected"), cases("cdd_strings.json"))
def test_golden_distances_of_strings(inputs, expected):
    """Through `peak`: a sample counts from just the share on that its distance is of the longest."""
    units = ((list(inputs["a"]), list(inputs["b"]), "characters"), (inputs["a"].split(), inputs["b"].split(), "words"))
    for a, b, name in units:
        assert Levenshtein.distance(a, b) == expected[name]
        longest = max(len(a), len(b), 1)
        assert peak(a, [b], (expected[name] + 0.5) / longest) == 1
        assert expected[name] == 0 or peak(a, [b], (expected[name] - 0.5) / longest) == 0


@pytest.mark.parametrize(("inputs", "expected"), cases("cdd_prompt_split.json"))
def test_golden_prompts(inputs, expected):
    numbers = (inputs["text_token_count"], inputs["context"], inputs["max_new_tokens"], inputs["prompt_ratio"])
    assert prompt_tokens(*numbers) == expected["prompt_token_count"]


ids = st.lists(st.integers(0, 3), max_size=6)


@given(ids, st.lists(ids, max_size=5), st.floats(0, 1), st.randoms())
def test_a_peak_is_a_share_whatever_the_samples_order(greedy, samples, alpha, random):
    value = peak(greedy, samples, alpha)
    assert 0 <= value <= 1
    shuffled = random.sample(samples, len(samples))
    assert peak(greedy, shuffled, alpha) == value <= peak(greedy, samples, 1)
    assert peak(greedy, [greedy] * 3, alpha) == 1


@given(st.integers(1, 300), st.integers(0, 100), st.integers(1, 100), st.floats(0.01, 1))
def test_a_prompt_leaves_a_token_and_room(tokens, room, max_new, ratio):
    count = prompt_tokens(tokens, max_new + room + 1, max_new, ratio)
    assert 1 <= count <= min(tokens, room + 1) and (count < tokens or tokens == 1 or room == 0)


def test_one_request_a_text():
    group = Group(records(TEXT, "", "x", labels=[1, None, 0]))
    scores, asked = run(Cdd(0.5, 7, 0.3), group, AUDITED)
    (first, second), *rest = asked
    assert rest == []
    assert text(first.prompt) == TEXT[: len(TEXT) // 2] and text(second.prompt) == "x"
    for request, own in ((first, TEXT), (second, "x")):
        assert (request.max_new, request.greedy, request.rows) == (7, True, 51)
        assert request.stop_ids == StubTokenizer.stop_ids
        assert request.starts.tolist() == [len(request.prompt)] * 50
        seed = int.from_bytes(text_hash(own)[:8], "big")
        assert request.sampling == Sampling(seed, temperature=0.8, top_k=50, top_p=1.0)
    greedy, *samples = (r.ids.tolist() for r in answer(first).rows)
    assert scores[0].value == peak(greedy, samples, 0.3)
    assert (scores[0].n_tokens, scores[0].n_scored, scores[0].truncated) == (len(TEXT), len(TEXT) // 2, False)
    assert scores[1].missing == "the record has no text" and math.isnan(scores[1].value)
    _, asked = run(Cdd(0.5, 7, 0.3), group, protocol(cdd_top_k=0))
    assert asked[0][0].sampling.top_k == 0


def test_tuning_generates_once_for_all_lengths_and_alphas():
    group = Group(records(TEXT, "another text"), tuning=True)
    grid = search_space("cdd")
    digests, values = {}, {}
    for point in grid:
        attack = Cdd(point["cdd_ratio"], point["cdd_length"], point["cdd_alpha"])
        scores, asked = run(attack, group, AUDITED)
        assert all(r.max_new == 200 for r in asked[0])
        digests.setdefault(attack.ratio, set()).add(tuple(r.digest for r in asked[0]))
        values[attack.ratio, attack.length, attack.alpha] = scores[0].value
        greedy, *samples = (r.ids[: attack.length].tolist() for r in answer(asked[0][0]).rows)
        assert scores[0].value == peak(greedy, samples, attack.alpha)
    assert [len(d) for d in digests.values()] == [1, 1, 1]
    pairs = itertools.pairwise(sorted(values.items()))
    assert all(a[1] <= b[1] for a, b in pairs if a[0][:2] == b[0][:2])  # a larger alpha never lowers a peak
    _, asked = run(Cdd(0.5, 300, 0.1), group, AUDITED)
    assert asked[0][0].max_new == 300


def test_a_long_text_leaves_room_for_its_continuation():
    limits = protocol(generation_context=128)
    (score,), asked = run(Cdd(0.5, 50, 0.1), Group(records("x" * 100)), limits)
    assert len(asked[0][0].prompt) == 39 and score.truncated and score.n_scored == 39
    (score,), asked = run(Cdd(1.0, 28, 0.1), Group(records("x" * 100)), limits)
    assert len(asked[0][0].prompt) == 99 and not score.truncated


@pytest.mark.parametrize(("length", "tuning", "stated"), [(128, False, 128), (50, True, 200)])
def test_no_room_for_a_prompt(length, tuning, stated):
    group = Group(records(TEXT, ""), tuning=tuning)
    scores, asked = run(Cdd(0.5, length, 0.1), group, protocol(generation_context=128))
    assert asked == [[]]
    assert f"cdd_length, {stated}" in scores[0].missing and "128" in scores[0].missing
    assert scores[1].missing == "the record has no text" and math.isnan(scores[0].value)


def test_continuations_that_all_end_at_once():
    scores, _ = run(Cdd(0.5, 9, 0.1), Group(records(TEXT)), AUDITED, lambda r: rows(*[[]] * 51))
    assert (scores[0].value, scores[0].missing) == (1.0, None) and "ends every continuation" in scores[0].note
    scores, _ = run(Cdd(0.5, 9, 0.1), Group(records(TEXT)), AUDITED, lambda r: rows([], [7], *[[]] * 49))
    assert scores[0].value == 0.98 and scores[0].note is None


def test_statistics_that_are_no_numbers_are_no_score():
    def broken(request):
        *good, last = answer(request).rows
        return Continuations((*good, dataclasses.replace(last, log_prob=last.log_prob - math.inf)))

    scores, _ = run(Cdd(0.5, 9, 0.1), Group(records(TEXT)), AUDITED, broken)
    assert math.isnan(scores[0].value) and "not finite" in scores[0].missing


def test_the_order_of_the_texts_has_no_effect():
    texts = ["one text", "another text", "a third"]
    forth, _ = run(Cdd(0.5, 9, 0.8), Group(records(*texts)), AUDITED)
    back, _ = run(Cdd(0.5, 9, 0.8), Group(records(*texts[::-1])), AUDITED)
    assert [s.value for s in forth] == [s.value for s in back][::-1]
