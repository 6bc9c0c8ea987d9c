"""The engine: answers every kind of request, from the store where it can, by running the model where it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from flax import nnx
from jax.sharding import Mesh

from olmodetect_jax.errors import UsageError
from olmodetect_jax.generation.generator import Generator
from olmodetect_jax.generation.store import GenerationStore
from olmodetect_jax.models.sharding import row_parts
from olmodetect_jax.requests import Answer, Generate, PredictNext, Request, ScoreTargets, ScoreTokens
from olmodetect_jax.scoring.kept import Provenance
from olmodetect_jax.scoring.next_tokens import NextTokenScorer
from olmodetect_jax.scoring.prefix import PrefixScorer
from olmodetect_jax.scoring.scorer import Scorer
from olmodetect_jax.scoring.soft_prompt import SoftPromptScorer
from olmodetect_jax.scoring.statistics import Rounding, sizes
from olmodetect_jax.scoring.store import Store
from olmodetect_jax.training import TrainLora, TrainSoftPrompt
from olmodetect_jax.tuning.steps import texts_of
from olmodetect_jax.tuning.tuner import Tuner

# A CPU wants a batch's activations in its cache, an accelerator wants its units filled.
TOKEN_BUDGET = {"cpu": 2_048}
# Keys and values that generation may hold, in tokens, for each token of the budget.
KV_SHARE = {"cpu": 8}


class Engine:
    """A model on a mesh, with a store for each kind of answer and a folder for what is trained beside it."""

    def __init__(
        self,
        model: nnx.Module,
        mesh: Mesh,
        folder: Path,
        provenance: Provenance,
        *,
        score_dtype: Literal["float32", "bfloat16"] = "float32",
        token_budget: int | None = None,
        adapters: Path | None = None,
    ):
        """Takes a model whose weights already lie on `mesh`.

        Args:
            model: has `hidden`, `prefill`, `hidden_after`, `read_prompts`, `step`, `head_kernel` and `config`.
            mesh: from `make_mesh`.
            folder: answers are kept in its `statistics/` and `generations/`.
            provenance: what decides them.
            score_dtype: `float32`, or `bfloat16` to round as the released code does.
            token_budget: tokens of a batch on each place that rows are split over, padding included; None takes what
                suits the platform.
            adapters: where trained adapters are kept and found; None for `adapters/` below `folder`.
        """
        store = Store(folder / "statistics", provenance)
        generations = GenerationStore(folder / "generations", provenance)
        graph, params = nnx.split(model)
        parts = row_parts(mesh)
        platform = mesh.devices.flat[0].platform
        tile, group = sizes(platform, model.config.vocab_size)
        token_budget = token_budget or TOKEN_BUDGET.get(platform, 16_384)
        program = {"graph": graph, "tile": tile * parts, "group": group and group * parts}
        self._vocabulary = model.config.vocab_size
        self._score_dtype = score_dtype
        self.tuner = Tuner(
            params, mesh, adapters or folder / "adapters", provenance, graph=graph, token_budget=token_budget
        )
        self._texts = Scorer(params, mesh, store, self.tuner.load, token_budget=token_budget, **program)
        self._pairs = PrefixScorer(params, mesh, store, token_budget=token_budget, **program)
        self._next = NextTokenScorer(params, mesh, store, graph=graph, token_budget=token_budget)
        self._prompted = SoftPromptScorer(params, mesh, store, self.tuner.load, graph=graph, token_budget=token_budget)
        self._generator = Generator(
            params,
            mesh,
            generations,
            graph=graph,
            config=model.config,
            kv_tokens=KV_SHARE.get(platform, 2) * token_budget,
        )

    def answer(self, requests: Sequence[Request]) -> Mapping[bytes, Answer]:
        """Answers distinct requests, by digest.

        Raises:
            UsageError: an id has no row in the model's embedding.
            DataError: something is to be trained on texts that are to be scored.
            OlmoDetectError: a batch does not fit the device's memory, or a training's loss is not finite.
        """
        self._check(requests)
        answers: dict[bytes, Answer] = {}
        answers |= self.tuner.answer([r for r in requests if isinstance(r, (TrainLora, TrainSoftPrompt))])
        for upcast in (False, True):
            rounding = self._rounding(upcast)
            texts = [r for r in requests if isinstance(r, ScoreTokens) and r.upcast == upcast]
            pairs = [r for r in requests if isinstance(r, ScoreTargets) and r.upcast == upcast]
            answers |= self._texts.answer(texts, rounding)
            answers |= self._pairs.answer(pairs, rounding)
        rounding = self._rounding(upcast=True)
        asked = [r for r in requests if isinstance(r, PredictNext)]
        answers |= self._next.answer([r for r in asked if not r.adapter], rounding)
        answers |= self._prompted.answer([r for r in asked if r.adapter], rounding)
        answers |= self._generator.answer([r for r in requests if isinstance(r, Generate)], rounding)
        return answers

    def _rounding(self, upcast: bool) -> Rounding:
        if self._score_dtype == "float32":
            return "none"
        return "logits" if upcast else "all"

    def _check(self, requests: Sequence[Request]) -> None:
        targets = {id(r.targets): r.targets for r in requests if isinstance(r, ScoreTargets)}
        texts = [t for own in targets.values() for t in own]
        for request in requests:
            texts += _own_ids(request)
        largest = max((int(t.max()) for t in texts), default=0)
        if largest >= self._vocabulary:  # a lookup beyond the embedding would return something, not fail
            raise UsageError(
                f"the tokenizer made the id {largest}, but the model has {self._vocabulary} embedding rows; "
                "this is another model's tokenizer"
            )


def _own_ids(request: Request) -> list[np.ndarray]:
    """The ids of a request that are not looked up together with others'."""
    if isinstance(request, ScoreTokens):
        return [request.ids]
    if isinstance(request, PredictNext):
        return [request.tokens, *request.prompts]
    if isinstance(request, (TrainLora, TrainSoftPrompt)):
        return list(texts_of(request))
    return [request.prefix if isinstance(request, ScoreTargets) else request.prompt]
