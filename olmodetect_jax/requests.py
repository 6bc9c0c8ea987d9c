"""What attacks ask for and what the engine answers. Plain data, no jax.

An attack yields lists of requests and receives lists of answers in the same order. Two attacks that ask
for the same thing make equal digests, and the engine answers each digest once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class ScoreTokens:
    """Ask for the token statistics of one sequence of token ids.

    Attributes:
        ids: [T] int32, T >= 2, already truncated to the model's context.
        upcast: where statistics are rounded to bfloat16, round the logits only (as the released EMMIA does).
    """

    ids: np.ndarray
    upcast: bool = False

    def __post_init__(self) -> None:
        _check_ids("ids", self.ids, 2)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name the request, whatever record or attack it came from."""
        kind = b"score-tokens-upcast\0" if self.upcast else b"score-tokens\0"
        return hashlib.sha256(kind + self.ids.astype("<i4").tobytes()).digest()


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


class Targets(tuple[np.ndarray, ...]):
    """Texts that are scored after the same prefixes, [T_i] int32 each with T_i >= 1.

    Make one and hand it to many requests: it is checked and hashed once.
    """

    def __new__(cls, ids: Iterable[np.ndarray]) -> Targets:
        """Checks the ids.

        Raises:
            ValueError: there is no target, or one is not [T >= 1] int32.
        """
        self = super().__new__(cls, ids)
        if not self:
            raise ValueError("targets: none given")
        for target in self:
            _check_ids("target", target, 1)
        return self

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """32 bytes a target."""
        return tuple(_sha256(target) for target in self)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name the targets in their order."""
        return hashlib.sha256(b"".join(self.digests)).digest()

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Places of the targets in an order that does not depend on the one they were given in: the engine's."""
        return tuple(sorted(range(len(self)), key=self.digests.__getitem__))

    @cached_property
    def set_digest(self) -> bytes:
        """32 bytes that name the targets, whatever their order."""
        return hashlib.sha256(b"".join(sorted(self.digests))).digest()


@dataclass(frozen=True, eq=False)
class ScoreTargets:
    """Ask how probable many texts are after one prefix, each for itself.

    Attributes:
        prefix: [P] int32, P >= 1.
        targets: the texts; P + T_i within the model's context.
        upcast: as in `ScoreTokens`.
    """

    prefix: np.ndarray
    targets: Targets
    upcast: bool = False

    def __post_init__(self) -> None:
        _check_ids("prefix", self.prefix, 1)
        if not isinstance(self.targets, Targets):
            object.__setattr__(self, "targets", Targets(self.targets))

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name prefix and targets, these in their order, for the answer is in it."""
        return self._named(self.targets.digest)

    @cached_property
    def row(self) -> bytes:
        """32 bytes that name prefix and targets, whatever the targets' order: the engine keeps the answer so."""
        return self._named(self.targets.set_digest)

    def _named(self, targets: bytes) -> bytes:
        kind = b"score-targets-upcast\0" if self.upcast else b"score-targets\0"
        return hashlib.sha256(kind + _sha256(self.prefix) + targets).digest()


@dataclass(frozen=True, eq=False)
class TargetLikelihoods:
    """Answer to `ScoreTargets`: two numbers a target, in the request's order (natural logarithms).

    Attributes:
        first: [N] float32, log p of the target's first token after the prefix.
        rest: [N] float32, mean over the target's other tokens of log p after the prefix and the target's own earlier
            tokens; NaN for a target of one token.
    """

    first: np.ndarray
    rest: np.ndarray


Request = ScoreTokens | ScoreTargets
Answer = TokenStatistics | TargetLikelihoods


def _sha256(ids: np.ndarray) -> bytes:
    return hashlib.sha256(ids.astype("<i4").tobytes()).digest()


def _check_ids(name: str, ids: np.ndarray, least: int) -> None:
    if ids.dtype != np.int32 or ids.ndim != 1 or len(ids) < least:
        raise ValueError(f"{name}: expected [T >= {least}] int32, got {ids.dtype} {ids.shape}")
