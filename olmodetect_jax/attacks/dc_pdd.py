"""DC-PDD: probability calibrated by how frequent a token is anyway (likelihood spec, section 7)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, OnePass, Requests, Score, ScoredText
from olmodetect_jax.attacks.frequencies import FrequencyTable
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.tokenization import Tokenizer

TUNING_WORDS = 512  # of a text, in the released tuner


def calibrated_mean(targets: np.ndarray, log_prob: np.ndarray, frequency: np.ndarray, alpha: float) -> float:
    """Mean of min(p ln(1/f), alpha) over the first occurrence of each distinct target.

    Args:
        targets: [n] ids.
        log_prob: [n].
        frequency: [V] float64, smoothed.
        alpha: upper clip of a term.

    Returns:
        The mean; NaN for n = 0.
    """
    if not len(targets):
        return math.nan
    distinct, first = np.unique(targets, return_index=True)
    terms = np.exp(log_prob[first].astype(np.float64)) * -np.log(frequency[distinct])
    return float(np.mean(np.minimum(terms, alpha)))


@dataclass(frozen=True, eq=False)
class DcPdd(OnePass):
    """Members have rare tokens that are probable all the same.

    Attributes:
        alpha: upper clip of a token's term.
        table: frequencies counted with the model's own tokenizer.
    """

    alpha: float
    table: FrequencyTable
    id: ClassVar[str] = "dc_pdd"
    refuses_special_ids: ClassVar[bool] = False

    @cached_property
    def frequency(self) -> np.ndarray:
        """[V] float64, smoothed."""
        return self.table.smoothed()

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[ScoredText]]:
        """One pass over the texts, after the table has been held against the tokenizer."""
        self.table.check(tokenizer)
        if group.tuning and protocol.dc_pdd_tuning_text == "first_512_words":
            cut = [dataclasses.replace(r, text=" ".join(r.text.split()[:TUNING_WORDS])) for r in group.records]
            group = dataclasses.replace(group, records=cut)
        return (yield from super().requests(group, tokenizer, protocol))

    def value(self, scored: ScoredText, protocol: Protocol) -> Score:
        """Plus the mean of the clipped terms; a final end-of-text target counts like any other."""
        del protocol
        return scored.result(calibrated_mean(scored.targets, scored.log_prob, self.frequency, self.alpha))
