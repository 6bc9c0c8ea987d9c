"""The engine: answers requests with one jitted pass a batch over the mesh, and keeps every answer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olmodetect_jax.errors import OlmoDetectError, UsageError
from olmodetect_jax.models.sharding import RULES, row_parts
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.scoring.planning import Batch, make_plan, padded_ids
from olmodetect_jax.scoring.statistics import LogitsDtype, Statistics, sizes, token_statistics
from olmodetect_jax.scoring.store import Store


@functools.partial(jax.jit, static_argnames=("graph", "tile", "group", "logits_dtype"))
def score_rows(
    params: nnx.State,
    ids: jax.Array,
    *,
    graph: nnx.GraphDef,
    tile: int,
    group: int | None,
    logits_dtype: LogitsDtype,
) -> Statistics:
    """Statistics of every position's next token.

    Args:
        params: the model's weights, an argument and never a constant of the program.
        ids: [B, T] int32, padded on the right.
        graph: the model without its weights.
        tile: see `token_statistics`; here of all devices together.
        group: see `token_statistics`.
        logits_dtype: see `token_statistics`.

    Returns:
        Three [B, T] float32 arrays; column t belongs to token t+1, the last column to nothing.
    """
    model = nnx.merge(graph, params)
    targets = jnp.concatenate([ids[:, 1:], jnp.zeros_like(ids[:, :1])], axis=1)
    # Accelerators multiply float32 matrices in fewer bits unless told otherwise; bfloat16 ones are not affected.
    with jax.default_matmul_precision("highest"):
        return token_statistics(
            model.hidden(ids), model.head_kernel(), targets, tile=tile, group=group, logits_dtype=logits_dtype
        )


class Scorer:
    """Answers `ScoreTokens` requests: from the store where it can, by running the model where it must."""

    def __init__(
        self,
        model: nnx.Module,
        mesh: Mesh,
        store: Store,
        *,
        logits_dtype: LogitsDtype = "float32",
        token_budget: int = 16_384,
    ):
        """Takes a model whose weights already lie on `mesh`.

        Args:
            model: has `hidden`, `head_kernel` and `config`.
            mesh: from `make_mesh`.
            store: where answers are kept.
            logits_dtype: `float32`, or `bfloat16` to round as the released code does.
            token_budget: tokens of a batch on each place that rows are split over, padding included.
        """
        self._graph, self._params = nnx.split(model)
        self._vocabulary = model.config.vocab_size
        self._mesh = mesh
        self._store = store
        self._parts = row_parts(mesh)
        self._budget = token_budget * self._parts
        tile, group = sizes(mesh.devices.flat[0].platform, model.config.vocab_size)
        self._options: dict[str, Any] = {
            "graph": self._graph,
            "tile": tile * self._parts,
            "group": group and group * self._parts,
            "logits_dtype": logits_dtype,
        }
        self._rows = NamedSharding(mesh, P(*RULES.rows, None))

    def answer(self, requests: list[ScoreTokens]) -> Mapping[bytes, TokenStatistics]:
        """Answers distinct requests, by digest.

        Each finished batch is on disk before the next but one starts.

        Raises:
            UsageError: an id has no row in the model's embedding.
            OlmoDetectError: a batch does not fit the device's memory.
        """
        by_digest = {r.digest: r for r in requests}
        largest = max((int(r.ids.max()) for r in requests), default=0)
        if largest >= self._vocabulary:  # a lookup beyond the embedding would return something, not fail
            raise UsageError(
                f"the tokenizer made the id {largest}, but the model has {self._vocabulary} embedding rows; "
                "this is another model's tokenizer"
            )
        missing = {d for d in by_digest if not self._store.known(d)}
        plan = self._store.unfinished(missing, self._parts)
        planned = {d for batch in plan for d in batch.digests}
        fresh = make_plan(
            [by_digest[d] for d in missing - planned], token_budget=self._budget, row_multiple=self._parts
        )
        if fresh:
            self._store.keep_plan(fresh)
            plan += fresh
        with progress("Scoring", len(missing), unit="sequences") as advance:
            running: tuple[Batch, Statistics] | None = None
            for batch in [*plan, None]:
                try:
                    started = (batch, self._start(batch, by_digest)) if batch else None
                    if running:  # the device works on the next batch while this one is stored
                        self._finish(*running, by_digest)
                        advance(len(running[0].digests))
                except jax.errors.JaxRuntimeError as error:
                    raise _device_error(error, batch or running[0]) from error
                running = started
        return {d: self._store[d] for d in by_digest}

    def _start(self, batch: Batch, requests: dict[bytes, ScoreTokens]) -> Statistics:
        with jax.set_mesh(self._mesh):
            ids = jax.device_put(padded_ids(batch, requests), self._rows)
            return score_rows(self._params, ids, **self._options)

    def _finish(self, batch: Batch, statistics: Statistics, requests: dict[bytes, ScoreTokens]) -> None:
        arrays = [np.asarray(s) for s in statistics]
        answers = []
        for row, digest in enumerate(batch.digests):
            n = len(requests[digest].ids) - 1
            answers.append(TokenStatistics(*(np.ascontiguousarray(a[row, :n]) for a in arrays)))
        self._store.add(batch, requests, answers)


def _device_error(error: Exception, batch: Batch) -> OlmoDetectError:
    if "RESOURCE_EXHAUSTED" not in str(error):
        return OlmoDetectError(f"the device failed: {error}")
    return OlmoDetectError(
        f"a batch of {batch.rows} rows of {batch.bucket} tokens does not fit the device's memory; finished batches are "
        "kept: try a smaller --token-budget, --dtype bfloat16, or a --mesh that splits the weights (fsdp=N)"
    )
