"""What comes next after prompts that share their beginning: equal to reading each from its start."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.errors import StoreError
from olmodetect_jax.requests import PredictNext
from olmodetect_jax.scoring.next_tokens import branches_of
from olmodetect_jax.scoring.planning import bucket_of
from tests import tolerances as tol
from tests.unit.test_generation import engine, prompts

TOKENS = np.asarray([3, 60, 7], np.int32)


def alone(made, asked):
    """Each prompt in a request of its own: a first prompt is read from its start."""
    single = [PredictNext((p,), r.tokens) for r in asked for p in r.prompts]
    answers = made.answer(list({s.digest: s for s in single}.values()))
    return [answers[s.digest].log_prob[0] for s in single]


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
    asked = [*odd, *(quizzes(n, seed) for seed, n in enumerate([(3, 9, 2), (20, 30, 5), (1, 70, 1)]))]
    made = engine(golden, tmp_path)
    answers = made.answer(asked)
    found = [row for r in asked for row in answers[r.digest].log_prob]
    np.testing.assert_allclose(found, alone(made, asked), atol=tol.LAYOUT)


def test_probabilities_of_all_tokens_sum_to_one(golden, tmp_path):
    request = PredictNext((prompts([9])[0],), np.arange(64, dtype=np.int32))
    found = engine(golden, tmp_path, name="tiny_olmo2").answer([request])[request.digest].log_prob
    assert np.exp(found.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)


def test_same_bytes_in_any_order_and_after_a_kill(golden, tmp_path, monkeypatch):
    asked = [quizzes((5 + 9 * i, 12, 3), i) for i in range(12)]
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


def test_same_on_another_mesh(golden, tmp_path):
    asked = [quizzes((5 + 9 * i, 12, 3), i) for i in range(3)]
    one = engine(golden, tmp_path / "a").answer(asked)
    other = engine(golden, tmp_path / "b", "data=2,fsdp=2,tensor=2").answer(asked)
    for request in asked:
        np.testing.assert_allclose(one[request.digest].log_prob, other[request.digest].log_prob, atol=tol.LAYOUT)


def test_a_damaged_file_is_named(golden, tmp_path):
    engine(golden, tmp_path).answer([quizzes((3, 5, 2), 0)])
    (file,) = tmp_path.rglob("next-*")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(StoreError, match=f"{file.name}.*damaged"):
        engine(golden, tmp_path)


def test_fourteen_options_are_read_instead_of_twenty():
    request = quizzes((100, 200, 40), 0)
    branches = branches_of(request)
    read = len(request.prompts[0]) + sum(len(b.ids) for b in branches)
    assert 14 * 200 <= read <= 14 * 200 + 5 * 140
    padded = bucket_of(len(request.prompts[0])) + sum(bucket_of(len(b.ids)) for b in branches)
    assert padded < 0.8 * 5 * bucket_of(len(request.prompts[0]))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=5))
def test_branches_spell_the_prompts(texts):
    asked = PredictNext(tuple(np.asarray(t, np.int32) for t in texts), TOKENS)
    trunk = asked.prompts[0]
    found = branches_of(asked)
    assert sorted(b.place for b in found) == list(range(1, len(texts)))
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
