"""The tiled statistics: values, memory, layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from olmodetect_jax.models.sharding import RULES, make_mesh
from olmodetect_jax.scoring.statistics import logit_statistics, released_statistics, sizes, token_statistics
from tests import tolerances as tol

tiled = jax.jit(token_statistics, static_argnames=("tile", "group"))


def in_float64(hidden, head, targets):
    logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64)
    log_p = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_p -= logits.max(-1, keepdims=True)
    p = np.exp(log_p)
    mean = (p * log_p).sum(-1)
    variance = (p * np.square(log_p - mean[..., None])).sum(-1)
    return np.take_along_axis(log_p, np.asarray(targets)[..., None], -1)[..., 0], mean, variance


def inputs(B, T, D, V, scale=1.0):
    a, b, c = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(a, (B, T, D)) * scale
    return hidden, jax.random.normal(b, (D, V)), jax.random.randint(c, (B, T), 0, V, jnp.int32)


@pytest.mark.parametrize("V", [112, 509, 4096])  # 509 is prime: one lane
@pytest.mark.parametrize(("tile", "group"), [(10_000, None), (6, None), (6, 2), (1, 1), (12, 4)])
def test_tiles_and_groups_do_not_matter(V, tile, group):
    hidden, head, targets = inputs(2, 12, 8, V)
    got = tiled(hidden, head, targets, tile=tile, group=group)
    for g, e in zip(got, in_float64(hidden, head, targets), strict=True):
        np.testing.assert_allclose(g, e, rtol=tol.LAYOUT, atol=tol.LAYOUT)


@pytest.mark.parametrize("scale", [1e-3, 1e-4])
def test_variance_of_a_nearly_uniform_model_keeps_its_digits(scale):
    """E[x²] - E[x]² in float32 is off by a factor of 30 and more here, and can be negative."""
    logits = jax.random.normal(jax.random.key(1), (1, 3, 100_352)) * scale
    targets = jnp.zeros((1, 3), jnp.int32)
    got = jax.jit(logit_statistics)(logits, targets).variance
    exact = np.asarray(logits, np.float64)
    p = np.exp(exact - exact.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    centred = exact - (p * exact).sum(-1, keepdims=True)
    np.testing.assert_allclose(got, (p * centred**2).sum(-1), rtol=1e-5)


def test_variance_is_taken_about_the_mean():
    """One logit a little above 100,351 equal ones: moments about the largest lose three more digits here."""
    V = 100_352
    logits = jnp.zeros((1, 1, V), jnp.float32).at[0, 0, 7].set(1.0)
    p = np.full(V, 1 / (V - 1 + np.e))
    p[7] *= np.e
    got = logit_statistics(logits, jnp.zeros((1, 1), jnp.int32)).variance
    np.testing.assert_allclose(got[0, 0], p[7] * (1 - p[7]), rtol=1e-4)


def test_bfloat16_inputs_are_accumulated_in_float32():
    hidden, head, targets = (x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x for x in inputs(2, 4, 64, 512))
    got = tiled(hidden, head, targets, tile=8)
    for g, e in zip(got, in_float64(hidden.astype(jnp.float32), head.astype(jnp.float32), targets), strict=True):
        np.testing.assert_allclose(g, e, atol=1e-3, rtol=1e-3)  # rounded logits would be off by 0.05


def test_released_statistics_round_the_logits_first_and_everything_after():
    logits = jax.random.normal(jax.random.key(3), (5, 2, 300)) * 4
    targets = jnp.zeros((5, 2), jnp.int32)
    released = jax.jit(released_statistics)
    got = released(logits, targets)
    for a, b in zip(got, released(logits.astype(jnp.bfloat16).astype(jnp.float32), targets), strict=True):
        assert (a == b).all()
        assert (a == a.astype(jnp.bfloat16).astype(jnp.float32)).all()


def test_large_logits_do_not_overflow():
    logits = jnp.asarray([[[3e4, -3e4, 2.9e4, 0.0]]], jnp.float32)
    got = logit_statistics(logits, jnp.asarray([[1]], jnp.int32))
    assert got.log_prob[0, 0] == -6e4 and got.variance[0, 0] >= 0
    assert all(np.isfinite(x).all() for x in got)


@pytest.mark.parametrize("sizes_of_mesh", [(8, 1, 1), (2, 2, 2), (1, 1, 8), (1, 4, 2), (4, 1, 2)])
def test_every_mesh_agrees(sizes_of_mesh):
    hidden, head, targets = inputs(8, 6, 16, 512)
    mesh = make_mesh(dict(zip(("data", "fsdp", "tensor"), sizes_of_mesh, strict=True)))
    rows = jax.sharding.NamedSharding(mesh, RULES.rows)
    with jax.set_mesh(mesh):
        place = (
            jax.device_put(hidden, rows),
            jax.device_put(head, jax.sharding.NamedSharding(mesh, RULES.head)),
            jax.device_put(targets, rows),
        )
        got = jax.jit(lambda h, w, y: token_statistics(h, w, y, tile=16, group=8))(*place)
    for g, e in zip(got, in_float64(hidden, head, targets), strict=True):
        np.testing.assert_allclose(g, e, rtol=tol.LAYOUT, atol=tol.LAYOUT)


def compiled(rows, tokens, tile, V=100_352, D=1024):
    shape = jax.ShapeDtypeStruct
    function = jax.jit(lambda h, w, y: token_statistics(h, w, y, tile=tile, group=sizes("cpu", V)[1]))
    return function.lower(
        shape((rows, tokens, D), jnp.float32), shape((D, V), jnp.float32), shape((rows, tokens), jnp.int32)
    ).compile()


def test_temporary_memory_is_bounded_by_the_tile_and_not_by_the_tokens():
    V, tile = 100_352, 64
    used = {
        (rows, tokens): compiled(rows, tokens, tile).memory_analysis().temp_size_in_bytes
        for rows, tokens in ((1, 256), (1, 1024), (4, 1024), (16, 4096))
    }
    assert max(used.values()) <= 2.5 * tile * V * 4
    # 64 times the tokens: only the statistics themselves grow, three numbers a token.
    assert used[16, 4096] - used[1, 1024] <= 8 * 3 * 4 * 16 * 4096


def test_no_full_logits_in_the_program():
    """No float32 buffer with a vocabulary axis and more rows than a tile."""
    import math
    import re

    V, tile = 100_352, 64
    text = compiled(1, 1024, tile, D=64).as_text()  # the head itself has 64 rows
    for shape in re.findall(r"f32\[([\d,]+)\]", text):
        assert math.prod(map(int, shape.split(","))) <= tile * V
