"""A model directory opened for scoring: weights on the mesh, tokenizer, and an engine for each kind of rounding."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.rounds import AnswerRequests
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.errors import UsageError
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.tokenization import Tokenizer
from olmodetect_jax.training import Trained


def open_tokenizer(model: Path) -> Tokenizer:
    """A model directory's tokenizer; says if it adds tokens of its own.

    Raises:
        UsageError: there is none.
    """
    tokenizer = Tokenizer(model)
    if tokenizer.adds_tokens:
        print(
            f"warning: {tokenizer.path} puts tokens of its own around every text; they are scored too", file=sys.stderr
        )
    return tokenizer


class OpenModel:
    """What a run needs of its model.

    Attributes:
        tokenizer: the model's own.
        context: tokens it can read at once.
        trained: by name, the adapters that the last engine has trained or found so far.
        facts: what the manifest says of it.
    """

    def __init__(self, options: ScoreOptions, tokenizer: Tokenizer):
        """Loads the weights.

        Raises:
            UsageError: the directory, the mesh or the tokenizer does not fit.
            CheckpointError: the weights do not fit the config.
        """
        from conversion import load_model_directory
        from olmodetect_jax.benchmark import model_size
        from olmodetect_jax.models.sharding import leaf_sharding, make_mesh, parse_mesh

        self.tokenizer = tokenizer
        self.trained: Mapping[str, Trained] = {}
        self._options = options
        self._mesh = make_mesh(parse_mesh(options.mesh) if options.mesh is not None else None)
        self._loaded = load_model_directory(
            options.model, options.dtype, lambda path, shape: leaf_sharding(self._mesh, path, shape)
        )
        config = self._loaded.config
        if self.tokenizer.largest_id >= config.vocab_size:
            raise UsageError(
                f"{self.tokenizer.path}: its ids go up to {self.tokenizer.largest_id}, but the model has "
                f"{config.vocab_size} embedding rows; this is another model's tokenizer"
            )
        self.context = config.max_position_embeddings
        model = {
            "name": self._loaded.name,
            "path": str(options.model.absolute()),
            "weights_digest": self._loaded.weights_digest,
            "tokenizer_digest": self.tokenizer.digest,
            "eos_id": self.tokenizer.eos_id,
            "stop_ids": list(self.tokenizer.stop_ids),
            "chat_template": self.tokenizer.chat_digest,
            "config": dataclasses.asdict(config),
            "size": options.size or model_size(self._loaded.name),
        }
        self.facts: dict[str, Any] = {"model": model, "dtype": options.dtype, "mesh": dict(self._mesh.shape)}

    def capped(self, protocol: Protocol) -> Protocol:
        """The protocol with its lengths capped by the model's context."""
        return dataclasses.replace(
            protocol,
            max_tokens=min(protocol.max_tokens, self.context),
            window=min(protocol.window, self.context),
            generation_context=min(protocol.generation_context, self.context),
            training_tokens=min(protocol.training_tokens, self.context),
        )

    def engine(self, score_dtype: str) -> AnswerRequests:
        """What answers requests, keeping the answers below the run folder's `statistics/` and `generations/`.

        Args:
            score_dtype: the protocol's.
        """
        from olmodetect_jax.engine import Engine
        from olmodetect_jax.scoring.kept import Provenance

        loaded, options = self._loaded, self._options
        config = json.dumps(dataclasses.asdict(loaded.config), sort_keys=True)
        provenance = Provenance(loaded.weights_digest, self.tokenizer.digest, config, options.dtype, score_dtype)
        engine = Engine(
            loaded.module(),
            self._mesh,
            options.out,
            provenance,
            score_dtype=score_dtype,
            token_budget=options.token_budget,
            adapters=options.adapters,
        )
        self.trained = engine.tuner.trained
        return engine.answer
