"""DCQ: scores and letters against golden files; which quizzes are asked, how they are cut, and what has no score."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.dcq import SCORES, Dcq, Letters, Quizzed, chance, equal_ones, non_preferred
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.errors import UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.quiz.files import Quiz, Quizzes
from olmodetect_jax.quiz.options import LETTERS, Options
from olmodetect_jax.records import text_key
from olmodetect_jax.requests import PredictNext
from olmodetect_jax.tokenization import Tokenizer
from tests.stub_attacks import StubTokenizer, answer, records, run

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = {"abs": 1e-9, "rel": 1e-5}  # dcq_scores.json and dcq_letters.json state these
AUDITED, RELEASE = load_protocol("audited"), load_protocol("release")
PROMPTS = Prompts.load()
EMPTY = len(PROMPTS.fill("dcq_quiz", split_name="training", dataset_name=PROMPTS.source(None), **dict.fromkeys(
    (f"option_{letter}" for letter in "abcd"), "")))  # fmt: skip
TEXT = "The cat sat on the mat."
REWORDED = Options("The cat sat on a mat.", "A cat sat on the mat.", "The cat lay on the mat.", "The dog sat there.")


def golden(name):
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def cases(name):
    file = golden(name)
    return [
        pytest.param(i, e, id=n) for i, e, n in zip(file["inputs"], file["expected"], file["case_names"], strict=True)
    ]


def protocol(**changes):
    return dataclasses.replace(AUDITED, **changes)


def reworded(text):
    return Options(*(f"{text} {letter}" for letter in LETTERS))


def dcq(measure="mean", **of):
    """The attack with the options of some texts; given none, it has those of `TEXT`."""
    quizzes = {
        text_key(text): Quiz(o, "us", "now") for text, o in (of.pop("quizzes", None) or {TEXT: REWORDED}).items()
    }
    return Dcq(measure, PROMPTS, Quizzes(Path("folder/quizzes.jsonl"), quizzes))


def prompts(request):
    return [StubTokenizer.text(ids) for ids in request.prompts]


def quiz_of(*options, source=None):
    slots = {f"option_{letter}": text for letter, text in zip("abcd", options, strict=True)}
    return PROMPTS.fill("dcq_quiz", split_name="training", dataset_name=PROMPTS.source(source), **slots)


def told(request):
    """What the stub model answers: ([4] A to D without the text, [4] the text's letter in each place)."""
    p = np.exp(answer(request).log_prob.astype(np.float64))
    return p[0, :4], p[range(1, 5), range(4)]


def hole(scores):
    (score,) = scores
    assert math.isnan(score.value) and score.n_scored == 0 and score.note is None and not score.left_out
    return score.missing


@pytest.mark.parametrize(("inputs", "expected"), cases("dcq_scores.json"))
def test_golden_scores(inputs, expected):
    def probabilities(found):
        return np.asarray([math.nan if p is None else p for p in found], np.float64)

    quizzed = [
        Quizzed(
            n_tokens=9,
            n_scored=9,
            without=probabilities((one["bdq"] or {}).get(letter) for letter in LETTERS),
            correct=probabilities(one["bcq"].get(letter, {}).get(letter) for letter in LETTERS),
        )
        for one in inputs["partition"]
    ]
    p_e = chance(np.stack([q.without for q in quizzed]))
    assert p_e == pytest.approx([expected["p_e"][letter] for letter in LETTERS], **TOLERANCE)
    assert [letter for letter, is_so in zip(LETTERS, non_preferred(p_e), strict=True) if is_so] == expected[
        "non_preferred"
    ]
    group = Group(records(*map(str, range(len(quizzed)))))
    for measure in SCORES:
        got = [score.value for score in dcq(measure).score(group, quizzed, AUDITED)]
        assert got == pytest.approx([one[measure] for one in expected["scores"]], **TOLERANCE)


def test_a_fifth_is_not_below_a_fifth():
    assert non_preferred(np.asarray([0.2, 0.19, 0.2, 0.9])).tolist() == [False, True, False, False]
    assert non_preferred(np.full(4, 0.2)).all()


def test_letters_and_places_that_are_missing():
    nan = math.nan
    without = [[0.9, 0.1, nan, nan], [0.5, nan, 0.1, nan]]
    assert chance(np.asarray(without)) == pytest.approx([0.7, 0.1, 0.1, 0.0])
    only_a = Quizzed(9, 9, without=np.asarray(without[0]), correct=np.asarray([0.85, nan, nan, nan]))
    for measure in ("kappa", "kappa_np"):  # A, the only place that was asked, is a letter the model prefers
        (score,) = dcq(measure).score(Group(records(TEXT)), [only_a], AUDITED)
        assert score.value == pytest.approx((0.85 - 0.9) / (1 - 0.9))


@pytest.mark.parametrize(("inputs", "expected"), cases("dcq_letters.json"))
def test_golden_letters(inputs, expected):
    logits = np.asarray(inputs["last_position_logits"], np.float32)
    log_prob = logits - np.log(np.exp(logits).sum())
    ids = inputs["letter_token_ids"].values()
    tokens = np.asarray([i for own in ids for i in own], np.int32)
    got = Letters(tokens, tuple(map(len, ids))).probabilities(np.stack([log_prob[tokens], log_prob[tokens] - 1]))
    assert got.dtype == np.float64
    assert got[0] == pytest.approx(list(expected.values()), **TOLERANCE)
    assert got[1] == pytest.approx(got[0] / math.e, **TOLERANCE)


class Vocabulary(StubTokenizer):
    """Single tokens by a table."""

    def __init__(self, ids):
        self.ids = ids

    def single_token(self, text):
        return self.ids.get(text)


def test_the_letters_of_olmo_2():
    ids = golden("dcq_letters.json")["olmo2_letter_token_ids"]
    table = {before + letter: i for letter, own in ids.items() for before, i in zip(("", " ", "\t"), own, strict=True)}
    letters = Letters.of(Vocabulary(table))
    assert (letters.tokens.tolist(), letters.counts) == ([i for own in ids.values() for i in own], (3,) * 5)
    table["\nC"] = 99
    letters = Letters.of(Vocabulary(table))
    assert 99 in letters.tokens and letters.counts == (3, 3, 4, 3, 3)


def test_a_token_counts_once():
    """A tokenizer that drops white space has the same token for every spelling."""
    table = {before + letter: ord(letter) for letter in "ABCDE" for before in ("", " ", "\n", "\t")}
    assert Letters.of(Vocabulary(table)).counts == (1,) * 5


@pytest.mark.parametrize("letter", "ABCDE")
def test_a_letter_without_a_token_ends_the_run(letter):
    table = {own: ord(own) for own in "ABCDE" if own != letter}
    with pytest.raises(UsageError, match=rf"no token for the letter {letter}, .* leave dcq out of --attacks"):
        run(dcq(), Group(records(TEXT)), AUDITED, tokenizer=Vocabulary(table))


@pytest.mark.parametrize("domain", ["dclm", None])
def test_the_five_quizzes_of_a_text(domain):
    group = dataclasses.replace(Group(records(TEXT)), domain=domain)
    (score,), asked = run(dcq(), group, AUDITED)
    ((request,),) = asked
    a, b, c, d = REWORDED.texts
    assert isinstance(request, PredictNext) and request.tokens.tolist() == [ord(letter) for letter in "ABCDE"]
    rows = ((a, b, c, d), (TEXT, b, c, d), (a, TEXT, c, d), (a, b, TEXT, d), (a, b, c, TEXT))
    assert prompts(request) == [quiz_of(*row, source=domain) for row in rows]
    assert (score.n_tokens, score.n_scored, score.truncated) == (len(TEXT), len(TEXT), False)
    assert score.missing is None and score.note is None
    assert score.value == told(request)[1].mean()


@pytest.mark.parametrize("measure", SCORES)
@pytest.mark.parametrize(
    ("rule", "labels", "files"),
    [
        ("pooled", [1, 1, 0, 0, 0], "aaaaa"),
        ("per_file", [1, 1, 0, 0, 0], "aabbb"),
        ("per_file", [None] * 5, "aaaaa"),
        ("pooled", [None] * 5, "aaaaa"),
    ],
)
def test_the_chance_term_is_of_the_texts_that_it_should_be(measure, rule, labels, files):
    texts = [f"{TEXT} {i}" for i in range(5)]
    attack = dcq(measure, quizzes={text: reworded(text) for text in texts})
    scores, (asked,) = run(attack, Group(records(*texts, labels=labels)), protocol(dcq_chance=rule))
    without, correct = map(np.stack, zip(*map(told, asked), strict=True))
    for i, file in enumerate(files):
        p_e = without[[other == file for other in files]].mean(axis=0)
        kappa = (correct[i] - p_e) / (1 - p_e)
        chosen = kappa[p_e < 0.2] if (p_e < 0.2).any() else kappa
        expected = {
            "mean": correct[i].mean(),
            "min": correct[i].min(),
            "kappa": kappa.mean(),
            "kappa_np": chosen.mean(),
        }
        assert scores[i].value == pytest.approx(expected[measure], rel=1e-12)


@given(st.permutations(range(6)), st.sampled_from(SCORES), st.sampled_from(["pooled", "per_file"]))
def test_the_order_of_the_records_changes_nothing(order, measure, rule):
    rows = [(f"{TEXT} {i}", i % 2) for i in range(5)] + [("no quiz of this", 1)]
    attack = dcq(measure, quizzes={text: reworded(text) for text, _ in rows[:5]})

    def values(order):
        texts, labels = zip(*(rows[i] for i in order), strict=True)
        scores, _ = run(attack, Group(records(*texts, labels=labels)), protocol(dcq_chance=rule))
        return {text: None if s.missing else s.value for text, s in zip(texts, scores, strict=True)}

    assert values(order) == values(range(6))  # to the last digit


def test_the_four_scores_ask_the_same():
    rows = records(TEXT, f"{TEXT} 2", labels=[1, 0])
    group = Group(rows, dev=rows, tuning=True)
    quizzes = {TEXT: REWORDED, f"{TEXT} 2": reworded(TEXT)}
    asked = [[r.digest for r in run(dcq(m, quizzes=quizzes), group, AUDITED)[1][0]] for m in SCORES]
    assert len(set(asked[0])) == 2 and all(own == asked[0] for own in asked)


def test_an_unknown_score():
    with pytest.raises(UsageError, match="dcq_score: unknown value 'max'"):
        dcq("max")


@pytest.mark.parametrize("context", [1000, 1001, 1002, 1003, 4096])
@pytest.mark.parametrize("longer", [0, 1, 5000])
def test_each_of_the_five_texts_is_cut_to_its_share(context, longer):
    budget = (context - (EMPTY + 8)) // 4
    assert budget > 32
    text, *options = (letter * (budget + longer) for letter in "tabcd")
    (score,), ((request,),) = run(
        dcq(quizzes={text: Options(*options)}), Group(records(text)), protocol(generation_context=context)
    )
    t, a, b, c, d = (letter * budget for letter in "tabcd")
    rows = ((a, b, c, d), (t, b, c, d), (a, t, c, d), (a, b, t, d), (a, b, c, t))
    assert prompts(request) == [quiz_of(*row) for row in rows]
    assert (score.n_tokens, score.n_scored, score.truncated) == (budget + longer, budget, longer > 0)
    assert score.missing is None


@pytest.mark.parametrize("place", range(5))
def test_one_cut_text_of_the_five_makes_the_score_truncated(place):
    texts = ["t", "a", "b", "c", "d"]
    texts[place] *= 5000
    (score,), _ = run(dcq(quizzes={texts[0]: Options(*texts[1:])}), Group(records(texts[0])), AUDITED)
    assert score.truncated and score.missing is None
    assert score.n_scored == (1 if place else (4096 - EMPTY - 8) // 4)


def test_texts_that_grow_when_they_are_cut_get_smaller_shares():
    class Broken(StubTokenizer):
        def cut(self, text, max_tokens):
            return text if len(text) <= max_tokens else text[:max_tokens] + "~~~"

    text, *options = (letter * 500 for letter in "tabcd")
    attack = dcq(quizzes={text: Options(*options)})
    (score,), ((request,),) = run(attack, Group(records(text)), protocol(generation_context=1000), tokenizer=Broken())
    budget = (1000 - EMPTY) // 4 - 3  # three of each share go to what the cut adds
    assert prompts(request)[0] == quiz_of(*(letter * budget + "~~~" for letter in "abcd"))
    assert score.n_scored == budget and score.truncated


def test_a_real_tokenizer_keeps_the_cue():
    tokenizer = Tokenizer(sample.model_directory())
    text = " ".join(f"naïve “{i}” 今天天气很好 😀!" for i in range(300))
    options = Options(*(f"{letter} {text}" for letter in LETTERS))
    (score,), ((request,),) = run(
        dcq(quizzes={text: options}), Group(records(text)), protocol(generation_context=900), tokenizer=tokenizer
    )
    cue = quiz_of(*"abcd")[-60:]
    for ids in request.prompts:
        assert 880 <= len(ids) <= 900 and tokenizer.decode(ids).endswith(cue)
    assert len(request.tokens) == 10 and len(set(request.tokens.tolist())) == 10
    assert score.truncated and score.missing is None and score.n_tokens > 900


def test_a_context_without_room():
    reason = hole(run(dcq(), Group(records(TEXT)), protocol(generation_context=128))[0])
    assert reason == "a context of 128 tokens has no room for four options of 32"
    text, *options = (letter * 100 for letter in "tabcd")
    attack, group = dcq(quizzes={text: Options(*options)}), Group(records(text))
    scores, asked = run(attack, group, protocol(generation_context=EMPTY + 4 * 32 - 1))
    assert "no room" in hole(scores) and asked == [[]]
    (score,), _ = run(attack, group, protocol(generation_context=EMPTY + 4 * 32))
    assert score.missing is None and score.n_scored == 32


def test_short_texts_fit_a_context_that_has_no_room_for_long_ones():
    attack = dcq(quizzes={"t": Options(*"abcd")})
    (score,), _ = run(attack, Group(records("t")), protocol(generation_context=EMPTY + 4))
    assert score.missing is None and not score.truncated
    assert "no room" in hole(run(attack, Group(records("t")), protocol(generation_context=EMPTY + 3))[0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"b": ""}, "option B is missing"),
        ({"a": " \n", "d": ""}, "option A, D is missing"),
        ({"c": "lone \ud800"}, "option C holds a lone surrogate"),
        ({"c": REWORDED.a, "d": "lone \ud800"}, "option D holds a lone surrogate"),
    ],
)
@pytest.mark.parametrize("limits", [AUDITED, RELEASE], ids=["audited", "release"])
def test_options_that_make_no_quiz(changes, reason, limits):
    attack = dcq(quizzes={TEXT: dataclasses.replace(REWORDED, **changes)})
    scores, asked = run(attack, Group(records(TEXT)), limits)
    assert asked == [[]] and f"no usable quiz for this text in quizzes.jsonl: {reason}" in hole(scores)


@pytest.mark.parametrize(
    ("changes", "reason", "note"),
    [
        ({"c": f"{REWORDED.a} "}, "options A and C are identical", "A = C"),
        ({"d": TEXT}, "option D is the text itself", "D = the text"),
        ({"b": TEXT, "d": REWORDED.a}, "option B is the text itself", "A = D, B = the text"),
        (dict.fromkeys("abcd", TEXT), "option A is the text itself", "A = B = C = D = the text"),
    ],
)
def test_equal_options(changes, reason, note):
    attack = dcq(quizzes={TEXT: dataclasses.replace(REWORDED, **changes)})
    scores, asked = run(attack, Group(records(TEXT)), AUDITED)
    assert asked == [[]] and f"no usable quiz for this text in quizzes.jsonl: {reason}" in hole(scores)
    (score,), ((request,),) = run(attack, Group(records(TEXT)), protocol(dcq_equal_options="keep"))
    assert score.value == told(request)[1].mean() and score.missing is None
    assert score.note == f"equal options in the quiz: {note}"


def test_what_the_presets_say_of_equal_options():
    assert [load_protocol(p).dcq_equal_options for p in ("audited", "paper", "release")] == [
        "leave_out", "leave_out", "keep",
    ]  # fmt: skip
    assert equal_ones(REWORDED, TEXT) is None


def test_options_that_differ_beyond_the_cut():
    text = "t" * 5000
    options = Options(*(letter * 5000 for letter in "abc"), "a" * 5000 + "d")
    attack = dcq(quizzes={text: options})
    scores, asked = run(attack, Group(records(text)), AUDITED)
    budget = (4096 - EMPTY - 8) // 4
    assert hole(scores) == f"the quiz is cut to {budget} tokens an option, and then options A and D are identical"
    assert asked == [[]] and scores[0].truncated
    (score,), _ = run(attack, Group(records(text)), protocol(dcq_equal_options="keep"))
    assert score.missing is None and score.truncated and score.note == "equal options in the quiz: A = D"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", range(5))
def test_a_record_without_a_score_costs_no_other_its_own(bad, row):
    """Nor does it count in the others' chance term."""
    texts = [TEXT, f"{TEXT} 2"]
    quizzes = {TEXT: REWORDED, texts[1]: reworded(TEXT), "broken": reworded("broken")}
    attack = dcq("kappa", quizzes=quizzes)

    def answered(request):
        found = answer(request)
        if "broken" in prompts(request)[0]:
            found.log_prob[row, 3] = bad
        return found

    alone, _ = run(attack, Group(records(*texts)), AUDITED)
    scores, asked = run(attack, Group(records("", texts[0], "unknown", "broken", texts[1])), AUDITED, answered)
    assert len(asked[0]) == 3
    assert [scores[1], scores[4]] == alone
    assert hole(scores[:1]) == "the record has no text"
    assert hole(scores[2:3]) == "no quiz for this text in quizzes.jsonl; make one with `olmodetect quiz`"
    assert "not finite numbers" in hole(scores[3:4])


def test_no_records_at_all():
    assert run(dcq(), Group([]), AUDITED) == ([], [[]])
