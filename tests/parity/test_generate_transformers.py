"""Greedy continuations token for token, and the warped distribution, against transformers."""

import json

import numpy as np
import pytest

from olmodetect_jax.requests import Generate
from tests.unit.test_generation import engine, prompts

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["tiny_olmo2", "tiny_olmo2_gqa"])
def test_greedy_equals_generate(golden, tmp_path, name):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(golden / name, dtype=torch.float32).eval()
    vocabulary = json.loads((golden / name / "config.json").read_text())["vocab_size"]
    asked = [Generate(p % vocabulary, 24, (3,)) for p in prompts(range(1, 40, 3), seed=5)]
    answers = engine(golden, tmp_path, name=name).answer(asked)
    for request in asked:
        ids = torch.from_numpy(request.prompt.astype(np.int64))[None]
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, eos_token_id=3, pad_token_id=0
        )
        theirs = out[0, ids.shape[1] :].tolist()
        (ours,) = answers[request.digest].rows
        assert [*ours.ids.tolist(), *([3] if ours.ended else [])] == theirs


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.7), (9, 0.8), (64, 0.3)])
def test_warped_distribution(top_k, top_p):
    from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    from tests.unit.test_sampling import probabilities

    logits = np.random.default_rng(0).normal(0, 2, (5, 64)).astype(np.float32)
    theirs = TemperatureLogitsWarper(0.8)(None, torch.from_numpy(logits.copy()))
    if top_k:
        theirs = TopKLogitsWarper(top_k)(None, theirs)
    if top_p < 1:
        theirs = TopPLogitsWarper(top_p)(None, theirs)
    np.testing.assert_allclose(probabilities(logits, 0.8, top_k, top_p), theirs.softmax(-1).numpy(), atol=1e-6)
