"""MinK: the mean log-probability of a text's least probable tokens (likelihood spec, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from olmodetect_jax.attacks.base import OnePass, Score, ScoredText
from olmodetect_jax.attacks.reductions import mean_of_smallest
from olmodetect_jax.protocol import Protocol


@dataclass(frozen=True)
class MinK(OnePass):
    """Members have fewer surprising tokens.

    Attributes:
        k: share of the tokens that counts, in (0, 1].
    """

    k: float
    id: ClassVar[str] = "min_k"

    def value(self, scored: ScoredText, protocol: Protocol) -> Score:
        """Mean of the `k` smallest log-probabilities."""
        body = scored.body()
        return body.result(mean_of_smallest(body.log_prob, self.k, protocol))
