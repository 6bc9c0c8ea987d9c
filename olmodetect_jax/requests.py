"""What attacks ask for and what the engine answers. Plain data, no jax.

An attack yields lists of requests and receives lists of answers in the same order. Two attacks that ask
for the same thing make equal digests, and the engine answers each digest once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class ScoreTokens:
    """Ask for the token statistics of one sequence of token ids.

    Attributes:
        ids: [T] int32, T >= 2, already truncated to the model's context.
    """

    ids: np.ndarray

    def __post_init__(self) -> None:
        if self.ids.dtype != np.int32 or self.ids.ndim != 1 or len(self.ids) < 2:
            raise ValueError(f"ids must be [T >= 2] int32, got {self.ids.dtype} {self.ids.shape}")

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name the request, whatever record or attack it came from."""
        return hashlib.sha256(b"score-tokens\0" + self.ids.astype("<i4").tobytes()).digest()


@dataclass(frozen=True, eq=False)
class TokenStatistics:
    """Answer to `ScoreTokens`: statistics of each scored position, the first token never being scored.

    With p the model's distribution over all V logit columns at one position (natural logarithms):

    Attributes:
        log_prob: [T-1] float32, log p of the token that came.
        mean: [T-1] float32, E_p[log p], minus the entropy.
        variance: [T-1] float32, Var_p[log p]; rounded to bfloat16 it may come out slightly negative.
    """

    log_prob: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
