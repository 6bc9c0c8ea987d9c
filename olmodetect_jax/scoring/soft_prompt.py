"""What comes after a soft prompt and a text: one position's logits a text; every answer is kept."""

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

from olmodetect_jax.models.sharding import RULES, row_parts
from olmodetect_jax.models.soft_prompt import hidden_after_prompt
from olmodetect_jax.requests import NextTokens, PredictNext
from olmodetect_jax.runtime.failures import device_errors_named
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.scoring.planning import Batch, padded_ids, plan_groups
from olmodetect_jax.scoring.statistics import Rounding, log_softmax
from olmodetect_jax.scoring.store import Store


@functools.partial(jax.jit, static_argnames=("graph", "rounding"))
def next_after_prompt(
    params: nnx.State,
    prompt: jax.Array,
    ids: jax.Array,
    lengths: jax.Array,
    tokens: jax.Array,
    *,
    graph: nnx.GraphDef,
    rounding: Rounding,
) -> jax.Array:
    """Log-probabilities of tokens after a soft prompt and each text.

    Args:
        params: the model's weights.
        prompt: [P, D] float32.
        ids: [B, T] int32, padded on the right.
        lengths: [B] int32.
        tokens: [N] int32.
        graph: the model without its weights.
        rounding: of the logits.

    Returns:
        [B, N] float32.
    """
    model = nnx.merge(graph, params)
    with jax.default_matmul_precision("highest"):
        hidden = hidden_after_prompt(model, prompt, ids)
        last = jnp.take_along_axis(hidden, lengths[:, None, None], axis=1)[:, 0]
        logits = jnp.einsum("bd,dv->bv", last, model.head_kernel(), preferred_element_type=jnp.float32)
        return jnp.take(log_softmax(logits, rounding), tokens, axis=1)


class SoftPromptScorer:
    """Answers `PredictNext` requests of one prompt each that name an adapter."""

    def __init__(
        self,
        params: nnx.State,
        mesh: Mesh,
        store: Store,
        adapters: Callable[[str], tuple[Any, float]],
        *,
        graph: nnx.GraphDef,
        token_budget: int,
    ):
        """Takes weights that already lie on `mesh`.

        Args:
            params: the model's weights.
            mesh: from `make_mesh`.
            store: where answers are kept.
            adapters: a soft prompt's vectors, by name.
            graph: the model without its weights.
            token_budget: tokens of a batch on each place that rows are split over, padding included.
        """
        self._params, self._mesh, self._store, self._graph = params, mesh, store, graph
        self._adapters = adapters
        self._parts = row_parts(mesh)
        self._budget = token_budget * self._parts

    def answer(self, requests: Sequence[PredictNext], rounding: Rounding) -> Mapping[bytes, NextTokens]:
        """Answers distinct requests, by digest; each finished batch is on disk before the next one starts."""
        by_digest = {r.digest: r for r in requests}
        missing = {d for d in by_digest if d not in self._store.next_tokens}
        plan = self._store.unfinished(missing, self._parts, self._budget)
        groups: dict[tuple[str, bytes], dict[bytes, int]] = {}  # a batch asks for the same tokens after one prompt
        for digest in missing - {d for batch in plan for d in batch.digests}:
            request = by_digest[digest]
            own = groups.setdefault((request.adapter, request.tokens.tobytes()), {})
            own[digest] = len(request.prompts[0])
        ordered = [groups[key] for key in sorted(groups)]
        fresh = plan_groups(ordered, token_budget=self._budget, row_multiple=self._parts)
        if fresh:
            self._store.keep_plan(fresh, self._budget)
        with progress("Asking after a soft prompt", len(missing), unit="texts") as advance:
            for batch in [*plan, *fresh]:
                with device_errors_named(batch.rows, batch.bucket):
                    values = self._run(batch, [by_digest[d] for d in batch.digests], rounding)
                self._store.add_next(batch.digests, [row[None] for row in values[: len(batch.digests)]])
                advance(len(batch.digests))
        return {d: self._store.next_tokens[d] for d in by_digest}

    def _run(self, batch: Batch, own: Sequence[PredictNext], rounding: Rounding) -> np.ndarray:
        lengths = np.zeros(batch.rows, np.int32)
        lengths[: len(own)] = [len(r.prompts[0]) for r in own]
        ids = padded_ids([r.prompts[0] for r in own], batch.rows, batch.bucket)
        with jax.set_mesh(self._mesh):
            return np.asarray(
                next_after_prompt(
                    self._params,
                    self._adapters(own[0].adapter)[0],
                    jax.device_put(ids, NamedSharding(self._mesh, P(*RULES.rows, None))),
                    jax.device_put(lengths, NamedSharding(self._mesh, RULES.rows)),
                    jax.device_put(own[0].tokens, NamedSharding(self._mesh, P(None))),
                    graph=self._graph,
                    rounding=rounding,
                )
            )
