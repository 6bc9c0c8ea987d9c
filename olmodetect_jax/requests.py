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

from olmodetect_jax.training import Trained, TrainLora, TrainSoftPrompt


@dataclass(frozen=True, eq=False)
class ScoreTokens:
    """Ask for the token statistics of one sequence of token ids.

    Attributes:
        ids: [T] int32, T >= 2, already truncated to the model's context.
        upcast: where statistics are rounded to bfloat16, round the logits only (as the released EMMIA does).
        adapter: name of the adapter (`Trained.name`) under which the model reads; empty for the model as it is.
    """

    ids: np.ndarray
    upcast: bool = False
    adapter: str = ""

    def __post_init__(self) -> None:
        _check_ids("ids", self.ids, 2)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name the request, whatever record or attack it came from."""
        kind = b"score-tokens-upcast\0" if self.upcast else b"score-tokens\0"
        kind += _under(self.adapter)
        return hashlib.sha256(kind + self.ids.astype("<i4").tobytes()).digest()


@dataclass(frozen=True, eq=False)
class TokenStatistics:
    """Answer to `ScoreTokens`: statistics of each scored position, the first token never being scored.

    After a soft prompt the first token is scored too: all arrays are then [T].

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


@dataclass(frozen=True, eq=False)
class PredictNext:
    """Ask what comes next after each of some prompts that may share their beginning, as the quizzes about one text do.

    Attributes:
        prompts: [T_i] int32 each, T_i >= 1, within the model's context. What each shares with the first is read once.
        tokens: [N] int32, the tokens whose probability is asked.
        adapter: name of the soft prompt (`Trained.name`) that stands before each prompt; empty for none.
    """

    prompts: tuple[np.ndarray, ...]
    tokens: np.ndarray
    adapter: str = ""

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError("prompts: none given")
        for prompt in self.prompts:
            _check_ids("prompt", prompt, 1)
        _check_ids("tokens", self.tokens, 1)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name the request."""
        kind = b"predict-next\0" + _under(self.adapter)
        return hashlib.sha256(kind + b"".join(map(_sha256, (self.tokens, *self.prompts)))).digest()


@dataclass(frozen=True, eq=False)
class NextTokens:
    """Answer to `PredictNext`.

    Attributes:
        log_prob: [R, N] float32, log p of each token after each prompt, over all V logit columns.
    """

    log_prob: np.ndarray


@dataclass(frozen=True)
class Sampling:
    """How continuations are drawn.

    Attributes:
        seed: 0 <= seed < 2**64, of the record: each draw depends on it, on the continuation's place and on the step.
        temperature: divides the logits first.
        top_k: only the k most probable tokens are drawn from, those that tie with the k-th too; 0 for all.
        top_p: only the most probable tokens that together reach this probability, after top_k; 1 for all.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.seed < 2**64 and self.temperature > 0 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise ValueError(f"not a way to sample: {self}")


@dataclass(frozen=True, eq=False)
class Generate:
    """Ask for continuations of one prompt, or of several of its beginnings.

    Attributes:
        prompt: [P] int32, P >= 1.
        max_new: most tokens of a continuation.
        stop_ids: tokens that end a continuation; they are no part of it.
        greedy: whether the greedy continuation of the whole prompt is asked; it comes first.
        sampling: how the others are drawn; None for none.
        starts: [n] int32, how many of the prompt's tokens each drawn continuation follows, 1 to P; the whole
            prompt n times draws n continuations of it.
    """

    prompt: np.ndarray
    max_new: int
    stop_ids: tuple[int, ...] = ()
    greedy: bool = True
    sampling: Sampling | None = None
    starts: np.ndarray | None = None

    def __post_init__(self) -> None:
        _check_ids("prompt", self.prompt, 1)
        if self.max_new < 1:
            raise ValueError(f"max_new: expected at least 1, got {self.max_new}")
        if (self.sampling is None) != (self.starts is None) or not (self.greedy or self.sampling):
            raise ValueError("sampling and starts go together, and something must be asked")
        if self.starts is not None:
            _check_ids("starts", self.starts, 1)
            if self.starts.min() < 1 or self.starts.max() > len(self.prompt):
                raise ValueError(f"starts: expected 1 to {len(self.prompt)}")

    @cached_property
    def rows(self) -> int:
        """How many continuations are asked."""
        return self.greedy + (0 if self.starts is None else len(self.starts))

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name the request."""
        how = repr((self.max_new, self.stop_ids, self.greedy, self.sampling)).encode()
        starts = b"" if self.starts is None else self.starts.astype("<i4").tobytes()
        parts = (hashlib.sha256(how).digest(), _sha256(self.prompt), starts)
        return hashlib.sha256(b"generate\0" + b"".join(parts)).digest()


@dataclass(frozen=True, eq=False)
class Continuation:
    """One continuation of a prompt.

    Attributes:
        ids: [n] int32, n at most `max_new`; without the token that ended it.
        log_prob: [n] float32, log p of each under the model as it is, whatever the temperature.
        entropy: [n] float32, entropy in nats of the model's distribution at each, over all V, whatever the temperature.
        ended: whether a stop token came.
    """

    ids: np.ndarray
    log_prob: np.ndarray
    entropy: np.ndarray
    ended: bool


@dataclass(frozen=True, eq=False)
class Continuations:
    """Answer to `Generate`: the greedy one first if it was asked, then the drawn ones in the order of `starts`."""

    rows: tuple[Continuation, ...]


Request = ScoreTokens | ScoreTargets | PredictNext | Generate | TrainLora | TrainSoftPrompt
Answer = TokenStatistics | TargetLikelihoods | NextTokens | Continuations | Trained


def _under(adapter: str) -> bytes:
    """What an adapter adds to a digest; nothing for the model as it is."""
    return hashlib.sha256(adapter.encode()).digest() if adapter else b""


def _sha256(ids: np.ndarray) -> bytes:
    return hashlib.sha256(ids.astype("<i4").tobytes()).digest()


def _check_ids(name: str, ids: np.ndarray, least: int) -> None:
    if ids.dtype != np.int32 or ids.ndim != 1 or len(ids) < least:
        raise ValueError(f"{name}: expected [T >= {least}] int32, got {ids.dtype} {ids.shape}")
