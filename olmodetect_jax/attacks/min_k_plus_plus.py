"""MinK++: MinK over log-probabilities standardised at each position (likelihood spec, section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from olmodetect_jax.attacks.base import OnePass, Score, ScoredText
from olmodetect_jax.attacks.reductions import mean_of_smallest, standardised
from olmodetect_jax.protocol import Protocol


@dataclass(frozen=True)
class MinKPlusPlus(OnePass):
    """Members' tokens stand near the modes of the model's distributions.

    Attributes:
        k: share of the tokens that counts, in (0, 1].
    """

    k: float
    id: ClassVar[str] = "min_k_plus_plus"

    def value(self, scored: ScoredText, protocol: Protocol) -> Score:
        """Mean of the `k` smallest standardised log-probabilities."""
        body = scored.body()
        z = standardised(body.log_prob, body.mean, body.variance, protocol)
        return body.result(mean_of_smallest(z, self.k, protocol))
