"""How fast a model reads on this machine."""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def seconds_of_pass(model: nnx.Module, *, rows: int = 8, tokens: int = 256, rounds: int = 7) -> float:
    """Median seconds of one pass over a batch with all its logits, after compiling.

    Args:
        model: has `hidden`, `head_kernel` and `config`; small, for the logits are held whole.
        rows: B.
        tokens: T.
        rounds: passes that are timed.
    """
    graph, params = nnx.split(model)

    @jax.jit
    def run(params: nnx.State, ids: jax.Array) -> jax.Array:
        own = nnx.merge(graph, params)
        return jnp.sum(own.hidden(ids) @ own.head_kernel())

    ids = np.random.default_rng(0).integers(1, model.config.vocab_size, (rows, tokens)).astype(np.int32)
    run(params, ids).block_until_ready()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run(params, ids).block_until_ready()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
