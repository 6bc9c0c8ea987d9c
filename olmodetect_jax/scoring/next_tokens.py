"""What comes next after prompts that share their beginning: the first is read once, the others from where they part.

DCQ's five quizzes about a text differ in one option each. What a quiz shares with the first one is there already, so of
twenty options fourteen are read. Only the last position of each prompt meets the head.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olmodetect_jax.models.attention import Prefix
from olmodetect_jax.models.sharding import RULES, row_parts
from olmodetect_jax.requests import NextTokens, PredictNext
from olmodetect_jax.runtime.failures import device_errors_named
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.scoring.planning import Batch, bucket_of, padded_ids, plan_lengths, prefix_bucket
from olmodetect_jax.scoring.statistics import Rounding, log_softmax
from olmodetect_jax.scoring.store import Store

ROWS = P(*RULES.rows)


@functools.partial(jax.jit, static_argnames=("graph", "room", "rounding"))
def read_trunks(
    params: nnx.State,
    ids: jax.Array,
    lengths: jax.Array,
    tokens: jax.Array,
    *,
    graph: nnx.GraphDef,
    room: int,
    rounding: Rounding,
) -> tuple[Prefix, jax.Array]:
    """Reads each request's first prompt.

    Args:
        params: the model's weights.
        ids: [R, P] int32, padded on the right.
        lengths: [R] int32; 0 for a dummy.
        tokens: [N] int32, whose probability is asked.
        graph: the model without its weights.
        room: tokens to which keys and values are padded: masked keys cost little, and few programs then exist.
        rounding: of the logits.

    Returns:
        The prompts read, and [R, N] float32 log-probabilities of the tokens after each.
    """
    model = nnx.merge(graph, params)
    with jax.default_matmul_precision("highest"):
        prefix = model.prefill(ids, lengths, ROWS)
        wider = [(0, 0), (0, 0), (0, room - ids.shape[1]), (0, 0), (0, 0)]
        padded = prefix._replace(keys=jnp.pad(prefix.keys, wider), values=jnp.pad(prefix.values, wider))
        return padded, _log_probs(model, prefix.last, tokens, rounding)


@functools.partial(jax.jit, static_argnames=("graph", "rounding"))
def read_branches(
    params: nnx.State,
    trunks: Prefix,
    starts: jax.Array,
    ids: jax.Array,
    lengths: jax.Array,
    tokens: jax.Array,
    *,
    graph: nnx.GraphDef,
    rounding: Rounding,
) -> jax.Array:
    """Reads one further prompt of each request, from where it parts with the first.

    Args:
        params: the model's weights.
        trunks: of `read_trunks`.
        starts: [R] int32, how many of the trunk's tokens each shares.
        ids: [R, T] int32, its other tokens, padded on the right.
        lengths: [R] int32; 0 for a dummy.
        tokens: [N] int32.
        graph: the model without its weights.
        rounding: of the logits.

    Returns:
        [R, N] float32 log-probabilities of the tokens after each.
    """
    model = nnx.merge(graph, params)
    with jax.default_matmul_precision("highest"):
        hidden = model.hidden_after(trunks._replace(lengths=starts), ids[:, None], ROWS)[:, 0]
        last = jnp.take_along_axis(hidden, jnp.maximum(lengths - 1, 0)[:, None, None], axis=1)[:, 0]
        return _log_probs(model, last, tokens, rounding)


def _log_probs(model: nnx.Module, last: jax.Array, tokens: jax.Array, rounding: Rounding) -> jax.Array:
    logits = jnp.einsum("rd,dv->rv", last, model.head_kernel(), preferred_element_type=jnp.float32)
    return jnp.take(log_softmax(logits, rounding), tokens, axis=1)


@dataclass(frozen=True)
class Branch:
    """A prompt of a request.

    Attributes:
        place: which of the request's prompts it is.
        start: how many tokens it shares with the first; at least its last one is read for itself.
        ids: [T] int32, its other tokens.
    """

    place: int
    start: int
    ids: np.ndarray


def branches_of(request: PredictNext) -> list[Branch]:
    """A request's prompts that are not the first again, the longest rest first: alike lengths then meet in a batch."""
    trunk = request.prompts[0]
    found = []
    for place, prompt in enumerate(request.prompts):
        if np.array_equal(prompt, trunk):
            continue  # it takes the first one's answer
        n = min(len(trunk), len(prompt) - 1)
        differs = np.flatnonzero(trunk[:n] != prompt[:n])
        start = int(differs[0]) if len(differs) else n
        found.append(Branch(place, start, prompt[start:]))
    return sorted(found, key=lambda branch: (-len(branch.ids), branch.place))


class NextTokenScorer:
    """Answers `PredictNext` requests: from the store where it can, by running the model where it must."""

    def __init__(self, params: nnx.State, mesh: Mesh, store: Store, *, graph: nnx.GraphDef, token_budget: int):
        """Takes weights that already lie on `mesh`.

        Args:
            params: the model's weights.
            mesh: from `make_mesh`.
            store: where answers are kept.
            graph: the model without its weights.
            token_budget: tokens that are read at once on each place that rows are split over, padding included.
        """
        self._params = params
        self._mesh = mesh
        self._store = store
        self._graph = graph
        self._parts = row_parts(mesh)
        self._budget = token_budget * self._parts

    def answer(self, requests: Sequence[PredictNext], rounding: Rounding) -> Mapping[bytes, NextTokens]:
        """Answers distinct requests, by digest; each finished batch is on disk before the next but one starts."""
        by_digest = {r.digest: r for r in requests}
        missing = {d for d in by_digest if d not in self._store.next_tokens}
        # A batch that was begun is run in the very shape it was planned in: the same bytes after a kill.
        plan = self._store.unfinished(missing, self._parts, self._budget)
        left = missing - {d for batch in plan for d in batch.digests}
        # By the longest prompt, not the first: a branch may be longer than its trunk, and must fit too.
        longest = {d: max(map(len, by_digest[d].prompts)) for d in left}
        fresh = []
        for tokens in sorted({by_digest[d].tokens.tobytes() for d in left}):
            same = {d: longest[d] for d in left if by_digest[d].tokens.tobytes() == tokens}
            fresh += plan_lengths(same, token_budget=self._budget, row_multiple=self._parts)
        if fresh:
            self._store.keep_plan(fresh, self._budget)
        with progress("Asking what comes next", sum(len(by_digest[d].prompts) for d in missing), unit="prompts") as say:
            running: tuple[Batch, tuple] | None = None
            for batch in [*plan, *fresh, None]:
                current = batch or (running and running[0])
                if current is None:
                    break
                with device_errors_named(current.rows, current.bucket):
                    started = (batch, self._start(batch, by_digest, rounding)) if batch else None
                    if running:  # the device works on the next batch while this one is stored
                        say(self._finish(*running, by_digest))
                running = started
        return {d: self._store.next_tokens[d] for d in by_digest}

    def _start(
        self, batch: Batch, requests: Mapping[bytes, PredictNext], rounding: Rounding
    ) -> tuple[jax.Array, list[tuple[list[int], jax.Array]]]:
        """Answers [R, N] to the first prompts; then for each further reading whose they are, and the answers.

        A reading's places say which prompt of each request it was, -1 for none.
        """
        own = [requests[d] for d in batch.digests]
        tokens = jax.device_put(own[0].tokens, NamedSharding(self._mesh, P(None)))
        with jax.set_mesh(self._mesh):
            ids, lengths = self._put([r.prompts[0] for r in own], batch)
            room = prefix_bucket(batch.bucket)
            trunks, first = read_trunks(
                self._params, ids, lengths, tokens, graph=self._graph, room=room, rounding=rounding
            )
            found = []
            branches = [branches_of(r) for r in own]
            for nth in range(max(map(len, branches))):
                these = [b[nth] if nth < len(b) else Branch(-1, 0, np.zeros(0, np.int32)) for b in branches]
                starts = np.zeros(batch.rows, np.int32)
                starts[: len(these)] = [b.start for b in these]
                ids, lengths = self._put([b.ids for b in these], batch, bucket_of(max(len(b.ids) for b in these)))
                starts = jax.device_put(starts, NamedSharding(self._mesh, ROWS))
                read = read_branches(
                    self._params, trunks, starts, ids, lengths, tokens, graph=self._graph, rounding=rounding
                )
                found.append(([b.place for b in these], read))
        return first, found

    def _put(self, texts: Sequence[np.ndarray], batch: Batch, bucket: int = 0) -> tuple[jax.Array, jax.Array]:
        lengths = np.zeros(batch.rows, np.int32)
        lengths[: len(texts)] = [len(t) for t in texts]
        ids = padded_ids(texts, batch.rows, bucket or batch.bucket)
        return (
            jax.device_put(ids, NamedSharding(self._mesh, P(*ROWS, None))),
            jax.device_put(lengths, NamedSharding(self._mesh, ROWS)),
        )

    def _finish(
        self,
        batch: Batch,
        results: tuple[jax.Array, list[tuple[list[int], jax.Array]]],
        requests: Mapping[bytes, PredictNext],
    ) -> int:
        first, found = results
        counts = [len(requests[d].prompts) for d in batch.digests]
        answers = [np.repeat(row[None], n, axis=0) for row, n in zip(np.asarray(first), counts, strict=False)]
        for places, read in found:
            values = np.asarray(read)
            for row, place in enumerate(places):
                if place >= 0:
                    answers[row][place] = values[row]
        self._store.add_next(batch.digests, answers)
        return sum(map(len, answers))
