"""Plan, store and engine: order, batch, padding and mesh independence; resuming; keys."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from conversion import load_model_directory
from olmodetect_jax.engine import Engine
from olmodetect_jax.errors import OlmoDetectError, StoreError, UsageError
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh, parse_mesh
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.scoring import scorer as scorer_module
from olmodetect_jax.scoring.kept import Provenance
from olmodetect_jax.scoring.planning import Batch, bucket_of, make_plan, padded_ids, padding_share, plan_groups
from olmodetect_jax.scoring.scorer import Scorer
from olmodetect_jax.scoring.store import Store
from tests import tolerances as tol


def requests_of(lengths, seed=0, vocabulary=64):
    rng = np.random.default_rng(seed)
    return [ScoreTokens(rng.integers(0, vocabulary, n, dtype=np.int32)) for n in lengths]


def engine(golden, out, mesh="data=8", name="tiny_olmo2_gqa", **options):
    places = make_mesh(parse_mesh(mesh))
    loaded = load_model_directory(golden / name, "float32", lambda p, s: leaf_sharding(places, p, s))
    provenance = Provenance(loaded.weights_digest, "tokenizer", "config", "float32", "float32")
    return Engine(loaded.module(), places, out, provenance, **options)


def as_bytes(answers):
    return {d: (a.log_prob.tobytes(), a.mean.tobytes(), a.variance.tobytes()) for d, a in answers.items()}


LENGTHS = [2, 3, 40, 64, 65, 130, 7, 200, 129, 33, 2, 90]


def test_groups_that_cannot_share_a_batch_share_its_shape():
    """Adapters are read under one by one, in one compiled program a bucket."""
    groups = [{bytes([g, i]): 40 + 30 * (i % 2) for i in range(n)} for g, n in enumerate((9, 3, 14))]
    plan = plan_groups(groups, token_budget=512, row_multiple=1)
    assert len({(b.bucket, b.rows) for b in plan}) == 2
    assert sorted(d for b in plan for d in b.digests) == sorted(d for g in groups for d in g)
    assert all(len({d[0] for d in b.digests}) == 1 and len(b.digests) <= b.rows for b in plan)


@given(st.lists(st.integers(2, 5000), min_size=1, max_size=60), st.sampled_from([1, 2, 8]), st.randoms())
@settings(deadline=None, max_examples=50)
def test_plan_holds_every_request_once_in_its_own_bucket(lengths, parts, random):
    requests = requests_of(lengths, vocabulary=1_000_000)
    plan = make_plan(requests, token_budget=4096, row_multiple=parts)
    by_digest = {r.digest: r for r in requests}
    assert sorted(d for b in plan for d in b.digests) == sorted(by_digest)
    for batch in plan:
        assert batch.rows % parts == 0 and 0 < len(batch.digests) <= batch.rows
        assert all(bucket_of(len(by_digest[d].ids)) == batch.bucket for d in batch.digests)
        assert batch.rows == parts or batch.rows * batch.bucket <= 4096 * parts
    assert len({(b.bucket, b.rows) for b in plan}) == len({b.bucket for b in plan})  # one shape a bucket
    assert [b.bucket for b in plan] == sorted((b.bucket for b in plan), reverse=True)
    random.shuffle(requests)
    assert make_plan(requests, token_budget=4096, row_multiple=parts) == plan


def test_padding_of_the_papers_length_mix_is_below_15_percent():
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.normal(m, 0.4 * m, 300) for m in (200, 250, 400, 700, 1450)]).clip(60, 4096)
    requests = requests_of(lengths.astype(int), vocabulary=1_000_000)
    plan = make_plan(requests, token_budget=16_384, row_multiple=1)
    assert padding_share(plan, {r.digest: r for r in requests}) < 0.15


def test_padded_ids_hold_only_the_texts():
    requests = requests_of([2, 5, 3])
    by_digest = {r.digest: r for r in requests}
    (batch,) = make_plan(requests, token_budget=256, row_multiple=4)
    ids = padded_ids([by_digest[d].ids for d in batch.digests], batch.rows, batch.bucket)
    assert ids.shape == (4, 64) and ids.dtype == np.int32
    assert sum(np.count_nonzero(row) for row in ids) == sum(np.count_nonzero(r.ids) for r in requests)


def test_requests_refuse_what_cannot_be_scored():
    for ids in (np.zeros(1, np.int32), np.zeros(3, np.int64), np.zeros((2, 2), np.int32)):
        with pytest.raises(ValueError):
            ScoreTokens(ids)
    assert requests_of([5])[0].digest == requests_of([5])[0].digest != requests_of([5], seed=1)[0].digest


def test_one_token_of_padding_adds_nothing(golden, tmp_path):
    """[5, 6, pad, pad] has exactly one score, that of 6 after 5."""
    short, long = (ScoreTokens(np.array(ids, np.int32)) for ids in ([5, 6], [5, 6, 7, 8]))
    together = engine(golden, tmp_path / "a").answer([short, long])
    alone = engine(golden, tmp_path / "b").answer([short])
    assert len(together[short.digest].log_prob) == 1 and len(together[long.digest].log_prob) == 3
    np.testing.assert_allclose(together[short.digest].log_prob, alone[short.digest].log_prob, atol=tol.LAYOUT)
    np.testing.assert_allclose(together[long.digest].log_prob[:1], alone[short.digest].log_prob, atol=tol.LAYOUT)


@pytest.mark.slow
def test_same_bytes_in_any_order_and_same_values_in_any_batch_or_mesh(golden, tmp_path):
    requests = requests_of(LENGTHS)
    first = engine(golden, tmp_path / "first").answer(requests)
    again = engine(golden, tmp_path / "again").answer(requests[::-1])
    assert as_bytes(first) == as_bytes(again)
    others = {
        "alone": {"token_budget": 1},
        "fsdp": {"mesh": "fsdp=8"},
        "both": {"mesh": "data=2,fsdp=4"},
        "tensor": {"mesh": "data=2,fsdp=2,tensor=2"},
    }
    for name, options in others.items():
        other = engine(golden, tmp_path / name, **options).answer(requests)
        for digest, answer in first.items():
            for field in ("log_prob", "mean", "variance"):
                np.testing.assert_allclose(
                    getattr(other[digest], field), getattr(answer, field), atol=tol.LAYOUT, rtol=tol.LAYOUT
                )
    assert as_bytes(engine(golden, tmp_path / "g", mesh="fsdp=8").answer(requests)) == as_bytes(first)


def test_nothing_is_computed_twice(golden, tmp_path, monkeypatch):
    requests = requests_of(LENGTHS)
    first = engine(golden, tmp_path).answer(requests[:6])
    ran = []
    monkeypatch.setattr(
        Scorer, "_start", lambda self, batch, *known, run=Scorer._start: ran.append(batch) or run(self, batch, *known)
    )
    both = engine(golden, tmp_path).answer(requests)
    assert sorted(d for b in ran for d in b.digests) == sorted({r.digest for r in requests[6:]} - set(first))
    assert {d: both[d].log_prob.tobytes() for d in first} == {d: a.log_prob.tobytes() for d, a in first.items()}
    ran.clear()
    engine(golden, tmp_path).answer(requests)
    assert ran == []


def test_a_broken_off_run_goes_on_in_the_shapes_it_planned(golden, tmp_path, monkeypatch):
    requests = requests_of(LENGTHS)
    whole = engine(golden, tmp_path / "whole", token_budget=128).answer(requests)
    add, count = Store.add, [0]

    def fail_at_the_third(self, *batch):
        count[0] += 1
        if count[0] == 3:
            raise OSError(28, "No space left on device")
        add(self, *batch)

    monkeypatch.setattr(Store, "add", fail_at_the_third)
    with pytest.raises(OSError):
        engine(golden, tmp_path / "cut", token_budget=128).answer(requests)
    monkeypatch.setattr(Store, "add", add)
    stored = set((tmp_path / "cut").rglob("batch-*"))
    assert len(stored) == 2
    times = {p: p.stat().st_mtime_ns for p in stored}
    resumed = engine(golden, tmp_path / "cut", token_budget=128).answer(requests)
    assert as_bytes(resumed) == as_bytes(whole)
    assert all(p.stat().st_mtime_ns == t for p, t in times.items())
    names = {p.name for p in (tmp_path / "cut").rglob("batch-*")}
    assert names == {p.name for p in (tmp_path / "whole").rglob("batch-*")}


def test_two_models_never_share_an_answer(golden, tmp_path):
    """Their keys differ in every part of the provenance."""
    request = requests_of([9])
    one = engine(golden, tmp_path).answer(request)
    two = engine(golden, tmp_path, name="tiny_olmo2").answer(request)
    assert as_bytes(one) != as_bytes(two)
    assert len(list(tmp_path.iterdir())) == 2
    facts = {"weights_digest": "w", "tokenizer_digest": "t", "config": "c", "dtype": "d", "logits_dtype": "l"}
    keys = {Provenance(**{**facts, k: "other"}).key for k in facts} | {Provenance(**facts).key}
    keys.add(Provenance(**facts, spec_version=99).key)
    assert len(keys) == len(facts) + 2


def test_store_names_what_is_damaged(golden, tmp_path):
    engine(golden, tmp_path).answer(requests_of([9]))
    (file,) = tmp_path.rglob("batch-*")
    content = file.read_bytes()
    file.write_bytes(content[:-3])
    with pytest.raises(StoreError, match=file.name):
        engine(golden, tmp_path)
    file.write_bytes(content)
    (plan,) = tmp_path.rglob("plan-*")
    plan.write_text("{}")
    with pytest.raises(StoreError, match=plan.name):
        engine(golden, tmp_path).answer(requests_of([9, 10], seed=3))
    (provenance,) = (tmp_path / "statistics").rglob("provenance.json")
    provenance.write_text(json.dumps({"weights_digest": "else"}))
    with pytest.raises(StoreError, match="provenance"):
        engine(golden, tmp_path)


def test_a_flipped_bit_is_noticed(golden, tmp_path):
    engine(golden, tmp_path).answer(requests_of([9]))
    (file,) = tmp_path.rglob("batch-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match="checksum"):
        engine(golden, tmp_path)


@pytest.mark.parametrize(
    "change", [{"rows": "8"}, {"rows": 0}, {"bucket": 1}, {"digests": ["00", "00"]}, {"digests": []}]
)
def test_a_plan_that_makes_no_sense_is_refused(golden, tmp_path, change):
    scorer = engine(golden, tmp_path)
    batch = {"bucket": 64, "rows": 8, "digests": ["00"], **change}
    (scorer._texts._store.folder / "plan-x.json").write_text(json.dumps({"batches": [batch]}))
    with pytest.raises(StoreError, match="plan-x.json"):
        scorer.answer(requests_of([9]))


def test_overlapping_kept_plans_run_a_request_once(golden, tmp_path):
    scorer = engine(golden, tmp_path)
    a, b, c = sorted(requests_of([9, 10, 11]), key=lambda r: r.digest)
    store = scorer._texts._store
    store.keep_plan([Batch(64, 8, (a.digest, b.digest))], 64)
    store.keep_plan([Batch(64, 8, (a.digest,))], 64)
    store.keep_plan([Batch(64, 8, (b.digest, c.digest))], 64)
    batches = store.unfinished({a.digest, b.digest, c.digest}, 8, 64)
    run = [d for batch in batches for d in batch.digests]
    assert len(run) == len(set(run))
    assert store.unfinished({a.digest}, 8, 64) == [Batch(64, 8, (a.digest,))]
    assert store.unfinished({a.digest}, 16, 64) == store.unfinished({a.digest}, 8, 63) == []
    assert set(scorer.answer([a, b, c])) == {a.digest, b.digest, c.digest}


def test_an_id_beyond_the_embedding_is_refused(golden, tmp_path):
    scorer = engine(golden, tmp_path)
    scorer.answer([ScoreTokens(np.array([1, 63], np.int32))])
    with pytest.raises(UsageError, match="the id 64, but the model has 64"):
        scorer.answer([ScoreTokens(np.array([1, 64], np.int32))])


def test_a_kept_plan_is_run_in_its_own_shapes(golden, tmp_path):
    requests, scorer = requests_of([9, 10, 11]), engine(golden, tmp_path)
    kept = [Batch(128, 16, tuple(r.digest for r in requests))]  # a fresh plan would be one of (64, 8)
    scorer._texts._store.keep_plan(kept, 1)
    ran, start = [], scorer._texts._start
    scorer._texts._start = lambda batch, *known: ran.append(batch) or start(batch, *known)
    scorer.answer(requests)
    assert ran == kept


def test_the_engine_gives_the_goldens(golden, tmp_path):
    fixtures = load_file(golden / "tiny_olmo2_gqa" / "fixtures.safetensors")
    requests = [ScoreTokens(fixtures[f"seq{i}.input_ids"].astype(np.int32)) for i in range(3)]
    answers = engine(golden, tmp_path).answer(requests)
    for i, request in enumerate(requests):
        expected = fixtures[f"seq{i}.token_logprobs"]
        np.testing.assert_allclose(answers[request.digest].log_prob, expected, atol=tol.TOKEN_LOGPROBS, rtol=0)


def test_the_scored_ids_are_kept(golden, tmp_path):
    requests = requests_of([9, 12])
    engine(golden, tmp_path).answer(requests)
    (file,) = tmp_path.rglob("batch-*")
    arrays = load_file(file)
    by_digest = {r.digest: r for r in requests}
    expected = np.concatenate([by_digest[row.tobytes()].ids for row in arrays["digests"]])
    assert (arrays["ids"] == expected).all() and arrays["lengths"].sum() == len(expected) - 2


def test_statistics_that_are_not_numbers_reach_the_attack(golden, tmp_path, monkeypatch):
    """A text whose statistics are not finite becomes a named hole there; other texts keep their scores."""
    real = scorer_module.score_rows

    def broken(*arguments, **options):
        statistics = real(*arguments, **options)
        return statistics._replace(mean=np.asarray(statistics.mean).copy() * np.array([[np.nan]] + [[1.0]] * 7))

    monkeypatch.setattr(scorer_module, "score_rows", broken)
    answers = engine(golden, tmp_path).answer(requests_of([9, 10, 11]))
    assert sorted(np.isfinite(a.mean).all() for a in answers.values()) == [False, True, True]


def test_a_batch_that_does_not_fit_the_device_says_what_to_do(golden, tmp_path, monkeypatch):
    def exhausted(*arguments, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes")

    monkeypatch.setattr(scorer_module, "score_rows", exhausted)
    with pytest.raises(OlmoDetectError, match="8 rows of 64 tokens.*--token-budget"):
        engine(golden, tmp_path).answer(requests_of([9]))


@pytest.mark.slow
def test_bfloat16_in_any_batch(golden, tmp_path):
    """Half precision may round differently in another batch shape, within a bound that is written down."""
    places = make_mesh()
    loaded = load_model_directory(golden / "tiny_olmo2", "bfloat16", lambda p, s: leaf_sharding(places, p, s))
    requests = requests_of(LENGTHS)

    def answer(name, budget):
        provenance = Provenance(loaded.weights_digest, "t", "c", "bfloat16", "float32")
        return Engine(loaded.module(), places, tmp_path / name, provenance, token_budget=budget).answer(requests)

    one, many = answer("one", 1), answer("many", 16_384)
    for digest in one:
        np.testing.assert_allclose(one[digest].log_prob, many[digest].log_prob, atol=tol.BFLOAT16_LAYOUT)
        assert one[digest].log_prob.dtype == np.float32


def test_float32_matrices_are_multiplied_in_float32_on_every_platform(golden):
    """Without it a TPU takes bfloat16 and an A100 TF32, and nothing on a CPU shows it but the program text."""
    graph, params = nnx.split(load_model_directory(golden / "tiny_olmo2", "float32").module())
    ids = jnp.zeros((1, 64), jnp.int32)
    options = {"graph": graph, "tile": 64, "group": None, "rounding": "none"}
    text = scorer_module.score_rows.lower(params, ids, **options).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) > 5 and all("precision = [HIGHEST, HIGHEST]" in line for line in products)
    assert 'dense<"0x' not in text  # no weights among the program's constants


def test_weights_are_arguments_and_shapes_are_few(golden, tmp_path):
    scorer = engine(golden, tmp_path)
    before = scorer_module.score_rows._cache_size()
    scorer.answer(requests_of(LENGTHS))
    assert scorer_module.score_rows._cache_size() - before <= len({bucket_of(n) for n in LENGTHS})


def test_the_token_budget_counts_for_each_place(golden, tmp_path):
    engine(golden, tmp_path, token_budget=128).answer(requests_of([9] * 40))
    (plan,) = (json.loads(p.read_text())["batches"] for p in tmp_path.rglob("plan-*.json"))
    assert [b["rows"] for b in plan] == [16, 16, 16]


def test_an_answer_that_is_there_stays_the_answer(golden, tmp_path):
    """Two batches of other runs may hold the same request; a later file never replaces the first."""
    provenance = Provenance("w", "t", "c", "float32", "float32")
    (request,) = requests_of([5])
    other = requests_of([6], seed=1)[0]
    known = {r.digest: r for r in (request, other)}

    def answer(r, value):
        n = len(r.ids) - 1
        return TokenStatistics(*(np.full(n, value, np.float32) for _ in range(3)))

    batches = [(Batch(64, 8, (request.digest,)), 1.0), (Batch(64, 8, (request.digest, other.digest)), 2.0)]
    for batch, value in batches:
        Store(tmp_path, provenance).add(batch, known, [answer(known[d], value) for d in batch.digests])
    first = min((tmp_path / provenance.key).glob("batch-*"))
    expected = 1.0 if len(load_file(first)["lengths"]) == 1 else 2.0
    assert Store(tmp_path, provenance)[request.digest].log_prob[0] == expected
