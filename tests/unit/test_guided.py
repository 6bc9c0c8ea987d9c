"""Guided: split and ROUGE-L against golden files; which prompts are asked, how they are cut, and what has no score."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.guided import Completed, Guided, rouge_l, words
from olmodetect_jax.attacks.guided_split import split, units_in_first
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.written import Written
from olmodetect_jax.errors import UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.requests import Continuation, Continuations, Generate
from olmodetect_jax.tokenization import Tokenizer
from tests.stub_attacks import StubTokenizer, answer, records, run

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = {"abs": 1e-6, "rel": 1e-5}  # guided_rouge.json and guided_scores.json state these
AUDITED, RELEASE = load_protocol("audited"), load_protocol("release")
PROMPTS = Prompts.load()
text = StubTokenizer.text
TEXT = "One sentence. Then two. And then three of them. Four is the last one."
FIRST, SECOND = "One sentence. Then two.", "And then three of them. Four is the last one."


def cases(name):
    file = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return [
        pytest.param(i, e, id=n) for i, e, n in zip(file["inputs"], file["expected"], file["case_names"], strict=True)
    ]


def protocol(**changes):
    return dataclasses.replace(AUDITED, **changes)


def says(*texts):
    """An engine that answers each request in turn with one of the texts."""
    turn = iter(texts)

    def answered(request):
        row = answer(request).rows[0]
        ids = StubTokenizer().encode(next(turn), 10**6).ids
        own = (ids, row.log_prob[:1].repeat(len(ids)), row.entropy[:1].repeat(len(ids)))
        return Continuations((Continuation(*own, ended=True),))

    return answered


@pytest.mark.parametrize(("inputs", "expected"), cases("guided_split.json"))
def test_golden_splits(inputs, expected):
    got = split(inputs["text"])
    found = (got.unit, got.units, got.units_in_first, got.first, got.second)
    names = ("unit", "n_units", "n_units_in_first", "first_piece", "second_piece")
    assert found == tuple(expected[n] for n in names)
    assert expected["skipped"] == (not got.second)


@pytest.mark.parametrize(("inputs", "expected"), cases("guided_cut_table.json"))
def test_golden_cut_table(inputs, expected):
    assert units_in_first(inputs["n_units"]) == expected["n_units_in_first"]


@pytest.mark.parametrize(("inputs", "expected"), cases("guided_rouge.json"))
def test_golden_rouge(inputs, expected):
    assert rouge_l(inputs["reference"], inputs["candidate"]) == pytest.approx(expected["f1"], **TOLERANCE)


@pytest.mark.parametrize(("inputs", "expected"), cases("guided_stems.json"))
def test_golden_stems(inputs, expected):
    assert words(inputs["token"]) == [expected["rouge_token"]]


@pytest.mark.parametrize(("inputs", "expected"), cases("guided_scores.json"))
def test_golden_scores(inputs, expected):
    completions = inputs["guided_completion"], inputs["general_completion"]
    completed = Completed(Written(9, 4), inputs["second_piece"], completions)
    for measure in ("rouge_guided", "rouge_delta"):
        (score,) = Guided(measure, PROMPTS).score(Group(records("x")), [completed], AUDITED)
        assert score.value == pytest.approx(expected[measure], **TOLERANCE)


@given(st.text(alphabet=st.sampled_from("ab.?!A\"' \n今é"), max_size=60).map(str.strip))
def test_a_split_loses_nothing_but_white_space(whole):
    got = split(whole)
    if got.unit in ("sentence", "word"):
        assert f"{got.first} {got.second}".split() == whole.split()
    if got.unit == "character":
        assert got.first + got.second == whole
    assert bool(got.second) == (len(whole) > 1) and got.units_in_first <= got.units


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_rouge_is_that_of_its_library(reference, candidate):
    from rouge_score.rouge_scorer import RougeScorer

    theirs, ours = " ".join(reference), " ".join(candidate)
    expected = RougeScorer(["rougeL"], use_stemmer=True).score(theirs, ours)["rougeL"].fmeasure
    assert rouge_l(theirs, ours) == pytest.approx(expected, rel=1e-12)


def test_equal_scores_are_equal_numbers():
    """3 words in common of 3 and 4, and 9 of 10 and 11: the library's own formula differs in the last digit."""
    few = rouge_l("a b c", "a b c d")
    assert few == rouge_l("a b c d e f g h i x", "a b c d e f g h i y z") == 6 / 7


def test_the_two_prompts_of_a_text():
    group = dataclasses.replace(Group(records(TEXT, "")), domain="dclm")
    scores, asked = run(Guided("rouge_delta", PROMPTS), group, AUDITED, says(f" {SECOND}\n", "And then four of them."))
    (guided, general), *rest = asked
    assert rest == []
    assert text(guided.prompt) == PROMPTS.fill("guided", source="DCLM", first_piece=FIRST)
    assert text(general.prompt) == PROMPTS.fill("general", first_piece=FIRST)
    for request in (guided, general):
        assert isinstance(request, Generate)
        assert (request.max_new, request.greedy, request.sampling) == (256, True, None)
        assert request.stop_ids == StubTokenizer.stop_ids
    assert scores[0].value == 1 - rouge_l(SECOND, "And then four of them.")
    assert (scores[0].n_tokens, scores[0].n_scored, scores[0].truncated) == (len(TEXT), len(SECOND), False)
    assert scores[0].missing is None and scores[0].note is None
    assert scores[1].missing == "the record has no text" and math.isnan(scores[1].value)


def test_the_general_prompt_is_asked_only_where_it_counts():
    group = Group(records(TEXT))
    (score,), asked = run(Guided("rouge_guided", PROMPTS), group, protocol(guided_new_tokens=7), says("and four"))
    (only,) = asked[0]
    generic = PROMPTS.fill("guided", source="the OLMo2 training corpus", first_piece=FIRST)
    assert (text(only.prompt), only.max_new) == (generic, 7)
    assert score.value == rouge_l(SECOND, "and four") > 0
    _, both = run(Guided("rouge_delta", PROMPTS), group, protocol(guided_new_tokens=7))
    assert both[0][0].digest == only.digest  # answered once for both measures


@pytest.mark.parametrize("words_of_piece", [300, 1000])
def test_a_long_prompt_loses_the_start_of_its_first_piece(words_of_piece):
    whole = " ".join(f"w{i}" for i in range(words_of_piece))
    limits = protocol(generation_context=800, guided_new_tokens=100)
    (score,), asked = run(Guided("rouge_delta", PROMPTS), Group(records(whole)), limits)
    first = split(whole).first
    for request, name, source in zip(
        asked[0], ("guided", "general"), ({"source": PROMPTS.source(None)}, {}), strict=True
    ):
        head, end = PROMPTS.fill(name, first_piece="|", **source).split("|")
        prompt = text(request.prompt)
        assert len(prompt) == 700 and prompt.startswith(head) and prompt.endswith(end)
        assert first.endswith(prompt[len(head) : -len(end)])
    assert score.truncated and score.missing is None and score.n_tokens == len(whole)


def test_the_released_cut_takes_the_prompts_right_end():
    whole = " ".join(f"w{i}" for i in range(300))
    limits = dataclasses.replace(RELEASE, generation_context=800, guided_new_tokens=100)
    (score,), asked = run(Guided("rouge_delta", PROMPTS), Group(records(whole)), limits)
    piece = split(whole).first
    filled = (
        PROMPTS.fill("guided", source=PROMPTS.source(None), first_piece=piece),
        PROMPTS.fill("general", first_piece=piece),
    )
    assert [text(r.prompt) for r in asked[0]] == [f[:700] for f in filled]
    assert score.truncated


@pytest.mark.parametrize("cut", ["first_piece", "right"])
def test_a_real_tokenizer_cuts_within_the_limit(cut):
    tokenizer = Tokenizer(sample.model_directory())
    whole = " ".join(f"naïve “{i}” 今天天气很好 😀!" for i in range(200))
    limits = protocol(generation_context=300, guided_new_tokens=100, guided_cut=cut)
    (score,), asked = run(Guided("rouge_delta", PROMPTS), Group(records(whole)), limits, tokenizer=tokenizer)
    end = PROMPTS.fill("general", first_piece=split(whole).first)[-40:]
    for request in asked[0]:
        assert 190 <= len(request.prompt) <= 200
        assert tokenizer.decode(request.prompt).endswith(end) == (cut == "first_piece")
    assert score.truncated and score.missing is None


@pytest.mark.parametrize(
    ("context", "new", "cut"),
    [
        (128, 128, "first_piece"),
        (128, 256, "first_piece"),
        (128, 128, "right"),
        (128, 256, "right"),
        (400, 300, "first_piece"),
    ],
)
def test_no_room_for_a_prompt(context, new, cut):
    """In the last case there is some, but less than the prompt's own words take."""
    limits = protocol(generation_context=context, guided_new_tokens=new, guided_cut=cut)
    scores, asked = run(Guided("rouge_delta", PROMPTS), Group(records(TEXT, "", "Q")), limits)
    assert asked == [[]]
    for score, reason in zip(scores, (f"guided_new_tokens, {new}", "no text", "single character"), strict=True):
        assert math.isnan(score.value) and reason in score.missing and not score.left_out
    assert str(context) in scores[0].missing


def test_texts_that_rouge_cannot_read():
    scores, _ = run(
        Guided("rouge_guided", PROMPTS),
        Group(records("今天天气很好。我们去公园", "Q", "ab")),
        AUDITED,
        says("今天", "x"),
    )
    assert (scores[0].value, scores[0].missing) == (0.0, None) and "no letter from a to z" in scores[0].note
    assert "single character" in scores[1].missing
    assert (scores[2].value, scores[2].note) == (0.0, None)


def test_an_empty_completion_scores_0():
    (score,), _ = run(Guided("rouge_delta", PROMPTS), Group(records(TEXT)), AUDITED, says(" \n", ""))
    assert (score.value, score.missing, score.note) == (0.0, None, None)


def test_statistics_that_are_no_numbers_are_no_score():
    def broken(request):
        (row,) = answer(request).rows
        return Continuations((dataclasses.replace(row, entropy=row.entropy * math.nan),))

    (score,), _ = run(Guided("rouge_guided", PROMPTS), Group(records(TEXT)), AUDITED, broken)
    assert math.isnan(score.value) and "not finite" in score.missing


def test_unlabelled_texts_in_any_order_and_none_at_all():
    texts = [f"Text {i}. It goes on and on. It ends with {i}." for i in range(4)]
    attack = Guided("rouge_delta", PROMPTS)
    forth, _ = run(attack, Group(records(*texts, labels=[None] * 4)), AUDITED)
    back, _ = run(attack, Group(records(*texts[::-1])), AUDITED)
    assert [s.value for s in forth] == [s.value for s in back][::-1]
    assert run(attack, Group([]), AUDITED) == ([], [[]])
    with pytest.raises(UsageError, match="guided_score: unknown value 'bleurt'"):
        Guided("bleurt", PROMPTS)
