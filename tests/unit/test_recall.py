"""ReCaLL: ratio, prefix and token accounting against golden files; what the attack asks in each protocol."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from olmodetect_jax.attacks.base import LEFT_OUT, Group
from olmodetect_jax.attacks.recall import (
    Recall,
    build_prefix,
    conditional_mean,
    cut_shots,
    keep_whole_shots,
    mean_target_length,
    ratio,
)
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.requests import ScoreTargets, ScoreTokens
from tests.stub_attacks import StubTokenizer, answer, kept_as, records, run

RATIO = 1e-12  # likelihood_recall.json states rel 1e-12
CONDITIONAL = 2e-5  # and abs 2e-5

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "likelihood_recall.json").read_text())
AUDITED = load_protocol("audited")
text = StubTokenizer.text


def protocol(**changes):
    return dataclasses.replace(AUDITED, **changes)


def number(value):
    return float(value.replace("Infinity", "inf")) if isinstance(value, str) else value


def test_golden_ratios():
    inputs = GOLDEN["ratio"]["inputs"]
    for unconditional, conditional, expected in zip(
        inputs["ll_unconditional"], inputs["ll_conditional"], GOLDEN["ratio"]["expected"], strict=True
    ):
        got = ratio(number(conditional), number(unconditional))
        assert got == pytest.approx(number(expected), rel=RATIO, nan_ok=True)


def test_a_quotient_beyond_the_largest_float_is_no_score():
    assert math.isnan(ratio(-1e300, -1e-300))


@pytest.mark.parametrize("case", GOLDEN["prefix"], ids=lambda c: c["name"])
def test_golden_prefixes(case):
    inputs, expected = case["inputs"], case["expected"]
    cuts = cut_shots(
        inputs["shot_lengths"], inputs["n"], inputs["avg_target_len"], inputs["max_model_len"], inputs["max_tokens"]
    )
    assert cuts == expected["tokens_per_shot"]
    assert (sum(cuts), len(cuts)) == (expected["prefix_len"], expected["shots_used"])
    assert (inputs["max_model_len"] - sum(cuts) if cuts else None) == expected["target_max_tokens"]


def test_golden_average():
    average = GOLDEN["avg_target_len"]
    assert (
        mean_target_length(average["inputs"]["token_lengths"], average["inputs"]["max_tokens"]) == average["expected"]
    )


@pytest.mark.parametrize("case", GOLDEN["original_process_prefix"], ids=lambda c: c["name"])
def test_golden_whole_shots(case):
    inputs = case["inputs"]
    window = inputs["max_length"] if not inputs["pass_window"] else 10**9  # an unchecked window is one without an end
    kept = keep_whole_shots(inputs["shot_lengths"], inputs["avg_length"], window)
    assert kept == case["expected"]["kept_shot_indices"]


@pytest.mark.parametrize("case", GOLDEN["conditional_ll"], ids=lambda c: c["name"])
def test_golden_conditional_means(case):
    prefix, target = case["inputs"]["prefix_ids"], case["inputs"]["target_ids"]
    log_p = log_softmax(np.asarray(case["inputs"]["logits"], np.float64), axis=-1)
    ids = prefix + target
    each = np.asarray([log_p[t - 1, ids[t]] for t in range(len(prefix), len(ids))])
    rest = each[1:].mean() if len(each) > 1 else math.nan
    expected = case["expected"]
    got = conditional_mean(each[0], rest, len(target))
    assert got == pytest.approx(expected["recall_conditional_ll"], abs=CONDITIONAL)
    assert got == pytest.approx(expected["recall_conditional_ll_original_repo"], abs=CONDITIONAL)
    assert rest == pytest.approx(number(expected["emmia_conditional_ll"]), abs=CONDITIONAL, nan_ok=True)


@given(
    st.lists(st.integers(1, 80), max_size=14),
    st.integers(1, 12),
    st.integers(1, 90),
    st.integers(2, 100),
    st.integers(1, 40),
)
def test_a_prefix_leaves_room_for_the_average_text(lengths, shots, average, window, most):
    cuts = cut_shots(lengths, shots, average, window, most)
    assert sum(cuts) + average <= window or not cuts
    assert len(cuts) in (0, min(shots, len(lengths)))
    assert all(0 < cut <= min(most, length) for cut, length in zip(cuts, lengths, strict=False))


DEV = records("dev one", "dev two!", "dev three", "a member", labels=[0, 0, 0, 1], start=100)
TEXTS = ["the first text", "another one", "third"]


def in_order(texts):
    return sorted(texts, key=lambda t: hashlib.sha256(t.encode()).hexdigest())


def split(asked):
    (only,) = asked
    return [r for r in only if isinstance(r, ScoreTokens)], [r for r in only if isinstance(r, ScoreTargets)]


def test_one_list_of_texts_and_a_prefix():
    group = Group(records(*TEXTS, labels=[1, 0, None]), DEV)
    scores, asked = run(Recall(2), group, AUDITED)
    plain, (after,) = split(asked)
    assert sorted(text(r.ids) for r in plain) == sorted(TEXTS)
    assert text(after.prefix) == "".join(in_order(r.text for r in DEV[:3])[:2])
    assert sorted(text(t) for t in after.targets) == sorted(TEXTS)
    likelihoods = answer(after)
    for t, score in zip(TEXTS, scores, strict=True):
        where = [text(x) for x in after.targets].index(t)
        own = answer(StubTokenizer.request(t)).log_prob
        assert score.value == float(likelihoods.rest[where]) / float(np.mean(own, dtype=np.float64))
        assert (score.n_scored, score.n_tokens, score.missing, score.note) == (len(t) - 1, len(t), None, None)
    _, asked = run(Recall(2), group, protocol(recall_shot_order="file"))
    assert text(split(asked)[1][0].prefix) == "dev onedev two!"


def test_each_span():
    """A window of 40 with a prefix of 15: a text of 40 is cut to 25 after the prefix."""
    long, short, middle = "long text: " + "x" * 29, "tiny", "y" * 30
    group = Group(records(long, short, middle), DEV)
    settings = {"window": 40, "recall_shot_order": "file", "max_tokens": 38}
    same, asked = run(Recall(2), group, protocol(**settings))
    _, (after,) = split(asked)
    assert len(after.prefix) == 15 and sorted(len(t) for t in after.targets) == [4, 25, 25]
    where = [text(t) for t in after.targets].index(long[:25])
    likelihoods, own = answer(after), answer(StubTokenizer.request(long[:38])).log_prob.astype(np.float64)
    assert same[0].value == float(likelihoods.rest[where]) / own[:24].mean()
    assert (same[0].n_scored, same[0].truncated, same[1].truncated) == (24, True, False)
    assert (same[2].n_scored, same[2].truncated) == (24, True)  # cut by the prefix alone
    separate, again = run(Recall(2), group, protocol(recall_span="separate", **settings))
    assert [r.digest for r in again[0]] == [r.digest for r in asked[0]]
    conditional = (float(likelihoods.first[where]) + 24 * float(likelihoods.rest[where])) / 25
    assert separate[0].value == conditional / own.mean() and separate[0].n_scored == 37
    assert (separate[2].n_scored, separate[2].truncated) == (29, False)


def test_bfloat16_rounds_the_conditional_mean_only():
    group = Group(records(*TEXTS), DEV)
    exact, asked = run(Recall(2), group, AUDITED)
    released, _ = run(Recall(2), group, protocol(score_dtype="bfloat16"))
    for t, before, after in zip(TEXTS, exact, released, strict=True):
        own = np.mean(answer(StubTokenizer.request(t)).log_prob, dtype=np.float64)
        conditional = np.float64(before.value * own).astype(ml_dtypes.bfloat16).astype(np.float64)
        assert after.value == conditional / own


def test_budgets_are_joint_or_of_each_class():
    group = Group(records("x" * 20, "y" * 4, "z" * 10, labels=[1, 0, None]), records("d" * 99, labels=[0], start=9))
    joint = protocol(window=40)
    _, asked = run(Recall(1), group, joint)
    assert [len(r.prefix) for r in split(asked)[1]] == [40 - (20 + 4 + 10) // 3]
    _, asked = run(Recall(1), group, dataclasses.replace(joint, recall_budget="per_file"))
    after = split(asked)[1]
    assert [(len(r.prefix), [text(t)[0] for t in r.targets]) for r in after] == [(20, ["x"]), (36, ["y"]), (30, ["z"])]
    # no text counts for more than a shot may have
    _, asked = run(Recall(1), group, dataclasses.replace(joint, recall_shot_tokens=12))
    assert [len(r.prefix) for r in split(asked)[1]] == [12]
    assert mean_target_length([20, 4, 10], 12) == 8


def test_whole_shots_are_joined_before_they_are_tokenized():
    class Pairs(StubTokenizer):
        """Two characters a token, so that a boundary can fall inside one."""

        def encode(self, text, max_tokens):
            tokens = [text[i : i + 2] for i in range(0, len(text), 2)]
            whole = super().encode(text, 10**6)
            ids = np.asarray([sum(map(ord, t)) for t in tokens[:max_tokens]], np.int32)
            return dataclasses.replace(whole, ids=ids, n_tokens=len(tokens))

    whole = protocol(recall_prefix="whole_shots", window=20)
    assert len(build_prefix(["abc", "def"], 5, Pairs(), whole)) == 3  # 2 + 2 tokens apart
    assert len(build_prefix(["abc", "def"], 5, Pairs(), dataclasses.replace(whole, recall_prefix="per_shot"))) == 4
    assert text(build_prefix(["abc", "def", "ghijklmn"], 10, StubTokenizer(), whole)) == "defghijklmn"
    assert not len(build_prefix(["abc"], 18, StubTokenizer(), whole))
    # kept from the end, but longer than the window
    assert not len(build_prefix(["a", "b" * 30], 5, StubTokenizer(), whole))


def test_the_development_split_leaves_its_shots_out():
    scores, asked = run(Recall(2), Group(DEV, tuple(DEV)), protocol(window=30))
    shots = in_order(r.text for r in DEV[:3])[:2]
    plain, (after,) = split(asked)
    left = [r.text for r in DEV if r.text not in shots]
    assert sorted(text(t) for t in after.targets) == sorted(left)
    share = (30 - sum(map(len, left)) // 2) // 2
    assert len(after.prefix) == sum(min(len(s), share) for s in shots)
    for record, score in zip(DEV, scores, strict=True):
        if record.text in shots:
            assert math.isnan(score.value) and score.missing == LEFT_OUT + "one of the prefix's own shots"
        else:
            assert score.missing is None and math.isfinite(score.value)


@pytest.mark.parametrize("label", [0, 1, None])
def test_a_shot_is_left_out_wherever_it_stands(label):
    """The records may hold a development text again: of any class, and where the test split is scored."""
    (shot,) = in_order(r.text for r in DEV[:3])[:1]
    group = Group(records(shot, *TEXTS, labels=[label, 1, 0, None]), DEV)
    scores, asked = run(Recall(1), group, AUDITED)
    assert math.isnan(scores[0].value) and scores[0].missing == LEFT_OUT + "one of the prefix's own shots"
    assert sorted(text(t) for t in split(asked)[1][0].targets) == sorted(TEXTS)
    assert all(s.missing is None for s in scores[1:])


@pytest.mark.parametrize(("shots", "used"), [(1, 1), (2, 2), (3, 2), (12, 2)])
def test_tuning_keeps_a_non_member_to_score(shots, used):
    scores, asked = run(Recall(shots), Group(DEV, DEV, tuning=True), AUDITED)
    order = in_order(r.text for r in DEV[:3])
    assert text(split(asked)[1][0].prefix) == "".join(order[:used])
    for record, score in zip(DEV, scores, strict=True):
        assert (score.missing is not None) == (record.text in order[:used])
        if score.missing is None:
            assert (score.note or "").startswith(f"2 of {shots} shots") == (used < shots)
    # where nothing is tuned, the shots may be all there are
    scores, _ = run(Recall(shots), Group(DEV, DEV), AUDITED)
    assert sum(s.missing is not None for s in scores) == min(shots, 3)


def test_tuning_keeps_a_non_member_although_texts_repeat():
    dev = records("one text", "another", "another", "a member", labels=[0, 0, 0, 1])
    scores, _ = run(Recall(5), Group(dev, dev, tuning=True), protocol(recall_shot_order="file"))
    assert [s.missing is None for s in scores] == [False, True, True, True]


def test_tuning_with_one_non_member():
    dev = records("a member", "alone", "", labels=[1, 0, 0])
    for prefix in ("per_shot", "whole_shots"):
        scores, asked = run(Recall(2), Group(dev, dev, tuning=True), protocol(recall_prefix=prefix))
        assert all(math.isnan(s.value) and "one development non-member" in s.missing for s in scores[:2])
        assert not any(s.left_out for s in scores) and scores[2].missing == "the record has no text"
        assert not split(asked)[1]
    assert run(Recall(2), Group(dev, dev), AUDITED)[0][0].missing is None


def test_tuning_has_one_budget():
    dev = records("x" * 20, "y" * 4, "d" * 90, labels=[1, 0, 0])
    per_file = protocol(window=40, recall_budget="per_file", recall_shot_order="file")
    dev = [dev[2], *dev[:2]]
    _, asked = run(Recall(1), Group(dev, dev, tuning=True), per_file)
    assert [len(r.prefix) for r in split(asked)[1]] == [40 - (20 + 4) // 2]
    _, asked = run(Recall(1), Group(dev, dev), per_file)
    assert [len(r.prefix) for r in split(asked)[1]] == [36, 20]


def test_fewer_texts_than_shots_are_noted():
    scores, _ = run(Recall(5), Group(records(*TEXTS, "x"), DEV), AUDITED)
    assert all("3 of 5 shots" in s.note for s in scores[:3]) and all(s.missing is None for s in scores[:3])
    assert scores[3].missing and scores[3].note is None


def test_no_room_for_a_prefix():
    texts = ["a" * 20, "b" * 21, "c", ""]
    narrow = protocol(window=12, max_tokens=15)
    scores, asked = run(Recall(3), Group(records(*texts), DEV), narrow)
    assert not split(asked)[1] and len(asked[0]) == 2
    for score in scores[:2]:
        assert "3 shots" in score.missing and "10 tokens on average" in score.missing  # (15 + 15 + 1) // 3
        assert "a budget of 2 of the window's 12 tokens" in score.missing and math.isnan(score.value)
    assert "nothing to score" in scores[2].missing and scores[3].missing == "the record has no text"
    scores, asked = run(Recall(3), Group(records(*texts[:2]), DEV), narrow)
    assert not split(asked)[1] and all("a budget of -3" in s.missing for s in scores)
    # two shots do fit into the budget of 2
    assert len(split(run(Recall(2), Group(records(*texts), DEV), narrow)[1])[1][0].prefix) == 2


def test_room_for_one_token_only():
    texts = ["a", "b", "cd"]
    narrow = protocol(window=8, recall_shot_order="file")
    scores, _ = run(Recall(1), Group(records(*texts), DEV), narrow)
    assert "first token only" in scores[2].missing and math.isnan(scores[2].value)
    scores, _ = run(Recall(1), Group(records(*texts), DEV), dataclasses.replace(narrow, recall_span="separate"))
    assert scores[2].missing is None and "nothing to score" in scores[0].missing


def test_texts_without_a_score_say_why():
    scores, asked = run(Recall(1), Group(records("", "x", "xyz"), DEV), AUDITED)
    assert [s.missing and s.missing[:12] for s in scores] == ["the record h", "there is not", None]
    assert [text(t) for t in split(asked)[1][0].targets] == ["xyz"]

    def certain(request):
        a = answer(request)
        return dataclasses.replace(a, log_prob=a.log_prob * 0) if isinstance(request, ScoreTokens) else a

    (score,), _ = run(Recall(1), Group(records("xyz"), DEV), AUDITED, answer=certain)
    assert math.isnan(score.value) and score.missing == "the score is nan"


def test_bad_input_names_the_subset():
    members = records("a member", labels=[1])
    for dev in ((), members, records("", labels=[0])):
        with pytest.raises(DataError, match="subset gsm8k: ReCaLL .* leave recall out of --attacks"):
            run(Recall(2), Group(records("x y", subset="gsm8k"), dev), AUDITED)
    assert run(Recall(2), Group([], DEV), AUDITED) == ([], [])
    for shots in (0, -1, 2.0, True):
        with pytest.raises(UsageError, match="recall_shots"):
            Recall(shots)


MANY = [f"{a} text {a * 3}" for a in "abcdef"]


@given(
    st.permutations(range(6)),
    st.lists(st.sampled_from([0, 1, None]), min_size=6, max_size=6),
    st.permutations(range(4)),
)
def test_order_and_labels_change_nothing(order, labels, dev_order):
    plain, before = run(Recall(2), Group(records(*MANY), DEV), AUDITED)
    group = Group(records(*(MANY[i] for i in order), labels=labels), [DEV[i] for i in dev_order])
    shuffled, after = run(Recall(2), group, AUDITED)
    assert [s.value.hex() for s in shuffled] == [plain[i].value.hex() for i in order]
    assert {kept_as(r) for r in before[0]} == {kept_as(r) for r in after[0]}
