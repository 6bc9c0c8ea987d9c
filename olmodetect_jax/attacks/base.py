"""What an attack is, and the pass over whole texts that most attacks start from."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from olmodetect_jax.attacks.supervised import SUPERVISED_TITLES
from olmodetect_jax.errors import DataError
from olmodetect_jax.protocol import Protocol as Choices
from olmodetect_jax.records import Record
from olmodetect_jax.requests import Request, ScoreTokens, TokenStatistics
from olmodetect_jax.tokenization import TokenizedText, Tokenizer

# Every attack of the benchmark in the order of the paper's tables, with its title there.
TITLES = {
    "ppl": "PPL", "zlib": "Zlib", "lower": "Lower", "min_k": "MinK", "min_k_plus_plus": "MinK++", "dc_pdd": "DCPDD",
    "pac": "PAC", "recall": "ReCaLL", "em_mia": "EMMIA", "em_mia_best_of_four": "EMMIA optimistic",
    "camia": "CAMIA", "neighborhood": "Neigh.", "guided": "Guided", "dcq": "DCQ", "cdd": "CDD",
    "self_critique": "SelfCrit", **SUPERVISED_TITLES, "bag_of_words": "Blind baseline",
}  # fmt: skip

Requests = Sequence[Request]
Answers = Sequence[Any]  # each request's own kind of answer

LEFT_OUT = "left out: "  # how a reason begins for which a record has no score by choice, not by fault


@dataclass(frozen=True, eq=False)
class Group:
    """What an attack is given: one subset, or one side of a subset that has two.

    Attributes:
        records: to be scored, members and non-members; a user's own texts may be unlabelled.
        dev: development records of both classes, which an attack may learn from. They are `records` themselves where
            the development split is scored, as tuning does. A supervised attack is given those of its setting.
        domain: id of the domain; None for a user's own texts.
        tuning: whether the development records are scored to choose hyperparameters.
        trained_for: what a supervised attack's `dev` is the training set of, for names: a subset, a side of one, a
            domain that is held out, or everything.
        held_out: hashes of the texts that must not be in `dev` of a supervised attack: all that are scored by what
            is trained on it.
        sides_apart: whether each side of the subset has development records of its own, or all sides share `dev`.
    """

    records: Sequence[Record]
    dev: Sequence[Record] = ()
    domain: str | None = None
    tuning: bool = False
    trained_for: str = ""
    held_out: frozenset[bytes] = frozenset()
    sides_apart: bool = True

    @property
    def is_dev(self) -> bool:
        """Whether the development records themselves are to be scored."""
        return bool(self.dev) and list(self.records) == list(self.dev)


@dataclass(frozen=True)
class Score:
    """One record's score under one attack.

    Attributes:
        value: higher means more likely a member; NaN where there is none.
        n_tokens: tokens of the whole text.
        n_scored: target tokens the score was made from.
        truncated: whether the text was cut to the context.
        special_ids: special tokens among the targets (a final end-of-text token not counted).
        missing: why there is no score; None if there is one.
        note: what a reader should know of a score that is there; None if nothing.
        details: other numbers behind the score, by name, for its line in the score file.
    """

    value: float
    n_tokens: int
    n_scored: int
    truncated: bool
    special_ids: int = 0
    missing: str | None = None
    note: str | None = None
    details: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def left_out(self) -> bool:
        """Whether there is no score by choice, not by fault."""
        return (self.missing or "").startswith(LEFT_OUT)


class Attack(Protocol):
    """The two halves of an attack.

    `requests` yields lists of requests and is sent the answers in the same order, as often as it needs; what it
    returns is handed to `score`, which is numpy and arithmetic over it.
    """

    id: ClassVar[str]
    needs_dev: ClassVar[bool]

    def requests(self, group: Group, tokenizer: Tokenizer, protocol: Choices) -> Generator[Requests, Answers, Any]:
        """What the attack must know; `protocol` is already capped by the model's context."""
        ...

    def score(self, group: Group, answers: Any, protocol: Choices) -> list[Score]:
        """One score a record of `group.records`, in their order."""
        ...


@runtime_checkable
class ScoresSidesTogether(Protocol):
    """An attack that makes one choice for all the sides of a subset, each of which has been asked for by itself."""

    def score_sides(self, groups: Sequence[Group], answers: Sequence[Any], protocol: Choices) -> list[list[Score]]:
        """The scores of each side's group, in their order, from what `requests` returned for it."""
        ...


@dataclass(frozen=True, eq=False)
class ScoredText:
    """A text with the statistics of its targets: every token of it but the first.

    Attributes:
        text: the whole stripped text.
        span: the part of it that was scored (shorter if it was truncated).
        targets: [n] int32, ids of the scored tokens; n = 0 for a text of one token.
        log_prob: [n] float32.
        mean: [n] float32.
        variance: [n] float32.
        n_tokens: tokens of the whole text.
        truncated: whether it was cut to the context.
        special_ids: special tokens among the targets, a final end-of-text token not counted.
        ends: whether the last target is the end-of-text token.
    """

    text: str
    span: str
    targets: np.ndarray
    log_prob: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    n_tokens: int
    truncated: bool
    special_ids: int
    ends: bool

    @classmethod
    def of(cls, text: str, tokens: TokenizedText, statistics: TokenStatistics, tokenizer: Tokenizer) -> ScoredText:
        """A text read to these tokens.

        Args:
            text: the whole stripped text.
            tokens: its tokens, as far as they are read.
            statistics: of these tokens and maybe more after them, which changed none of the first.
            tokenizer: knows the special tokens.
        """
        targets = tokens.ids[1:]
        n = len(targets)
        ends = n > 0 and int(targets[-1]) == tokenizer.eos_id
        special = sum(int(i) in tokenizer.special_ids for i in (targets[:-1] if ends else targets))
        cut = (statistics.log_prob[:n], statistics.mean[:n], statistics.variance[:n])
        return cls(text, tokens.span, targets, *cut, tokens.n_tokens, tokens.truncated, special, ends)

    def body(self) -> ScoredText:
        """The same without a final end-of-text target: what PPL, Zlib, Lower, MinK and MinK++ score."""
        if not self.ends:
            return self
        cut = (self.targets[:-1], self.log_prob[:-1], self.mean[:-1], self.variance[:-1])
        return ScoredText(self.text, self.span, *cut, self.n_tokens, self.truncated, self.special_ids, ends=False)

    def result(self, value: float) -> Score:
        """`value` as this text's score; a value that is not a finite number becomes a named hole."""
        missing = None
        if not self.text:
            missing = "the record has no text"
        elif len(self.targets) == 0:
            missing = "there is nothing to score after the first token"
        elif not all(np.isfinite(a).all() for a in (self.log_prob, self.mean, self.variance)):
            missing = "the model's statistics are not finite numbers: check its weights, or take another --dtype"
        elif not math.isfinite(value):
            missing = f"the score is {value}"
        return Score(
            math.nan if missing else float(value), self.n_tokens, len(self.targets), self.truncated, self.special_ids,
            missing,
        )  # fmt: skip


def score_texts(
    texts: Sequence[str], tokenizer: Tokenizer, protocol: Choices
) -> Generator[Requests, Answers, list[ScoredText]]:
    """Asks for the statistics of whole texts, each cut to `protocol.max_tokens`; texts under two tokens are not asked.

    Returns (as a generator's value) one `ScoredText` a text, in order.
    """
    tokens = tokenizer.encode_all(texts, protocol.max_tokens)
    answers = iter((yield [ScoreTokens(t.ids) for t in tokens if len(t.ids) > 1]))
    none = TokenStatistics(*[np.zeros(0, np.float32)] * 3)
    return [
        ScoredText.of(text, t, next(answers) if len(t.ids) > 1 else none, tokenizer)
        for text, t in zip(texts, tokens, strict=True)
    ]


class OnePass(ABC):
    """An attack that reduces each text's own statistics; a subclass gives `id` and `value`.

    Example:
        class Median(OnePass):
            id = "median"

            def value(self, scored, protocol):
                body = scored.body()
                return body.result(float(np.median(body.log_prob)))
    """

    id: ClassVar[str]
    needs_dev: ClassVar[bool] = False
    refuses_special_ids: ClassVar[bool] = True  # where the protocol says so

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Choices
    ) -> Generator[Requests, Answers, list[ScoredText]]:
        """One pass over the records' texts."""
        scored = yield from score_texts([r.text for r in group.records], tokenizer, protocol)
        if self.refuses_special_ids:
            refuse_special_ids(group.records, scored, protocol)
        return scored

    def score(self, group: Group, answers: list[ScoredText], protocol: Choices) -> list[Score]:
        """One score a record, in order."""
        del group
        return [self.value(text, protocol) if len(text.targets) else text.result(math.nan) for text in answers]

    @abstractmethod
    def value(self, scored: ScoredText, protocol: Choices) -> Score:
        """The score of one text that has at least one target; `scored.result(number)` makes it."""


def refuse_special_ids(records: Sequence[Record], scored: Sequence[ScoredText], protocol: Choices) -> None:
    """Ends the work where a text holds special tokens and the protocol says so.

    Raises:
        DataError: naming the first such record.
    """
    if protocol.special_ids != "error":
        return
    for record, text in zip(records, scored, strict=True):
        if text.special_ids:
            raise DataError(
                f"{record}: {text.special_ids} special tokens among its targets; the released code stops here. "
                "Remove the record, or score and flag it with --set special_ids=flag"
            )
