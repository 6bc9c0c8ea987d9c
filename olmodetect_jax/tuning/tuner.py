"""Answers requests to train: from the folder of adapters where it can, by training where it must."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from olmodetect_jax.errors import DataError
from olmodetect_jax.files import folder_lock, remove_temporaries
from olmodetect_jax.models.sharding import row_parts
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.scoring.kept import Provenance
from olmodetect_jax.scoring.statistics import sizes
from olmodetect_jax.training import LoraRecipe, Trained
from olmodetect_jax.tuning import lora
from olmodetect_jax.tuning.adapters import AdapterFolder
from olmodetect_jax.tuning.checkpoints import Checkpoints
from olmodetect_jax.tuning.losses import LoraLoss, SoftPromptLoss
from olmodetect_jax.tuning.steps import Training, batch_of, steps_of, texts_of
from olmodetect_jax.tuning.trainer import Group, Loss, train

VERSION = 2  # raise when the same request would give another adapter
TOGETHER = 8  # most adapters that train at once
CLOSE = 0.9  # share of a group's longest training that every other of it has at least: the rest of it is waiting
STEP = 64  # rows are padded to a multiple of it
CHECKPOINT_EVERY = 25


class Tuner:
    """Trains adapters beside a model on a mesh, and hands out those that are trained."""

    def __init__(
        self,
        params: nnx.State,
        mesh: Mesh,
        folder: Path,
        provenance: Provenance,
        *,
        graph: nnx.GraphDef,
        token_budget: int,
        checkpoint_every: int = CHECKPOINT_EVERY,
        together: int = TOGETHER,
    ):
        """Takes weights that already lie on `mesh`.

        Args:
            params: the base's weights.
            mesh: from `make_mesh`.
            folder: where adapters are kept.
            provenance: what decides the base; how logits are rounded in scoring has no say here.
            graph: the base without its weights.
            token_budget: tokens of a micro-batch, all adapters' together, on each place that rows are split over.
            checkpoint_every: steps.
            together: most adapters that train at once.
        """
        self._params, self._mesh, self._graph = params, mesh, graph
        self._adapters = AdapterFolder(folder)
        self._model_key = dataclasses.replace(provenance, logits_dtype="float32").key
        self._parts = row_parts(mesh)
        self._budget = token_budget * self._parts
        self._every, self._together = checkpoint_every, together
        self._loaded: dict[str, tuple[Any, float]] = {}
        self.trained: dict[str, Trained] = {}  # every answer so far, by the adapter's name

    def answer(self, requests: Sequence[Training]) -> Mapping[bytes, Trained]:
        """Answers distinct requests, by digest.

        Raises:
            DataError: a text that is to be scored is among those that are learnt from.
            OlmoDetectError: a loss is not finite, or a batch does not fit the device's memory.
        """
        for request in requests:
            _refuse_held_out(request)
        named = {self._name(request): request for request in requests}
        # Groups follow from all that is asked, not from what is left: a run that goes on trains in the same groups.
        groups = [g for g in self._groups(named) if not all(map(self._adapters.has, g.names))]
        if groups:
            with (
                folder_lock(self._adapters.folder, "training"),
                progress("Training adapters", sum(g.steps for g in groups), unit="steps") as advance,
            ):
                remove_temporaries(self._adapters.folder)
                for group in groups:
                    self._train(group, advance)
        answers = {}
        for name, request in named.items():
            losses = self._adapters.read(name).losses
            answers[request.digest] = Trained(name, request.origin, losses, batch_of(request))
        self.trained |= {answer.name: answer for answer in answers.values()}
        return answers

    def load(self, name: str) -> tuple[Any, float]:
        """A trained adapter on every place of the mesh, and its scaling (0 of a soft prompt)."""
        if name not in self._loaded:
            kept = self._adapters.read(name)
            self._loaded[name] = jax.device_put(kept.arrays, NamedSharding(self._mesh, P())), kept.scaling
        return self._loaded[name]

    def _name(self, request: Training) -> str:
        return hashlib.sha256(f"{VERSION} {self._model_key} ".encode() + request.digest).hexdigest()[:20]

    def _groups(self, named: Mapping[str, Training]) -> list[Group]:
        """Trainings of one recipe and row length together, the longest first, as long as they take about as long."""
        alike: dict[Any, list[str]] = {}
        for name, request in named.items():
            alike.setdefault((request.recipe, _row_length(request)), []).append(name)
        groups = []
        for (recipe, length), names in alike.items():
            left = sorted(names, key=lambda name: (-steps_of(named[name]), name))
            most = max(1, min(self._together, self._budget // (length * self._parts)))
            while left:
                longest = steps_of(named[left[0]])
                close = [name for name in left[:most] if steps_of(named[name]) >= CLOSE * longest]
                left = left[len(close) :]
                requests = tuple(named[name] for name in close)
                groups.append(Group(tuple(close), requests, self._rows(recipe, requests, length), length))
        return sorted(groups, key=lambda g: (-g.length, -g.steps, g.names))

    def _rows(self, recipe: Any, requests: Sequence[Training], length: int) -> int:
        """Rows of a micro-batch: what the budget holds, at most a whole step."""
        whole = max(map(batch_of, requests)) * (1 if isinstance(recipe, LoraRecipe) else 2)
        whole = -(-whole // self._parts) * self._parts
        if not isinstance(recipe, LoraRecipe) and recipe.unaligned:
            return whole  # its loss compares every text of a step with every other
        fits = self._budget // (length * len(requests)) // self._parts * self._parts
        return min(whole, max(self._parts, fits))

    def _train(self, group: Group, advance: Any) -> None:
        content = hashlib.sha256(repr((group.names, group.rows, dict(self._mesh.shape))).encode()).hexdigest()[:20]
        checkpoints = Checkpoints(self._adapters.folder / "unfinished" / content, self._every)
        recipe = group.requests[0].recipe
        starts = [self._start(recipe)] * len(group.names)
        trained, losses = train(
            group,
            starts,
            self._params,
            self._mesh,
            checkpoints,
            graph=self._graph,
            loss=self._loss(group),
            advance=advance,
        )
        facts = {
            "model_key": self._model_key,
            "mesh": dict(self._mesh.shape),
            "trained_together": len(group.names),
            "micro_batch": {"rows": group.rows, "tokens": group.length},
        }
        for name, request, arrays, own in zip(group.names, group.requests, trained, losses, strict=True):
            if not self._adapters.has(name):  # an adapter that is there stays the adapter
                self._adapters.write(name, request, arrays, own, facts)
        checkpoints.remove()

    def _start(self, recipe: Any) -> Any:
        model = nnx.merge(self._graph, self._params)
        if isinstance(recipe, LoraRecipe):
            return lora.start(model, recipe, model.embed.embedding[...].dtype)
        ids = np.resize(np.array(recipe.start, np.int32), recipe.length)
        return np.asarray(model.embed(jnp.asarray(ids)[None])[0].astype(jnp.float32))

    def _loss(self, group: Group) -> Loss:
        recipe = group.requests[0].recipe
        rows = group.rows * len(group.names) // self._parts
        most, _ = sizes(self._mesh.devices.flat[0].platform, nnx.merge(self._graph, self._params).config.vocab_size)
        tile = next(t for t in range(group.length, 0, -1) if group.length % t == 0 and (t * rows <= most or t == 1))
        if isinstance(recipe, LoraRecipe):
            return LoraLoss(recipe.alpha / recipe.rank, recipe.dropout, recipe.seed, tile)
        return SoftPromptLoss(recipe.yes, recipe.no, recipe.unaligned, tile)


def _row_length(request: Training) -> int:
    longest = max(map(len, texts_of(request)))
    return -(-longest // STEP) * STEP


def _refuse_held_out(request: Training) -> None:
    """Refuses to learn from a text that is to be scored with what is learnt.

    Raises:
        DataError: names the training.
    """
    origin = request.origin
    seen = origin.held_out.intersection(origin.sources)
    if seen:
        raise DataError(
            f"{origin.attack} {origin.setting} for {origin.trained_for}: {len(seen)} of the {len(origin.sources)} "
            "training texts are among those to be scored, such as the text with SHA-256 "
            f"{min(seen).hex()}; remove them from the development split"
        )
