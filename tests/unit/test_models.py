"""OLMo 2 in Flax against the goldens from transformers, its config, its shapes and its sharding."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from conversion import load_model_directory
from olmodetect_jax.benchmark import model_size
from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import config_path, load_yaml
from olmodetect_jax.models.attention import causal_attention
from olmodetect_jax.models.layers import RMSNorm, rope_tables, rotate
from olmodetect_jax.models.olmo2 import Olmo2, Olmo2Config
from olmodetect_jax.models.registry import model_family
from olmodetect_jax.models.sharding import RULES, leaf_sharding, make_mesh, parse_mesh
from olmodetect_jax.scoring.statistics import token_statistics
from tests import tolerances as tol

MODELS = ["tiny_olmo2", "tiny_olmo2_gqa"]


@pytest.fixture(scope="module", params=MODELS)
def tiny(request, golden):
    directory = golden / request.param
    return load_model_directory(directory, "float32").module(), load_file(directory / "fixtures.safetensors")


@jax.jit
def logits_of(model, ids):
    return model.hidden(ids) @ model.head_kernel()


@jax.jit
def statistics_of(model, ids):
    return token_statistics(model.hidden(ids)[:, :-1], model.head_kernel(), ids[:, 1:], tile=4)


def test_logits_of_each_text(tiny):
    model, fixtures = tiny
    for name in ("seq0", "seq1", "seq2"):
        got = logits_of(model, jnp.asarray(fixtures[f"{name}.input_ids"])[None])[0]
        np.testing.assert_allclose(got, fixtures[f"{name}.logits"], atol=tol.LOGITS, rtol=0)


def test_statistics_of_each_text(tiny):
    model, fixtures = tiny
    for name in ("seq0", "seq1", "seq2"):
        ids = jnp.asarray(fixtures[f"{name}.input_ids"])[None]
        got = statistics_of(model, ids)
        np.testing.assert_allclose(got.log_prob[0], fixtures[f"{name}.token_logprobs"], atol=tol.TOKEN_LOGPROBS, rtol=0)
        np.testing.assert_allclose(got.mean[0], fixtures[f"{name}.mu"], atol=tol.TOKEN_LOGPROBS, rtol=0)
        np.testing.assert_allclose(
            got.variance[0], fixtures[f"{name}.sigma2"], atol=tol.TOKEN_LOGPROBS, rtol=tol.LAYOUT
        )


def test_padded_batch(tiny):
    model, fixtures = tiny
    mask = fixtures["batch.attention_mask"].astype(bool)
    got = np.asarray(logits_of(model, jnp.asarray(fixtures["batch.input_ids"])))
    np.testing.assert_allclose(got[mask], fixtures["batch.logits"][mask], atol=tol.LOGITS, rtol=0)


def test_hidden_states_of_each_layer(tiny):
    model, fixtures = tiny
    ids = jnp.asarray(fixtures["seq2.input_ids"])[None]
    config = model.config
    x = model.embed(ids)
    np.testing.assert_allclose(x[0], fixtures["seq2.hidden0"], atol=tol.LOGITS, rtol=0)
    rope = rope_tables(jnp.arange(ids.shape[1])[None], config.head_dim, config.rope_theta)
    for layer in range(config.num_layers):
        block = jax.tree.map(lambda a, i=layer: a[i], model.blocks)
        x = block(x, rope)
        expected = fixtures[f"seq2.hidden{layer + 1}"]
        got = model.norm(x) if layer == config.num_layers - 1 else x
        np.testing.assert_allclose(got[0], expected, atol=tol.LOGITS, rtol=0)


def test_rms_norm_multiplies_the_gain_before_the_cast():
    """the other order differs in the last bit of bfloat16 at three places."""
    x = jnp.asarray([0.126, -0.1318, 0.6406, 0.105, -0.5352, 0.3613, 1.3047, 0.9453], jnp.bfloat16)
    norm = RMSNorm(8, 1e-6, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    norm.scale[...] = jnp.asarray([1.0469, 1.4375, 1.3125, 0.5039, 1.3594, 0.5352, 1.2266, 0.6758], jnp.bfloat16)
    right = jnp.asarray([0.2002, -0.2871, 1.2734, 0.08057, -1.1016, 0.29297, 2.4375, 0.96875], jnp.bfloat16)
    assert (norm(x[None, None])[0, 0] == right).all()


def test_bfloat16_keeps_rope_in_float32():
    cos, sin = rope_tables(jnp.arange(4096)[None], 128, 5e5)
    exact = np.outer(np.arange(4096), 5e5 ** (-np.arange(0, 128, 2) / 128))
    assert cos.dtype == jnp.float32
    np.testing.assert_allclose(cos[0], np.cos(exact), atol=1e-3)
    np.testing.assert_allclose(sin[0], np.sin(exact), atol=1e-3)


def test_attention_and_rotation_compute_in_float32():
    """bfloat16 goes in and comes out; between, nothing is rounded but the softmax weights."""
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 300, 2, 16)).astype(jnp.bfloat16) for i in range(3))
    cos, sin = rope_tables(jnp.arange(300)[None], 16, 1e4)
    exact = rotate(q.astype(jnp.float32), cos, sin)
    assert (rotate(q, cos, sin) == exact.astype(jnp.bfloat16)).all()
    attention = jax.jit(causal_attention)
    wide = attention(*(x.astype(jnp.float32) * (4 if i < 2 else 1) for i, x in enumerate((q, k, v))))
    narrow = attention(q * 4, k * 4, v)
    assert narrow.dtype == jnp.bfloat16
    assert np.abs(narrow.astype(jnp.float32) - wide).mean() < 0.003  # bfloat16 scores of this size: 0.02


def test_attention_over_several_chunks_of_queries():
    """600 positions, grouped heads, against the plain formula in float64."""
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, 600, n, 8)) for key, n in zip(keys, (4, 2, 2), strict=True))
    k4, v4 = (np.repeat(np.asarray(a, np.float64), 2, axis=2) for a in (k, v))
    scores = np.einsum("btnh,bsnh->bnts", np.asarray(q, np.float64), k4) / np.sqrt(8)
    scores = np.where(np.tri(600, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    got = jax.jit(causal_attention)(q, k, v)
    np.testing.assert_allclose(got, np.einsum("bnts,bsnh->btnh", weights, v4), atol=1e-5)


def test_every_config_field_changes_the_output(golden):
    """A field that is read and then not used would go unnoticed."""
    config = Olmo2Config.from_hf(json.loads((golden / "tiny_olmo2" / "config.json").read_text()))
    ids = jnp.arange(12, dtype=jnp.int32)[None]

    def output(c):
        # One program for the weights and what comes of them.
        return np.asarray(jax.jit(lambda: logits_of(Olmo2(c, rngs=nnx.Rngs(0)), ids))())

    base = output(config)
    changes = {
        "rope_theta": 10.0, "rms_norm_eps": 0.5, "vocab_size": 80, "hidden_size": 64, "intermediate_size": 96,
        "num_layers": 3, "num_heads": 8, "num_kv_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
    }  # fmt: skip
    for name, value in changes.items():
        got = output(dataclasses.replace(config, **{name: value}))
        assert got.shape != base.shape or not np.allclose(got, base), name
    assert {f.name for f in dataclasses.fields(config)} - set(changes) == {"max_position_embeddings"}  # caps protocols


def test_config_round_trip_and_refusals(golden):
    raw = json.loads((golden / "tiny_olmo2_gqa" / "config.json").read_text())
    config = Olmo2Config.from_hf(raw)
    assert Olmo2Config.from_hf(config.to_hf()) == config
    assert Olmo2Config.from_hf({**raw, "rope_theta": None, "rope_parameters": {"rope_theta": 7.0}}).rope_theta == 7.0
    for field, value in [("hidden_act", "gelu"), ("attention_bias", True), ("rope_scaling", {"factor": 8}),
                         ("rope_parameters", {"rope_type": "yarn"}), ("num_key_value_heads", 3)]:  # fmt: skip
        with pytest.raises(UsageError, match=field.split("_param")[0]):
            Olmo2Config.from_hf({**raw, field: value})
    wrong = {
        "num_attention_heads": 0, "hidden_size": "128", "rope_theta": "x", "rope_parameters": [1],
        "rms_norm_eps": float("nan"), "vocab_size": True, "num_hidden_layers": -1, "head_dim": 7,
    }  # fmt: skip
    for field, value in wrong.items():
        with pytest.raises(UsageError, match=field.replace("head_dim", "head size")):
            Olmo2Config.from_hf({**raw, field: value})
    with pytest.raises(UsageError, match="hidden_size"):
        Olmo2Config.from_hf({k: v for k, v in raw.items() if k != "hidden_size"})
    with pytest.raises(UsageError, match="model_type.*olmo2"):
        model_family({"model_type": "bert"})


PARAMETERS = {"1b": 1_484_916_736, "7b": 7_298_617_344, "13b": 13_716_198_400, "32b": 32_234_279_936}


@pytest.mark.parametrize("size", PARAMETERS)
def test_published_shapes(size):
    """Parameter counts of the published models, from shapes alone."""
    config = Olmo2Config.from_hf(load_yaml(config_path("models", "olmo2.yaml"))["sizes"][size])
    state = nnx.state(nnx.eval_shape(lambda: Olmo2(config, rngs=nnx.Rngs(0))))
    assert sum(x.size for x in jax.tree.leaves(state)) == PARAMETERS[size]


def test_model_names():
    assert model_size("OLMo2-1B-Instruct") == "1b"
    assert model_size("OLMo-2-0325-32B-Instruct") == "32b"
    assert model_size("OLMo-2-1124-7B") == "7b"
    assert model_size("my-olmo2-copy") is None and model_size("Llama-3.1-7B") is None


@pytest.mark.parametrize("mesh_sizes", ["data=8", "fsdp=8", "tensor=2,data=4", "data=2,fsdp=2,tensor=2"])
def test_every_mesh_gives_the_same_logits(golden, mesh_sizes):
    directory = golden / "tiny_olmo2_gqa"
    fixtures = load_file(directory / "fixtures.safetensors")
    mesh = make_mesh(parse_mesh(mesh_sizes))
    model = load_model_directory(directory, "float32", lambda p, s: leaf_sharding(mesh, p, s)).module()
    length = fixtures["batch.input_ids"].shape[1]
    ids = np.zeros((8, length), np.int32)
    ids[:3] = fixtures["batch.input_ids"]
    rows = jax.sharding.NamedSharding(mesh, RULES.rows)
    with jax.set_mesh(mesh):
        got = np.asarray(logits_of(model, jax.device_put(ids, rows)))
    mask = fixtures["batch.attention_mask"].astype(bool)
    np.testing.assert_allclose(got[:3][mask], fixtures["batch.logits"][mask], atol=tol.LOGITS, rtol=0)


def test_mesh_errors():
    for text in ("data=0", "data", "rows=2", "data=2,data=2", "data=x"):
        with pytest.raises(UsageError, match="--mesh"):
            parse_mesh(text)
    with pytest.raises(UsageError, match="8 devices"):
        make_mesh(parse_mesh("data=4"))
    with pytest.raises(UsageError, match="cannot be split"):
        leaf_sharding(make_mesh(parse_mesh("tensor=8")), "head/kernel", (8, 12))
    with pytest.raises(KeyError):
        leaf_sharding(make_mesh(), "blocks/unknown/kernel", (8, 12))
