"""Generation: the tiny model's goldens, independence of order, batch and mesh, branches, resuming, bad input."""

import json

import jax
import numpy as np
import pytest

from conversion import load_model_directory
from olmodetect_jax.engine import Engine
from olmodetect_jax.errors import OlmoDetectError, StoreError, UsageError
from olmodetect_jax.generation import decode as decode_module
from olmodetect_jax.generation import generator as generator_module
from olmodetect_jax.generation.generator import Generator
from olmodetect_jax.generation.planning import Shape, make_plan
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh, parse_mesh
from olmodetect_jax.requests import Generate, Sampling, ScoreTokens
from olmodetect_jax.scoring.kept import Provenance
from tests import tolerances as tol

GOLDEN = "selfcrit_cdd_dcq_neigh_tiny_olmo2.json"


def engine(golden, out, mesh="data=8", name="tiny_olmo2_gqa", token_budget=1024, dtype="float32"):
    places = make_mesh(parse_mesh(mesh))
    loaded = load_model_directory(golden / name, dtype, lambda p, s: leaf_sharding(places, p, s))
    provenance = Provenance(loaded.weights_digest, "tokenizer", "config", dtype, "float32")
    return Engine(loaded.module(), places, out, provenance, token_budget=token_budget)


def prompts(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 64, n, dtype=np.int32) for n in lengths]


def sampled(prompt, count=5, max_new=12, seed=1, top_k=20, stop_ids=(0,), greedy=True, starts=None):
    starts = np.full(count, len(prompt), np.int32) if starts is None else np.asarray(starts, np.int32)
    return Generate(prompt, max_new, stop_ids, greedy, Sampling(seed, 0.8, top_k), starts)


def as_bytes(answers):
    return {
        d: [(c.ids.tobytes(), c.log_prob.tobytes(), c.entropy.tobytes(), c.ended) for c in a.rows]
        for d, a in answers.items()
    }


def tokens(answer):
    return [c.ids.tolist() for c in answer.rows]


def assert_alike(one, other):
    """The same tokens; numbers up to the order of sums."""
    for a, b in zip(one.rows, other.rows, strict=True):
        assert (a.ids.tolist(), a.ended) == (b.ids.tolist(), b.ended)
        np.testing.assert_allclose(a.log_prob, b.log_prob, atol=tol.LAYOUT)
        np.testing.assert_allclose(a.entropy, b.entropy, atol=tol.LAYOUT)


@pytest.fixture(scope="module")
def cases(golden):
    content = json.loads((golden / GOLDEN).read_text())
    return dict(zip(content["case_names"], zip(content["inputs"], content["expected"], strict=True), strict=True))


def test_greedy_goldens(golden, tmp_path, cases):
    """Tokens and entropies, with and without an end, one run past the trained context, all in one batch."""
    asked = {}
    for name, (given, expected) in cases.items():
        if given["kind"] == "greedy":
            stop = () if given["eos_token_id"] is None else (given["eos_token_id"],)
            request = Generate(np.asarray(given["prompt_ids"], np.int32), given["max_new_tokens"], stop)
            asked[name] = (request, expected)
    assert len(asked) == 7
    answers = engine(golden, tmp_path, name="tiny_olmo2").answer([r for r, _ in asked.values()])
    for name, (request, expected) in asked.items():
        (found,) = answers[request.digest].rows
        assert found.ids.tolist() == expected["tokens"], name
        np.testing.assert_allclose(found.entropy, expected["entropies"], atol=2e-4, rtol=2e-4)
        assert found.ended == ("eos" in name)


def test_cdd_goldens(golden, tmp_path, cases):
    made = engine(golden, tmp_path, name="tiny_olmo2")
    for name, (given, expected) in cases.items():
        if given["kind"] != "cdd":
            continue
        prompt = np.asarray(given["text_ids"][: expected["prompt_token_count"]], np.int32)
        request = sampled(prompt, 50, given["max_new_tokens"], stop_ids=())
        rows = made.answer([request])[request.digest].rows
        assert rows[0].ids.tolist() == expected["greedy"], name
        possible = np.flatnonzero(np.asarray(expected["first_token_probabilities"]) > 0)
        assert {int(c.ids[0]) for c in rows[1:]} <= set(possible.tolist())


def test_same_bytes_in_any_order(golden, tmp_path):
    asked = [sampled(p, (5, 20, 1)[i % 3], seed=i) for i, p in enumerate(prompts(range(3, 40, 2)))]
    asked += [Generate(p, 20, (0, 3)) for p in prompts(range(1, 30, 3), seed=1)]
    one = engine(golden, tmp_path / "a").answer(asked)
    other = engine(golden, tmp_path / "b").answer(asked[::-1])
    assert as_bytes(one) == as_bytes(other) and len(one) == len(asked)
    assert any(c.ended for a in one.values() for c in a.rows)


def test_a_text_does_not_depend_on_its_company(golden, tmp_path):
    """Alone, beside others, in few slots that are refilled, in many."""
    asked = [sampled(p, 20, seed=i) for i, p in enumerate(prompts([5, 9, 14, 30, 33] * 4))]
    together = engine(golden, tmp_path / "a").answer(asked)
    generous = engine(golden, tmp_path / "b", token_budget=100_000).answer(asked[:7])
    for request in asked[:2]:
        alone = engine(golden, tmp_path / f"{request.digest.hex()}").answer([request])
        assert_alike(alone[request.digest], together[request.digest])
    for request in asked[:7]:
        assert_alike(generous[request.digest], together[request.digest])


@pytest.mark.parametrize("mesh", ["data=2,fsdp=2,tensor=2", "data=1,fsdp=4,tensor=2"])
def test_same_on_every_mesh(golden, tmp_path, mesh):
    asked = [sampled(p, 6, seed=i) for i, p in enumerate(prompts([5, 9, 14, 30, 33]))]
    one = engine(golden, tmp_path / "a").answer(asked)
    other = engine(golden, tmp_path / "b", mesh).answer(asked)
    for request in asked:
        assert_alike(one[request.digest], other[request.digest])


def test_samples_differ_by_seed_and_by_place_only(golden, tmp_path):
    (prompt,) = prompts([12])
    made = engine(golden, tmp_path)
    few, many, other = (sampled(prompt, 5), sampled(prompt, 9), sampled(prompt, 5, seed=2))
    answers = made.answer([few, many, other])
    assert tokens(answers[few.digest]) == tokens(answers[many.digest])[:6]  # the greedy one and five draws
    assert tokens(answers[few.digest])[0] == tokens(answers[other.digest])[0]
    assert tokens(answers[few.digest])[1:] != tokens(answers[other.digest])[1:]
    assert len({tuple(t) for t in tokens(answers[many.digest])}) > 5


@pytest.mark.parametrize("max_new", [12, 37])
def test_a_text_that_waits_for_a_place_is_the_one_that_does_not(golden, tmp_path, max_new):
    """In turns of 16, begun at different steps, against all at once."""
    asked = [sampled(p, 30, max_new, seed=i) for i, p in enumerate(prompts([12, 30, 7]))]
    at_once = [sampled(r.prompt, 50, max_new, seed=i) for i, r in enumerate(asked)]
    made = engine(golden, tmp_path)
    answers = made.answer([*asked, *at_once])
    for one, other in zip(asked, at_once, strict=True):
        assert (Shape.of(one).width, Shape.of(other).width) == (16, 52)
        whole = answers[other.digest]
        assert_alike(answers[one.digest], type(whole)(whole.rows[:31]))
        assert {len(c.ids) for c in whole.rows} > {max_new}  # some ended, some did not


def test_branches_of_a_prompt(golden, tmp_path):
    """A draw after the first n tokens is the draw from a prompt of these n tokens."""
    (prompt,) = prompts([40])
    starts = [1, 7, 40, 7, 23]
    made = engine(golden, tmp_path)
    request = sampled(prompt, starts=starts, greedy=False)
    answer = made.answer([request])[request.digest]
    for place, start in enumerate(starts):
        whole = sampled(prompt[:start], place + 1, greedy=False)
        alone = made.answer([whole])[whole.digest].rows[place]
        assert_alike(type(answer)((answer.rows[place],)), type(answer)((alone,)))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", tol.BFLOAT16_LAYOUT)])
def test_log_probs_are_those_of_scoring(golden, tmp_path, dtype, tolerance):
    """Three hundred decoded tokens against one pass over them, far past the trained context."""
    (prompt,) = prompts([17])
    request = Generate(prompt, 300)
    made = engine(golden, tmp_path, dtype=dtype)
    (text,) = made.answer([request])[request.digest].rows
    assert len(text.ids) == 300 and not text.ended
    scored = ScoreTokens(np.concatenate([prompt, text.ids]))
    statistics = made.answer([scored])[scored.digest]
    np.testing.assert_allclose(text.log_prob, statistics.log_prob[len(prompt) - 1 :], atol=tolerance)
    np.testing.assert_allclose(text.entropy, -statistics.mean[len(prompt) - 1 :], atol=tolerance)


def test_a_run_that_was_killed_goes_on_with_the_same_bytes(golden, tmp_path, monkeypatch):
    asked = [Generate(p, 16, (0,)) for p in prompts(range(2, 60))] + [sampled(p, 20) for p in prompts([4, 8] * 20)]
    whole = engine(golden, tmp_path / "whole", token_budget=64).answer(asked)
    killed = engine(golden, tmp_path / "killed", token_budget=64)
    add, calls = killed._generator._store.add, []

    def add_two(requests, answers):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(requests))
        add(requests, answers)

    monkeypatch.setattr(killed._generator._store, "add", add_two)
    with pytest.raises(KeyboardInterrupt):
        killed.answer(asked)
    again = engine(golden, tmp_path / "killed", token_budget=64)
    assert 0 < len(again._generator._store.answers) < len(asked)
    assert as_bytes(again.answer(asked[::-1])) == as_bytes(whole)
    names = [{f.name for f in (tmp_path / name).rglob("batch-*")} for name in ("whole", "killed")]
    assert names[0] == names[1]  # the very batches, not others that happen to give the same bytes
    ran = []
    monkeypatch.setattr(Generator, "_run", lambda *args: ran.append(args))
    assert as_bytes(engine(golden, tmp_path / "killed", token_budget=64).answer(asked)) == as_bytes(whole) and not ran


def test_two_programs_a_shape(golden, tmp_path):
    """Two calls, prompts of many lengths, slots that are refilled: one program to read and one to decode."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **what: (
            compiled.append(what["fun_name"]) if event.endswith("backend_compile_duration") else None
        )
    )
    decode_module.fill.clear_cache()
    decode_module.decode.clear_cache()
    made = engine(golden, tmp_path)
    for seed in range(2):
        made.answer([sampled(p, 20, seed=seed, max_new=9) for p in prompts([5, 30, 100, 128] * 20)])
    assert sorted(n for n in compiled if n in ("jit(fill)", "jit(decode)")) == ["jit(decode)", "jit(fill)"]


def test_a_damaged_file_is_named(golden, tmp_path):
    request = Generate(prompts([4])[0], 4)
    made = engine(golden, tmp_path)
    made.answer([request])
    (file,) = made._generator._store.folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match=f"{file.name}.*damaged"):
        engine(golden, tmp_path)


def test_an_id_beyond_the_vocabulary(golden, tmp_path):
    with pytest.raises(UsageError, match="made the id 64"):
        engine(golden, tmp_path).answer([Generate(np.asarray([64], np.int32), 3)])


def test_memory_that_runs_out_is_named(golden, tmp_path, monkeypatch):
    def fail(*args, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(generator_module, "fill", fail)
    with pytest.raises(OlmoDetectError, match="does not fit the device's memory"):
        engine(golden, tmp_path).answer([Generate(prompts([4])[0], 4)])


def test_a_smaller_budget_after_memory_ran_out(golden, tmp_path, monkeypatch):
    """The plan that did not fit is not tried again; what was finished under it stays."""
    asked = [Generate(p, 16) for p in prompts(range(2, 60))]
    rows = []
    fill = generator_module.fill

    def fits_small_ones(params, slots, *args, **options):
        rows.append(slots.places.shape[0])
        if rows[-1] > 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return fill(params, slots, *args, **options)

    monkeypatch.setattr(generator_module, "fill", fits_small_ones)
    with pytest.raises(OlmoDetectError, match="smaller --token-budget"):
        engine(golden, tmp_path).answer(asked)
    answers = engine(golden, tmp_path, token_budget=16).answer(asked)
    assert len(answers) == len(asked) and rows[0] > 8 and set(rows[1:]) == {8}


def test_a_text_that_is_not_finite_spoils_no_other(golden, tmp_path):
    """A row that held NaN is taken by the next text, whose masked columns must not hold it still."""
    made = engine(golden, tmp_path, "data=1,fsdp=8", token_budget=16)
    embedding = made._generator._params["embed"]["embedding"]
    embedding.set_value(embedding[...].at[5].set(np.nan))
    clean = [p[p != 5] for p in prompts([9, 12, 20, 30] * 8)]
    bad = [np.concatenate([p, np.asarray([5], np.int32)]) for p in clean]
    asked = [Generate(p, 9, (5,)) for p in [*clean, *bad]]
    answers = made.answer(asked)
    for request in asked[: len(clean)]:
        assert all(np.isfinite(c.log_prob).all() for c in answers[request.digest].rows)
    assert not any(np.isfinite(c.log_prob).all() for r in asked[len(clean) :] for c in answers[r.digest].rows)


@pytest.mark.parametrize(
    "change",
    [
        {"max_new": 0},
        {"prompt": np.zeros(0, np.int32)},
        {"prompt": np.zeros(3, np.int64)},
        {"greedy": False},
        {"starts": np.asarray([1], np.int32)},
        {"sampling": Sampling(0)},
        {"sampling": Sampling(0), "starts": np.asarray([4], np.int32)},
        {"sampling": Sampling(0), "starts": np.asarray([0], np.int32)},
    ],
)
def test_requests_that_make_no_sense(change):
    with pytest.raises(ValueError, match="expected|go together"):
        Generate(**{"prompt": np.zeros(3, np.int32), "max_new": 5, **change})


@pytest.mark.parametrize("change", [{"seed": -1}, {"temperature": 0}, {"top_k": -1}, {"top_p": 0}, {"seed": 2**64}])
def test_sampling_that_makes_no_sense(change):
    with pytest.raises(ValueError, match="not a way to sample"):
        Sampling(**{"seed": 0, **change})


def test_plan():
    asked = [sampled(p, 50, max_new=64) for p in prompts([100] * 30)] + [Generate(p, 64) for p in prompts([100, 300])]
    plan = make_plan(asked, kv_tokens=16_384, row_multiple=2)
    assert sorted((b.bucket, b.rows, len(b.digests)) for b in plan) == [(128, 2, 1), (128, 8, 30), (512, 2, 1)]
    assert Shape.of(asked[0]).width == 52 and Shape.of(asked[-1]) == Shape(512, 64, 1, (), None, 1.0)
    assert sorted(d for b in plan for d in b.digests) == sorted(r.digest for r in asked)


@pytest.mark.parametrize(
    ("rows", "width"), [(1, 1), (2, 4), (4, 4), (5, 16), (32, 16), (33, 52), (52, 52), (53, 16), (400, 16)]
)
def test_width(rows, width):
    assert Shape.of(sampled(prompts([5])[0], rows, greedy=False)).width == width
