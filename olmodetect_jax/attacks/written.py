"""A text and what the model wrote for it: what Guided, CDD and Self-Critique have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from olmodetect_jax.attacks.base import Score
from olmodetect_jax.requests import Continuation

NO_TEXT = "the record has no text"
_NOT_FINITE = "the model's statistics are not finite numbers: check its weights, or take another --dtype"


@dataclass(frozen=True, eq=False)
class Written:
    """A text and what the model wrote for it.

    Attributes:
        n_tokens: tokens of the whole text.
        n_scored: tokens of the part of it that the score is made from; each attack says which.
        truncated: whether a part of it was cut off to fit the context.
        rows: what the model wrote.
        hole: why there is nothing to score; None if there is.
        note: what a reader should know of how it was written.
    """

    n_tokens: int
    n_scored: int = 0
    truncated: bool = False
    rows: Sequence[Continuation] = ()
    hole: str | None = None
    note: str | None = None

    def result(self, value: float, note: str | None = None) -> Score:
        """`value` as the text's score, unless there is none to have."""
        finite = all(np.isfinite(a).all() for row in self.rows for a in (row.log_prob, row.entropy))
        missing = self.hole or (None if finite else _NOT_FINITE)
        if missing:
            return Score(math.nan, self.n_tokens, 0 if self.hole else self.n_scored, self.truncated, missing=missing)
        return Score(float(value), self.n_tokens, self.n_scored, self.truncated, note=note or self.note)
