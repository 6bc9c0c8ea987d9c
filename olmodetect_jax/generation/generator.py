"""Answers `Generate` requests: from the store where it can, by running the model where it must."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olmodetect_jax.generation.decode import Slots, Texts, decode, empty_slots, fill
from olmodetect_jax.generation.planning import STEPS, Shape, make_plan
from olmodetect_jax.generation.seating import Seating
from olmodetect_jax.generation.store import GenerationStore
from olmodetect_jax.models.sharding import RULES, row_parts
from olmodetect_jax.requests import Continuation, Continuations, Generate
from olmodetect_jax.runtime.failures import device_errors_named
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.scoring.planning import Batch, padded_ids
from olmodetect_jax.scoring.statistics import Rounding


class Generator:
    """A model on a mesh that continues prompts."""

    def __init__(
        self, params: nnx.State, mesh: Mesh, store: GenerationStore, *, graph: nnx.GraphDef, config: object,
        kv_tokens: int,
    ):  # fmt: skip
        """Takes weights that already lie on `mesh`.

        Args:
            params: the model's weights.
            mesh: from `make_mesh`.
            store: where answers are kept.
            graph: the model without its weights.
            config: the model's.
            kv_tokens: tokens whose keys and values a batch may hold on each place that rows are split over.
        """
        self._params = params
        self._mesh = mesh
        self._store = store
        self._graph = graph
        self._config = config
        self._dtype = jax.tree.leaves(params)[0].dtype
        self._parts = row_parts(mesh)
        self._kv_tokens = kv_tokens

    def answer(self, requests: Sequence[Generate], rounding: Rounding) -> Mapping[bytes, Continuations]:
        """Answers distinct requests, by digest; each finished batch is on disk before the next starts."""
        by_digest = {r.digest: r for r in requests}
        missing = {d for d in by_digest if d not in self._store.answers}
        # A batch that was begun is run in the very shape and order it was planned in: the same bytes after a kill.
        plan = self._store.unfinished(missing, self._parts, self._kv_tokens)
        planned = {d for batch in plan for d in batch.digests}
        fresh = make_plan(
            [by_digest[d] for d in missing - planned], kv_tokens=self._kv_tokens, row_multiple=self._parts
        )
        if fresh:
            self._store.keep_plan(fresh, self._kv_tokens)
        with progress("Generating", sum(by_digest[d].rows for d in missing), unit="continuations") as advance:
            for batch in [*plan, *fresh]:
                own = [by_digest[d] for d in batch.digests]
                shape = Shape.of(own[0])
                with device_errors_named(batch.rows * shape.width, shape.prompt + shape.new):
                    self._store.add(own, self._run(own, batch, shape, rounding, advance))
        return {d: self._store.answers[d] for d in by_digest}

    def _run(
        self,
        requests: Sequence[Generate],
        batch: Batch,
        shape: Shape,
        rounding: Rounding,
        advance: Callable[[int], None],
    ) -> list[Continuations]:
        seating = Seating(requests, slots=batch.rows, width=shape.width, parts=self._parts)
        draws = {"stop_ids": shape.stop_ids, "top_k": shape.top_k, "top_p": shape.top_p}
        how = {"graph": self._graph, "steps": STEPS, "rounding": rounding, **draws}
        with jax.set_mesh(self._mesh):
            slots = empty_slots(
                self._config, self._dtype, slots=batch.rows, width=shape.width, prompt=shape.prompt, new=shape.new
            )
            while seating.busy:
                while given := seating.next_prompts():
                    slots = self._fill(slots, given, batch, shape)
                fresh = seating.seat()
                texts = (fresh, seating.starts, seating.limits, seating.temperature, seating.keys)
                slots = decode(self._params, slots, Texts(*map(self._put, texts)), **how)
                advance(self._harvest(seating, slots))
        return [Continuations(seating.done[r.digest]) for r in requests]

    def _fill(self, slots: Slots, given: Sequence[tuple[int, Generate]], batch: Batch, shape: Shape) -> Slots:
        own = batch.rows // self._parts
        prompts = [np.zeros(0, np.int32)] * self._parts
        places = np.full(self._parts, own, np.int32)  # one past the part's slots: no prompt
        for slot, request in given:
            prompts[slot // own], places[slot // own] = request.prompt, slot % own
        ids = padded_ids(prompts, self._parts, shape.prompt)
        return fill(self._params, slots, self._put(ids), self._put(places), graph=self._graph)

    def _harvest(self, seating: Seating, slots: Slots) -> int:
        """Takes the texts that have ended; returns how many texts of requests that are now whole."""
        finished = seating.finished(np.asarray(slots.active))
        if not finished.any():
            return 0
        lengths, ended, born = np.asarray(slots.places), np.asarray(slots.ended), np.asarray(slots.born)
        arrays = [np.asarray(a) for a in (slots.ids, slots.log_prob, slots.entropy)]
        whole = 0
        for g, w in zip(*np.nonzero(finished), strict=True):
            columns = (born[g, w] + np.arange(lengths[g, w])) % arrays[0].shape[2]
            own = (a[g, w, columns] for a in arrays)
            whole += seating.take(g, w, Continuation(*own, ended=bool(ended[g, w])))
        return whole

    def _put(self, array: np.ndarray) -> jax.Array:
        return jax.device_put(array, NamedSharding(self._mesh, P(*RULES.rows, *(None,) * (array.ndim - 1))))
