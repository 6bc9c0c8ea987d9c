"""Neighborhood: d and z against golden files; what the attack asks with a file and with the model itself."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversion.load import load_hf
from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.neighborhood import Neighborhood, compare
from olmodetect_jax.attacks.rounds import Job, run_jobs
from olmodetect_jax.engine import Engine
from olmodetect_jax.errors import UsageError
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh
from olmodetect_jax.neighbours.files import NeighbourFile, Neighbours
from olmodetect_jax.neighbours.target_model import propose
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import text_key
from olmodetect_jax.requests import Generate, ScoreTokens, TokenStatistics
from olmodetect_jax.scoring.kept import Provenance
from tests import stub_attacks
from tests.stub_attacks import StubTokenizer, answer, records

GOLDEN = Path(__file__).parents[1] / "golden"
AUDITED, RELEASE = load_protocol("audited"), load_protocol("release")
SCORES = json.loads((GOLDEN / "neigh_scores.json").read_text())
CLOSE = {k: SCORES["tolerance"][k] for k in ("abs", "rel")}


def run(attack, group, protocol=AUDITED, answer=answer):
    return stub_attacks.run(attack, group, protocol, answer, StubTokenizer())


def number(value):
    return math.nan if value is None else value


def file_of(by_text):
    return NeighbourFile(Path("n.jsonl"), {text_key(text): Neighbours(tuple(own), {}) for text, own in by_text.items()})


def likelihood(text):
    return float(np.mean(answer(StubTokenizer.request(text)).log_prob, dtype=np.float64))


@pytest.mark.parametrize("case", range(len(SCORES["case_names"])), ids=SCORES["case_names"])
def test_golden_scores(case):
    inputs, expected = SCORES["inputs"][case], SCORES["expected"][case]
    values = np.asarray([number(v) for v in inputs["neighbour_lls"]], np.float64)
    d, z = compare(number(inputs["target_ll"]), values)
    assert d == pytest.approx(number(expected["d"]), nan_ok=True, **CLOSE)
    assert z == pytest.approx(number(expected["z"]), nan_ok=True, **CLOSE)


@given(st.floats(-20, -1e-3), st.integers(1, 10), st.floats(-20, -1e-3))
def test_equal_neighbours_have_no_deviation(value, n, own):
    assert compare(value, np.full(n, value)) == (0.0, 0.0)
    d, z = compare(own, np.full(n, value))
    assert d == z == own - value


TEXT = "the quick brown fox jumps"
OTHERS = ("the slow brown fox jumps", "the quick red fox jumps", "the quick red fox jumps")


@pytest.mark.parametrize("measure", ["d", "z"])
def test_a_text_and_the_neighbours_of_a_file(measure):
    scores, (asked,) = run(Neighborhood(measure, file_of({TEXT: OTHERS})), Group(records(TEXT)))
    assert {StubTokenizer.text(r.ids) for r in asked} == {TEXT, *OTHERS}
    assert all(type(r) is ScoreTokens and not r.upcast for r in asked)
    values = [likelihood(t) for t in OTHERS]
    d = likelihood(TEXT) - np.mean(values)
    expected = d if measure == "d" else d / np.std(values)
    (score,) = scores
    assert score.value == pytest.approx(expected, rel=1e-12) and score.missing is None and score.note is None
    assert (score.n_tokens, score.n_scored, score.truncated) == (len(TEXT), len(TEXT) - 1, False)


def test_texts_without_neighbours():
    known = file_of({TEXT: OTHERS, "x": ("y",), "": ("z",), "other": ("", "q"), "third": ("fourth", "!")})
    group = Group(records(TEXT, "unknown", "x", "", "other", "third"))
    scores, (asked,) = run(Neighborhood("d", known), group)
    assert [math.isnan(s.value) for s in scores] == [False, True, True, True, True, False]
    assert [s.missing for s in scores] == [
        None,
        "no neighbours of this text in n.jsonl; make them with `olmodetect neighbours`",
        "there is nothing to score after the first token",
        "the record has no text",
        "none of its neighbours has a finite likelihood",
        None,
    ]
    assert scores[5].note == "1 of 2 neighbours have no finite likelihood and are left out"
    assert (scores[1].n_tokens, scores[1].n_scored, scores[4].n_scored) == (7, 0, 4)
    assert scores[5].value == likelihood("third") - likelihood("fourth")
    assert "unknown" not in {StubTokenizer.text(r.ids) for r in asked}


def test_everything_is_cut_to_the_context():
    long, other = "a" * 200, "b" * 300
    short = dataclasses.replace(AUDITED, generation_context=128)
    (score,), (asked,) = run(Neighborhood("d", file_of({long: (other,)})), Group(records(long)), short)
    assert {StubTokenizer.text(r.ids) for r in asked} == {"a" * 128, "b" * 128}
    assert score.value == likelihood("a" * 128) - likelihood("b" * 128)
    assert (score.n_tokens, score.n_scored, score.truncated) == (200, 127, True)
    beyond = file_of({long: ("a" * 199 + "b",)})
    (score,), _ = run(Neighborhood("z", beyond), Group(records(long)), short)
    assert score.value == 0 and "the text itself as far as it is read" in score.note


def test_numbers_that_are_not_finite():
    def broken(request):
        own = answer(request)
        return TokenStatistics(own.log_prob * np.float32("nan"), own.mean, own.variance)

    def of_neighbours(request):
        return (broken if StubTokenizer.text(request.ids) != TEXT else answer)(request)

    attack = Neighborhood("d", file_of({TEXT: OTHERS}))
    (score,), _ = run(attack, Group(records(TEXT)), answer=broken)
    assert "not finite numbers" in score.missing and math.isnan(score.value)
    (score,), _ = run(attack, Group(records(TEXT)), answer=of_neighbours)
    assert score.missing == "none of its neighbours has a finite likelihood" and math.isnan(score.value)


def test_the_released_likelihoods_are_rounded_at_the_logits_only():
    _, (asked,) = run(Neighborhood("d", file_of({TEXT: OTHERS})), Group(records(TEXT)), RELEASE)
    assert all(r.upcast for r in asked)


def test_an_unknown_measure():
    with pytest.raises(UsageError, match="neighborhood_score"):
        Neighborhood("mean", None)


# The target model as the filler.

LONG = [" ".join(f"{c}{i}" for i in range(30)) for c in "abcd"]
SHORT = "only a few words"


@pytest.mark.parametrize("protocol", [AUDITED, RELEASE], ids=["audited", "release"])
def test_the_model_proposes_neighbours(protocol):
    group = Group(records(LONG[0], SHORT, "", labels=[1, 1, 1]))
    scores, (first, second) = run(Neighborhood("d", None), group, protocol)
    (request,) = first
    assert type(request) is Generate and all(type(r) is ScoreTokens for r in second)
    own, _ = propose([LONG[0], SHORT], StubTokenizer(), protocol)
    neighbours = own.neighbours(answer(request), StubTokenizer())
    expected = likelihood(LONG[0]) - np.mean([likelihood(n) for n in neighbours])
    assert scores[0].value == pytest.approx(expected, rel=1e-12) and scores[0].note is None
    assert {StubTokenizer.text(r.ids) for r in second} == {LONG[0], *neighbours, SHORT}
    assert (scores[1].value, scores[1].missing) == (0.0, None) and "fewer than 14 words" in scores[1].note
    assert scores[2].missing == "the record has no text"


@settings(max_examples=10)
@given(st.permutations(range(4)), st.lists(st.sampled_from([0, 1, None]), min_size=4, max_size=4))
def test_order_and_labels_change_nothing_under_text_seeds(order, labels):
    plain, _ = run(Neighborhood("z", None), Group(records(*LONG)))
    texts = [LONG[i] for i in order]
    shuffled, _ = run(Neighborhood("z", None), Group(records(*texts, labels=labels)))
    assert [s.value.hex() for s in shuffled] == [plain[i].value.hex() for i in order]


def test_file_seeds_count_the_texts_of_each_class():
    by_file = dataclasses.replace(AUDITED, neighborhood_seed="file")

    def values(*texts, labels=None):
        scores, _ = run(Neighborhood("d", None), Group(records(*texts, labels=labels)), by_file)
        return dict(zip(texts, (s.value for s in scores), strict=True))

    alone = values(LONG[0])[LONG[0]]
    assert values(LONG[0], LONG[1])[LONG[0]] == alone  # first in its file
    assert values(LONG[1], LONG[0])[LONG[0]] != alone
    assert values(LONG[1], LONG[0], labels=[1, 0])[LONG[0]] == alone  # first in its own class's file
    assert values("", "", LONG[0])[LONG[0]] == alone  # a record without a text takes no place
    assert values(SHORT, LONG[0])[LONG[0]] == alone  # a short text draws nothing from the chunk's stream,
    assert values(SHORT, SHORT, LONG[0])[LONG[0]] != alone  # but takes a place in it


# The tiny model of the golden files.


def test_golden_likelihoods_of_the_tiny_model(golden, tmp_path):
    data = json.loads((golden / "selfcrit_cdd_dcq_neigh_tiny_olmo2.json").read_text())
    case = next(i for i, inputs in enumerate(data["inputs"]) if inputs["kind"] == "neigh")
    inputs, expected = data["inputs"][case], data["expected"][case]
    close = {k: data["tolerance"][k] for k in ("abs", "rel")}
    mesh = make_mesh()
    module = load_hf(golden / "tiny_olmo2", "float32", lambda path, shape: leaf_sharding(mesh, path, shape)).module()
    engine = Engine(module, mesh, tmp_path, Provenance("w", "t", "c", "float32", "float32"))
    text, *neighbours = ("".join(map(chr, ids)) for ids in (inputs["target_ids"], *inputs["neighbour_ids"]))
    assert data["inputs"][case]["kind"] == "neigh" and len(neighbours) == len(expected["neighbour_lls"])
    file, group = file_of({text: neighbours}), Group(records(text))
    jobs = {m: Job(Neighborhood(m, file), group, AUDITED) for m in ("d", "z")}
    answers = {}

    def ask(requests):
        answers.update(engine.answer(requests))
        return answers

    scores = run_jobs(jobs, StubTokenizer(), ask)
    for t, ll in zip((text, *neighbours), (expected["target_ll"], *expected["neighbour_lls"]), strict=True):
        own = answers[StubTokenizer.request(t).digest].log_prob
        assert np.mean(own, dtype=np.float64) == pytest.approx(ll, **close)
    for measure in ("d", "z"):
        assert scores[measure][0].value == pytest.approx(expected[measure], **close)
