"""The likelihood attacks against the golden files `likelihood_*.json`."""

import json
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conversion.load import load_hf
from olmodetect_jax.attacks.base import ScoredText
from olmodetect_jax.attacks.dc_pdd import calibrated_mean
from olmodetect_jax.attacks.frequencies import FrequencyTable, count_tokens
from olmodetect_jax.attacks.lower import Lower
from olmodetect_jax.attacks.min_k import MinK
from olmodetect_jax.attacks.min_k_plus_plus import MinKPlusPlus
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.recall import conditional_mean
from olmodetect_jax.attacks.reductions import mean as mean_of
from olmodetect_jax.attacks.reductions import smallest_count, total
from olmodetect_jax.attacks.zlib import Zlib, compressed_length
from olmodetect_jax.engine import Engine
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import read_jsonl, scored_text
from olmodetect_jax.requests import ScoreTargets, ScoreTokens, Targets
from olmodetect_jax.scoring.kept import Provenance
from olmodetect_jax.scoring.statistics import logit_statistics, released_statistics, token_statistics
from tests import tolerances as tol

AUDITED = load_protocol("audited")
RELEASE = load_protocol("release")


def load(golden, name):
    return json.loads((golden / f"likelihood_{name}.json").read_text())


def cases(name):
    from pathlib import Path

    return load(Path(__file__).parents[1] / "golden", name)["cases"]


def number(value):
    return float(value.replace("Infinity", "inf")) if isinstance(value, str) else value


def scored(text, targets, log_prob, mean=None, variance=None):
    zeros = np.zeros(len(log_prob), np.float32)
    arrays = [np.asarray(a if a is not None else zeros) for a in (log_prob, mean, variance)]
    return ScoredText(text, text, np.asarray(targets, np.int32), *arrays, len(log_prob) + 1, False, 0, ends=False)


def statistics_of(ids, logits, function):
    """[T, B=1, V] logits in, three [T-1] arrays out."""
    targets = np.asarray(ids, np.int32)[1:, None]
    return [np.asarray(s)[:, 0] for s in jax.jit(function)(np.asarray(logits, np.float32)[:-1, None], targets)]


@pytest.mark.parametrize("case", cases("logits"), ids=lambda c: c["name"])
def test_logits(case):
    inputs, expected = case["inputs"], case["expected"]
    ids = inputs["input_ids"]
    log_prob, mean, variance = statistics_of(ids, inputs["logits"], logit_statistics)
    assert len(log_prob) == expected["n_scored"]
    text = scored(inputs["text"], ids[1:], log_prob, mean, variance)
    if not expected["n_scored"]:
        assert expected["ppl"] == "skipped"
        assert all(a.value(text, AUDITED).missing for a in (Ppl(), Zlib(), MinK(0.2), MinKPlusPlus(0.2)))
        return
    np.testing.assert_allclose(log_prob, expected["token_logprobs"], rtol=0, atol=tol.STATISTICS_LOG_PROB)
    np.testing.assert_allclose(mean, expected["mu"], rtol=0, atol=tol.STATISTICS_MEAN)
    for key in ("var", "var_float64_reference"):
        if key in expected:
            np.testing.assert_allclose(
                variance, expected[key], rtol=tol.STATISTICS_VARIANCE_REL, atol=tol.STATISTICS_VARIANCE_ABS
            )
    assert (variance >= 0).all()
    assert Ppl().value(text, AUDITED).value == pytest.approx(expected["ppl"], abs=tol.STATISTICS_LOG_PROB)
    assert total(log_prob, AUDITED) == pytest.approx(expected["sum_ll"], abs=tol.SUM_LL)
    assert compressed_length(inputs["text"]) == expected["zlib_bytes"]
    assert Zlib().value(text, AUDITED).value == pytest.approx(expected["zlib"], rel=tol.ZLIB_REL)
    for k, value in expected["mink"].items():
        assert MinK(float(k)).value(text, AUDITED).value == pytest.approx(value, abs=tol.MIN_K)
        assert smallest_count(float(k), expected["n_scored"]) == expected["k_count"][k]
    if isinstance(expected["minkpp"], str):  # uniform logits: noise below 1 in size
        assert all(abs(MinKPlusPlus(float(k)).value(text, AUDITED).value) < 1 for k in expected["k_count"])
        return
    for k, value in expected["minkpp"].items():
        rel = tol.MIN_K_PLUS_PLUS_NEAR_ONE_HOT_REL if case["name"] == "near_one_hot" else tol.MIN_K_PLUS_PLUS
        got = MinKPlusPlus(float(k)).value(text, AUDITED).value
        assert got == pytest.approx(value, rel=rel, abs=tol.MIN_K_PLUS_PLUS)


def test_zlib_with_the_mean_is_the_original(golden):
    protocol = load_protocol("audited", {"zlib_numerator": "mean"})
    for case in cases("logits"):
        original = case["expected"].get("original_repo", {}).get("zlib")
        if original is not None and math.isfinite(number(original)):
            ids = case["inputs"]["input_ids"]
            log_prob, mean, variance = statistics_of(ids, case["inputs"]["logits"], logit_statistics)
            text = scored(case["inputs"]["text"], ids[1:], log_prob, mean, variance)
            assert Zlib().value(text, protocol).value == pytest.approx(original, rel=tol.ZLIB_REL)


@pytest.mark.parametrize("case", cases("bf16"), ids=lambda c: c["name"])
def test_bfloat16_mode(case):
    ids, expected = case["inputs"]["input_ids"], case["expected"]
    logits = case["inputs"]["logits_bf16"]
    log_prob, mean, variance = statistics_of(ids, logits, released_statistics)
    assert np.mean(log_prob == np.float32(expected["token_logprobs"])) >= tol.BF16_EXACT_SHARE
    np.testing.assert_allclose(log_prob, expected["token_logprobs"], rtol=tol.BF16_REL)
    np.testing.assert_allclose(mean, expected["mu"], rtol=tol.BF16_REL)
    allowed = tol.BF16_VARIANCE_ABS * np.maximum(1, np.square(expected["mu"]))
    assert (np.abs(variance - np.asarray(expected["var"])) <= allowed).all()
    text = scored("text", ids[1:], log_prob, mean, variance)
    assert Ppl().value(text, RELEASE).value == pytest.approx(expected["ppl"], rel=tol.BF16_REL)
    assert total(log_prob, RELEASE) == pytest.approx(expected["sum_ll"], rel=tol.BF16_REL)
    for k, value in expected["mink"].items():
        assert MinK(float(k)).value(text, RELEASE).value == pytest.approx(value, rel=tol.BF16_REL)
    for k, value in expected["minkpp"].items():
        got = MinKPlusPlus(float(k)).value(text, RELEASE).value
        assert got == pytest.approx(value, rel=tol.BF16_MIN_K_PLUS_PLUS_REL)
    assert float(np.mean(log_prob, dtype=np.float64)) == pytest.approx(
        expected["recall_unconditional_ll"], rel=tol.BF16_REL
    )
    assert mean_of(log_prob, RELEASE) == pytest.approx(expected["recall_conditional_ll"], rel=tol.BF16_REL)
    plain = expected["same_logits_scored_in_float32"]
    text = scored("text", ids[1:], *statistics_of(ids, logits, logit_statistics))
    assert Ppl().value(text, AUDITED).value == pytest.approx(plain["ppl"], abs=tol.STATISTICS_LOG_PROB)
    assert total(text.log_prob, AUDITED) == pytest.approx(plain["sum_ll"], abs=tol.SUM_LL)
    assert MinK(0.2).value(text, AUDITED).value == pytest.approx(plain["mink_0_2"], abs=tol.MIN_K)
    got = MinKPlusPlus(0.2).value(text, AUDITED).value
    assert got == pytest.approx(plain["minkpp_0_2"], rel=tol.MIN_K_PLUS_PLUS, abs=tol.MIN_K_PLUS_PLUS)


def test_bfloat16_scores_lie_on_the_grid():
    case = cases("bf16")[0]
    ids = case["inputs"]["input_ids"]
    text = scored("text", ids[1:], *statistics_of(ids, case["inputs"]["logits_bf16"], released_statistics))
    value = Ppl().value(text, RELEASE).value
    assert value == float(jnp.asarray(value, jnp.bfloat16)) == case["expected"]["ppl"]


@pytest.mark.parametrize("case", cases("tokenstats"), ids=lambda c: c["name"])
def test_token_statistics_to_scores(case):
    inputs, expected = case["inputs"], case["expected"]
    log_prob, mean, variance = (np.asarray(inputs[k], np.float64) for k in ("token_logprobs", "mu", "var"))
    text = scored("text", np.arange(len(log_prob)), log_prob, mean, variance)
    rel = tol.TOKENSTATS_ZERO_VARIANCE_REL if case["name"] == "zero_and_negative_variance" else tol.TOKENSTATS_REL
    assert len(log_prob) == expected["n"]
    assert Ppl().value(text, AUDITED).value == pytest.approx(expected["mean_ll"], rel=tol.TOKENSTATS_REL)
    assert total(log_prob, AUDITED) == pytest.approx(expected["sum_ll"], rel=tol.TOKENSTATS_REL)
    for k, count in expected["k_count"].items():
        assert smallest_count(float(k), expected["n"]) == count
        got = MinK(float(k)).value(text, AUDITED).value
        assert got == pytest.approx(expected["mink"][k], rel=tol.TOKENSTATS_REL)
        got = MinKPlusPlus(float(k)).value(text, AUDITED).value
        assert got == pytest.approx(expected["minkpp"][k], rel=rel, abs=tol.TOKENSTATS_REL)


def test_texts(golden):
    ratio = load_protocol("audited", {"lower_form": "ratio"})
    mean_form = load_protocol("audited", {"zlib_numerator": "mean"})
    for case in load(golden, "text")["texts"]:
        inputs, expected = case["inputs"], case["expected"]
        stripped = scored_text({"text": inputs["text"]})
        assert (stripped or "") == (expected["scored_text"] or "")
        text = stripped or ""
        assert text.lower() == expected["lower_text"]
        assert len(text.encode()) == expected["utf8_bytes"]
        assert compressed_length(text) == expected["zlib_bytes"], zlib.ZLIB_RUNTIME_VERSION
        n = inputs["n_scored"]
        if not n:
            continue
        plain = scored(text, np.zeros(n), np.full(n, inputs["sum_ll"] / n, np.float64))
        lower = scored(text.lower(), np.zeros(n), np.full(n, inputs["mean_ll_lower"], np.float64))
        close = {"rel": tol.TEXT_REL, "abs": tol.TEXT_ABS}
        assert Zlib().value(plain, AUDITED).value == pytest.approx(expected["zlib"], **close)
        assert Zlib().value(plain, mean_form).value == pytest.approx(expected["zlib_original"], **close)
        assert Lower().score([], ([plain], [lower]), AUDITED)[0].value == pytest.approx(expected["lower"], **close)
        got = Lower().score([], ([plain], [lower]), ratio)[0].value
        assert got == pytest.approx(expected["lower_original_ratio"], **close)


def test_records_to_text(golden):
    for case in load(golden, "text")["records"]:
        assert scored_text(case["record"]) == case["expected"]


def test_jsonl_lines(golden, tmp_path):
    jsonl = load(golden, "text")["jsonl"]
    path = tmp_path / "records.jsonl"
    path.write_bytes(jsonl["input"].encode())
    assert [value for _, value in read_jsonl(path)] == jsonl["expected_records"]


def test_dcpdd(golden):
    data = load(golden, "dcpdd")
    counts = np.zeros(data["inputs"]["vocab_size"], np.int64)
    for token, count in data["inputs"]["token_frequency"].items():
        counts[int(token)] = count
    table = FrequencyTable(counts, "digest", 1, 4096, "golden")
    assert int(counts.sum()) == data["expected"]["total"]
    np.testing.assert_allclose(table.smoothed(), data["expected"]["smoothed"], rtol=tol.DCPDD_REL)
    for case in data["cases"]:
        ids = np.asarray(case["inputs"]["target_ids"], np.int32)
        log_prob = np.asarray(case["inputs"]["target_logprobs"], np.float64)
        assert len(np.unique(ids)) == case["expected"]["n_first"]
        for alpha, value in case["expected"]["score"].items():
            got = calibrated_mean(ids, log_prob, table.smoothed(), float(alpha))
            assert got == pytest.approx(number(value), rel=tol.DCPDD_REL, nan_ok=True), case["name"]
        for alpha, value in case["expected"].get("original_repo_score", {}).items():
            got = calibrated_mean(ids, log_prob, table.smoothed(), float(alpha))
            assert -got == pytest.approx(number(value), rel=tol.DCPDD_REL)


def test_dcpdd_counting(golden):
    case = load(golden, "dcpdd")["counting"]
    counts = count_tokens(
        [np.asarray(d, np.int64) for d in case["inputs"]["docs"]],
        vocabulary=case["inputs"]["vocab_size"],
        max_tokens=case["inputs"]["max_tokens"],
    )
    assert {str(i): int(c) for i, c in enumerate(counts) if c} == case["expected"]["nonzero"]


@pytest.fixture(scope="module")
def tiny(golden, tmp_path_factory):
    """The tiny model of likelihood_tiny_olmo2.json, written as a Hugging Face directory and loaded from it."""
    from safetensors.numpy import save_file

    data = load(golden, "tiny_olmo2")
    directory = tmp_path_factory.mktemp("tiny")
    (directory / "config.json").write_text(json.dumps({"model_type": "olmo2", **data["inputs"]["config"]}))
    weights = {k: np.asarray(v, np.float32) for k, v in data["inputs"]["weights_hf_names"].items()}
    save_file(weights, directory / "model.safetensors")
    mesh = make_mesh()
    return load_hf(directory, "float32", lambda path, shape: leaf_sharding(mesh, path, shape)).module(), data


@jax.jit
def _forward(model, ids):
    return token_statistics(model.hidden(ids)[:, :-1], model.head_kernel(), ids[:, 1:], tile=8)


def forward(model, ids):
    return [np.asarray(x)[0] for x in _forward(model, np.asarray(ids, np.int32)[None])]


def test_tiny_olmo2_unconditional(tiny):
    model, data = tiny
    for name, expected in data["expected"]["unconditional"].items():
        ids = data["inputs"]["token_ids"][name]
        log_prob, mean, variance = forward(model, ids)
        np.testing.assert_allclose(log_prob, expected["token_logprobs"], atol=tol.TINY_LOG_PROB, rtol=0)
        np.testing.assert_allclose(mean, expected["mu"], atol=tol.TINY_LOG_PROB, rtol=0)
        np.testing.assert_allclose(variance, expected["var"], atol=tol.TINY_VARIANCE, rtol=0)
        text = scored("text", ids[1:], log_prob, mean, variance)
        assert Ppl().value(text, AUDITED).value == pytest.approx(expected["ppl"], abs=tol.TINY_MEAN_LL)
        assert MinK(0.2).value(text, AUDITED).value == pytest.approx(expected["mink_0_2"], abs=tol.TINY_LOG_PROB)
        got = MinKPlusPlus(0.2).value(text, AUDITED).value
        assert got == pytest.approx(expected["minkpp_0_2"], abs=tol.TINY_MIN_K_PLUS_PLUS)


@pytest.mark.parametrize("kind", ["recall", "emmia"])
def test_tiny_olmo2_after_a_prefix(tiny, tmp_path, kind):
    """The prefix engine: ReCaLL's mean takes all of a text's tokens, EMMIA's all but the first."""
    module, data = tiny
    ids, expected = data["inputs"]["token_ids"], data["expected"][kind]
    ids = {name: np.asarray(values, np.int32) for name, values in ids.items()}
    if kind == "recall":
        cases = [
            (p, t, e["ll_conditional"], e["ll_unconditional"]) for p, by in expected.items() for t, e in by.items()
        ]
    else:
        cases = [(p, t, ll, e["ll_unconditional"]) for t, e in expected.items() for p, ll in e["cond_ll"].items()]
    texts = sorted({t for _, t, _, _ in cases})
    targets = Targets(ids[t] for t in texts)
    engine = Engine(module, make_mesh(), tmp_path, Provenance("w", "t", "c", "float32", "float32"))
    alone = {t: ScoreTokens(ids[t]) for t in texts}
    after = {
        (p, t): ScoreTargets(np.concatenate([ids[t if name == "itself" else name] for name in p.split("+")]), targets)
        for p, t, _, _ in cases
    }
    answers = engine.answer(list({r.digest: r for r in (*alone.values(), *after.values())}.values()))
    for prefix, text, conditional, unconditional in cases:
        answer, place = answers[after[prefix, text].digest], texts.index(text)
        first, rest = answer.first[place], answer.rest[place]
        got = conditional_mean(first, rest, len(ids[text])) if kind == "recall" else rest
        assert got == pytest.approx(conditional, abs=tol.TINY_MEAN_LL)
        own = answers[alone[text].digest].log_prob
        assert np.mean(own) == pytest.approx(unconditional, abs=tol.TINY_MEAN_LL)


def test_the_padded_vocabulary_counts():
    """Without the padding columns the golden's wrong values come out, far from the right ones."""
    case = next(c for c in cases("logits") if "if_wrongly_restricted_to_50_columns" in c["expected"])
    ids, wrong = case["inputs"]["input_ids"], case["expected"]["if_wrongly_restricted_to_50_columns"]
    cut = [row[:50] for row in case["inputs"]["logits"]]
    text = scored("text", ids[1:], *statistics_of(ids, cut, logit_statistics))
    assert Ppl().value(text, AUDITED).value == pytest.approx(wrong["ppl"], abs=tol.STATISTICS_LOG_PROB)
    got = MinKPlusPlus(0.2).value(text, AUDITED).value
    assert got == pytest.approx(wrong["minkpp_0_2"], rel=tol.MIN_K_PLUS_PLUS)
    assert abs(wrong["ppl"] - case["expected"]["ppl"]) > 100 * tol.STATISTICS_LOG_PROB


def test_tiny_olmo2_uses_every_logit_column(tiny):
    """The padded vocabulary counts: cutting the head to the true vocabulary must change the statistics."""
    model, data = tiny
    ids = jnp.asarray(data["inputs"]["token_ids"]["t0"], jnp.int32)[None]
    head = model.head_kernel()[:, : data["inputs"]["true_vocab"]]
    cut = token_statistics(model.hidden(ids)[:, :-1], head, ids[:, 1:], tile=8)
    mu = data["expected"]["unconditional"]["t0"]["mu"]
    assert np.abs(np.asarray(cut.mean)[0] - mu).max() > 10 * tol.TINY_LOG_PROB
