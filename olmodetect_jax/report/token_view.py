"""A text token by token: what the model thought of each, for the report's view of one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmodetect_jax.attacks.reductions import VARIANCE_FLOOR, smallest_count

SHARE = 0.2  # of the tokens, the lowest, marked where the run does not say which share MinK or MinK++ takes


@dataclass(frozen=True, eq=False)
class TokenView:
    """One record's tokens.

    Attributes:
        subset: subset id.
        label: the record's class; None if it has none.
        record_id: its id.
        text_sha1: hash of its text.
        pieces: the parts of the text, a token each, as far as it was read.
        log_prob: [T - 1] of every token but the first.
        mean: [T - 1] mean log-probability over the vocabulary there.
        variance: [T - 1] its variance.
    """

    subset: str
    label: int | None
    record_id: str
    text_sha1: str
    pieces: tuple[str, ...]
    log_prob: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def as_json(self, shares: Sequence[float | None] = (None, None)) -> dict[str, Any]:
        """Plain values: pieces, log-probabilities, the terms of MinK++, and the places of the lowest of each.

        Args:
            shares: of the tokens that MinK and MinK++ take; None for one that is not known, which reads as `SHARE`.
        """
        of_log_prob, of_terms = (SHARE if share is None else share for share in shares)
        log_prob = self.log_prob.astype(np.float64)
        terms = (log_prob - self.mean) / np.sqrt(np.maximum(self.variance.astype(np.float64), VARIANCE_FLOOR))
        return {
            "pieces": list(self.pieces),
            "logProb": [round(float(v), 3) for v in log_prob],
            "term": [round(float(v), 3) for v in terms],
            "lowLogProb": lowest(log_prob, of_log_prob),
            "lowTerm": lowest(terms, of_terms),
        }


@dataclass(frozen=True, eq=False)
class TokenViews:
    """The views of one run.

    Attributes:
        views: of some of its records.
        reason: why there are none; None if there are.
    """

    views: Sequence[TokenView]
    reason: str | None = None


def lowest(values: np.ndarray, share: float) -> list[int]:
    """Places of the lowest share of [n] values, as many as MinK takes, ascending."""
    count = smallest_count(share, len(values)) if len(values) else 0
    return sorted(np.argsort(values, kind="stable")[:count].tolist())
