"""FSD: its base columns, deviations and training texts, and the golden files `fsd_tiny*.json` from their logits."""

import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from olmodetect_jax.attacks.base import Group, ScoredText
from olmodetect_jax.attacks.fsd import Fsd
from olmodetect_jax.attacks.hyperparameters import load_hyperparameters
from olmodetect_jax.attacks.lower import Lower
from olmodetect_jax.attacks.min_k import MinK
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.reductions import smallest_count
from olmodetect_jax.attacks.registry import Settings, attack_ids, build_attacks
from olmodetect_jax.attacks.rounds import Job, run_jobs
from olmodetect_jax.attacks.supervised import FSD_BASES, SETTINGS, row_id
from olmodetect_jax.errors import DataError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import text_hash
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.scoring.statistics import logit_statistics, released_statistics
from olmodetect_jax.training import LoraRecipe, Trained, TrainLora
from tests.stub_attacks import StubTokenizer, answer, records, run

GOLDEN = Path(__file__).parents[1] / "golden"
AUDITED = load_protocol()
SHORT = dataclasses.replace(AUDITED, training_tokens=8)
KEYS = {"ppl": "loss", "zlib": "zlib", "lower": "lowercase", "min_k": "mink", "min_k_plus_plus": "minkpp"}
DEV = records("a member", "First of all", "b member", "second", "third one", labels=[1, 0, 1, 0, 0], subset="novel")
SCORED = records(
    "One Text", "another Text of the test split", "The third", "4th One", labels=[1, 1, 0, 0], subset="novel"
)


def group(scored=SCORED, dev=DEV, **fields):
    return Group(scored, dev, **{"trained_for": "novel", **fields})


def fsd(base=None, setting="in-domain"):
    return Fsd(base or Ppl(), setting, LoraRecipe())


def attacks(ids, **overrides):
    hyperparameters = load_hyperparameters("any", overrides)
    return build_attacks(ids, Settings(hyperparameters, Path("no table")))


def tuned(request, spoiled=()):
    """Trains at once; under an adapter all is a little more probable. Texts in `spoiled` have no finite statistics."""
    if isinstance(request, TrainLora):
        return Trained(f"adapter {request.digest.hex()[:12]}", request.origin, np.zeros(3, np.float32), 8)
    plain = answer(request)
    if (StubTokenizer.text(request.ids), bool(request.adapter)) in spoiled:
        return TokenStatistics(plain.log_prob * np.float32(np.nan), plain.mean, plain.variance)
    share = np.float32(0.75 if request.adapter else 1)
    return TokenStatistics(plain.log_prob * share, plain.mean * share, plain.variance)


def run_all(made, groups, protocol=AUDITED):
    """The scores by (attack id, place of the group), and the distinct requests of each round."""
    rounds = []

    def engine(requests):
        rounds.append(list(requests))
        return {r.digest: tuned(r) for r in requests}

    jobs = {(a.id, place): Job(a, g, protocol) for a in made for place, g in enumerate(groups)}
    return run_jobs(jobs, StubTokenizer(), engine), rounds


def trainings(rounds):
    return [r for requests in rounds for r in requests if isinstance(r, TrainLora)]


# Scores


@pytest.mark.parametrize("k", [0.2, 0.5])
def test_base_columns_are_those_of_the_base_attacks(k):
    """With another k the base columns differ: FSD keeps the published one."""
    made = attacks(attack_ids("fsd", "in-domain,lodo"), min_k=k, min_k_plus_plus=k)
    scores, rounds = run_all(made, [group()])
    for setting in ("in-domain", "lodo"):
        for base in FSD_BASES:
            column, own = scores[row_id(f"fsd_{base}", setting), 0], [s.value for s in scores[base, 0]]
            same = [s.details["base_score"] for s in column] == own
            assert same == (k == 0.2 or "min_k" not in base), base
            for score in column:
                assert set(score.details) == {"base_score", "tuned_score"} and not score.missing
                assert score.value == score.details["base_score"] - score.details["tuned_score"] != 0
                assert score.details["tuned_score"] != score.details["base_score"]
            for deviation, plain in zip(column, scores[base, 0], strict=True):
                kept = {"value": 0.0, "details": {}}
                assert dataclasses.replace(deviation, **kept) == dataclasses.replace(plain, **kept)
    plain_alone = run_all([a for a in made if a.id in FSD_BASES], [group()])[1][0]
    assert {r.digest for r in rounds[0]} == {r.digest for r in plain_alone}  # no pass over the base is added
    under = {(r.ids.tobytes(), r.adapter) for r in rounds[2]}
    (request,) = trainings(rounds)
    assert under == {(r.ids.tobytes(), tuned(request).name) for r in plain_alone}


def test_ids_and_recipe():
    made = {a.id: a for s in SETTINGS for a in attacks([row_id(f"fsd_{b}", s) for b in FSD_BASES])}
    assert set(made) == {row_id(f"fsd_{b}", s) for b in FSD_BASES for s in SETTINGS}
    recipe = LoraRecipe(
        8, 16.0, 0.05, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 1e-3, 0.01, 1.0,
        3, 8, 42,
    )  # fmt: skip
    assert {a.recipe for a in made.values()} == {recipe} and made["fsd_ppl_lodo"].needs_dev
    (other,) = attacks(["fsd_ppl"], fsd_rank=4, fsd_learning_rate="1e-4", fsd_epochs=1)
    assert other.recipe == dataclasses.replace(recipe, rank=4, alpha=8.0, learning_rate=1e-4, epochs=1)


@pytest.mark.parametrize(
    ("base", "spoiled", "hole"),
    [
        (Ppl(), ("The third", False), "the model's statistics are not finite"),
        (MinK(0.2), ("The third", True), "under the tuned model: the model's statistics are not finite"),
        (Lower(), ("one text", False), "in lower case: the model's statistics"),
        (Lower(), ("one text", True), "under the tuned model: in lower case: the model's statistics"),
    ],
)
def test_a_hole_of_either_pass_is_a_hole(base, spoiled, hole):
    found, _ = run(fsd(base), group(), AUDITED, answer=lambda r: tuned(r, {spoiled}))
    holes = [s for s in found if s.missing]
    assert len(holes) == 1 and holes[0].missing.startswith(hole) and math.isnan(holes[0].value)
    assert not holes[0].details and all(s.details and math.isfinite(s.value) for s in found if not s.missing)
    assert found.index(holes[0]) == [r.text.lower() for r in SCORED].index(spoiled[0].lower())


def test_texts_without_a_score():
    found, asked = run(fsd(), group(records("", "x", "good")), AUDITED, answer=tuned)
    assert [s.missing for s in found] == [
        "the record has no text", "there is nothing to score after the first token", None,
    ]  # fmt: skip
    assert [len(requests) for requests in asked] == [1, 1, 1]
    assert run(fsd(), group([]), AUDITED, answer=tuned) == ([], [])


# What is learnt from


def learnt(dev, protocol=SHORT, **fields):
    _, asked = run(fsd(), group(dev=dev, **fields), protocol, answer=tuned)
    (request,) = trainings(asked)
    return request


def test_non_members_in_the_order_of_the_file_cut_to_the_training_tokens():
    request = learnt([*DEV, *records("x", "", "exactly8", labels=[0, 0, 0], start=5)])
    assert [StubTokenizer.text(ids) for ids in request.texts] == ["First of", "second", "third on", "exactly8"]
    assert request.origin.sources == tuple(map(text_hash, ("First of all", "second", "third one", "exactly8")))
    origin = request.origin
    assert (origin.attack, origin.setting, origin.trained_for) == ("fsd", "in-domain", "novel")
    assert learnt(DEV, AUDITED).texts[0].tobytes() == StubTokenizer.request("First of all").ids.tobytes()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.text("abcd", max_size=12), st.sampled_from([0, 1])), max_size=8))
def test_any_development_texts(pairs):
    dev = records(*(text for text, _ in pairs), labels=[label for _, label in pairs])
    expected = [text[:8] for text, label in pairs if label == 0 and len(text) > 1]
    if len(expected) < 2:
        with pytest.raises(DataError, match=f"FSD on subset novel: {len(expected)} development non-members of two tok"):
            learnt(dev)
        return
    assert [StubTokenizer.text(ids) for ids in learnt(dev).texts] == expected


def test_nothing_is_asked_before_the_training_texts_are_checked():
    held_out = frozenset({text_hash("second"), text_hash("a member")})
    with pytest.raises(DataError, match=r"file, line 4 \(record 'r3'\): FSD would learn from a text that it is to sc"):
        next(fsd().requests(group(held_out=held_out), StubTokenizer(), AUDITED))
    with pytest.raises(DataError, match="FSD on subset novel: 1 development non-members of two tokens or more"):
        next(fsd().requests(group(dev=DEV[:4:3]), StubTokenizer(), AUDITED))
    # Members are never learnt from, so one that is scored does no harm; what is scored is handed on.
    request = learnt(DEV, held_out=frozenset({text_hash("a member")}))
    assert request.origin.held_out == {text_hash("a member")}


def test_rows_and_subsets_that_share_a_pool_share_one_adapter():
    rows = attacks([f"fsd_{base}_lodo" for base in FSD_BASES])
    other = records("some other text", "and one more", labels=[1, 0], subset="code")
    _, rounds = run_all(rows, [group(), group(other)])
    assert len(trainings(rounds)) == 1
    sides = [dataclasses.replace(r, side=side) for side in ("chosen", "rejected") for r in SCORED]
    pools = [dataclasses.replace(r, side=side, text=f"{side} {r.text}") for side in ("chosen", "rejected") for r in DEV]
    _, rounds = run_all(rows, [group(sides, DEV, sides_apart=False)])
    assert [r.origin.trained_for for r in trainings(rounds)] == ["novel"]
    _, rounds = run_all(rows, [group(sides, pools)])
    assert [r.origin.trained_for for r in trainings(rounds)] == ["chosen", "rejected"]
    # The settings differ in name only: the same texts make the same adapter.
    _, rounds = run_all(attacks(["fsd_ppl", "fsd_ppl_lodo", "fsd_zlib_pooled"]), [group()])
    assert len(trainings(rounds)) == 1
    _, rounds = run_all(attacks(["fsd_ppl"]), [group(), group(dev=DEV[::-1])])
    assert len(trainings(rounds)) == 2


# Golden files


def golden():
    for name in ("fsd_tiny", "fsd_tiny_stress"):
        for scoring in ("float32", "bfloat16"):
            yield pytest.param(name, scoring, id=f"{name}-{scoring}")


def scored_texts(facts, tensors, key, statistics):
    """The texts of a golden file, or their lower-cased forms, with the statistics of stored logits."""
    lower = key.endswith("lower")
    texts = []
    for i, ids in enumerate(facts["eval_lower_ids" if lower else "eval_ids"]):
        targets = np.asarray(ids[1:], np.int32)
        logits = tensors[f"eval{i}.{key}_logits"]
        padded = np.zeros((24, 1, logits.shape[1]), np.float32)  # one compiled shape for all
        padded[: len(logits), 0] = logits
        own = jax.jit(statistics)(jnp.asarray(padded), jnp.asarray(np.resize(targets, 24)[:, None]))
        arrays = [np.asarray(a)[: len(targets), 0] for a in own]
        text = f"text {i}"
        texts.append(ScoredText(text, text, targets, *arrays, len(ids), False, 0, ends=False))
    return texts


@pytest.mark.parametrize(("name", "scoring"), list(golden()))
def test_golden_scores(name, scoring, monkeypatch):
    facts, tensors = json.loads((GOLDEN / f"{name}.json").read_text()), load_file(GOLDEN / f"{name}.safetensors")
    released = scoring == "bfloat16"
    statistics = released_statistics if released else logit_statistics
    expected = facts["bf16_scoring"] if released else facts
    lengths = {f"text {i}": n for i, n in enumerate(facts["eval_zlib_bytes"])}
    monkeypatch.setattr("olmodetect_jax.attacks.zlib.compressed_length", lengths.__getitem__)
    protocol = dataclasses.replace(AUDITED, score_dtype=scoring)
    read = {key: scored_texts(facts, tensors, key, statistics) for key in ("base", "base_lower", "ft", "ft_lower")}
    count = len(facts["eval_ids"])
    assert len(expected["base"]) == len(expected["finetuned"]) == len(expected["deviation"]) == count
    for attack in attacks([f"fsd_{base}" for base in FSD_BASES]):
        key = KEYS[attack.base.id]
        given = [(read[k], read[f"{k}_lower"]) if key == "lowercase" else read[k] for k in ("base", "ft")]
        found = attack.score(group(records(*lengths)), given, protocol)
        got = {
            "base": [s.details["base_score"] for s in found],
            "finetuned": [s.details["tuned_score"] for s in found],
            "deviation": [s.value for s in found],
        }
        # From the stored logits the rounded scores are exact.
        atol = 1e-12 if released else facts["tolerances"]["minkpp" if key == "minkpp" else "scores"]
        for what, values in got.items():
            np.testing.assert_allclose(
                values, [e[key] for e in expected[what]], rtol=0, atol=atol, err_msg=f"{attack.id} {what}"
            )
    for e, text in zip(expected["base"], read["base"], strict=True):
        assert e["n_target_tokens"] == len(text.targets)
        assert e["k_count"] == smallest_count(facts["mink_k"], len(text.targets)) and facts["minkpp_k"] == 0.2


def test_what_is_asked_under_an_adapter_is_another_request():
    ids = np.arange(5, dtype=np.int32)
    assert len({ScoreTokens(ids, adapter=name).digest for name in ("", "a", "b")}) == 3
