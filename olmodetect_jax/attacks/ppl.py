"""PPL: the mean log-probability of a text's tokens (likelihood spec, section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from olmodetect_jax.attacks.base import OnePass, Score, ScoredText
from olmodetect_jax.attacks.reductions import mean
from olmodetect_jax.protocol import Protocol


@dataclass(frozen=True)
class Ppl(OnePass):
    """Members are more probable under the model."""

    id: ClassVar[str] = "ppl"

    def value(self, scored: ScoredText, protocol: Protocol) -> Score:
        """Mean log-probability: the negative logarithm of the perplexity."""
        body = scored.body()
        return body.result(mean(body.log_prob, protocol))
