"""Self-Critique: similarity and cut against golden files; which problem is asked, twice, and of which records."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.self_critique import SelfCritique, problem_of, released_cap, similarity
from olmodetect_jax.errors import UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.requests import Continuation, Continuations, Generate
from olmodetect_jax.tokenization import Tokenizer
from tests.stub_attacks import StubTokenizer, answer, records, run

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = {"abs": 1e-6, "rel": 1e-5}  # selfcrit_similarity.json states these
AUDITED, RELEASE = load_protocol("audited"), load_protocol("release")
PROMPTS = Prompts.load()
ATTACK = SelfCritique(PROMPTS)
FRAME = len(PROMPTS.fill("critique", response=""))
text = StubTokenizer.text
CHAT = "<|user|>\nWhat is 2 + 2?\n<|assistant|>\nFour."


def cases(name):
    file = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return [
        pytest.param(i, e, id=n) for i, e, n in zip(file["inputs"], file["expected"], file["case_names"], strict=True)
    ]


def protocol(**changes):
    return dataclasses.replace(AUDITED, **changes)


def row(length, *, letter="a", entropy=0.5):
    numbers = np.full(length, entropy, np.float32)
    return Continuation(np.full(length, ord(letter), np.int32), -numbers, numbers, ended=True)


def writes(*rows):
    """An engine that answers each request in turn with one of the rows."""
    turn = iter(rows)
    return lambda request: Continuations((next(turn),))


def ask(problem):
    return f"[{problem}]"


def critique(problem, response):
    return ask(problem + PROMPTS.fill("critique", response=response))


@pytest.mark.parametrize(("inputs", "expected"), cases("selfcrit_similarity.json"))
def test_golden_similarities(inputs, expected):
    first, second = (np.asarray(inputs[n], np.float64) for n in ("entropies_initial", "entropies_critique"))
    assert similarity(first, second) == pytest.approx(expected["similarity_function"], **TOLERANCE)
    two = [dataclasses.replace(row(len(e)), entropy=e.astype(np.float32)) for e in (first, second)]
    (score,), _ = run(ATTACK, Group(records("x")), AUDITED, writes(*two))
    if expected["record_score"] is None:
        assert math.isnan(score.value) and "ended an answer at once" in score.missing
    else:
        assert score.value == pytest.approx(expected["record_score"], **TOLERANCE) and score.missing is None


@pytest.mark.parametrize(("inputs", "expected"), cases("selfcrit_truncation.json"))
def test_golden_cut(inputs, expected):
    context, prompt, new = (inputs[n] for n in ("context", "initial_prompt_tokens", "max_new_tokens"))
    assert released_cap(context, prompt, new) == expected["response_cap"]
    limits = dataclasses.replace(RELEASE, generation_context=context, self_critique_new_tokens=new)
    problem = "p" * (prompt - len(ask("")))
    first = row(inputs["initial_response_tokens"])
    (score,), (one, two) = run(ATTACK, Group(records(problem)), limits, writes(first, row(3)))
    kept = expected["response_tokens_kept"]
    assert text(one[0].prompt) == ask(problem) and text(two[0].prompt) == critique(problem, "a" * kept)
    assert one[0].max_new == two[0].max_new == new
    assert (score.note is not None) == (kept < len(first.ids))


entropies = arrays(np.float32, st.integers(0, 8), elements=st.floats(0, 12, width=32))


@given(entropies, entropies)
def test_similarity_is_symmetric_and_between_0_and_1(first, second):
    value = similarity(first, second)
    assert 0 <= value <= 1 and value == pytest.approx(similarity(second, first), abs=1e-12)
    if first.any():
        assert similarity(first, first) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("whole", "problem"),
    [
        (CHAT, "What is 2 + 2?"),
        ("<|user|>\nWhat is 2 + 2?\n<|assistant|>\nFour.\n<|user|>\nSure?\n<|assistant|>\nYes.", "What is 2 + 2?"),
        ("<|system|>\nBe brief.\n<|user|>\nTwo\nlines?\n\n<|assistant|>\n", "Two\nlines?"),
        ("<|user|>\nQuestion: 1?\nAnswer: 1\n\nQuestion: 2?", "Question: 1?\nAnswer: 1\n\nQuestion: 2?"),
        ("no tags at all", "no tags at all"),
        ("it says <|assistant|> inside", "it says <|assistant|> inside"),
        ("<|user|>\n \n<|assistant|>\nFour.", ""),
        ("<|user|>\r\nTwo\r\n<|assistant|>\r\nFour.", "Two"),
    ],
)
def test_the_problem_is_the_first_user_turn(whole, problem):
    assert problem_of(whole, "rlvr", AUDITED) == problem_of(whole, "dpo", RELEASE) == problem
    assert problem_of(whole, "rlvr", RELEASE) == whole


def test_two_rounds():
    group = Group(records(CHAT, "plain", "", "<|user|>\n \n<|assistant|>\nx", labels=[1, 0, 1, None]), domain="rlvr")
    scores, asked = run(ATTACK, group, protocol(self_critique_new_tokens=20))
    first, second = asked
    assert [text(r.prompt) for r in first] == [ask("What is 2 + 2?"), ask("plain")]
    written = [answer(r).rows[0] for r in first]
    said = [StubTokenizer().decode(w.ids) for w in written]
    assert [text(r.prompt) for r in second] == [critique("What is 2 + 2?", said[0]), critique("plain", said[1])]
    for request in (*first, *second):
        assert isinstance(request, Generate) and (request.greedy, request.sampling, request.max_new) == (True, None, 20)
        assert request.stop_ids == StubTokenizer.stop_ids
    for i in (0, 1):
        assert scores[i].value == similarity(written[i].entropy, answer(second[i]).rows[0].entropy)
        assert scores[i].missing is None and scores[i].note is None and not scores[i].truncated
    assert (scores[0].n_tokens, scores[0].n_scored) == (len(CHAT), len("What is 2 + 2?"))
    assert scores[2].missing == "the record has no text" and "user turn is empty" in scores[3].missing
    assert all(math.isnan(s.value) for s in scores[2:])


def test_the_released_problem_is_the_whole_text():
    _, (first, second) = run(ATTACK, Group(records(CHAT)), RELEASE, writes(row(5), row(3)))
    assert text(first[0].prompt) == ask(CHAT) and text(second[0].prompt) == critique(CHAT, "aaaaa")
    assert first[0].max_new == second[0].max_new == 4096


@pytest.mark.parametrize(
    ("domain", "asked"), [("dpo", True), ("rlvr", True), ("mbpp", True), (None, True), ("sft", False)]
)
def test_domains_without_problems_are_left_out(domain, asked):
    class Base(StubTokenizer):
        """Nothing is asked of it where nothing is to be asked."""

        def chat_ids(self, content):
            raise UsageError("no chat template")

    group = Group(records(CHAT, "plain"), domain=domain)
    if asked:
        assert all(s.missing is None for s in run(ATTACK, group, AUDITED)[0])
        with pytest.raises(UsageError, match="no chat template"):
            run(ATTACK, group, AUDITED, tokenizer=Base())
        return
    scores, requests = run(ATTACK, group, AUDITED, tokenizer=Base())
    assert requests == [[], []]
    assert all(s.left_out and math.isnan(s.value) and "DPO and RLVR" in s.missing for s in scores)
    assert scores[0].n_tokens == len(CHAT)


def test_a_pair_is_asked_once():
    chosen, rejected = (
        [dataclasses.replace(r, side=f"posttraining_dpo_1b_{side}") for r in records(CHAT)]
        for side in ("chosen", "rejected")
    )
    (score,), _ = run(ATTACK, Group(chosen, domain="dpo"), AUDITED)
    assert score.missing is None
    (score,), asked = run(ATTACK, Group(rejected, domain="dpo"), AUDITED)
    assert score.left_out and "chosen answer" in score.missing and asked == [[], []]


def test_a_long_problem_shares_what_is_left_between_its_answers():
    """Of a context of 600 the problem and the critique's own words leave 90: 45 for each answer."""
    problem = "p" * (600 - 90 - FRAME - len(ask("")))
    limits = protocol(generation_context=600, self_critique_new_tokens=64)
    (score,), (one, two) = run(ATTACK, Group(records(problem)), limits, writes(row(45), row(45)))
    assert one[0].max_new == two[0].max_new == 45
    assert text(two[0].prompt) == critique(problem, "a" * 45) and len(two[0].prompt) + 45 == 600
    assert "room for no more" in score.note and score.value == pytest.approx(1)
    short = protocol(generation_context=600, self_critique_new_tokens=45)
    (score,), (again, _) = run(ATTACK, Group(records(problem)), short, writes(row(45), row(45)))
    assert score.note is None and again[0].digest == one[0].digest


def test_a_critique_of_few_words_leaves_more_to_the_answers(tmp_path):
    """The released rule would keep 50 tokens free for them."""
    (tmp_path / "short.txt").write_text("{response}")
    attack = SelfCritique(Prompts.load({"critique": tmp_path / "short.txt"}))
    problem = "p" * (600 - 200 - len(ask("")))
    (score,), (one, two) = run(
        attack, Group(records(problem)), protocol(generation_context=600), writes(row(100), row(9))
    )
    assert one[0].max_new == 100 and text(two[0].prompt) == ask(problem + "a" * 100)
    assert "room for no more" in score.note


@pytest.mark.parametrize("tokens", [599, 600, 900])
def test_a_problem_that_leaves_no_room(tokens):
    limits = protocol(generation_context=600)
    problem = "p" * (tokens - len(ask("")))
    scores, asked = run(ATTACK, Group(records(problem, CHAT)), limits)
    assert f"of {tokens} tokens" in scores[0].missing and "600" in scores[0].missing and not scores[0].left_out
    assert scores[1].missing is None and [len(a) for a in asked] == [1, 1]
    released = dataclasses.replace(RELEASE, generation_context=600)
    (score,), _ = run(ATTACK, Group(records(problem)), released, writes(row(2), row(2)))
    assert (score.missing is None) == (tokens < 600)


def test_an_answer_that_grows_when_it_is_read_again_is_cut():
    class Doubling(StubTokenizer):
        """Spells the first five z with two characters each."""

        def decode(self, ids):
            return super().decode(ids).replace("z", "zz", 5)

    problem = "p" * (600 - 90 - FRAME - len(ask("")))
    limits = protocol(generation_context=600, self_critique_new_tokens=64)
    (score,), (_, two) = run(
        ATTACK, Group(records(problem)), limits, writes(row(45, letter="z"), row(9)), tokenizer=Doubling()
    )
    assert text(two[0].prompt) == critique(problem, "z" * 45) and len(two[0].prompt) + two[0].max_new == 600
    assert "start of the first answer only" in score.note and score.missing is None


def test_an_answer_of_no_tokens_is_no_score():
    for rows in ((row(0), row(3)), (row(3), row(0)), (row(0), row(0))):
        (score,), _ = run(ATTACK, Group(records(CHAT)), AUDITED, writes(*rows))
        assert math.isnan(score.value) and "ended an answer at once" in score.missing and not score.left_out
    (score,), _ = run(ATTACK, Group(records(CHAT)), AUDITED, writes(row(3, entropy=0.0), row(3)))
    assert (score.value, score.missing) == (0.0, None)


@pytest.mark.parametrize("entropy", [math.nan, math.inf])
@pytest.mark.parametrize("other", [0.0, 0.5])
def test_statistics_that_are_no_numbers_are_no_score(entropy, other):
    (score,), _ = run(ATTACK, Group(records(CHAT)), AUDITED, writes(row(3, entropy=other), row(3, entropy=entropy)))
    assert math.isnan(score.value) and "not finite" in score.missing


def test_with_a_real_template():
    tokenizer = Tokenizer(sample.model_directory())
    answers = [tokenizer.encode(words, 99).ids for words in ("It is four, of course.", "Count on.")]

    def engine(request):
        ids = answers[len(request.prompt) > 40]
        numbers = np.ones(len(ids), np.float32)
        return Continuations((Continuation(ids, -numbers, numbers, ended=True),))

    (score,), (one, two) = run(ATTACK, Group(records(CHAT)), AUDITED, engine, tokenizer=tokenizer)
    first, second = (r[0].prompt for r in (one, two))
    assert tokenizer.decode(first) == "<|user|>\nWhat is 2 + 2?\n<|assistant|>\n"
    told = PROMPTS.fill("critique", response="It is four, of course.")
    assert tokenizer.decode(second) == f"<|user|>\nWhat is 2 + 2?{told}\n<|assistant|>\n"
    assert (first[0], second[0]) == (0, 0) and score.missing is None
