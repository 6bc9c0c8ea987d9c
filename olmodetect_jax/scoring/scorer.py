"""Texts by themselves: one jitted pass a batch over the mesh; every answer is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olmodetect_jax.models.lora import attach
from olmodetect_jax.models.sharding import RULES, row_parts
from olmodetect_jax.models.soft_prompt import hidden_after_prompt
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.runtime.failures import device_errors_named
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.scoring.planning import Batch, make_plan, padded_ids
from olmodetect_jax.scoring.statistics import Rounding, Statistics, token_statistics
from olmodetect_jax.scoring.store import Store


@functools.partial(jax.jit, static_argnames=("graph", "tile", "group", "rounding"))
def score_rows(
    params: nnx.State,
    ids: jax.Array,
    adapter: Any = None,
    *,
    graph: nnx.GraphDef,
    tile: int,
    group: int | None,
    rounding: Rounding,
    scaling: float = 0.0,
) -> Statistics:
    """Statistics of every position's next token.

    Args:
        params: the model's weights, an argument and never a constant of the program.
        ids: [B, T] int32, padded on the right.
        adapter: a LoRA adapter by linear map, or a soft prompt [P, D]; None for the model as it is.
        graph: the model without its weights.
        tile: see `token_statistics`; here of all devices together.
        group: see `token_statistics`.
        rounding: see `token_statistics`.
        scaling: of a LoRA adapter.

    Returns:
        Three [B, T] float32 arrays; column t belongs to token t+1, the last column to nothing. After a soft prompt
        column t belongs to token t.
    """
    model = nnx.merge(graph, params)
    soft_prompt = isinstance(adapter, jax.Array)
    targets = ids if soft_prompt else jnp.concatenate([ids[:, 1:], jnp.zeros_like(ids[:, :1])], axis=1)
    if adapter is not None and not soft_prompt:
        attach(model, adapter, scaling=scaling)
    # Accelerators multiply float32 matrices in fewer bits unless told otherwise; bfloat16 ones are not affected.
    with jax.default_matmul_precision("highest"):
        hidden = hidden_after_prompt(model, adapter, ids)[:, :-1] if soft_prompt else model.hidden(ids)
        return token_statistics(hidden, model.head_kernel(), targets, tile=tile, group=group, rounding=rounding)


class Scorer:
    """Answers `ScoreTokens` requests: from the store where it can, by running the model where it must."""

    def __init__(
        self,
        params: nnx.State,
        mesh: Mesh,
        store: Store,
        adapters: Callable[[str], tuple[Any, float]],
        *,
        token_budget: int,
        **program: Any,
    ):
        """Takes weights that already lie on `mesh`.

        Args:
            params: the model's weights.
            mesh: from `make_mesh`.
            store: where answers are kept.
            adapters: an adapter on the mesh with its scaling, by name.
            token_budget: tokens of a batch on each place that rows are split over, padding included.
            **program: `graph`, `tile` and `group` of `score_rows`.
        """
        self._params = params
        self._mesh = mesh
        self._store = store
        self._adapters = adapters
        self._parts = row_parts(mesh)
        self._budget = token_budget * self._parts
        self._program = program
        self._rows = NamedSharding(mesh, P(*RULES.rows, None))

    def answer(self, requests: Sequence[ScoreTokens], rounding: Rounding) -> Mapping[bytes, TokenStatistics]:
        """Answers distinct requests, by digest.

        Each finished batch is on disk before the next but one starts.
        """
        by_digest = {r.digest: r for r in requests}
        missing = {d for d in by_digest if not self._store.known(d)}
        plan = self._store.unfinished(missing, self._parts, self._budget)
        planned = {d for batch in plan for d in batch.digests}
        left = [by_digest[d] for d in missing - planned]
        fresh = make_plan(left, token_budget=self._budget, row_multiple=self._parts)
        if fresh:
            self._store.keep_plan(fresh, self._budget)
            plan += fresh
        with progress("Scoring", len(missing), unit="sequences") as advance:
            running: tuple[Batch, Statistics] | None = None
            for batch in [*plan, None] if plan else []:
                current = batch or running[0]
                with device_errors_named(current.rows, current.bucket):
                    started = (batch, self._start(batch, by_digest, rounding)) if batch else None
                    if running:  # the device works on the next batch while this one is stored
                        self._finish(*running, by_digest)
                        advance(len(running[0].digests))
                running = started
        return {d: self._store[d] for d in by_digest}

    def _start(self, batch: Batch, requests: dict[bytes, ScoreTokens], rounding: Rounding) -> Statistics:
        ids = padded_ids([requests[d].ids for d in batch.digests], batch.rows, batch.bucket)
        name = requests[batch.digests[0]].adapter
        adapter, scaling = self._adapters(name) if name else (None, 0.0)
        with jax.set_mesh(self._mesh):
            ids = jax.device_put(ids, self._rows)
            return score_rows(self._params, ids, adapter, rounding=rounding, scaling=scaling, **self._program)

    def _finish(self, batch: Batch, statistics: Statistics, requests: dict[bytes, ScoreTokens]) -> None:
        arrays = [np.asarray(s) for s in statistics]
        answers = []
        request = requests[batch.digests[0]]
        unscored = 0 if request.adapter and isinstance(self._adapters(request.adapter)[0], jax.Array) else 1
        for row, digest in enumerate(batch.digests):
            n = len(requests[digest].ids) - unscored
            answers.append(TokenStatistics(*(np.ascontiguousarray(a[row, :n]) for a in arrays)))
        self._store.add(batch, requests, answers)
