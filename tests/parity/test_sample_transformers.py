"""The embedded model's token statistics and scores against the same weights in transformers and torch."""

import json

import numpy as np
import pytest

from conversion import load_model_directory
from olmodetect_jax import sample
from olmodetect_jax.benchmark import read_benchmark, tree_of
from olmodetect_jax.engine import Engine
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh
from olmodetect_jax.requests import ScoreTokens
from olmodetect_jax.scoring.kept import Provenance
from olmodetect_jax.tokenization import Tokenizer
from tests import tolerances as tol


def answers(tmp_path, texts, dtype="float32", logits_dtype="float32"):
    mesh = make_mesh()
    loaded = load_model_directory(sample.model_directory(), dtype, lambda p, s: leaf_sharding(mesh, p, s))
    provenance = Provenance(loaded.weights_digest, "t", "c", dtype, logits_dtype)
    scorer = Engine(loaded.module(), mesh, tmp_path, provenance, score_dtype=logits_dtype)
    requests = [ScoreTokens(t.ids) for t in Tokenizer(sample.model_directory()).encode_all(texts, 1024)]
    found = scorer.answer(requests)
    return [found[r.digest] for r in requests]


@pytest.fixture(scope="module")
def texts():
    root = sample.benchmark_directory()
    tree = tree_of(root)
    records = read_benchmark(root, tree, tree.subsets, split="dev", variant="matched", size=None)
    long = " ".join(r.text for r in records["novel"])  # short texts cannot see errors of the rotary positions
    return [rs[i].text for rs in records.values() for i in (0, -1)] + [long]


@pytest.fixture(scope="module")
def reference(texts):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = sample.model_directory()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    found = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"][:1024]])
        with torch.no_grad():
            log_p = model(ids).logits[0, :-1].double().log_softmax(-1)
        p = log_p.exp()
        mean = (p * log_p).sum(-1)
        variance = (p * (log_p - mean[:, None]) ** 2).sum(-1)
        found.append([x.numpy() for x in (log_p.gather(-1, ids[0, 1:, None])[:, 0], mean, variance)])
    return found


@pytest.mark.slow
def test_float32_statistics_equal_those_of_transformers(tmp_path, texts, reference):
    for answer, (log_prob, mean, variance) in zip(answers(tmp_path, texts), reference, strict=True):
        np.testing.assert_allclose(answer.log_prob, log_prob, atol=tol.SAMPLE_STATISTICS, rtol=0)
        np.testing.assert_allclose(answer.mean, mean, atol=tol.SAMPLE_STATISTICS, rtol=0)
        np.testing.assert_allclose(answer.variance, variance, atol=tol.SAMPLE_STATISTICS, rtol=tol.SAMPLE_STATISTICS)
    assert max(len(log_prob) for log_prob, _, _ in reference) == 1023


@pytest.mark.slow
def test_bfloat16_activations_stay_near_float32(tmp_path, texts, reference):
    for answer, (log_prob, _, _) in zip(answers(tmp_path, texts, "bfloat16"), reference, strict=True):
        difference = np.abs(answer.log_prob - log_prob)
        assert difference.max() < tol.SAMPLE_BFLOAT16_MAX and difference.mean() < tol.SAMPLE_BFLOAT16_MEAN


@pytest.mark.slow
def test_released_rounding_lies_on_the_bfloat16_grid(tmp_path, texts, reference):
    for answer, (log_prob, _, _) in zip(answers(tmp_path, texts, logits_dtype="bfloat16"), reference, strict=True):
        bits = answer.log_prob.view(np.uint32)
        assert not (bits & 0xFFFF).any()  # the lower half of a bfloat16 number's float32 form
        assert np.abs(answer.log_prob - log_prob).max() < tol.SAMPLE_RELEASED_MAX


def test_the_embedded_config_is_one_that_transformers_reads():
    config = json.loads((sample.model_directory() / "config.json").read_text())
    assert config["model_type"] == "olmo2" and config["eos_token_id"] == 0
