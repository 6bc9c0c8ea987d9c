"""One prefix, many texts: each prefix is read once, and the texts after it meet its keys and values without a copy.

A row is one prefix with all its targets; it is answered by one number a target and the first token's own, and is kept
as soon as it is there. The targets of rows that share them are planned once. On a mesh each place takes a prefix of
its own where there are enough of them (EMMIA); otherwise the targets of one prefix are spread (ReCaLL).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olmodetect_jax.errors import StoreError
from olmodetect_jax.models.attention import Prefix
from olmodetect_jax.models.sharding import RULES, row_parts
from olmodetect_jax.requests import ScoreTargets, TargetLikelihoods
from olmodetect_jax.runtime.failures import device_errors_named
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.scoring.planning import TargetBatch, padded_ids, plan_targets, prefix_bucket
from olmodetect_jax.scoring.statistics import Rounding, log_softmax, token_log_probs
from olmodetect_jax.scoring.store import Store


@functools.partial(jax.jit, static_argnames=("graph", "rows"))
def prefill(params: nnx.State, ids: jax.Array, lengths: jax.Array, *, graph: nnx.GraphDef, rows: P) -> Prefix:
    """Reads prefixes.

    Args:
        params: the model's weights.
        ids: [R, P] int32, padded on the right.
        lengths: [R] int32.
        graph: the model without its weights.
        rows: how R is split over the mesh.
    """
    with jax.default_matmul_precision("highest"):
        return nnx.merge(graph, params).prefill(ids, lengths, rows)


@functools.partial(jax.jit, static_argnames=("graph", "tile", "group", "rounding", "rows"))
def score_after(
    params: nnx.State,
    prefix: Prefix,
    ids: jax.Array,
    lengths: jax.Array,
    *,
    graph: nnx.GraphDef,
    tile: int,
    group: int | None,
    rounding: Rounding,
    rows: P,
) -> tuple[jax.Array, jax.Array]:
    """Likelihoods of targets after each prefix.

    Args:
        params: the model's weights.
        prefix: R prefixes, of `prefill`.
        ids: [B, T] int32, padded on the right.
        lengths: [B] int32; 0 for a dummy.
        graph: the model without its weights.
        tile: see `token_statistics`; here of all devices together.
        group: see `token_statistics`.
        rounding: see `token_statistics`.
        rows: how the R * B pairs are split over the mesh.

    Returns:
        Two [R, B] float32 arrays: log p of each target's first token, and the mean over its others (NaN for none).
    """
    model = nnx.merge(graph, params)
    R, (B, T) = prefix.lengths.shape[0], ids.shape
    with jax.default_matmul_precision("highest"):
        head = model.head_kernel()
        logits = jnp.einsum("rd,dv->rv", prefix.last, head, preferred_element_type=jnp.float32)
        first = log_softmax(logits, rounding)[:, ids[:, 0]]
        hidden = model.hidden_after(prefix, jnp.broadcast_to(ids[None], (R, B, T)), rows).reshape(R * B, T, -1)
        targets = jnp.tile(jnp.concatenate([ids[:, 1:], jnp.zeros_like(ids[:, :1])], axis=1), (R, 1))
        log_probs = token_log_probs(hidden, head, targets, tile=tile, group=group, rounding=rounding)
    others = jnp.maximum(lengths - 1, 0)
    counted = jnp.arange(T)[None, :] < others[:, None]
    sums = jnp.sum(jnp.where(counted[None], log_probs.reshape(R, B, T), 0.0), axis=2)
    mean = sums / jnp.maximum(others, 1).astype(jnp.float32)[None, :]
    return first, jnp.where(others[None, :] > 0, mean, jnp.nan)


@dataclass(frozen=True)
class _Step:
    """Rows that run together: requests with the same targets, and prefixes of one bucket."""

    requests: tuple[ScoreTargets, ...]
    bucket: int


class PrefixScorer:
    """Answers `ScoreTargets` requests: from the store where it can, by running the model where it must."""

    def __init__(self, params: nnx.State, mesh: Mesh, store: Store, *, token_budget: int, **program: Any):
        """Takes weights that already lie on `mesh`.

        Args:
            params: the model's weights.
            mesh: from `make_mesh`.
            store: where answers are kept.
            token_budget: tokens of a batch of targets on each place, padding included.
            **program: `graph`, `tile` and `group` of `score_after`.
        """
        self._params = params
        self._mesh = mesh
        self._store = store
        self._budget = token_budget
        self._parts = row_parts(mesh)
        self._program = program

    def answer(self, requests: Sequence[ScoreTargets], rounding: Rounding) -> Mapping[bytes, TargetLikelihoods]:
        """Answers distinct requests, by digest; each finished step is on disk before the next but one starts."""
        by_targets: dict[bytes, list[ScoreTargets]] = {}
        rows = {r.row: r for r in requests}
        for request in sorted(rows.values(), key=lambda r: r.row):
            by_targets.setdefault(request.targets.set_digest, []).append(request)
        missing = [r for r in rows.values() if r.row not in self._store.rows]
        with progress("Scoring after prefixes", sum(len(r.targets) for r in missing), unit="pairs") as advance:
            for same_targets in by_targets.values():
                for step in self._run(same_targets, rounding):
                    advance(sum(len(r.targets) for r in step.requests))
        return {r.digest: _in_order(r, *self._store.rows[r.row]) for r in requests}

    def _run(self, requests: Sequence[ScoreTargets], rounding: Rounding) -> Iterator[_Step]:
        """Runs the rows of one list of targets that are missing; yields each step when it is stored."""
        # Decided by what is asked, not by what is missing: a run that goes on computes in the same shapes.
        spread_prefixes = len(requests) >= self._parts
        missing = [r for r in requests if r.row not in self._store.rows]
        if not missing:
            return
        at_once, over = (self._parts, 1) if spread_prefixes else (1, self._parts)
        plan = plan_targets(requests[0].targets, token_budget=self._budget * over, row_multiple=over)
        rows = P(*RULES.rows)
        prefixes, targets = (rows, P(None)) if spread_prefixes else (P(None), rows)
        batches = [self._on_device(requests[0], batch, targets) for batch in plan]
        running: tuple[_Step, list] | None = None
        for step in [*_steps(missing, at_once), None]:
            with device_errors_named(plan[0].rows, plan[0].bucket):
                started = (step, self._start(step, at_once, batches, prefixes, rounding)) if step else None
                if running:  # the device works on the next step while this one is stored
                    self._finish(*running, plan)
            if running:
                yield running[0]
            running = started

    def _on_device(self, request: ScoreTargets, batch: TargetBatch, split: P) -> tuple[jax.Array, jax.Array]:
        texts = [request.targets[request.targets.order[place]] for place in batch.places]
        return self._put(texts, batch.rows, batch.bucket, split)

    def _put(self, texts: Sequence[np.ndarray], rows: int, bucket: int, split: P) -> tuple[jax.Array, jax.Array]:
        lengths = np.zeros(rows, np.int32)
        lengths[: len(texts)] = [len(t) for t in texts]
        ids = padded_ids(texts, rows, bucket)
        return (
            jax.device_put(ids, NamedSharding(self._mesh, P(*split, None))),
            jax.device_put(lengths, NamedSharding(self._mesh, split)),
        )

    def _start(
        self, step: _Step, rows: int, batches: Sequence[tuple[jax.Array, jax.Array]], split: P, rounding: Rounding
    ) -> list[tuple[jax.Array, jax.Array]]:
        with jax.set_mesh(self._mesh):
            ids, lengths = self._put([r.prefix for r in step.requests], rows, step.bucket, split)
            prefix = prefill(self._params, ids, lengths, graph=self._program["graph"], rows=split)
            options = {**self._program, "rounding": rounding, "rows": P(*RULES.rows)}
            return [score_after(self._params, prefix, *batch, **options) for batch in batches]

    def _finish(self, step: _Step, results: list[tuple[jax.Array, jax.Array]], plan: Sequence[TargetBatch]) -> None:
        R, N = len(step.requests), len(step.requests[0].targets)
        first, rest = np.empty((R, N), np.float32), np.empty((R, N), np.float32)
        for batch, (a, b) in zip(plan, results, strict=True):
            places = list(batch.places)
            first[:, places] = np.asarray(a)[:R, : len(places)]
            rest[:, places] = np.asarray(b)[:R, : len(places)]
        self._store.add_rows([r.row for r in step.requests], first, rest)


def _steps(requests: Sequence[ScoreTargets], at_once: int) -> list[_Step]:
    by_bucket: dict[int, list[ScoreTargets]] = {}
    for request in requests:
        by_bucket.setdefault(prefix_bucket(len(request.prefix)), []).append(request)
    return [
        _Step(tuple(rows[i : i + at_once]), bucket)
        for bucket, rows in sorted(by_bucket.items(), reverse=True)
        for i in range(0, len(rows), at_once)
    ]


def _in_order(request: ScoreTargets, first: np.ndarray, rest: np.ndarray) -> TargetLikelihoods:
    """From the engine's order back to the request's."""
    if not len(first) == len(rest) == len(request.targets):
        raise StoreError(f"a stored row holds {len(first)} targets, not {len(request.targets)}; use another --out")
    places = np.argsort(request.targets.order)
    return TargetLikelihoods(first[places], rest[places])
