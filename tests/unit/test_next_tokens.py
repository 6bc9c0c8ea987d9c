"""What comes next after prompts that share their beginning: equal to reading each from its start."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from conversion import load_model_directory
from olmodetect_jax.errors import OlmoDetectError, StoreError, UsageError
from olmodetect_jax.requests import PredictNext
from olmodetect_jax.scoring import next_tokens as next_module
from olmodetect_jax.scoring.next_tokens import branches_of
from olmodetect_jax.scoring.planning import plan_lengths
from tests import tolerances as tol
from tests.unit.test_generation import prompts
from tests.unit.test_prefix import engine

TOKENS = np.asarray([3, 60, 7], np.int32)


def from_scratch(golden, asked):
    """Each prompt read whole, by the plain pass, in one batch."""
    model = load_model_directory(golden / "tiny_olmo2", "float32").module()
    texts = [p for r in asked for p in r.prompts]
    ids = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    last = jax.jit(model.hidden)(ids)[np.arange(len(texts)), [len(t) - 1 for t in texts]]
    return np.asarray(jax.nn.log_softmax(last @ model.head_kernel(), axis=-1))[:, TOKENS]


def quizzes(lengths, seed):
    """Five prompts about one text, as DCQ asks them: four options, and the original in the place of one of them."""
    head, *options, original, tail = prompts([lengths[0], *[lengths[1]] * 5, lengths[2]], seed)
    ways = [options] + [[*options[:i], original, *options[i + 1 :]] for i in range(4)]
    return PredictNext(tuple(np.concatenate([head, *way, tail]) for way in ways), TOKENS)


def as_bytes(answers):
    return {d: a.log_prob.tobytes() for d, a in answers.items()}


def test_golden_letters(golden, tmp_path):
    content = json.loads((golden / "selfcrit_cdd_dcq_neigh_tiny_olmo2.json").read_text())
    (place,) = (i for i, given_ in enumerate(content["inputs"]) if given_["kind"] == "dcq")
    given_, expected = content["inputs"][place], content["expected"][place]["letter_probabilities"]
    letters = given_["letter_token_ids"]
    tokens = np.asarray([i for own in letters.values() for i in own], np.int32)
    texts = [np.asarray(p, np.int32) for p in given_["prompts"]]
    made = engine(golden, tmp_path, name="tiny_olmo2")
    together = PredictNext(tuple(texts), tokens)
    single = [PredictNext((t,), tokens) for t in texts]
    answers = made.answer([together, *single])
    for i, wanted in enumerate(expected):
        for found in (answers[together.digest].log_prob[i], answers[single[i].digest].log_prob[0]):
            p, taken = np.exp(found.astype(np.float64)), 0
            for letter, own in letters.items():
                assert p[taken : taken + len(own)].sum() == pytest.approx(wanted[letter], abs=2e-4, rel=2e-4)
                taken += len(own)


def test_equal_to_reading_each_from_its_start(golden, tmp_path):
    (a, b, c) = prompts([40, 40, 7])
    odd = [
        PredictNext((a, a), TOKENS),  # the same again
        PredictNext((a, a[:13], a[:1]), TOKENS),  # beginnings of the first
        PredictNext((a[:13], a), TOKENS),  # the first is a beginning of it
        PredictNext((a, b, c), TOKENS),  # nothing shared
        PredictNext((c[:1], a, np.concatenate([c[:1], b])), TOKENS),
    ]
    asked = [*odd, *(quizzes(n, seed) for seed, n in enumerate([(3, 9, 2), (1, 70, 1)]))]
    answers = engine(golden, tmp_path, name="tiny_olmo2").answer(asked)
    found = [row for r in asked for row in answers[r.digest].log_prob]
    np.testing.assert_allclose(found, from_scratch(golden, asked), atol=tol.LAYOUT)


def test_the_first_again_takes_its_answer(golden, tmp_path):
    a, b = prompts([9, 9])
    request = PredictNext((a, b, a.copy()), TOKENS)
    found = engine(golden, tmp_path).answer([request])[request.digest].log_prob
    assert found[0].tobytes() == found[2].tobytes() != found[1].tobytes()
    assert [branch.place for branch in branches_of(request)] == [1]


def test_the_logits_alone_are_rounded(golden, tmp_path):
    """As a model in bfloat16 hands them out; a probability is not."""
    request = quizzes((3, 5, 2), 0)
    one = engine(golden, tmp_path).answer([request])[request.digest].log_prob
    other = engine(golden, tmp_path, score_dtype="bfloat16").answer([request])[request.digest].log_prob
    assert 0 < np.abs(one - other).max() < 0.05
    assert (other != other.astype(jnp.bfloat16).astype(np.float32)).any()


def test_probabilities_of_all_tokens_sum_to_one(golden, tmp_path):
    request = PredictNext((prompts([9])[0],), np.arange(64, dtype=np.int32))
    found = engine(golden, tmp_path, name="tiny_olmo2").answer([request])[request.digest].log_prob
    assert np.exp(found.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)


def test_same_bytes_in_any_order_and_after_a_kill(golden, tmp_path, monkeypatch):
    asked = [quizzes((40 + i, 12, 3), i) for i in range(20)]  # three batches of one bucket
    whole = engine(golden, tmp_path / "a", token_budget=128).answer(asked)
    assert as_bytes(engine(golden, tmp_path / "b", token_budget=128).answer(asked[::-1])) == as_bytes(whole)
    killed = engine(golden, tmp_path / "c", token_budget=128)
    store, calls = killed._next._store, []
    add = store.add_next

    def add_one(*args):
        if calls:
            raise KeyboardInterrupt
        calls.append(args)
        add(*args)

    monkeypatch.setattr(store, "add_next", add_one)
    with pytest.raises(KeyboardInterrupt):
        killed.answer(asked)
    again = engine(golden, tmp_path / "c", token_budget=4096)
    assert 0 < len(again._next._store.next_tokens) < len(asked)
    assert as_bytes(again.answer(asked[:3] + asked[3:][::-1])) == as_bytes(whole)
    first, second = ({f.name for f in (tmp_path / name).rglob("next-*")} for name in "ac")
    assert first == second  # the batches that were planned before the kill


def test_any_batch_and_mesh_gives_the_same_numbers(golden, tmp_path):
    asked = [quizzes((5 + 9 * i, 12, 3), i) for i in range(12)]
    one = engine(golden, tmp_path / "a", token_budget=128).answer(asked)  # rows of 8 and 16
    alone = engine(golden, tmp_path / "b", token_budget=128)
    for request in asked[::4]:
        found = alone.answer([request])[request.digest].log_prob
        np.testing.assert_allclose(found, one[request.digest].log_prob, atol=tol.LAYOUT)
    other = engine(golden, tmp_path / "c", "data=2,fsdp=2,tensor=2").answer(asked[:3])
    for request in asked[:3]:
        np.testing.assert_allclose(one[request.digest].log_prob, other[request.digest].log_prob, atol=tol.LAYOUT)


def test_a_damaged_file_is_named(golden, tmp_path):
    engine(golden, tmp_path).answer([quizzes((3, 5, 2), 0)])
    (file,) = tmp_path.rglob("next-*")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(StoreError, match=f"{file.name}.*damaged"):
        engine(golden, tmp_path)


def counted(monkeypatch):
    """Lets the readings be counted, [rows, tokens] each, and not run."""
    shapes = []

    def trunks(params, ids, lengths, tokens, **options):
        shapes.append(ids.shape)
        return None, np.zeros((len(ids), len(tokens)), np.float32)

    def branches(params, read, starts, ids, lengths, tokens, **options):
        return trunks(params, ids, lengths, tokens)[1]

    monkeypatch.setattr(next_module, "read_trunks", trunks)
    monkeypatch.setattr(next_module, "read_branches", branches)
    return shapes


def test_fourteen_options_are_read_instead_of_twenty(golden, tmp_path, monkeypatch):
    """Padding included, for quizzes of many lengths."""
    shapes = counted(monkeypatch)
    lengths = np.random.default_rng(0).integers(100, 400, 256)
    asked = [quizzes((60, int(n), 20), i) for i, n in enumerate(lengths)]
    engine(golden, tmp_path, token_budget=2048).answer(asked)
    whole = {r.digest + bytes([i]): len(p) for r in asked for i, p in enumerate(r.prompts)}
    plan = plan_lengths(whole, token_budget=2048 * 8, row_multiple=8)
    read, unshared = sum(map(np.prod, shapes)), sum(b.rows * b.bucket for b in plan)
    needed = sum(len(r.prompts[0]) + sum(len(b.ids) for b in branches_of(r)) for r in asked)
    around = 60 + 5 * 20  # the beginning once, the end after each
    assert 0 <= 14 * lengths.sum() + around * len(asked) - needed < len(asked)  # options may begin alike by chance
    assert needed < read < 0.8 * unshared


def test_a_branch_longer_than_its_trunk_keeps_to_the_budget(golden, tmp_path, monkeypatch):
    shapes = counted(monkeypatch)
    asked = [PredictNext(tuple(prompts([5, 500], seed)), TOKENS) for seed in range(40)]
    engine(golden, tmp_path, token_budget=1024).answer(asked)
    assert max(np.prod(shape) for shape in shapes) <= 1024 * 8 and {rows for rows, _ in shapes} == {16}


def test_programs_hold_no_weights_and_no_logits_of_every_position(golden):
    graph, params = nnx.split(load_model_directory(golden / "tiny_olmo2", "float32").module())
    R, T, V = 3, 80, 64
    of = jax.ShapeDtypeStruct
    ids, lengths, tokens = of((R, T), jnp.int32), of((R,), jnp.int32), of((5,), jnp.int32)
    trunks, _ = jax.eval_shape(
        lambda *given_: next_module.read_trunks(*given_, graph=graph, room=128, rounding="none"),
        params,
        ids,
        lengths,
        tokens,
    )
    lowered = (
        next_module.read_trunks.lower(params, ids, lengths, tokens, graph=graph, room=128, rounding="none"),
        next_module.read_branches.lower(params, trunks, lengths, ids, lengths, tokens, graph=graph, rounding="none"),
    )
    for text in (low.as_text() for low in lowered):
        assert f"<{R}x{V}xf32>" in text and f"{T}x{V}xf32" not in text and 'dense<"0x' not in text
        products = [line for line in text.splitlines() if "dot_general" in line]
        assert len(products) > 5 and all("precision = [HIGHEST, HIGHEST]" in line for line in products)


def test_ids_beyond_the_embedding_are_refused(golden, tmp_path):
    made, far = engine(golden, tmp_path), np.asarray([1, 64], np.int32)
    for request in (PredictNext((TOKENS, far), TOKENS), PredictNext((TOKENS,), far)):
        with pytest.raises(UsageError, match="the id 64"):
            made.answer([request])


def test_a_batch_that_does_not_fit_the_device_says_what_to_do(golden, tmp_path, monkeypatch):
    def exhausted(*arguments, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes")

    monkeypatch.setattr(next_module, "read_trunks", exhausted)
    with pytest.raises(OlmoDetectError, match="8 rows of 64 tokens.*--token-budget"):
        engine(golden, tmp_path).answer([quizzes((3, 5, 2), 0)])


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=5))
def test_branches_spell_the_prompts(texts):
    asked = PredictNext(tuple(np.asarray(t, np.int32) for t in texts), TOKENS)
    trunk = asked.prompts[0]
    found = branches_of(asked)
    assert sorted(b.place for b in found) == [i for i, own in enumerate(texts) if own != texts[0]]
    rests = [len(branch.ids) for branch in found]
    assert rests == sorted(rests, reverse=True)
    for branch in found:
        whole = np.concatenate([trunk[: branch.start], branch.ids])
        np.testing.assert_array_equal(whole, asked.prompts[branch.place])
        assert len(branch.ids) >= 1 and branch.start <= len(trunk)
        parts = branch.start == len(trunk) or len(branch.ids) == 1 or trunk[branch.start] != branch.ids[0]
        assert parts  # no token that is shared is read again


@pytest.mark.parametrize("change", [{"prompts": ()}, {"prompts": (np.zeros(0, np.int32),)}, {"tokens": TOKENS[:0]}])
def test_requests_that_make_no_sense(change):
    with pytest.raises(ValueError, match="none given|expected"):
        PredictNext(**{"prompts": (TOKENS,), "tokens": TOKENS, **change})
