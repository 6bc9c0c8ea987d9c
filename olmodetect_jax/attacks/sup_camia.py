"""Sup-CAMIA: a classifier that learns members from how their loss unfolds (CAMIA and PAC spec, section 2)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score, ScoredText
from olmodetect_jax.attacks.learning import require_enough, training_records
from olmodetect_jax.attacks.sup_camia_classifier import probabilities
from olmodetect_jax.attacks.supervised import SETTINGS, row_id
from olmodetect_jax.errors import one_of
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, text_hash
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.tokenization import TokenizedText, Tokenizer

TITLE = "Sup-CAMIA"


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text with its features.

    Attributes:
        plain: the text by itself.
        features: [71] float64, NaN where it has no such feature; all of them for a text of one token.
        hole: why it has no score; None if it has one.
    """

    plain: ScoredText
    features: np.ndarray
    hole: str | None

    @property
    def teaches(self) -> bool:
        """Whether a classifier can learn from it."""
        return not self.hole and len(self.plain.targets) > 0


ReadTexts = Mapping[str, ReadText]  # by text


@dataclass(frozen=True)
class SupCamia:
    """A logistic regression learns from labelled texts; a text's score is its probability of being a member.

    Attributes:
        setting: where the labelled texts come from; it is in the id alone, for they are the group's `dev`.
    """

    setting: str
    family: ClassVar[str] = "sup_camia"
    needs_dev: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise one_of("setting", self.setting, SETTINGS)

    @property
    def id(self) -> str:
        """The id of the row."""
        return row_id(self.family, self.setting)

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, ReadTexts]:
        """One pass over three copies of each text.

        Returns (as a generator's value) the features of every text of `group.records` and `group.dev`.

        Raises:
            DataError: as in `score`.
        """
        if group.records:
            _teachers(group, bool)  # what can be known is said before the model's passes
        return (yield from read_texts([r.text for r in (*group.records, *group.dev)], tokenizer, protocol))

    def score(self, group: Group, answers: ReadTexts, protocol: Protocol) -> list[Score]:
        """One score a record, in order.

        Raises:
            DataError: a class has too few texts to learn from (names the subset and the class), or one of them is among
                the texts that are scored.
        """
        if not group.records:
            return []
        members, non_members = _teachers(group, lambda text: answers[text].teaches)
        features = [np.stack([answers[r.text].features for r in rs]) for rs in (members, non_members, group.records)]
        values = probabilities(*features, protocol.sup_camia_classifier)
        return [_score(answers[r.text], float(value)) for r, value in zip(group.records, values, strict=True)]


def _teachers(group: Group, teaches: Callable[[str], bool]) -> tuple[list[Record], list[Record]]:
    """The members and non-members to learn from, by hash of their text: no score depends on a file's order.

    Args:
        group: its development records.
        teaches: whether a text has features; before that is known, whether it is empty.
    """
    classes = []
    for label in (MEMBER, NON_MEMBER):
        found = [r for r in training_records(group, label, TITLE) if teaches(r.text)]
        require_enough(found, group, label, TITLE)
        classes.append(sorted(found, key=lambda record: text_hash(record.text)))
    return classes[0], classes[1]


def _score(text: ReadText, value: float) -> Score:
    score = text.plain.result(value)
    if text.hole:
        return dataclasses.replace(score, value=math.nan, missing=text.hole)
    if not text.teaches:
        note = "one token: the text has no features, and the training texts' medians stand for them"
        return dataclasses.replace(score, value=value, missing=None, note=note)
    return score


def read_texts(
    texts: Sequence[str], tokenizer: Tokenizer, protocol: Protocol
) -> Generator[Requests, Answers, ReadTexts]:
    """Asks for all that the features of texts are made from.

    A text is cut to `protocol.max_tokens`, its copies to `protocol.window`. The model is causal, so the pass over
    three copies holds those over two and over the text alone wherever it starts with their very tokens.

    Returns (as a generator's value) each distinct text with its features.
    """
    from olmodetect_jax.attacks.sup_camia_features import FEATURES, text_features  # numba is slow to import

    texts = list(dict.fromkeys(texts))
    alone = tokenizer.encode_all(texts, protocol.max_tokens)
    copies = _copies([tokenizer.cut(text, protocol.max_tokens) for text in texts], tokenizer, protocol)
    passes = [_requests(a.ids, c.two, c.three) if len(a.ids) > 1 else [] for a, c in zip(alone, copies, strict=True)]
    wanted = {request.digest: request for requests in passes for request in requests}
    answers = dict(zip(wanted, (yield list(wanted.values())), strict=True))
    nothing = [TokenStatistics(*[np.zeros(0, np.float32)] * 3)] * 3
    read = {}
    for text, a, c, requests in zip(texts, alone, copies, passes, strict=True):
        own, two, three = [answers[request.digest] for request in requests] or nothing
        plain = ScoredText.of(text, a, own, tokenizer)
        slices = c.slices(two.log_prob, three.log_prob, len(plain.targets))
        hole = _hole(plain, slices)
        features = np.full(len(FEATURES), math.nan) if hole else text_features(plain.log_prob, a.ids, slices)
        read[text] = ReadText(plain, features, hole)
    return read


@dataclass(frozen=True, eq=False)
class _Copies:
    """A text's copies, joined by a space.

    Attributes:
        two: [<= window] int32, ids of two copies.
        three: of three copies.
        starts: place of the last copy's first value among the log-probabilities of two copies, and of three.
    """

    two: np.ndarray
    three: np.ndarray
    starts: tuple[int, int]

    def slices(self, two: np.ndarray, three: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The last copy's values among those of two copies and of three: `length`, or fewer where the copies are cut.

        Args:
            two: [>= T-1] log-probabilities of the two copies, and maybe of more tokens after them.
            three: the same of the three copies.
            length: L.
        """
        (first, second), ends = self.starts, (len(self.two) - 1, len(self.three) - 1)
        return two[: ends[0]][first : first + length], three[: ends[1]][second : second + length]


def _copies(texts: Sequence[str], tokenizer: Tokenizer, protocol: Protocol) -> list[_Copies]:
    def encoded(count: int, end: str = "") -> list[TokenizedText]:
        return tokenizer.encode_all([" ".join([text] * count) + end for text in texts], protocol.window)

    one, two, three = encoded(1), encoded(2), encoded(3)
    if protocol.sup_camia_slices == "released":
        # What stands before the copy, with a space that mostly is no token of its own once the copy follows (2.2).
        starts = [(b.n_tokens, bb.n_tokens) for b, bb in zip(encoded(1, " "), encoded(2, " "), strict=True)]
    else:
        tokens = [b.n_tokens - a.n_tokens for a, b in zip(one, two, strict=True)]  # that a copy and its space add
        starts = [(added, 2 * added) for added in tokens]
    return [_Copies(b.ids, c.ids, start) for b, c, start in zip(two, three, starts, strict=True)]


def _requests(*passes: np.ndarray) -> list[ScoreTokens]:
    """For each sequence of ids the request whose answer holds its statistics: the longest that starts with it."""
    longest = sorted(passes, key=len, reverse=True)
    return [ScoreTokens(next(ids for ids in longest if np.array_equal(ids[: len(own)], own))) for own in passes]


def _hole(plain: ScoredText, copies: Sequence[np.ndarray]) -> str | None:
    """Why a text has no score; None for one of a single token, whose features are all missing (2.3)."""
    if plain.text and not len(plain.targets):
        return None
    hole = plain.result(0.0).missing
    if not hole and (in_copies := dataclasses.replace(plain, log_prob=np.concatenate(copies)).result(0.0).missing):
        hole = f"in its copies: {in_copies}"
    return hole
