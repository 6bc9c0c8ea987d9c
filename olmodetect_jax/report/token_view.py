"""A text token by token: what the model thought of each, for the report's view of one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmodetect_jax.attacks.reductions import VARIANCE_FLOOR

SHARE = 0.2  # of the tokens that MinK and MinK++ look at, the lowest


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

    def as_json(self) -> dict[str, Any]:
        """Plain values: pieces, log-probabilities, the terms of MinK++, and the places of the lowest fifth of each."""
        log_prob = self.log_prob.astype(np.float64)
        terms = (log_prob - self.mean) / np.sqrt(np.maximum(self.variance.astype(np.float64), VARIANCE_FLOOR))
        return {
            "pieces": list(self.pieces),
            "logProb": [round(float(v), 3) for v in log_prob],
            "term": [round(float(v), 3) for v in terms],
            "lowLogProb": lowest(log_prob),
            "lowTerm": lowest(terms),
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


def lowest(values: np.ndarray) -> list[int]:
    """Places of the lowest fifth, at least one, ascending."""
    count = max(1, int(len(values) * SHARE)) if len(values) else 0
    return sorted(np.argsort(values, kind="stable")[:count].tolist())
