"""The tuner around the trainer: groups, adapters that are kept and found, resuming, and scoring under an adapter."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from conversion import load_model_directory
from olmodetect_jax.engine import Engine
from olmodetect_jax.errors import DataError, OlmoDetectError, StoreError, UsageError
from olmodetect_jax.files import folder_lock
from olmodetect_jax.models.lora import attach
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh
from olmodetect_jax.models.soft_prompt import prompted_hidden
from olmodetect_jax.requests import PredictNext, ScoreTokens
from olmodetect_jax.scoring.kept import Provenance
from olmodetect_jax.scoring.planning import padded_ids
from olmodetect_jax.training import LoraRecipe, Origin, SoftPromptRecipe, TrainLora, TrainSoftPrompt
from olmodetect_jax.tuning import trainer
from olmodetect_jax.tuning.lora import start
from olmodetect_jax.tuning.tuner import Tuner
from tests.tolerances import LAYOUT

GOLDEN = Path(__file__).parents[1] / "golden"
PROVENANCE = Provenance("weights", "tokenizer", "config", "float32", "float32")
LORA = LoraRecipe(rank=2, alpha=4, epochs=2, batch=4, learning_rate=0.01)
PROMPT = SoftPromptRecipe(start=(3, 5), yes=7, no=9, length=4, epochs=2, batch=2)


def base(mesh=None, dtype=None):
    mesh = mesh or make_mesh()
    loaded = load_model_directory(GOLDEN / "tiny_olmo2", dtype, lambda path, shape: leaf_sharding(mesh, path, shape))
    return mesh, loaded.module()


def texts(n, seed=0, most=20):
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(1, 64, int(rng.integers(3, most))).astype(np.int32) for _ in range(n))


def origin(n, **fields):
    return Origin("fsd", "in-domain", fields.pop("trained_for", "web"), tuple(bytes([i]) for i in range(n)), **fields)


def lora(n, seed=0, recipe=LORA, **fields):
    return TrainLora(texts(n, seed), recipe, origin(n, **fields))


def soft_prompt(pairs, recipe=PROMPT):
    ids = texts(2 * pairs, 5)
    return TrainSoftPrompt(ids[:pairs], ids[pairs:], np.array([len(t) - 1 for t in ids]), recipe, origin(2 * pairs))


def tuner(folder, mesh=None, **options):
    mesh, model = base(mesh)
    graph, params = nnx.split(model)
    options = {"token_budget": 4096, **options}
    return Tuner(params, mesh, folder, PROVENANCE, graph=graph, **options)


def answer(own, *requests):
    answers = own.answer(requests)
    return [answers[r.digest] for r in requests]


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three adapters that trained together, and a soft prompt; with the engine that made them."""
    folder = tmp_path_factory.mktemp("run")
    mesh, model = base()
    engine = Engine(model, mesh, folder, PROVENANCE, token_budget=4096)
    requests = [lora(8, 1), lora(7, 2, trained_for="code"), lora(6, 3), soft_prompt(3)]
    answers = engine.answer(requests)
    return engine, folder, requests, [answers[r.digest] for r in requests]


def test_adapters_are_kept_named_and_found_again(trained, monkeypatch):
    engine, folder, requests, answers = trained
    names = [p.name for p in sorted((folder / "adapters").glob("*.json"))]
    assert f"fsd-in-domain-code-{answers[1].name}.json" in names and len(names) == 4
    facts = json.loads((folder / "adapters" / f"fsd-in-domain-code-{answers[1].name}.json").read_text())
    assert (
        facts["n_texts"] == 7 and facts["steps"] == 4 and len(facts["losses"]) == 4 and facts["trained_together"] == 3
    )
    assert not (folder / "adapters" / "unfinished").exists() or not any((folder / "adapters" / "unfinished").iterdir())
    monkeypatch.setattr("olmodetect_jax.tuning.tuner.train", lambda *a, **k: pytest.fail("trained again"))
    again = engine.answer(requests)
    for request, first in zip(requests, answers, strict=True):
        assert again[request.digest].name == first.name
        np.testing.assert_array_equal(again[request.digest].losses, first.losses)
    assert set(engine.tuner.trained) == {a.name for a in answers}


def test_together_as_alone(trained, tmp_path):
    """The same adapter to the last bits, whatever trains beside it."""
    engine, _, requests, answers = trained
    (alone,) = answer(tuner(tmp_path, together=1), requests[1])
    assert alone.name == answers[1].name
    np.testing.assert_allclose(alone.losses, answers[1].losses, atol=LAYOUT)


def test_a_step_cut_into_micro_batches_is_the_same_step(tmp_path):
    """Dropout goes by a row's place in the step, not by the rows that come with it."""
    request = lora(16, 1, dataclasses.replace(LORA, batch=16, dropout=0.2))
    whole, cut = (tuner(tmp_path / str(budget), token_budget=budget) for budget in (4096, 24))
    assert [own._groups({"a": request})[0].rows for own in (whole, cut)] == [16, 8]
    (one,), (two,) = answer(whole, request), answer(cut, request)
    assert one.name == two.name
    np.testing.assert_allclose(one.losses, two.losses, atol=LAYOUT)
    for a, b in zip(*(jax.tree.leaves(own.load(one.name)[0]) for own in (whole, cut)), strict=True):
        np.testing.assert_allclose(a, b, atol=LAYOUT)


def test_another_mesh(trained, tmp_path):
    _, _, requests, answers = trained
    mesh = make_mesh({"data": 2, "fsdp": 4, "tensor": 1})
    got = answer(tuner(tmp_path, mesh, together=1), requests[0], requests[3])
    for own, expected in zip(got, (answers[0], answers[3]), strict=True):
        np.testing.assert_allclose(own.losses, expected.losses, atol=LAYOUT)


def test_names_follow_model_texts_and_recipe(tmp_path):
    own = tuner(tmp_path)
    other = Tuner(
        own._params, own._mesh, tmp_path, dataclasses.replace(PROVENANCE, weights_digest="x"), graph=own._graph,
        token_budget=64,
    )  # fmt: skip
    rounded = Tuner(
        own._params, own._mesh, tmp_path, dataclasses.replace(PROVENANCE, logits_dtype="bfloat16"), graph=own._graph,
        token_budget=64,
    )  # fmt: skip
    first = lora(4)
    assert own._name(first) == own._name(lora(4, trained_for="elsewhere")) == rounded._name(first)
    names = {own._name(first), own._name(lora(4, 1)), other._name(first), own._name(lora(5))}
    names.add(own._name(lora(4, recipe=dataclasses.replace(LORA, weight_decay=0.0))))
    names.add(own._name(TrainLora(first.texts[::-1], LORA, first.origin)))
    assert len(names) == 6


def test_groups_are_of_like_length_and_recipe(tmp_path):
    own = tuner(tmp_path, together=2)
    requests = {str(i): r for i, r in enumerate([lora(8, 1), lora(8, 2), lora(8, 3), lora(4, 4), soft_prompt(3)])}
    groups = own._groups(requests)
    assert sorted(sorted(g.names) for g in groups) == [["0", "1"], ["2"], ["3"], ["4"]]
    assert groups == own._groups(dict(reversed(requests.items())))
    assert all(g.rows % 8 == 0 for g in groups)


@pytest.mark.parametrize("after", [1, 3])
def test_a_killed_training_goes_on_with_the_same_bytes(after, tmp_path, monkeypatch):
    requests = [lora(8, 1), lora(7, 2)]
    whole = answer(tuner(tmp_path / "whole", checkpoint_every=1), *requests)
    move = trainer.move
    calls = []

    def killed(*args, **options):
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt
        return move(*args, **options)

    monkeypatch.setattr(trainer, "move", killed)
    with pytest.raises(KeyboardInterrupt):
        answer(tuner(tmp_path / "killed", checkpoint_every=1), *requests)
    assert not files(tmp_path / "killed")
    calls.clear()
    monkeypatch.setattr(trainer, "move", lambda *a, **k: (calls.append(1), move(*a, **k))[1])
    again = answer(tuner(tmp_path / "killed", checkpoint_every=1), *requests)
    assert len(calls) == 4 - after
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert [a.name for a in again] == [a.name for a in whole]
    assert not any((tmp_path / "killed" / "unfinished").iterdir())


def test_texts_to_be_scored_are_never_learnt_from(tmp_path):
    request = lora(4, held_out=frozenset({bytes([2]), b"other"}))
    with pytest.raises(DataError, match="fsd in-domain for web: 1 of the 4 training texts are among those to be"):
        tuner(tmp_path).answer([request])
    own = tuner(tmp_path / "b")
    ok = lora(4)
    answer(own, ok)
    with pytest.raises(DataError, match="to be scored"):  # also where the adapter is there already
        own.answer([request])


def test_a_loss_that_is_not_finite_stops_with_step_and_texts(tmp_path, monkeypatch):
    first = trainer._step_gradients

    def spoiled(group, params, adapters, mesh, step, **options):
        gradients, values = first(group, params, adapters, mesh, step, **options)
        return gradients, {**values, "loss": values["loss"] * (jnp.nan if step == 2 else 1)}

    monkeypatch.setattr(trainer, "_step_gradients", spoiled)
    with pytest.raises(
        OlmoDetectError, match=r"loss of step 3 of 4 is nan, on the training texts \d.*after step 2 is k"
    ):
        answer(tuner(tmp_path, checkpoint_every=1), lora(8, 1))
    monkeypatch.setattr(trainer, "_step_gradients", first)
    (healed,) = answer(tuner(tmp_path, checkpoint_every=1), lora(8, 1))
    assert np.isfinite(healed.losses).all()


def test_a_target_that_the_architecture_lacks(tmp_path):
    request = lora(4, recipe=dataclasses.replace(LORA, targets=("q_proj", "c_attn")))
    with pytest.raises(UsageError, match="LoRA target 'c_attn': Olmo2 has no such linear map; it has down_proj, "):
        tuner(tmp_path).answer([request])


def test_one_training_at_a_time_in_a_folder(tmp_path):
    own = tuner(tmp_path)
    with folder_lock(tmp_path, "training"), pytest.raises(OlmoDetectError, match="another training is writing there"):
        own.answer([lora(4)])


def test_an_adapter_that_is_not_finite_is_not_kept(tmp_path, monkeypatch):
    move = trainer.move
    monkeypatch.setattr(trainer, "move", lambda a, s, g, r, *rest, **o: move(a, s, g, r * np.inf, *rest, **o))
    with pytest.raises(OlmoDetectError, match="after the last step an adapter holds numbers that are not finite"):
        answer(tuner(tmp_path), lora(4, recipe=dataclasses.replace(LORA, epochs=1)))
    assert not files(tmp_path)


def test_a_damaged_adapter_is_named(trained, tmp_path):
    engine, folder, _, answers = trained
    for suffix in ("json", "safetensors"):
        own = folder / "adapters" / f"fsd-in-domain-code-{answers[1].name}.{suffix}"
        content = own.read_bytes()
        own.write_bytes(content[:-20])
        try:
            with pytest.raises(StoreError, match=f"{own.name}.*delete it"):
                engine.tuner._adapters.read(answers[1].name)
        finally:
            own.write_bytes(content)


def test_scoring_under_an_adapter(trained):
    engine, folder, requests, answers = trained
    own = texts(5, 9)
    asked = [ScoreTokens(ids, adapter=name) for name in ("", answers[0].name, answers[1].name) for ids in own]
    assert len({r.digest for r in asked}) == 15
    got = engine.answer(asked)
    _, model = base()
    adapter, scaling = engine.tuner.load(answers[0].name)
    assert scaling == 2
    graph, params = nnx.split(model)

    @jax.jit
    def both(params, adapter, ids):
        model = nnx.merge(graph, params)
        plain = jax.nn.log_softmax(model.hidden(ids) @ model.head_kernel())
        attach(model, adapter, scaling=scaling)
        return plain, jax.nn.log_softmax(model.hidden(ids) @ model.head_kernel())

    plain, tuned = both(params, adapter, padded_ids(own, len(own), 20))
    for i, ids in enumerate(own):
        at = np.arange(len(ids) - 1), ids[1:]
        np.testing.assert_allclose(got[asked[i].digest].log_prob, np.asarray(plain[i])[at], atol=LAYOUT)
        np.testing.assert_allclose(got[asked[5 + i].digest].log_prob, np.asarray(tuned[i])[at], atol=LAYOUT)
    differ = [np.abs(got[asked[i].digest].log_prob - got[asked[i + 5].digest].log_prob).max() for i in range(10)]
    assert min(differ) > 1e-3


def test_scoring_after_a_soft_prompt(trained):
    engine, _, _, answers = trained
    name, tokens = answers[3].name, np.array([7, 9], np.int32)
    own = texts(5, 11)
    whole = [ScoreTokens(ids, adapter=name) for ids in own]
    after = [PredictNext((ids,), tokens, name) for ids in own]
    got = engine.answer([*whole, *after])
    _, model = base()
    prompt, _ = engine.tuner.load(name)
    graph, params = nnx.split(model)

    @jax.jit
    def read(params, prompt, ids):
        model = nnx.merge(graph, params)
        return jax.nn.log_softmax(prompted_hidden(model, prompt, ids) @ model.head_kernel())

    found = np.asarray(read(params, prompt, padded_ids(own, len(own), 21)))
    for ids, text, ask, log_p in zip(own, whole, after, found, strict=True):
        assert got[text.digest].log_prob.shape == (len(ids),)  # the first token is scored too
        np.testing.assert_allclose(got[text.digest].log_prob, log_p[np.arange(len(ids)), ids], atol=LAYOUT)
        np.testing.assert_allclose(got[ask.digest].log_prob, log_p[len(ids), tokens][None], atol=LAYOUT)


def test_the_base_is_an_argument_and_only_the_adapter_is_differentiated(tmp_path):
    own = tuner(tmp_path)
    request = lora(4)
    (group,) = own._groups({"a": request})
    adapters = jax.tree.map(lambda a: a[None], own._start(LORA))
    total = trainer._zeros(adapters, loss=own._loss(group))
    rows = jax.tree.map(lambda a: a[None], trainer.rows_of(request, 0, group.rows, group.length)[0])
    traced = trainer.add_gradients.trace(
        own._params, adapters, total, rows, np.uint32(0), graph=own._graph, loss=own._loss(group)
    )
    assert sum(np.size(c) for c in traced.jaxpr.consts) < 100
    gradients, values = traced.out_info
    assert jax.tree.structure(gradients) == jax.tree.structure(adapters)
    assert {name: value.shape for name, value in values.items()} == {"loss": (1,)}


def test_dropout_has_a_mask_for_each_step_layer_linear_map_and_row():
    _, model = base()
    adapter = jax.tree.map(jnp.asarray, start(model, LORA, jnp.float32))
    adapter = {name: {"A": u["A"], "B": jnp.ones_like(u["B"])} for name, u in adapter.items()}
    ids = jnp.asarray(np.tile(texts(1, 3)[0], (2, 1)))
    graph, params = nnx.split(model)

    @functools.partial(jax.jit, static_argnames=("dropout",))
    def hidden(params, key, dropout):
        fresh = nnx.merge(graph, params)
        attach(fresh, adapter, scaling=1.0, dropout=dropout, key=key, places=jnp.arange(2))
        return fresh.hidden(ids), jax.random.key_data(fresh.blocks.q_proj.keys[...])

    off, _ = hidden(params, jax.random.key(0), 0.0)
    first, keys = hidden(params, jax.random.key(0), 0.5)
    second, _ = hidden(params, jax.random.key(1), 0.5)
    again, _ = hidden(params, jax.random.key(0), 0.5)
    np.testing.assert_array_equal(first, again)
    keys = np.asarray(keys).reshape(4, -1)  # of two layers and two rows
    assert len(np.unique(keys, axis=0)) == 4
    assert np.abs(first[0] - first[1]).max() > 1e-3 and np.abs(off[0] - off[1]).max() == 0
    assert np.abs(first - second).max() > 1e-3 and np.abs(first - off).max() > 1e-3


def test_the_branch_is_float32_beside_a_bfloat16_base():
    _, model = base(dtype="bfloat16")
    linear = jax.tree.map(lambda x: x[0], model.blocks.q_proj)
    adapter = start(model, LORA, jnp.bfloat16)["q_proj"]
    assert adapter["A"].dtype == np.float32
    np.testing.assert_array_equal(adapter["A"], adapter["A"].astype(jnp.bfloat16).astype(np.float32))
    update = {
        "A": jnp.asarray(adapter["A"][0]),
        "B": jnp.asarray(np.random.default_rng(0).normal(size=(2, 32)), jnp.float32),
    }
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 6, 32)), jnp.bfloat16)
    from olmodetect_jax.models.lora import LoraLinear

    out = LoraLinear(linear, update, 2.0, 0.0, None)(x)
    assert out.dtype == jnp.bfloat16
    branch = np.asarray(x, np.float32) @ np.asarray(update["A"]) @ np.asarray(update["B"])
    expected = (np.asarray(linear(x), np.float32) + 2 * branch).astype(jnp.bfloat16)
    assert np.mean(np.asarray(out) == expected) > 0.98
