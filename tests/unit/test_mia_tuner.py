"""MIA-Tuner with the sample's tokenizer and chat template, and invented answers."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.hyperparameters import load_hyperparameters
from olmodetect_jax.attacks.mia_tuner import AROUND, LENGTH, MiaTuner
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.registry import Settings, build_attacks
from olmodetect_jax.attacks.supervised import SETTINGS, row_id
from olmodetect_jax.commands.options import ScoreOptions, check_options
from olmodetect_jax.commands.run_folder import write_scores
from olmodetect_jax.commands.settings import generation_facts
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import text_hash
from olmodetect_jax.requests import NextTokens, PredictNext, ScoreTokens, TokenStatistics
from olmodetect_jax.tokenization import Tokenizer
from olmodetect_jax.training import SoftPromptRecipe, Trained, TrainSoftPrompt
from tests.stub_attacks import answer, records, run

MODEL = sample.model_directory()
TOKENIZER = Tokenizer(MODEL)
PROMPTS = Prompts.load()
PROTOCOL = dataclasses.replace(load_protocol(), training_tokens=64, window=1024)
UNALIGNED = dataclasses.replace(PROTOCOL, mia_tuner_loss="unaligned")
QUESTION = PROMPTS.files["mia_tuner_question"].content.removesuffix("{text}")
DEV = records(
    "Call me Ishmael.", "first other", "Some years ago", "second other", "third other", labels=[1, 0, 1, 0, 0]
)
SCORED = records("never mind how long", "precisely", labels=[1, 0], start=9, subset="novel")
ENDLESS = "It is a way I have of driving off the spleen. " * 60
CHAT = '<|user|>\nWhy? {text} {answer} {{ x }} {% if y %}<|endoftext|>\n<|assistant|>\nNo "\\n" <|pad|>'


def mia_tuner(prompts=PROMPTS, setting="in-domain"):
    return MiaTuner(setting, prompts, 5e-4, 50)


def group(scored=SCORED, dev=DEV, **fields):
    return Group(scored, dev, **{"trained_for": "novel", **fields})


def invented(request):
    if isinstance(request, TrainSoftPrompt):
        return Trained(f"soft {request.digest.hex()[:12]}", request.origin, np.zeros(3, np.float32), 8)
    if isinstance(request, ScoreTokens):  # after a soft prompt the first token has a probability too
        own = answer(request)
        return TokenStatistics(*(np.append(a, np.float32(-1)) for a in (own.log_prob, own.mean, own.variance)))
    return answer(request)


def ran(own=None, protocol=PROTOCOL, attack=None, tokenizer=TOKENIZER, answers=invented):
    """Scores, the request to train and the requests after it."""
    scores, asked = run(attack or mia_tuner(), own or group(), protocol, answers, tokenizer)
    ((training,), after) = asked
    return scores, training, after


def spelt(ids):
    return TOKENIZER._fast.decode(ids.tolist(), skip_special_tokens=False)


def model_with(folder, template):
    """The sample's tokenizer with another chat template; None for no template."""
    folder.mkdir()
    shutil.copy(MODEL / "tokenizer.json", folder)
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(folder)


def prompts_with(folder, name, content):
    path = folder / f"{name}.txt"
    path.write_bytes(content.encode())
    return Prompts.load({name: path})


# What is asked


def test_examples():
    """Question, text, head of the answer, answer and end of text; the soft prompt itself is the engine's."""
    _, training, after = ran()
    parts = [(training.members, "Yes", ("Call me Ishmael.", "Some years ago"))]
    parts += [(training.non_members, "No", ("first other", "second other"))]
    for side, answer_, texts in parts:
        for ids, text in zip(side, texts, strict=True):
            assert spelt(ids) == (f"<|endoftext|><|user|>\n{QUESTION}{text}\n<|assistant|>\n{answer_}<|endoftext|>")
            assert ids[0] == ids[-1] == TOKENIZER.eos_id and ids.dtype == np.int32
    assert QUESTION.endswith(": \n")
    for ids, place, first in zip(
        (*training.members, *training.non_members), training.answers, ["Y", "Y", "No", "No"], strict=True
    ):
        assert spelt(ids[:place]).endswith("<|assistant|>\n") and spelt(ids[place : place + 1]) == first
    recipe = training.recipe
    assert (spelt(np.array([recipe.yes])), spelt(np.array([recipe.no]))) == ("Y", "No")  # Yes is two tokens here
    for request, record in zip(after, SCORED, strict=True):
        (ids,) = request.prompts
        assert spelt(ids) == f"<|endoftext|><|user|>\n{QUESTION}{record.text}\n<|assistant|>\n"
        assert request.tokens.tolist() == [recipe.yes, recipe.no] and request.adapter == invented(training).name
    assert all(isinstance(request, PredictNext) for request in after)


def test_recipe():
    recipe = ran()[1].recipe
    start = PROMPTS.files["mia_tuner_start"].content
    ids = tuple(TOKENIZER.encode(start, 99).ids.tolist())
    assert recipe == SoftPromptRecipe(ids, recipe.yes, recipe.no, 50, False, 0.01, 5e-4, 50, 8, 42)
    assert 10 < len(ids) < LENGTH == 50
    hyperparameters = load_hyperparameters("any", {"mia_tuner_epochs": 3, "mia_tuner_learning_rate": 0.01})
    made = build_attacks([row_id("mia_tuner", s) for s in SETTINGS], Settings(hyperparameters, Path("none")))
    assert [a.id for a in made] == ["mia_tuner", "mia_tuner_lodo", "mia_tuner_pooled"]
    trained = [ran(attack=attack)[1] for attack in made]
    assert {(t.recipe.epochs, t.recipe.learning_rate) for t in trained} == {(3, 0.01)}
    assert [t.origin.setting for t in trained] == list(SETTINGS) and len({t.digest for t in trained}) == 1


def test_a_long_start_is_cut_and_an_empty_one_refused(tmp_path):
    recipe = ran(attack=mia_tuner(prompts_with(tmp_path, "mia_tuner_start", ENDLESS)))[1].recipe
    assert recipe.start == tuple(TOKENIZER.encode(ENDLESS, 50).ids.tolist())
    with pytest.raises(UsageError, match=r"mia_tuner_start: the file has no words"):
        ran(attack=mia_tuner(prompts_with(tmp_path, "mia_tuner_start", "")))


def test_pairs_are_cut_to_the_smaller_class_in_the_order_of_the_file():
    _, training, _ = ran()
    assert len(training.members) == len(training.non_members) == 2 and training.answers.shape == (4,)
    texts = ("Call me Ishmael.", "Some years ago", "first other", "second other")
    assert training.origin.sources == tuple(map(text_hash, texts))
    origin = training.origin
    assert (origin.attack, origin.setting, origin.trained_for) == ("mia_tuner", "in-domain", "novel")
    _, other, _ = ran(group(dev=[*DEV[::-1], *records("", labels=[1])]))
    backwards = ("Some years ago", "Call me Ishmael.", "third other", "second other")
    assert other.origin.sources == tuple(map(text_hash, backwards))


def test_training_texts_that_are_scored_or_too_few():
    asking = mia_tuner().requests(group(held_out=frozenset({text_hash("Some years ago")})), TOKENIZER, PROTOCOL)
    with pytest.raises(DataError, match=r"\(record 'r2'\): MIA-Tuner would learn from a text that it is to score"):
        next(asking)
    for dev, name in ((DEV[1:], "members"), ([*DEV[:3:2], DEV[1]], "non-members")):
        with pytest.raises(DataError, match=f"MIA-Tuner on subset novel: 1 development {name}"):
            next(mia_tuner().requests(group(dev=dev), TOKENIZER, PROTOCOL))
    held_out = frozenset({b"other"})
    assert ran(group(held_out=held_out))[1].origin.held_out == held_out


# Length


def test_a_text_is_cut_to_its_first_tokens():
    _, training, after = ran(group(records(ENDLESS, subset="novel"), [*records(ENDLESS), *DEV[1:]]))
    first = TOKENIZER.cut(ENDLESS, 64)
    assert len(TOKENIZER.encode(first, 999).ids) == 64 and ENDLESS.startswith(first)
    for ids in (training.members[0], after[0].prompts[0]):
        assert f"\n{first}\n<|assistant|>" in spelt(ids) and first[:-1] + first[-1] * 2 not in spelt(ids)


def test_a_cut_inside_a_character_leaves_a_replacement_character():
    text = "日" * 40  # three tokens each, of which 64 hold 21 and a third
    scores, training, after = ran(group(records(text, subset="novel"), [*records(text), *DEV[1:]]))
    for ids in (training.members[0], after[0].prompts[0]):
        assert f"\n{'日' * 21}\N{REPLACEMENT CHARACTER}\n<|assistant|>" in spelt(ids)
    assert (scores[0].n_tokens, scores[0].n_scored, scores[0].truncated) == (120, 64, True)


def test_what_looks_like_a_template_stays_text():
    """Chat markers and special tokens too, which keep their ids (spec 2.3)."""
    own = group(records(CHAT, subset="novel"), [*records(CHAT), *DEV[1:]])
    _, training, after = ran(own, dataclasses.replace(PROTOCOL, training_tokens=256))
    plain = spelt(after[0].prompts[0])
    assert plain == f"<|endoftext|><|user|>\n{QUESTION}{CHAT}\n<|assistant|>\n"
    assert list(after[0].prompts[0]).count(TOKENIZER.eos_id) == 2
    assert spelt(training.members[0]) == f"{plain}Yes<|endoftext|>"
    assert training.answers[0] == len(after[0].prompts[0])


@settings(max_examples=60)
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).map(str.strip).filter(bool))
def test_any_text_stands_unchanged_between_question_and_answer(text):
    room = dataclasses.replace(PROTOCOL, training_tokens=256)
    scores, training, after = ran(group(records(text, subset="novel"), [*records(text), *DEV[1:]]), room)
    prompt, example = after[0].prompts[0], training.members[0]
    assert spelt(prompt) == f"<|endoftext|><|user|>\n{QUESTION}{text}\n<|assistant|>\n"
    assert len(prompt) == training.answers[0] and spelt(example) == f"{spelt(prompt)}Yes<|endoftext|>"
    np.testing.assert_array_equal(example[: len(prompt)], prompt)
    assert 0 < scores[0].details["p_yes"] < 1


def around(prompts):
    """Tokens that are put around a text, with the answer of a member."""
    return len(TOKENIZER.chat_ids(prompts.fill("mia_tuner_question", text="No"), "Yes")) - 1


def test_examples_over_the_cap_are_dropped_and_texts_over_it_have_no_score(tmp_path):
    """The cap counts the answer of an example; a prompt ends before it, so one more token fits."""
    words = " sea" * (AROUND + 1 - around(PROMPTS))
    prompts = prompts_with(tmp_path, "mia_tuner_question", f"{QUESTION.strip()}{words} \n{{text}}")
    over = around(prompts) - AROUND
    most = PROTOCOL.training_tokens + AROUND
    assert over == 1

    def text(tokens):
        found = "No" + " sea" * (tokens - 1)
        assert len(TOKENIZER.encode(found, 999).ids) == tokens
        return found

    fits, too_long = text(63), text(64)
    dev = [*records(too_long, fits, "short", too_long, labels=[1, 1, 1, 1]), *DEV[1::2], *DEV[4:]]
    scored = records(fits, too_long, too_long + " sea" * 9, ENDLESS, subset="novel")
    scores, training, after = ran(group(scored, dev), attack=mia_tuner(prompts))
    assert [len(ids) for ids in training.members][0] == most and len(training.members) == 2
    assert training.origin.sources[:2] == (text_hash(fits), text_hash("short"))
    lengths = [len(request.prompts[0]) for request in after]
    assert max(lengths) <= most and len(lengths) == 4 and not any(s.missing for s in scores)
    longer = prompts_with(tmp_path, "mia_tuner_question", f"{QUESTION.strip()}{words}{' sea' * 30} \n{{text}}")
    scores, _, after = ran(group(scored, DEV), attack=mia_tuner(longer))
    assert not after and {s.missing for s in scores} == {f"text and question do not fit {most} tokens"}
    assert all(math.isnan(s.value) and not s.details for s in scores)
    with pytest.raises(DataError, match=f"novel: 0 development members that fit {most} tokens with"):
        ran(group(dev=[*records(too_long, ENDLESS), *DEV[1::2]]), attack=mia_tuner(longer))


@pytest.mark.parametrize("protocol", [PROTOCOL, UNALIGNED])
def test_a_context_that_leaves_no_room(protocol):
    for window, tokens in ((LENGTH + AROUND, 64), (10, 64)):
        small = dataclasses.replace(protocol, window=window, training_tokens=tokens)
        with pytest.raises(
            UsageError, match=f"mia_tuner: with window={window} and training_tokens=64 there is no room"
        ):
            next(mia_tuner().requests(group(), TOKENIZER, small))
    room = dataclasses.replace(protocol, window=LENGTH + AROUND + 2)
    _, _, after = ran(group(records(ENDLESS, subset="novel")), room)
    if protocol is UNALIGNED:
        assert len(after[0].ids) == 2
    else:
        assert f"\n{TOKENIZER.cut(ENDLESS, 2)}\n" in spelt(after[0].prompts[0])


# Chat templates


TURNS = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}"
HEAD = "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"


@pytest.mark.parametrize(
    "template",
    [
        TURNS + "{% if add_generation_prompt %}<|user|>\n{% endif %}",  # the answer has another head
        "{% for m in messages %}{{ m['content'] }}\n{% endfor %}" + HEAD,  # or none
        "<|user|>\n{{ messages[0]['content'] }}\n<|assistant|>\n",  # the answer is not written
    ],
)
def test_an_answer_that_does_not_continue_the_question(template, tmp_path):
    tokenizer = model_with(tmp_path / "model", template)
    with pytest.raises(UsageError, match="model: in its chat template an answer does not begin where the question end"):
        ran(tokenizer=tokenizer)


def test_answers_must_begin_apart_and_the_same_after_every_text(tmp_path):
    alike = TURNS.replace("{{ m['content'] }}", "{% if m['role'] == 'assistant' %}I say {% endif %}{{ m['content'] }}")
    with pytest.raises(UsageError, match=r"alike: its tokenizer writes the answers Yes and No .*\[42\] and \[42\]"):
        ran(tokenizer=model_with(tmp_path / "alike", alike + HEAD))
    word = "{% if m['role'] == 'assistant' and 'Ishmael' in messages[0]['content'] %}So {% endif %}{{ m['content'] }}"
    changing = TURNS.replace("{{ m['content'] }}", word)
    with pytest.raises(UsageError, match=r"changing: .* with first tokens \[\d+, \d+\] and \[\d+\]: they must differ"):
        ran(tokenizer=model_with(tmp_path / "changing", changing + HEAD))


def test_a_model_without_a_chat_template(tmp_path):
    tokenizer = model_with(tmp_path / "base", None)
    with pytest.raises(UsageError, match="base: no chat template.*leave self_critique and mia_tuner out"):
        ran(tokenizer=tokenizer)
    scores, _, _ = ran(tokenizer=tokenizer, protocol=UNALIGNED)
    assert all(math.isfinite(s.value) for s in scores)


def test_own_wording(tmp_path):
    files = {"mia_tuner_question": "Seen?\r\n{text}\n", "mia_tuner_start": "say it again"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode())
    words = tuple(f"{name}={tmp_path / name}" for name in files)
    for row in ("mia_tuner", "mia_tuner_lodo", "mia_tuner_pooled"):
        check_options(ScoreOptions(MODEL, tmp_path, tmp_path, prompts=words), [row])
    with pytest.raises(
        UsageError, match="--prompt mia_tuner_question goes with the attack mia_tuner or mia_tuner_lodo"
    ):
        check_options(ScoreOptions(MODEL, tmp_path, tmp_path, prompts=words), ["guided"])
    made_from = Settings(
        load_hyperparameters("any", {}), Path("none"), prompts=Prompts.load({n: tmp_path / n for n in files})
    )
    (attack,) = build_attacks(["mia_tuner_lodo"], made_from)
    _, training, after = ran(attack=attack)
    assert spelt(after[0].prompts[0]) == f"<|endoftext|><|user|>\nSeen?\r\n{SCORED[0].text}\n\n<|assistant|>\n"
    assert spelt(np.array(training.recipe.start)) == "say it again"
    facts = generation_facts([attack], made_from)["prompts"]
    assert {name: fact["path"] for name, fact in facts.items()} == {name: str(tmp_path / name) for name in files}
    (tmp_path / "mia_tuner_question").write_text("no slot")
    with pytest.raises(UsageError, match=r"mia_tuner_question: no slot \{text\}"):
        Prompts.load({"mia_tuner_question": tmp_path / "mia_tuner_question"})


# Scores


def margins(*pairs):
    left = iter(pairs)
    return lambda r: NextTokens(np.array([next(left)], np.float32)) if isinstance(r, PredictNext) else invented(r)


def test_margin_and_p_yes():
    pairs = [(-1.5, -1.0), (-1.0, -1.5), (-0.25, -200.5), (-200.5, -0.25), (-3.0, -3.0)]
    scores, _, _ = ran(group(records("a b", "c d", "e f", "g h", "i j", subset="novel")), answers=margins(*pairs))
    assert [s.value for s in scores] == [-0.5, 0.5, 200.25, -200.25, 0.0]
    p_yes = [s.details["p_yes"] for s in scores]
    assert p_yes[0] == pytest.approx(1 / (1 + math.exp(0.5)), rel=1e-15) and p_yes[0] + p_yes[1] == pytest.approx(1)
    assert p_yes[2] == 1.0 and 0 < p_yes[3] < 1e-80 and p_yes[4] == 0.5
    assert all(list(s.details) == ["p_yes"] for s in scores)


def test_golden_scores(golden):
    facts = json.loads((golden / "mia_tuner_tiny.json").read_text())
    expected = [*facts["eval_before"], *facts["eval_after"]]
    pairs = [(e["logprob_yes"], e["logprob_no"]) for e in expected]
    texts = records(*(f"text {i}" for i in range(len(pairs))), subset="novel")
    scores, _, _ = ran(group(texts), answers=margins(*pairs))
    tolerance = facts["tolerances"]
    np.testing.assert_allclose(
        [s.value for s in scores], [e["margin"] for e in expected], rtol=0, atol=tolerance["logits"]
    )
    np.testing.assert_allclose(
        [s.details["p_yes"] for s in scores], [e["p_yes"] for e in expected], rtol=0, atol=tolerance["p_yes"]
    )


def test_texts_without_a_score_and_score_lines(tmp_path):
    own = group(records("", "I", "two words", "no number", "endless", "both endless", ENDLESS, subset="novel"))
    pairs = [(-1.0, -2.0), (-1.0, -2.0), (math.nan, -1.0), (-1.0, -math.inf), (-math.inf,) * 2, (-2.0, -1.0)]
    scores, _, after = ran(own, answers=margins(*pairs))
    assert len(after) == 6  # nothing is asked of an empty text; a text of one token has a score like any other
    write_scores(tmp_path / "s.jsonl", own.records, scores, None)
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [line["score"] for line in lines] == [None, 1.0, 1.0, None, None, None, -1.0]
    assert lines[0]["missing"] == "the record has no text" and all(math.isnan(s.value) for s in scores if s.missing)
    assert all(line["missing"].startswith("the model's statistics are not finite") for line in lines[3:6])
    assert ["p_yes" in line for line in lines] == [line["score"] is not None for line in lines]
    assert [line["n_tokens"] for line in lines][:2] == [0, 1]
    assert lines[6]["truncated"] and lines[6]["n_scored"] == 64 < lines[6]["n_tokens"]
    assert run(mia_tuner(), group([]), PROTOCOL, invented, TOKENIZER) == ([], [])


def test_unaligned():
    """No question: the texts themselves, and minus their mean loss over every token, the first one's too."""
    own = group(records("never mind how long", "", "I", ENDLESS, subset="novel"), [*records(ENDLESS, "I"), *DEV])
    scores, training, after = ran(own, UNALIGNED)
    assert [spelt(ids) for ids in training.members[1:]] == ["Call me Ishmael.", "Some years ago"]
    assert len(training.members[0]) == 64 and len(training.non_members) == 3
    assert training.recipe.unaligned and not training.answers.any()
    assert training.origin.sources[:2] == (text_hash(ENDLESS), text_hash("Call me Ishmael."))
    assert [(spelt(r.ids), r.adapter) for r in after] == [
        ("never mind how long", invented(training).name), (TOKENIZER.cut(ENDLESS, 64), invented(training).name),
    ]  # fmt: skip
    expected = [float(np.mean(invented(request).log_prob, dtype=np.float64)) for request in after]
    assert [s.value for s in scores if not s.missing] == expected and max(expected) < 0
    assert [bool(s.missing) for s in scores] == [False, True, True, False] and not any(s.details for s in scores)
    assert scores[1].missing == "the record has no text" and "the text is one token" in scores[2].missing
