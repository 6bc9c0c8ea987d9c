"""Texts after a shared prefix: equal to scoring from scratch, in any order, batch and mesh; resuming."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from conversion import load_model_directory
from olmodetect_jax.engine import Engine
from olmodetect_jax.errors import OlmoDetectError, StoreError, UsageError
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh, parse_mesh
from olmodetect_jax.requests import ScoreTargets, ScoreTokens, Targets
from olmodetect_jax.scoring import prefix as prefix_module
from olmodetect_jax.scoring.kept import Provenance
from olmodetect_jax.scoring.planning import plan_targets, prefix_bucket
from olmodetect_jax.scoring.store import Store
from tests import tolerances as tol


def ids_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 64, n, dtype=np.int32) for n in lengths]


def engine(golden, out, mesh="data=8", name="tiny_olmo2_gqa", score_dtype="float32", **options):
    places = make_mesh(parse_mesh(mesh))
    loaded = load_model_directory(golden / name, "float32", lambda p, s: leaf_sharding(places, p, s))
    provenance = Provenance(loaded.weights_digest, "tokenizer", "config", "float32", score_dtype)
    return Engine(loaded.module(), places, out, provenance, score_dtype=score_dtype, **options)


def from_scratch(engine, prefix, target, upcast=False):
    """first and rest from one pass over prefix and target together."""
    request = ScoreTokens(np.concatenate([prefix, target]), upcast)
    log_prob = engine.answer([request])[request.digest].log_prob[len(prefix) - 1 :].astype(np.float64)
    return log_prob[0], log_prob[1:].mean() if len(target) > 1 else np.nan


def as_bytes(answers):
    return {d: (a.first.tobytes(), a.rest.tobytes()) for d, a in answers.items()}


@pytest.mark.parametrize("score_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [1, 7, 128])
def test_equal_to_scoring_from_scratch(golden, tmp_path, length, score_dtype):
    scorer = engine(golden, tmp_path, score_dtype=score_dtype)
    targets = Targets(ids_of([1, 5, 64, 2, 5]))
    (prefix,) = ids_of([length], seed=1)
    request = ScoreTargets(prefix, targets)
    answer = scorer.answer([request])[request.digest]
    tolerance = tol.LAYOUT if score_dtype == "float32" else tol.BFLOAT16_LAYOUT
    for i, target in enumerate(targets):
        np.testing.assert_allclose(
            [answer.first[i], answer.rest[i]], from_scratch(scorer, prefix, target), atol=tolerance
        )


@pytest.mark.parametrize(("name", "lengths"), [("tiny_olmo2", [270]), ("tiny_olmo2_gqa", [3, 270])])
def test_equal_to_scoring_from_scratch_in_other_models(golden, tmp_path, name, lengths):
    scorer = engine(golden, tmp_path, name=name)
    targets = Targets(ids_of([9, 300]))  # 300: more than one chunk of queries
    for prefix in ids_of(lengths, seed=2):
        request = ScoreTargets(prefix, targets)
        answer = scorer.answer([request])[request.digest]
        for i, target in enumerate(targets):
            expected = from_scratch(scorer, prefix, target)
            np.testing.assert_allclose([answer.first[i], answer.rest[i]], expected, atol=tol.LAYOUT)


def test_upcast_rounds_the_logits_only(golden, tmp_path):
    scorer = engine(golden, tmp_path, score_dtype="bfloat16")
    targets, (prefix,) = Targets(ids_of([5, 30])), ids_of([7], seed=1)
    answers = {upcast: scorer.answer([ScoreTargets(prefix, targets, upcast)]) for upcast in (True, False)}
    (up,), (down,) = answers[True].values(), answers[False].values()
    grid = down.first.astype(jnp.bfloat16).astype(np.float32)
    assert (down.first == grid).all() and (up.first != up.first.astype(jnp.bfloat16).astype(np.float32)).all()
    for i, target in enumerate(targets):
        np.testing.assert_allclose(
            [up.first[i], up.rest[i]], from_scratch(scorer, prefix, target, upcast=True), atol=tol.BFLOAT16_LAYOUT
        )


def square(lengths, seed=0):
    """EMMIA's shape: every text as a prefix of every text."""
    ids = ids_of(lengths, seed)
    targets = Targets(ids)
    return [ScoreTargets(p, targets) for p in ids]


def test_any_order_gives_the_same_bytes(golden, tmp_path):
    rows = square([3, 40, 64, 130, 7])
    first = engine(golden, tmp_path / "a").answer(rows)
    order = np.random.default_rng(1).permutation(len(rows))
    targets = Targets([rows[i].prefix for i in order])
    shuffled = [ScoreTargets(rows[i].prefix, targets) for i in order]
    second = engine(golden, tmp_path / "b").answer(shuffled)
    for i, row in enumerate(shuffled):
        one, other = first[rows[order[i]].digest], second[row.digest]
        assert (other.rest == one.rest[order]).all() and (other.first == one.first[order]).all()


def test_any_batch_and_mesh_gives_the_same_numbers(golden, tmp_path):
    rows = square([3, 40, 64, 100])  # targets of two buckets
    first = engine(golden, tmp_path / "a").answer(rows)
    variants = [
        {"mesh": "data=8", "token_budget": 1},
        {"mesh": "fsdp=8"},
        {"mesh": "data=2,fsdp=2,tensor=2", "token_budget": 256},
        {"mesh": "tensor=2,data=4"},
    ]
    for i, options in enumerate(variants):
        other = engine(golden, tmp_path / f"v{i}", **options).answer(rows)
        for digest, answer in first.items():
            for field in ("first", "rest"):
                np.testing.assert_allclose(getattr(other[digest], field), getattr(answer, field), atol=tol.LAYOUT)


def test_prefixes_or_targets_are_spread(golden, tmp_path, monkeypatch):
    """One prefix on eight places spreads its targets; nine prefixes take a place each."""
    shapes, real = [], prefix_module.score_after

    def seen(params, prefix, ids, lengths, **options):
        spread = (len({str(s.index) for s in array.addressable_shards}) for array in (ids, prefix.keys))
        shapes.append((prefix.lengths.shape[0], ids.shape[0], *spread))
        return real(params, prefix, ids, lengths, **options)

    monkeypatch.setattr(prefix_module, "score_after", seen)
    scorer = engine(golden, tmp_path)
    lengths = [3, 40, 64, 65, 7, 100, 33, 9, 50]
    scorer.answer(square(lengths)[:1])
    assert {(prefixes, targets % 8, *places) for prefixes, targets, *places in shapes} == {(1, 0, 8, 1)}
    shapes.clear()
    scorer.answer(square(lengths, seed=1))
    assert {(prefixes, *places) for prefixes, _, *places in shapes} == {(8, 1, 8)}


def test_a_broken_off_run_computes_the_missing_rows_only(golden, tmp_path, monkeypatch):
    rows = square([3, 40, 130, 7, 140, 129, 33])
    whole = engine(golden, tmp_path / "whole", mesh="data=2,tensor=4").answer(rows)
    add, count = Store.add_rows, [0]

    def fail_at_the_third(self, *arrays):
        count[0] += 1
        if count[0] == 3:
            raise OSError(28, "No space left on device")
        add(self, *arrays)

    monkeypatch.setattr(Store, "add_rows", fail_at_the_third)
    with pytest.raises(OSError):
        engine(golden, tmp_path / "cut", mesh="data=2,tensor=4").answer(rows)
    kept = []
    monkeypatch.setattr(Store, "add_rows", lambda self, *arrays: kept.extend(arrays[0]) or add(self, *arrays))
    rest = engine(golden, tmp_path / "cut", mesh="data=2,tensor=4").answer(rows)
    assert len(kept) == len(rows) - 3  # two steps were kept: two prefixes of the larger bucket, and its last one
    assert as_bytes(rest) == as_bytes(whole)
    kept.clear()
    engine(golden, tmp_path / "cut", mesh="data=2,tensor=4").answer(rows[:2])  # fewer prefixes than places: no matter
    assert not kept


def test_damaged_rows_are_named(golden, tmp_path):
    engine(golden, tmp_path).answer(square([3, 40, 64]))
    file = next(tmp_path.rglob("rows-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match=file.name):
        engine(golden, tmp_path)


def test_the_plan_holds_every_target_once():
    targets = Targets(ids_of([3, 40, 64, 65, 130, 7, 200, 129, 33, 3, 9, 11, 64]))
    plan = plan_targets(targets, token_budget=512, row_multiple=2)
    assert sorted(p for b in plan for p in b.places) == list(range(len(targets)))
    for batch in plan:
        assert batch.rows % 2 == 0 and len(batch.places) <= batch.rows and batch.rows * batch.bucket <= 512
        assert max(len(targets[targets.order[p]]) for p in batch.places) <= batch.bucket
    assert [b.bucket for b in plan] == sorted((b.bucket for b in plan), reverse=True)
    mixed = Targets([targets[i] for i in np.random.default_rng(0).permutation(len(targets))])
    assert plan_targets(mixed, token_budget=512, row_multiple=2) == plan
    assert [prefix_bucket(n) for n in (1, 128, 129, 2048, 2049, 4096)] == [128, 128, 256, 2048, 3072, 4096]


def test_requests_refuse_what_cannot_be_scored():
    good, empty = np.zeros(3, np.int32), np.zeros(0, np.int32)
    for prefix, targets in ((empty, [good]), (good, [empty]), (good, []), (good.astype(np.int64), [good])):
        with pytest.raises(ValueError):
            ScoreTargets(prefix, targets)
    assert ScoreTargets(good, [good]).digest != ScoreTargets(good, [good], upcast=True).digest
    assert ScoreTargets(good, [good]).digest != ScoreTargets(good[:2], [good]).digest
    one, other = ScoreTargets(good, [good, good[:1]]), ScoreTargets(good, [good[:1], good])
    assert one.digest != other.digest and one.row == other.row != ScoreTargets(good, [good]).row


def test_ids_beyond_the_embedding_are_refused(golden, tmp_path):
    scorer = engine(golden, tmp_path)
    far, near = np.array([1, 100_000], np.int32), np.array([1, 2], np.int32)
    for request in (ScoreTargets(far, [near]), ScoreTargets(near, [near, far])):
        with pytest.raises(UsageError, match="100000"):
            scorer.answer([request])


def test_a_batch_that_does_not_fit_the_device_says_what_to_do(golden, tmp_path, monkeypatch):
    def exhausted(*arguments, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes")

    monkeypatch.setattr(prefix_module, "score_after", exhausted)
    with pytest.raises(OlmoDetectError, match="--token-budget"):
        engine(golden, tmp_path).answer(square([3, 40]))


def test_no_copy_of_the_prefix_a_target(golden):
    """Nothing in the program has the prefix's keys or values once for each of the B targets."""
    graph, params = nnx.split(load_model_directory(golden / "tiny_olmo2", "float32").module())
    B, T, P = 24, 64, 512
    options = {"graph": graph, "rows": jax.sharding.PartitionSpec(None)}
    prefix = jax.eval_shape(
        lambda p, i, n: prefix_module.prefill(p, i, n, **options),
        params,
        jax.ShapeDtypeStruct((1, P), jnp.int32),
        jax.ShapeDtypeStruct((1,), jnp.int32),
    )
    shapes = (jax.ShapeDtypeStruct((B, T), jnp.int32), jax.ShapeDtypeStruct((B,), jnp.int32))
    lowered = prefix_module.score_after.lower(
        params, prefix, *shapes, **options, tile=1024, group=None, rounding="none"
    )
    text = lowered.as_text()
    K, H = prefix.keys.shape[3:]
    assert f"x{P}x{K}x{H}x" in text and f"{B}x{P}x{K}x{H}x" not in text
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) > 5 and all("precision = [HIGHEST, HIGHEST]" in line for line in products)
    assert 'dense<"0x' not in text  # no weights among the program's constants
