"""MIA-Tuner: a soft prompt learns to make the model say whether it has seen a text (supervised spec, section 2)."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score
from olmodetect_jax.attacks.learning import origin_of, require_enough, training_records
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.supervised import row_id
from olmodetect_jax.errors import UsageError
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER
from olmodetect_jax.requests import PredictNext, ScoreTokens
from olmodetect_jax.tokenization import Tokenizer
from olmodetect_jax.training import SoftPromptRecipe, TrainSoftPrompt

TITLE = "MIA-Tuner"
YES, NO = "Yes", "No"  # what the model is to say of members and of non-members
LENGTH = 50  # vectors of the soft prompt
AROUND = 128  # tokens that question and template may put around a text
LEAST = 2  # tokens of what is learnt from or scored, question and template included


@dataclass(frozen=True, eq=False)
class Asked:
    """What a text's score is made from.

    Attributes:
        value: higher means more likely a member; no finite number where there is none.
        n_tokens: tokens of the whole text.
        n_scored: tokens of it that were read.
        missing: why there is no value; None if there is one.
    """

    value: float
    n_tokens: int
    n_scored: int
    missing: str | None


@dataclass(frozen=True)
class MiaTuner:
    """Question and text behind a trained soft prompt; the score is how much more probable Yes is than No.

    Attributes:
        setting: what the soft prompt was trained on; it is in the id alone, for the texts are the group's `dev`.
        prompts: the question, and the words whose embeddings the soft prompt starts from.
        learning_rate: of the first step.
        epochs: times each pair of texts is seen.
    """

    setting: str
    prompts: Prompts
    learning_rate: float
    epochs: int
    family: ClassVar[str] = "mia_tuner"
    needs_dev: ClassVar[bool] = True

    @property
    def id(self) -> str:
        """The id of the row."""
        return row_id(self.family, self.setting)

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Asked]]:
        """The soft prompt's training, and what comes after it and each text.

        Raises:
            UsageError: the model has no chat template, one that hides where its answer begins, or too short a context.
            DataError: there are too few texts of a class to train on, or one of them is to be scored.
        """
        if not group.records:
            return []
        form = _Plain(tokenizer, protocol) if protocol.mia_tuner_loss == "unaligned" else _Question(
            self.prompts, tokenizer, protocol
        )  # fmt: skip
        training = self._training(group, form, tokenizer)
        (trained,) = yield [training]
        texts = [r.text for r in group.records]
        ids = [form.ids(text) if text else np.zeros(0, np.int32) for text in texts]
        usable = [LEAST <= len(own) <= form.most for own in ids]
        asked = [form.request(own, trained.name, training.recipe) for own, ok in zip(ids, usable, strict=True) if ok]
        answers = iter((yield asked))
        values = [form.value(next(answers)) if ok else math.nan for ok in usable]
        tokens = tokenizer.encode_all(texts, form.room)
        return [
            Asked(value, t.n_tokens if text else 0, len(t.ids) if text else 0, _missing(text, ok, form, value))
            for value, t, text, ok in zip(values, tokens, texts, usable, strict=True)
        ]

    def _training(self, group: Group, form: _Plain | _Question, tokenizer: Tokenizer) -> TrainSoftPrompt:
        sides = []
        for label, answer in ((MEMBER, YES), (NON_MEMBER, NO)):
            examples = [(r, *form.example(r.text, answer)) for r in training_records(group, label, TITLE)]
            usable = [e for e in examples if LEAST <= len(e[1]) <= form.most]
            require_enough([e[0] for e in usable], group, label, TITLE, form.usable)
            sides.append(usable)
        pairs = min(map(len, sides))  # the rest of the larger class is not used
        examples = [example for side in sides for example in side[:pairs]]
        yes, no = form.answers([e[1:] for e in sides[0][:pairs]], [e[1:] for e in sides[1][:pairs]])
        recipe = SoftPromptRecipe(
            self._start(tokenizer), yes, no, LENGTH, isinstance(form, _Plain),
            learning_rate=self.learning_rate, epochs=self.epochs,
        )  # fmt: skip
        ids = [e[1] for e in examples]
        return TrainSoftPrompt(
            tuple(ids[:pairs]),
            tuple(ids[pairs:]),
            np.array([e[2] for e in examples]),
            recipe,
            origin_of([e[0] for e in examples], group, self.family, self.setting),
        )

    def _start(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        (start,) = tokenizer.encode_once([self.prompts.fill("mia_tuner_start")], LENGTH)
        if not len(start.ids):
            raise UsageError("--prompt mia_tuner_start: the file has no words that the soft prompt could start from")
        return tuple(start.ids.tolist())

    def score(self, group: Group, answers: Sequence[Asked], protocol: Protocol) -> list[Score]:
        """The margin between Yes and No, which does not saturate as their probabilities do; or minus the loss."""
        aligned = protocol.mia_tuner_loss == "aligned"
        return [
            Score(
                math.nan if asked.missing else asked.value,
                asked.n_tokens,
                asked.n_scored,
                truncated=asked.n_scored < asked.n_tokens,
                missing=asked.missing,
                details={"p_yes": _sigmoid(asked.value)} if aligned and not asked.missing else {},
            )
            for asked in answers
        ]


def _missing(text: str, usable: bool, form: _Plain | _Question, value: float) -> str | None:
    if not text:
        return "the record has no text"
    if not usable:
        return form.hole
    if not math.isfinite(value):
        return "the model's statistics are not finite numbers: check its weights, or take another --dtype"
    return None


def _sigmoid(margin: float) -> float:
    small = math.exp(-abs(margin))
    return (1.0 if margin >= 0 else small) / (1 + small)


def _most(protocol: Protocol) -> int:
    """Most tokens after the soft prompt.

    Raises:
        UsageError: the context leaves no room for a text.
    """
    most = min(protocol.training_tokens + AROUND, protocol.window - LENGTH)
    if most <= AROUND:
        raise UsageError(
            f"mia_tuner: with window={protocol.window} and training_tokens={protocol.training_tokens} there is no room "
            f"for a text beside {LENGTH} vectors and {AROUND} tokens; raise them, or leave the attack out of --attacks"
        )
    return most


class _Question:
    """A text inside the question whether it has been seen, in the model's chat template."""

    def __init__(self, prompts: Prompts, tokenizer: Tokenizer, protocol: Protocol):
        self._prompts, self._tokenizer = prompts, tokenizer
        self.most = _most(protocol)
        self.room = self.most - AROUND
        self.usable = f"that fit {self.most} tokens with the question"
        self.hole = f"text and question do not fit {self.most} tokens"

    def _content(self, text: str) -> str:
        return self._prompts.fill("mia_tuner_question", text=self._tokenizer.cut(text, self.room))

    def ids(self, text: str) -> np.ndarray:
        """Up to where the answer begins."""
        return self._tokenizer.chat_ids(self._content(text))

    def example(self, text: str, answer: str) -> tuple[np.ndarray, int]:
        """Ids with the answer, and where it begins."""
        content = self._content(text)
        asked, answered = self._tokenizer.chat_ids(content), self._tokenizer.chat_ids(content, answer)
        if len(answered) <= len(asked) or not np.array_equal(answered[: len(asked)], asked):
            raise UsageError(
                f"{self._tokenizer.directory}: in its chat template an answer does not begin where the question ends; "
                "MIA-Tuner cannot tell which token answers: leave mia_tuner out of --attacks"
            )
        return answered, len(asked)

    def answers(
        self, members: Sequence[tuple[np.ndarray, int]], non_members: Sequence[tuple[np.ndarray, int]]
    ) -> tuple[int, int]:
        """Ids that begin the answers."""
        yes, no = ({int(ids[answer]) for ids, answer in side} for side in (members, non_members))
        if len(yes) != 1 or len(no) != 1 or yes == no:
            raise UsageError(
                f"{self._tokenizer.directory}: its tokenizer writes the answers {YES} and {NO} with first tokens "
                f"{sorted(yes)} and {sorted(no)}: they must differ from each other and be the same after every text"
            )
        return *yes, *no

    def request(self, ids: np.ndarray, adapter: str, recipe: SoftPromptRecipe) -> PredictNext:
        """What comes after the question."""
        return PredictNext((ids,), np.array([recipe.yes, recipe.no], np.int32), adapter)

    def value(self, answer: object) -> float:
        """By how much Yes is more probable than No, in nats."""
        yes, no = answer.log_prob[0]
        return float(np.float32(float(yes) - float(no)))  # of two infinities a silent NaN


class _Plain:
    """A text as it is: the variant for models that answer no questions."""

    usable = "of two tokens or more"
    hole = "the text is one token, and a loss is scored over two or more"

    def __init__(self, tokenizer: Tokenizer, protocol: Protocol):
        self._tokenizer = tokenizer
        self.most = self.room = _most(protocol) - AROUND

    def ids(self, text: str) -> np.ndarray:
        """The text's own."""
        return self._tokenizer.encode_all([text], self.room)[0].ids

    def example(self, text: str, answer: str) -> tuple[np.ndarray, int]:
        """Ids; there is no answer."""
        del answer
        return self.ids(text), 0

    def answers(self, members: object, non_members: object) -> tuple[int, int]:
        """No ids begin an answer."""
        del members, non_members
        return 0, 1

    def request(self, ids: np.ndarray, adapter: str, recipe: SoftPromptRecipe) -> ScoreTokens:
        """Every token's probability, the first one's too."""
        del recipe
        return ScoreTokens(ids, adapter=adapter)

    def value(self, answer: object) -> float:
        """Minus the text's mean loss."""
        return float(np.mean(answer.log_prob, dtype=np.float64))
