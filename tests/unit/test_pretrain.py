"""Training from scratch: packing, loss, reproducibility; and making the sample with a short recipe."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax import sample
from olmodetect_jax.commands import make_sample as make_sample_module
from olmodetect_jax.commands.make_sample import RECIPE, differences, make_sample
from olmodetect_jax.models.olmo2 import Olmo2, Olmo2Config
from olmodetect_jax.tuning import pretrain
from olmodetect_jax.tuning.pretrain import Recipe, Stage, _decayed, next_token_loss, pack, train

CONFIG = Olmo2Config(32, 16, 24, 2, 2, 2, 8, 1e4, 1e-6, 64, False)
TINY = Recipe((Stage("one", 4, 1e-2), Stage("two", 2, 1e-3)), 0, 128, 2, 0.1, 1.0)


def documents(count, seed=0):
    rng = np.random.default_rng(seed)
    return [np.arange(rng.integers(3, 40), dtype=np.int32) % 7 + 1 for _ in range(count)]


@given(st.integers(1, 4), st.integers(0, 99))
def test_packing_keeps_every_token_in_whole_passes(epochs, seed):
    texts = [np.full(i + 3, i + 1, np.int32) for i in range(9)]
    rows = pack(texts, eos_id=0, length=8, epochs=epochs, seed=(seed,))
    stream = rows.reshape(-1)
    whole = epochs * (sum(map(len, texts)) + len(texts))
    assert rows.shape == (whole // 8, 8) and rows.dtype == np.int32
    first_pass = stream[: whole // epochs]
    if epochs > 1:
        assert sorted(first_pass) == sorted(np.concatenate([*texts, np.zeros(len(texts), np.int32)]))
    for document in np.split(stream, np.flatnonzero(stream == 0) + 1)[:-1]:
        assert len(set(document[:-1])) == 1 and len(document) == document[0] + 3


def test_packing_is_seeded():
    a, b, c = (pack(documents(50), eos_id=0, length=16, epochs=2, seed=s) for s in ((1, 0), (1, 0), (1, 1)))
    assert (a == b).all() and not (a == c).all()
    with pytest.raises(ValueError, match="do not fill a row"):
        pack(documents(1), eos_id=0, length=999, epochs=1, seed=(0,))


def test_loss_is_the_mean_over_every_token_but_the_first():
    model = Olmo2(CONFIG, rngs=nnx.Rngs(0))
    rows = jax.random.randint(jax.random.key(0), (3, 16), 0, 32, jnp.int32)
    log_p = jax.nn.log_softmax(model.hidden(rows) @ model.head_kernel(), axis=-1)
    expected = -jnp.take_along_axis(log_p[:, :-1], rows[:, 1:, None], axis=-1).mean()
    for tile in (4, 16):
        np.testing.assert_allclose(next_token_loss(model, rows, tile=tile), expected, rtol=1e-5)


def test_training_learns_and_is_the_same_again():
    stages = [documents(60), documents(30, seed=1)]
    params, history = train(CONFIG, stages, TINY, eos_id=0)
    again, _ = train(CONFIG, stages, TINY, eos_id=0)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
        assert (a == b).all()
    assert history["one"][-1] < 0.7 * history["one"][0] and set(history) == {"one", "two"}
    other, _ = train(CONFIG, stages, dataclasses.replace(TINY, seed=1), eos_id=0)
    assert not (other["embed"]["embedding"] == params["embed"]["embedding"]).all()


def test_only_matrices_decay():
    params = nnx.state(Olmo2(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
    paths = jax.tree_util.tree_leaves_with_path(_decayed(params))
    decayed = {jax.tree_util.keystr(path, simple=True, separator="/"): value for path, value in paths}
    assert {value for path, value in decayed.items() if "norm/scale" in path} == {False}
    assert {value for path, value in decayed.items() if "norm/scale" not in path} == {True}


def test_check_compares_and_says_so(monkeypatch, capsys):
    recorded = sample.sources_directory().parent

    def made_again(auc):
        def make(sources, out):
            shutil.copy(recorded / "data.json", out)
            facts = json.loads((recorded / "training.json").read_text())
            facts["auc"]["ppl"]["all"] += auc
            (out / "training.json").write_text(json.dumps(facts))

        return make

    for auc, code in ((0.0, 0), (0.019, 0), (0.021, 1), (-0.021, 1)):
        monkeypatch.setattr(make_sample_module, "make_sample", made_again(auc))
        assert make_sample_module.main(sample.sources_directory(), recorded, check=True) == code
    assert "differs: AUC of ppl" in capsys.readouterr().err


@pytest.mark.slow
def test_making_the_sample_with_a_short_recipe(tmp_path, capsys):
    stages = tuple(dataclasses.replace(s, epochs=1) for s in RECIPE.stages)
    facts = make_sample(sample.sources_directory(), tmp_path, dataclasses.replace(RECIPE, stages=stages))
    assert json.loads((tmp_path / "training.json").read_text()) == json.loads(json.dumps(facts))
    assert set(facts["auc"]) >= {"ppl", "zlib", "lower", "min_k", "min_k_plus_plus", "dc_pdd"}
    recorded = sample.sources_directory().parent
    # The data come out the same, to the byte; a model trained for one epoch does not know its members.
    for path in sorted((recorded / "benchmark").rglob("*.jsonl")):
        assert (tmp_path / path.relative_to(recorded)).read_bytes() == path.read_bytes()
    found = differences(recorded, tmp_path)
    assert found and all(line.startswith("AUC of") for line in found)
    assert differences(recorded, recorded) == []


def test_the_recorded_sample_lies_where_real_models_do():
    folder = sample.sources_directory().parent
    facts = json.loads((folder / "training.json").read_text())
    assert facts["recipe"] == json.loads(json.dumps(dataclasses.asdict(RECIPE)))
    assert all(0.55 <= values["all"] <= 0.95 for values in facts["auc"].values())
    config = Olmo2Config(**facts["model"])
    state = nnx.state(nnx.eval_shape(lambda: Olmo2(config, rngs=nnx.Rngs(0))))
    assert sum(x.size for x in jax.tree.leaves(state)) <= 2_400_000 and config.max_position_embeddings == 1024


def test_every_stage_is_shuffled_by_the_recipes_seed_and_its_own_number(monkeypatch):
    seeds = []
    monkeypatch.setattr(
        pretrain,
        "pack",
        lambda *documents, seed, **options: seeds.append(seed) or pack(*documents, seed=seed, **options),
    )
    train(CONFIG, [documents(20), documents(20)], dataclasses.replace(TINY, seed=7), eos_id=0)
    assert seeds == [(7, 0), (7, 1)]


def test_decay_clip_and_mask_are_in_the_optimizer():
    """Decay moves the kernels and leaves the gains alone; a clip to nothing leaves all that does not decay alone."""
    graph, params = nnx.split(Olmo2(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
    batches = [np.ones((2, 128), np.int32), np.ones((2, 128), np.int32)]

    def after(**changes):
        recipe = dataclasses.replace(TINY, **changes)
        stage = dataclasses.replace(TINY.stages[0], warmup=0.0)
        return nnx.to_pure_dict(pretrain._train_stage(graph, params, batches, stage, recipe, lambda *step: None)[0])

    before, plain, decayed = nnx.to_pure_dict(params), after(weight_decay=0.0), after(weight_decay=5.0)
    kernel, gain = ("blocks", "q_proj", "kernel"), ("norm", "scale")

    def leaf(tree, path):
        for name in path:
            tree = tree[name]
        return np.asarray(tree)

    assert np.abs(leaf(decayed, kernel) - leaf(plain, kernel)).max() > 1e-4
    np.testing.assert_allclose(leaf(decayed, gain), leaf(plain, gain), atol=1e-3)
    still = after(weight_decay=0.0, clip=1e-12)
    assert np.abs(leaf(still, gain) - leaf(before, gain)).max() < 1e-5 < np.abs(leaf(plain, gain) - 1).max()


def test_other_data_are_a_difference(tmp_path):
    recorded = sample.sources_directory().parent
    for name in ("data.json", "training.json"):
        shutil.copy(recorded / name, tmp_path)
    data = json.loads((tmp_path / "data.json").read_text())
    name = min(data["digests"])
    data["digests"][name] = "0" * 64
    (tmp_path / "data.json").write_text(json.dumps(data))
    assert differences(recorded, tmp_path) == [f"digest of {name}"]
