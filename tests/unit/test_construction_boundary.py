"""Word shares and boundary rules against `construction_wordfreq.json` and brute force; the fastText score."""

import json
import math
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.construction import boundary
from olmodetect_jax.construction.boundary import closest_to_threshold, fasttext_line, hq_probability, word_shares
from olmodetect_jax.construction.candidates import Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.fasttext_score import load_scorer
from olmodetect_jax.construction.sources import starcoder
from olmodetect_jax.construction.sources.common import unique
from olmodetect_jax.construction.sources.registry import load_source
from olmodetect_jax.errors import DataError, UsageError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "construction_wordfreq.json").read_text())
CASES = [
    pytest.param(i, e, id=name)
    for name, i, e in zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True)
]


def of_kind(*kinds):
    found = [case for case in CASES if case.values[0]["kind"] in kinds]
    assert found
    return found


def near(expected):
    return (
        expected
        if expected is None
        else pytest.approx(expected, rel=GOLDEN["tolerance"]["rel"], abs=GOLDEN["tolerance"]["abs"])
    )


@pytest.mark.parametrize(("case", "expected"), of_kind("shares"))
def test_word_shares(case, expected):
    found = word_shares(case["text"])
    assert (found.n_words, found.n_distinct) == (expected["n_pieces"], expected["n_distinct"])
    for i in range(2):
        word, count = found.top[i] if i < len(found.top) else (None, None)
        assert word == expected[f"top{i + 1}_word"]
        assert count == expected[f"top{i + 1}_count"]
        assert (found.shares[i] if i < len(found.shares) else None) == near(expected[f"top{i + 1}"])
    if len(found.shares) == 2:
        assert sum(found.shares) == near(expected["cumulative"])


def starcoder_row(case):
    fields = {"text": "x y\n"} if case["kind"] == "starcoder_member" else {"content": case["text"]}
    kept = ("attributes", "max_stars_count")
    return Row("f, line 1", fields | {k: case[k] for k in kept if k in case})


@pytest.mark.parametrize(("case", "expected"), of_kind("starcoder_non_member", "starcoder_member"))
def test_starcoder_bands(case, expected):
    read = starcoder.members if case["kind"] == "starcoder_member" else starcoder.non_members
    found = list(read([starcoder_row(case)], starcoder.Options(), Choices(), Steps()))
    assert bool(found) == expected["boundary"]
    for candidate in found:
        assert candidate.quality["top1"] == candidate.files[""]["top1_word_freq"] == near(expected["top1"])
        assert candidate.quality["top2"] == candidate.files[""]["top2_word_freq"] == near(expected["top2"])
        assert candidate.quality.get("stars") == case.get("max_stars_count")


def test_a_share_of_exactly_thirty_percent_is_in_the_lower_band():
    assert boundary.starcoder_non_member(2, (0.30, 0.205))


@pytest.mark.parametrize(("case", "expected"), of_kind("stack_exchange_non_member", "stack_exchange_member"))
def test_stack_exchange_votes(case, expected):
    rule = getattr(boundary, case["kind"])
    assert [rule(question, answer) for question, answer in case["question_and_answer_score"]] == expected["boundary"]


@pytest.mark.parametrize(("case", "expected"), of_kind("dclm_non_member", "dclm_member"))
def test_dclm_bands(case, expected):
    rule, scores = getattr(boundary, case["kind"]), case.get("hq_probability") or case["stored_probability"]
    assert [rule(score) for score in scores] == expected["boundary"]


@given(st.floats(0, 1))
def test_by_the_papers_rule_a_score_is_on_one_side(score):
    sides = boundary.dclm_member(score, closest=True), boundary.dclm_non_member(score, closest=True)
    assert sides == (score >= 0.01811, score < 0.01811)


@pytest.mark.parametrize(("case", "expected"), of_kind("fasttext_hq", "fasttext_line"))
def test_what_fasttext_reads_and_says(case, expected):
    if case["kind"] == "fasttext_line":
        assert [fasttext_line(text) for text in case["texts"]] == expected["lines"]
    else:
        assert hq_probability(case["labels"], case["probabilities"]) == expected["hq_probability"]


def test_a_model_with_other_labels_is_named():
    with pytest.raises(DataError, match=re.escape("m.bin: predicts __label__a; expected a label __label__hq")):
        hq_probability(("__label__a",), (1.0,), "m.bin")


@pytest.mark.parametrize(("case", "expected"), of_kind("closest_to_threshold"))
def test_closest_to_threshold(case, expected):
    def chosen():
        return closest_to_threshold(
            np.array(case["hq_probability"]), np.array(case["token_counts"]), case["side"], case["threshold"],
            min_records=case["min_records"], min_tokens=case["min_tokens"],
        )  # fmt: skip

    if expected["error"]:
        with pytest.raises(DataError, match="at least 24 with 10 are wanted"):
            chosen()
        return
    positions = chosen()
    assert positions.tolist() == expected["selected"]
    assert np.array(case["token_counts"])[positions].sum() == expected["n_tokens"]
    assert np.array(case["hq_probability"])[positions].mean() == near(expected["mean_probability"])


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]), st.integers(0, 9)), max_size=12),
    st.sampled_from(["below", "above"]),
    st.integers(1, 6),
    st.integers(1, 30),
)
def test_closest_is_the_shortest_prefix_that_reaches_both(pool, side, min_records, min_tokens):
    scores, tokens = np.array([s for s, _ in pool]), np.array([n for _, n in pool], np.int64)
    on_side = [i for i, s in enumerate(scores) if (s < 0.3 if side == "below" else s >= 0.3)]
    order = sorted(on_side, key=lambda i: (abs(scores[i] - 0.3), i))
    wanted = next(
        (order[:k] for k in range(len(order) + 1) if k >= min_records and tokens[order[:k]].sum() >= min_tokens), None
    )
    arguments = (scores, tokens, side, 0.3)
    if wanted is None:
        with pytest.raises(DataError, match=f"{len(on_side)} candidates with"):
            closest_to_threshold(*arguments, min_records=min_records, min_tokens=min_tokens)
    else:
        found = closest_to_threshold(*arguments, min_records=min_records, min_tokens=min_tokens)
        assert found.tolist() == wanted


def test_a_score_that_is_no_number_has_no_place():
    with pytest.raises(DataError, match="candidate 1: boundary score nan"):
        closest_to_threshold(np.array([0.01, math.nan]), np.array([1, 1]), "below", min_records=1, min_tokens=1)


@pytest.mark.parametrize(("case", "expected"), of_kind("deduplicate"))
def test_duplicates_by_exact_text(case, expected):
    steps = Steps()
    candidates = (single({"text": text}, str(i)) for i, text in enumerate(case["texts"]))
    assert [int(c.where) for c in unique(candidates, steps)] == expected["kept"]
    dropped = len(case["texts"]) - len(expected["kept"])
    assert steps.rows()[0]["dropped"] == {"its text came before": dropped}


@pytest.mark.parametrize(("case", "expected"), of_kind("has_rule"))
def test_which_domains_have_a_rule(case, expected):
    """A source with a rule takes it from `boundary`; one without has no business there."""
    for domain, has_rule in zip(case["domains"], expected["has_rule"], strict=True):
        values = vars(load_source(domain)).values()
        rules = [v for v in values if v is boundary or getattr(v, "__module__", "") == boundary.__name__]
        assert bool(rules) == has_rule, domain


def write_model(path, labels=("__label__hq", "__label__cc"), model=3):
    """A fastText file (version 12) of three words in two dimensions and a softmax over the labels."""
    words = ["</s>", "tide", "ropes"]
    vectors = np.array([[0.0, 0.0], [1.0, -1.0], [-2.0, 0.5]], "<f4")
    outputs = np.array([[0.5, -1.0], [-0.5, 1.0]], "<f4")[: len(labels)]
    content = struct.pack("<2i", 793712314, 12)
    content += struct.pack("<12id", 2, 5, 1, 1, 5, 1, 3, model, 0, 0, 0, 100, 1e-4)
    content += struct.pack("<3i2q", len(words) + len(labels), len(words), len(labels), 100, -1)
    for kind, names in enumerate((words, labels)):
        content += b"".join(name.encode() + b"\0" + struct.pack("<qb", 10, kind) for name in names)
    for matrix in (vectors, outputs):
        content += struct.pack("<?2q", False, *matrix.shape) + matrix.tobytes()
    path.write_bytes(content)
    return path


def test_the_models_score_of_a_text(tmp_path):
    pytest.importorskip("fasttext")
    score = load_scorer(write_model(tmp_path / "m.bin"))
    hidden = np.mean([[1.0, -1.0], [-2.0, 0.5], [1.0, -1.0], [0.0, 0.0]], axis=0)  # the last is the end of the line
    wanted = 1 / (1 + np.exp(-2 * (0.5 * hidden[0] - hidden[1])))
    assert score(" tide ropes\n\ntide\n") == pytest.approx(wanted + 1e-5, abs=1e-6)  # fastText adds 1e-5


@pytest.mark.parametrize(
    ("content", "message"), [(b"no model at all", "not a fastText classifier"), (None, "no such fastText model")]
)
def test_what_is_no_model(tmp_path, content, message):
    pytest.importorskip("fasttext")
    path = tmp_path / "m.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{re.escape(str(path))}: {message}"):
        load_scorer(path)


def test_a_model_that_was_cut_off(tmp_path):
    """The library itself ends the process, or never returns."""
    pytest.importorskip("fasttext")
    path = write_model(tmp_path / "m.bin")
    content = path.read_bytes()
    for n in range(len(content)):
        path.write_bytes(content[:n])
        with pytest.raises(UsageError, match="not a fastText classifier"):
            load_scorer(path)


def test_word_vectors_are_no_classifier(tmp_path):
    pytest.importorskip("fasttext")
    with pytest.raises(UsageError, match="not a fastText classifier"):
        load_scorer(write_model(tmp_path / "m.bin", labels=(), model=2))


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(UsageError, match=re.escape("olmodetect-jax[fasttext]")):
        load_scorer(tmp_path / "m.bin")
