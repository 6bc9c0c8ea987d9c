"""Drawing tokens: the golden distribution, thresholds against sorting, and frequencies."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from olmodetect_jax.generation.sampling import draw, largest, uniforms, warp
from olmodetect_jax.scoring.statistics import logit_statistics

# As generation runs them: compiled. Of the top p there are too many for a program each.
warp_top_k, drawn_of = jax.jit(warp, static_argnames=("top_k", "top_p")), jax.jit(draw)
LOGITS = arrays(np.float32, (2, 24), elements=st.integers(-8, 8).map(lambda n: n / 4))


def probabilities(logits, temperature=1.0, top_k=0, top_p=1.0):
    logits = np.asarray(logits, np.float32)
    temperatures = np.full(logits.shape[:-1], temperature, np.float32)
    warped = np.asarray((warp_top_k if top_p == 1 else warp)(logits, temperatures, top_k=top_k, top_p=top_p), float)
    weights = np.exp(warped - warped.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_golden(golden):
    content = json.loads((golden / "cdd_sampling.json").read_text())
    for given_, expected in zip(content["inputs"], content["expected"], strict=True):
        found = probabilities(given_["logits"], given_["temperature"], given_["top_k"])
        assert (found > 0).sum() == expected["n_kept"]
        np.testing.assert_allclose(found, expected["probabilities"], atol=1e-6, rtol=1e-5)


def test_golden_entropies(golden):
    """Over the whole vocabulary: the original's sum over the largest terms is another number."""
    content = json.loads((golden / "selfcrit_entropy.json").read_text())
    for given_, expected in zip(content["inputs"], content["expected"], strict=True):
        logits = jnp.asarray(given_["logits"], jnp.float32)[None, None]
        found = -float(jax.jit(logit_statistics)(logits, jnp.zeros((1, 1), jnp.int32)).mean[0, 0])
        assert found == pytest.approx(expected["entropy_nats_full_vocabulary"], abs=1e-6, rel=1e-5)


@given(LOGITS, st.integers(1, 24))
def test_top_k_keeps_what_sorting_keeps(logits, k):
    least = np.sort(logits, axis=-1)[:, -k]
    np.testing.assert_array_equal(probabilities(logits, top_k=k) > 0, logits >= least[:, None])


@given(LOGITS, st.floats(0.05, 0.999))
def test_top_p_keeps_the_fewest_that_reach_it(logits, p):
    kept = probabilities(logits, top_p=p) > 0
    whole = probabilities(logits)
    for row in range(len(logits)):
        assert whole[row][kept[row]].sum() >= p - 1e-5
        least = whole[row][kept[row]].min()
        assert whole[row][whole[row] > least * (1 + 1e-6)].sum() < p + 1e-5  # without the last and its ties: too few
        assert (whole[row][~kept[row]] <= least).all()


@given(LOGITS)
def test_largest_is_the_first_of_the_largest(logits):
    np.testing.assert_array_equal(np.asarray(largest(jnp.asarray(logits))), logits.argmax(-1))


@given(LOGITS, st.floats(0, 1, exclude_max=True, width=32), st.integers(1, 24))
def test_no_impossible_token_is_drawn(logits, uniform, k):
    warped = warp_top_k(logits, np.ones(2, np.float32), top_k=k, top_p=1.0)
    drawn = np.asarray(drawn_of(warped, np.full(2, uniform, np.float32)))
    assert np.isfinite(np.asarray(warped)[np.arange(2), drawn]).all()


@pytest.mark.parametrize("size", [7, 64, 4096])
def test_draws_follow_the_distribution(size):
    """Uniform numbers on a grid: every token comes as often as its probability says, to one step of the grid."""
    logits = np.random.default_rng(size).normal(0, 2, size).astype(np.float32)
    steps = 20_000
    uniform = ((np.arange(steps) + 0.5) / steps).astype(np.float32)
    drawn = np.concatenate([np.asarray(drawn_of(np.broadcast_to(logits, (len(u), size)), u))
                            for u in np.split(uniform, 20)])  # fmt: skip
    frequency = np.bincount(drawn, minlength=size) / steps
    np.testing.assert_allclose(frequency, probabilities(logits), atol=1.5 / steps)
    assert (np.diff(drawn) >= 0).all()


def test_uniforms_depend_on_key_and_step_alone():
    keys = np.random.default_rng(0).integers(0, 2**32, (6, 2), dtype=np.uint32)
    steps = np.arange(6, dtype=np.int32)
    found = np.asarray(uniforms(jnp.asarray(keys), jnp.asarray(steps)))
    turned = np.asarray(uniforms(jnp.asarray(keys[::-1]), jnp.asarray(steps[::-1])))
    np.testing.assert_array_equal(found, turned[::-1])
    assert len(set(found.tolist())) == 6 and (found >= 0).all() and (found < 1).all()
    other = np.asarray(uniforms(jnp.asarray(keys), jnp.asarray(steps + 1)))
    assert not (found == other).any()
