"""DCQ, the data contamination quiz: a member is picked out among rewordings of itself (generative spec, section 3)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.written import NO_TEXT
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.quiz.files import Quizzes
from olmodetect_jax.quiz.options import LETTERS, Options, problem
from olmodetect_jax.requests import NextTokens, PredictNext
from olmodetect_jax.tokenization import Tokenizer

SCORES = ("mean", "min", "kappa", "kappa_np")
ANSWERS = LETTERS + "E"  # E: none of them, or not known
BEFORE = ("", " ", "\n", "\t")  # what may stand before a letter in its token
LEAST_TOKENS = 32  # of an option
SLACK = 8  # tokens that a quiz may grow by when its parts are put together

PREFERRED = 1 / len(ANSWERS)  # a letter the model chooses this often, or more, when no answer is right
LEAST_ROOM = 1e-3  # above chance


def chance(without: np.ndarray) -> np.ndarray:
    """How probable each letter is although the text is not in the quiz.

    Args:
        without: [R, 4] float64, probability of A to D in each record's quiz without the text; NaN where it is missing.

    Returns:
        [4] float64, means over the finite ones; 0 where there is none.
    """
    columns = [column[np.isfinite(column)] for column in without.T]
    # Summed exactly: the order of the records changes no digit.
    return np.asarray([math.fsum(column) / max(len(column), 1) for column in columns])


def non_preferred(expected: np.ndarray) -> np.ndarray:
    """[4] bool: the letters whose chance term is below a fifth; all of them where none is."""
    below = expected < PREFERRED
    return below if below.any() else np.ones_like(below)


def quiz_score(measure: str, correct: np.ndarray, expected: np.ndarray) -> float:
    """One record's score.

    Args:
        measure: one of `SCORES`.
        correct: [4] float64, probability of the letter before the text, in the quiz that has it there; NaN where that
            was not asked.
        expected: [4] float64, the chance term.

    Returns:
        The score; NaN where nothing was asked.
    """
    asked = np.isfinite(correct)
    if not asked.any():
        return math.nan
    if measure in ("mean", "min"):
        return float(correct[asked].mean() if measure == "mean" else correct[asked].min())
    taken = asked
    if measure == "kappa_np" and (asked & non_preferred(expected)).any():
        taken = asked & non_preferred(expected)
    return float(np.mean((correct[taken] - expected[taken]) / np.maximum(LEAST_ROOM, 1 - expected[taken])))


def fault(options: Options, text: str, protocol: Protocol) -> str | None:
    """Why a text is not quizzed with these options; None if it is."""
    if protocol.dcq_equal_options == "leave_out":
        return problem(options, text)
    # With its letter before it no option is equal to anything, and only what is missing or no Unicode is found.
    lettered = (own.strip() and f"{letter}) {own}" for letter, own in zip(LETTERS, options.texts, strict=True))
    return problem(Options(*lettered), "")


def equal_ones(options: Options, text: str) -> str | None:
    """A note that names the equal ones among the options and the text; None if there are none."""
    names: dict[str, list[str]] = {}
    for name, own in zip((*LETTERS, "the text"), (*options.texts, text), strict=True):
        names.setdefault(own.strip(), []).append(name)
    found = [" = ".join(equal) for equal in names.values() if len(equal) > 1]
    return f"equal options in the quiz: {', '.join(found)}" if found else None


@dataclass(frozen=True, eq=False)
class Letters:
    """The tokens that answer a quiz.

    Attributes:
        tokens: [N] int32, of all letters.
        counts: how many of them are each letter's, in order.
    """

    tokens: np.ndarray
    counts: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Letters:
        """Every token that is one of the letters alone, or with white space before it.

        Raises:
            UsageError: a letter has none.
        """
        found = [
            list(dict.fromkeys(tokenizer.single_token(before + letter) for before in BEFORE)) for letter in ANSWERS
        ]
        ids = [[i for i in own if i is not None] for own in found]
        for letter, own in zip(ANSWERS, ids, strict=True):
            if not own:
                raise UsageError(
                    f"dcq: the model's tokenizer has no token for the letter {letter}, with which a quiz is answered; "
                    "leave dcq out of --attacks"
                )
        return cls(np.asarray([i for own in ids for i in own], np.int32), tuple(map(len, ids)))

    def probabilities(self, log_prob: np.ndarray) -> np.ndarray:
        """Probability of each letter: [R, 5] float64 from [R, N].

        They do not add up to 1, for the rest of the vocabulary has its share.
        """
        ends = np.cumsum(self.counts)
        p = np.exp(log_prob.astype(np.float64))
        return np.stack([p[:, end - n : end].sum(axis=1) for n, end in zip(self.counts, ends, strict=True)], axis=1)


@dataclass(frozen=True, eq=False)
class Quizzed:
    """A text and how the model answered the quizzes about it.

    Attributes:
        n_tokens: tokens of the whole text.
        n_scored: tokens of it that stood in the quizzes.
        truncated: whether it or an option of its quiz was cut.
        without: [4] float64, probability of A to D where the text is not in the quiz; NaN if there is no quiz.
        correct: [4] float64, probability of the letter before the text, where it is A to D.
        hole: why there is no quiz; None if there is one.
        note: what a reader should know of the quiz.
    """

    n_tokens: int
    n_scored: int = 0
    truncated: bool = False
    without: np.ndarray = dataclasses.field(default_factory=lambda: np.full(len(LETTERS), np.nan))
    correct: np.ndarray = dataclasses.field(default_factory=lambda: np.full(len(LETTERS), np.nan))
    hole: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Dcq:
    """How surely the model picks the text itself among rewordings of it.

    Attributes:
        measure: over the four places of the text the `mean` or the `min` of the letter's probability; or `kappa`, the
            mean of what it is above chance, or `kappa_np`, the same over letters that the model does not prefer anyway.
        prompts: filled with the options.
        quizzes: of the texts; made once for all models.
    """

    measure: str
    prompts: Prompts
    quizzes: Quizzes
    id: ClassVar[str] = "dcq"
    needs_dev: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.measure not in SCORES:
            raise one_of("dcq_score", self.measure, SCORES)

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Quizzed]]:
        """The five quizzes of every text, in one list; first the one without it, from which the others branch off.

        Raises:
            UsageError: the tokenizer has no token for a letter.
        """
        letters = Letters.of(tokenizer)
        plans = [self._plan(record.text, group.domain, letters, tokenizer, protocol) for record in group.records]
        answers = iter((yield [request for _, request in plans if request]))
        return [_answered(text, next(answers), letters) if request else text for text, request in plans]

    def _plan(
        self, text: str, domain: str | None, letters: Letters, tokenizer: Tokenizer, protocol: Protocol
    ) -> tuple[Quizzed, PredictNext | None]:
        """What is known of a text before its quizzes are answered, and what is asked."""
        n_tokens = tokenizer.encode(text, protocol.generation_context).n_tokens
        quiz = self.quizzes.of(text)
        if not text:
            hole = NO_TEXT
        elif quiz is None:
            hole = f"no quiz for this text in {self.quizzes.path.name}; make one with `olmodetect quiz`"
        elif found := fault(quiz.options, text, protocol):
            hole = f"no usable quiz for this text in {self.quizzes.path.name}: {found}"
        else:
            return self._fit(Quizzed(n_tokens), text, quiz.options, domain, letters, tokenizer, protocol)
        return Quizzed(n_tokens, hole=hole), None

    def _fit(
        self, quizzed: Quizzed, text: str, whole: Options, domain: str | None, letters: Letters,
        tokenizer: Tokenizer, protocol: Protocol,
    ) -> tuple[Quizzed, PredictNext | None]:  # fmt: skip
        """Quizzes whose five texts are cut to equal shares of the context."""
        context = protocol.generation_context
        empty = tokenizer.encode(self._quiz(Options("", "", "", ""), domain), context).n_tokens
        budget = max(LEAST_TOKENS, (context - (empty + SLACK)) // len(LETTERS))
        while True:
            own = tokenizer.cut(text, budget)
            cut = Options(*(tokenizer.cut(option, budget) for option in whole.texts))
            asked = [cut, *(dataclasses.replace(cut, **{letter.lower(): own}) for letter in LETTERS)]
            # Long and asked for once: the tokenizer is not to remember them.
            quizzes = tokenizer.encode_once([self._quiz(options, domain) for options in asked], context)
            if not any(quiz.truncated for quiz in quizzes):
                break
            # A cut can make tokens where there were none, so that the slack does not do.
            if budget <= LEAST_TOKENS:
                hole = f"a context of {context} tokens has no room for four options of {LEAST_TOKENS}"
                return dataclasses.replace(quizzed, hole=hole), None
            budget -= 1
        quizzed = dataclasses.replace(quizzed, truncated=(own, cut) != (text, whole))
        if found := fault(cut, own, protocol):
            hole = f"the quiz is cut to {budget} tokens an option, and then {found}"
            return dataclasses.replace(quizzed, hole=hole), None
        n_scored, note = min(quizzed.n_tokens, budget), equal_ones(cut, own)
        request = PredictNext(tuple(quiz.ids for quiz in quizzes), letters.tokens)
        return dataclasses.replace(quizzed, n_scored=n_scored, note=note), request

    def _quiz(self, options: Options, domain: str | None) -> str:
        slots = {f"option_{letter.lower()}": text for letter, text in zip(LETTERS, options.texts, strict=True)}
        return self.prompts.fill("dcq_quiz", split_name="training", dataset_name=self.prompts.source(domain), **slots)

    def score(self, group: Group, answers: Sequence[Quizzed], protocol: Protocol) -> list[Score]:
        """One score a record, above the chance of the whole group or of its own class."""
        apart = protocol.dcq_chance == "per_file"
        labels = [record.label if apart else None for record in group.records]
        expected = {
            label: chance(np.stack([q.without for q, own in zip(answers, labels, strict=True) if own == label]))
            for label in dict.fromkeys(labels)
        }
        return [self._score(quizzed, expected[label]) for quizzed, label in zip(answers, labels, strict=True)]

    def _score(self, quizzed: Quizzed, expected: np.ndarray) -> Score:
        if quizzed.hole:
            return Score(math.nan, quizzed.n_tokens, 0, quizzed.truncated, missing=quizzed.hole)
        value = quiz_score(self.measure, quizzed.correct, expected)
        return Score(value, quizzed.n_tokens, quizzed.n_scored, quizzed.truncated, note=quizzed.note)


def _answered(text: Quizzed, answer: NextTokens, letters: Letters) -> Quizzed:
    p = letters.probabilities(answer.log_prob)
    if not np.isfinite(p).all():
        hole = "the model's statistics are not finite numbers: check its weights, or take another --dtype"
        return dataclasses.replace(text, hole=hole)
    places = np.arange(len(LETTERS))
    return dataclasses.replace(text, without=p[0, places], correct=p[1 + places, places])
