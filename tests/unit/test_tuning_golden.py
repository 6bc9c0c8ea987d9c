"""Training against the golden runs of FSD and MIA-Tuner (PyTorch, float32), and the random numbers behind them."""

import dataclasses
import functools
import json
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh
from safetensors.numpy import load_file

from conversion import load_model_directory
from olmodetect_jax.models.lora import attach
from olmodetect_jax.models.sharding import AXES, leaf_sharding
from olmodetect_jax.models.soft_prompt import hidden_after_prompt
from olmodetect_jax.scoring.planning import padded_ids
from olmodetect_jax.training import LoraRecipe, Origin, SoftPromptRecipe, TrainLora, TrainSoftPrompt
from olmodetect_jax.tuning.checkpoints import Checkpoints
from olmodetect_jax.tuning.draws import lora_starts, permutation
from olmodetect_jax.tuning.lora import from_tensors, start, to_tensors
from olmodetect_jax.tuning.losses import LoraLoss, SoftPromptLoss, answer_losses, contrastive
from olmodetect_jax.tuning.steps import Rows, places_of, rates_of, rows_of, steps_of
from olmodetect_jax.tuning.trainer import Group, _step_gradients, train

GOLDEN = Path(__file__).parents[1] / "golden"
ORIGIN = Origin("fsd", "in-domain", "tiny", ())


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text()), load_file(GOLDEN / f"{name}.safetensors")


def base(name, mesh):
    loaded = load_model_directory(GOLDEN / name, None, lambda path, shape: leaf_sharding(mesh, path, shape))
    return nnx.split(loaded.module())


def origin(n):
    return Origin("fsd", "in-domain", "tiny", tuple(bytes([i]) for i in range(n)))


def lora_request(facts):
    own, optimiser = facts["lora"], facts["optimiser"]
    recipe = LoraRecipe(
        rank=own["r"], alpha=own["alpha"], dropout=own["dropout"], learning_rate=optimiser["lr"],
        weight_decay=optimiser["weight_decay"], clip=optimiser["clip_global_norm"], epochs=facts["epochs"],
        batch=facts["batch_size"],
    )  # fmt: skip
    texts = tuple(np.array(ids, np.int32) for ids in facts["train_ids"])
    return TrainLora(texts, recipe, origin(len(texts)))


def nested(tensors, prefix, recipe):
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return from_tensors(own, recipe.targets)


@pytest.fixture(scope="module")
def mesh():
    """One place: other meshes are tested with the tuner."""
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), AXES)


@functools.partial(jax.jit, static_argnames=("graph", "scaling"))
def tuned_log_probs(params, adapter, ids, *, graph, scaling):
    model = nnx.merge(graph, params)
    attach(model, adapter, scaling=scaling)
    log_p = jax.nn.log_softmax(model.hidden(ids) @ model.head_kernel())
    return jnp.take_along_axis(log_p[:, :-1], ids[:, 1:, None], axis=2)[..., 0]


@functools.partial(jax.jit, static_argnames=("graph",))
def logits_after(params, prompt, ids, lengths, *, graph):
    model = nnx.merge(graph, params)
    hidden = hidden_after_prompt(model, prompt, ids)
    return jnp.take_along_axis(hidden, lengths[:, None, None], axis=1)[:, 0] @ model.head_kernel()


def test_permutations_are_those_of_torch():
    facts = json.loads((GOLDEN / "torch_rng_facts.json").read_text())
    for n, by_seed in facts["permutations"].items():
        for seed, order in by_seed.items():
            assert permutation(int(n), int(seed)) == order


def test_lora_starts_are_those_of_torch():
    facts = json.loads((GOLDEN / "torch_rng_facts.json").read_text())
    stream = facts["lora_A_stream"]
    drawn = lora_starts([(s["r"], s["in_features"], s["out_features"]) for s in stream], facts["lora_A_seed"])
    for expected, A in zip(stream, drawn, strict=True):
        np.testing.assert_array_equal(A.ravel(), np.array(expected["lora_A"], np.float32))


@pytest.mark.parametrize("name", ["fsd_tiny", "fsd_tiny_stress"])
def test_fsd_course(name, mesh, tmp_path):
    facts, tensors = golden(name)
    request, tolerance = lora_request(facts), facts["tolerances"]
    recipe = request.recipe
    graph, params = base(facts["model_dir"], mesh)
    assert steps_of(request) == facts["optimiser"]["total_steps"] == len(facts["steps"])
    for step, expected in enumerate(facts["steps"]):
        assert places_of(request, step) == expected["batch"]
        np.testing.assert_allclose(rates_of(request)[step], expected["lr"], rtol=1e-9)
    begin = nested(tensors, "init.", recipe)
    group = Group(("a",), (request,), 8, 32)
    loss = LoraLoss(recipe.alpha / recipe.rank, recipe.dropout, recipe.seed, 16)

    stacked = jax.tree.map(lambda a: jnp.asarray(a)[None], begin)
    gradients, _ = _step_gradients(group, params, stacked, mesh, 0, graph=graph, loss=loss)
    norm = float(optax.tree.norm(gradients))
    np.testing.assert_allclose(norm, facts["steps"][0]["grad_norm_before_clip"], rtol=tolerance["grad_norm_rel"])
    clip = min(1.0, recipe.clip / norm)
    assert_tensors(jax.tree.map(lambda g: g[0] * clip, gradients), tensors, "step1_grad_clipped.", tolerance)

    seen = {}
    kept = types.SimpleNamespace(
        latest=lambda state: (0, state),
        keep=lambda step, steps, state: seen.setdefault(step, jax.tree.map(lambda a: np.asarray(a[0]), state()[0])),
    )
    (trained,), (losses,) = train(group, [begin], params, mesh, kept, graph=graph, loss=loss)
    expected = [step["loss"] for step in facts["steps"]]
    np.testing.assert_allclose(losses, expected, atol=tolerance["step_loss"])
    assert_tensors(seen[1], tensors, "after_step1.", tolerance)
    assert_tensors(trained, tensors, f"after_step{len(expected)}.", tolerance)

    # The tuned model's own numbers.
    padded = padded_ids([np.array(ids, np.int32) for ids in facts["eval_ids"]], len(facts["eval_ids"]), 32)
    log_p = tuned_log_probs(params, trained, padded, graph=graph, scaling=loss.scaling)
    for i, ids in enumerate(facts["eval_ids"]):
        expected = tensors[f"eval{i}.ft_token_logprobs"]
        np.testing.assert_allclose(log_p[i, : len(ids) - 1], expected, atol=tolerance["token_logprobs"])


def assert_tensors(adapter, tensors, prefix, tolerance):
    for name, value in to_tensors(jax.tree.map(np.asarray, adapter)).items():
        np.testing.assert_allclose(value, tensors[prefix + name], atol=tolerance["tensors_atol"], err_msg=name)


def test_fsd_start_is_that_of_torch(mesh):
    facts, tensors = golden("fsd_tiny")
    graph, params = base(facts["model_dir"], mesh)
    own = start(nnx.merge(graph, params), lora_request(facts).recipe, jnp.float32)
    for name, value in to_tensors(own).items():
        np.testing.assert_array_equal(value, tensors[f"init.{name}"])


def prompt_request(facts):
    own, optimiser = facts["prompt"], facts["optimiser"]
    recipe = SoftPromptRecipe(
        start=tuple(own["init_text_ids"]), yes=facts["yes_id"], no=facts["no_id"], length=own["num_virtual_tokens"],
        text_weight=facts["loss"]["prompt_loss_weight"], learning_rate=optimiser["lr"], epochs=facts["epochs"],
        batch=facts["batch_pairs"],
    )  # fmt: skip
    sides = facts["member_examples"], facts["nonmember_examples"]
    members, non_members = (tuple(np.array(e["input_ids"], np.int32) for e in side) for side in sides)
    answers = np.array([e["out_idx"] for side in sides for e in side])
    return TrainSoftPrompt(members, non_members, answers, recipe, origin(len(answers)))


@pytest.mark.parametrize("rows", [8, 16])
def test_mia_tuner_course(rows, mesh, tmp_path):
    """Rows of a step at once and in micro-batches that cut through pairs."""
    facts, tensors = golden("mia_tuner_tiny")
    request, tolerance = prompt_request(facts), facts["tolerances"]
    graph, params = base(facts["model_dir"], mesh)
    recipe = request.recipe
    begin = tensors["init.soft_prompt"]
    group = Group(("a",), (request,), rows, 32)
    loss = SoftPromptLoss(recipe.yes, recipe.no, False, 16)
    for step, expected in enumerate(facts["steps"]):
        assert places_of(request, step) == expected["pairs"]
        np.testing.assert_allclose(rates_of(request)[step], expected["lr"], rtol=1e-9)
    gradient, values = _step_gradients(group, params, jnp.asarray(begin)[None], mesh, 0, graph=graph, loss=loss)
    np.testing.assert_allclose(gradient[0], tensors["step1_grad.soft_prompt"], atol=tolerance["tensors_atol"])
    for ours, theirs in (("llm", "llm_loss"), ("clf", "clf_loss"), ("err", "err_loss")):
        np.testing.assert_allclose(values[ours], facts["steps"][0][theirs], atol=tolerance["step_loss"])
    checkpoints = Checkpoints(tmp_path / "c", 1000)
    (trained,), (losses,) = train(group, [begin], params, mesh, checkpoints, graph=graph, loss=loss)
    np.testing.assert_allclose(losses, [s["total"] for s in facts["steps"]], atol=tolerance["step_loss"])
    np.testing.assert_allclose(trained, tensors[f"after_step{len(losses)}.soft_prompt"], atol=tolerance["tensors_atol"])
    if rows == 8:
        asked = [np.array(ids, np.int32) for ids in facts["eval_prompt_ids"]]
        lengths = np.array([len(ids) for ids in asked])
        for key, prompt in (("eval_before", begin), ("eval_after", trained)):
            found = logits_after(params, prompt, padded_ids(asked, len(asked), 32), lengths, graph=graph)
            for logits, expected in zip(found, facts[key], strict=True):
                for id_, name in ((recipe.yes, "logit_yes"), (recipe.no, "logit_no")):
                    np.testing.assert_allclose(logits[id_], expected[name], atol=tolerance["logits"])


def test_mia_tuner_losses_at_their_corners():
    facts, _ = golden("mia_tuner_tiny")
    cases = facts["loss_cases"]
    yes, no = (
        jnp.asarray([*cases[f"nll_{answer}_member"], *cases[f"nll_{answer}_nonmember"]], jnp.float32)
        for answer in ("yes", "no")
    )
    n = len(cases["clf"])
    clf, err = answer_losses(yes, no, jnp.asarray([1.0] * n + [0.0] * n, jnp.float32))
    np.testing.assert_allclose((clf[:n] + clf[n:]) / 2, cases["clf"], rtol=2e-6)
    np.testing.assert_allclose(err[:n] + err[n:], cases["err"], rtol=2e-6)


def test_unaligned_loss(mesh):
    facts, tensors = golden("mia_tuner_tiny")
    expected, request = facts["unaligned_variant"], prompt_request(facts)
    pairs = expected["pairs"]
    losses = jnp.asarray([*expected["member_mean_ce"], *expected["nonmember_mean_ce"]], jnp.float32)
    n = len(pairs)
    padded = jnp.concatenate([losses, jnp.asarray([5.0], jnp.float32)])
    members = jnp.asarray([1.0] * n + [0.0] * (n + 1), jnp.float32)
    shares = jnp.asarray([1 / n] * (2 * n) + [0.0], jnp.float32)
    total, parts = contrastive(padded, members, shares)
    np.testing.assert_allclose(parts["contrast"], expected["contrastive_mean"], atol=2e-6)
    np.testing.assert_allclose(parts["excess"], expected["hinge"], atol=2e-6)
    np.testing.assert_allclose(total, expected["total"], atol=2e-6)

    recipe = dataclasses.replace(request.recipe, unaligned=True)
    request = dataclasses.replace(request, recipe=recipe)
    assert places_of(request, 0) == pairs
    graph, params = base(facts["model_dir"], mesh)
    prompt = jnp.asarray(tensors["init.soft_prompt"])[None]
    gradient, values = _step_gradients(
        Group(("a",), (request,), 8, 32), params, prompt, mesh, 0, graph=graph,
        loss=SoftPromptLoss(recipe.yes, recipe.no, True, 32),
    )  # fmt: skip
    np.testing.assert_allclose(values["loss"], expected["total"], atol=facts["tolerances"]["step_loss"])
    np.testing.assert_allclose(
        gradient[0], tensors["unaligned_grad.soft_prompt"], atol=facts["tolerances"]["tensors_atol"]
    )


def test_a_step_is_one_mean_over_its_tokens():
    texts = tuple(np.arange(2, 2 + n, dtype=np.int32) for n in (2, 9, 5))
    request = TrainLora(texts, LoraRecipe(batch=3), origin(3))
    parts = rows_of(request, 0, 2, 16)
    assert len(parts) == 2 and all(isinstance(p, Rows) and p.ids.shape == (2, 16) for p in parts)
    weights = np.concatenate([p.weights.ravel() for p in parts])
    assert np.isclose(weights.sum(), 1) and set(np.unique(weights)) == {0, np.float32(1 / 13)}
