"""PAC: how a text's spread of log-probabilities compares with that of its word-swapped copies (PAC spec, section 3)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score, ScoredText, score_texts
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, text_hash
from olmodetect_jax.tokenization import Tokenizer

COPIES = 5
SWAPPED_SHARE = 0.3  # swaps of a copy, as a share of the words
DRAWS = 3  # of a second position that differs from the first
_FILES = (MEMBER, NON_MEMBER, None)  # labels in the order in which one stream over all the texts takes them


def swapped_order(n_words: int, random: Random) -> list[int]:
    """One copy's order of the words: max(1, int(0.3 n)) swaps, one after the other (3.1).

    The draws follow the released code's: after three that equal the first position a fourth is made and thrown away.

    Returns:
        order, n_words long: the copy's word i is the text's word order[i].
    """
    order = list(range(n_words))
    for _ in range(max(1, int(SWAPPED_SHARE * n_words))):
        first = random.randint(0, n_words - 1)
        for _ in range(DRAWS):
            second = random.randint(0, n_words - 1)
            if second != first:
                order[first], order[second] = order[second], order[first]
                break
        else:
            random.randint(0, n_words - 1)
    return order


def swapped_copies(text: str, random: Random) -> list[str]:
    """The five copies of a text with words swapped; a word is what stands between two single spaces."""
    words = text.split(" ")
    copies = [" ".join(words[i] for i in swapped_order(len(words), random)) for _ in range(COPIES)]
    random.shuffle(copies)  # for the random stream; the mean over the copies has no order
    return copies


@lru_cache(maxsize=1 << 14)  # every pair of shares in a grid asks for the same copies
def _copies_of(texts: tuple[str, ...], seed: int) -> tuple[tuple[str, ...], ...]:
    """Copies of several texts from one random stream."""
    random = Random(seed)
    return tuple(tuple(swapped_copies(text, random)) for text in texts)


def seed_of(text: str) -> int:
    """A seed that depends on the text alone."""
    return int.from_bytes(text_hash(text), "big")


def polarised_distance(ordered: np.ndarray, far: float, near: float) -> float:
    """Mean of the highest log-probabilities minus the mean of the lowest ones (3.2).

    Args:
        ordered: [m] log-probabilities, ascending.
        far: share of the highest.
        near: share of the lowest; at least one value of each is taken.

    Returns:
        The distance, not negative; 0 for m = 0.
    """
    m = len(ordered)
    if not m:
        return 0.0
    highest, lowest = ordered[-max(int(m * far), 1) :], ordered[: max(int(m * near), 1)]
    return float(np.mean(highest, dtype=np.float64) - np.mean(lowest, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Swapped:
    """A scored text and its scored copies.

    Attributes:
        plain: the text as it stands.
        copies: the five copies, each tokenized and cut on its own.
    """

    plain: ScoredText
    copies: list[ScoredText]

    @cached_property
    def ordered(self) -> list[np.ndarray]:
        """Log-probabilities of the text and of each copy, ascending: [m] float32 each."""
        return [np.sort(text.log_prob) for text in (self.plain, *self.copies)]

    def hole(self) -> str | None:
        """Why there is no score; a text or copy without a target counts as distance 0 and is no reason."""
        if not self.plain.text:
            return self.plain.result(0.0).missing
        reasons = (text.result(0.0).missing for text in (self.plain, *self.copies) if len(text.targets))
        return next((reason for reason in reasons if reason), None)


@dataclass(frozen=True)
class Pac:
    """Members lose more of their spread between probable and improbable tokens when their words are swapped.

    Attributes:
        far: share of the highest log-probabilities (k1).
        near: share of the lowest log-probabilities (k2).
    """

    far: float
    near: float
    id: ClassVar[str] = "pac"
    needs_dev: ClassVar[bool] = False

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Swapped]]:
        """One pass over the texts and their copies; the same for every pair of shares."""
        protocol = dataclasses.replace(protocol, max_tokens=min(protocol.max_tokens, protocol.pac_max_tokens))
        texts = [r.text for r in group.records]
        seen = texts
        if protocol.text_span == "scored":
            seen = [t.span for t in tokenizer.encode_all(texts, protocol.max_tokens)]
        copies = swaps_of(group, seen, protocol)
        scored = yield from score_texts([*texts, *(c for five in copies for c in five)], tokenizer, protocol)
        plain, rest = scored[: len(texts)], iter(scored[len(texts) :])
        return [Swapped(text, [next(rest) for _ in five]) for text, five in zip(plain, copies, strict=True)]

    def score(self, group: Group, answers: Sequence[Swapped], protocol: Protocol) -> list[Score]:
        """How much greater the copies' distances are than the text's own, on average (3.2)."""
        del group, protocol
        return [self._score(swapped) for swapped in answers]

    def _score(self, swapped: Swapped) -> Score:
        hole = swapped.hole()
        if hole:
            return dataclasses.replace(swapped.plain.result(0.0), value=math.nan, missing=hole)
        own, *others = (polarised_distance(values, self.far, self.near) for values in swapped.ordered)
        value = score_of(own, others)
        score = swapped.plain.result(value)
        if not len(swapped.plain.targets):
            note = "one token: the text's own distance counts as 0"
            return dataclasses.replace(score, value=value, missing=None, note=note)
        return score


def score_of(own: float, copies: Sequence[float]) -> float:
    """The score from the distances of the text and of its copies; exactly 0 where they are all the same."""
    return float(np.mean(np.asarray(copies) - own))


def swaps_of(group: Group, texts: Sequence[str], protocol: Protocol) -> list[tuple[str, ...]]:
    """The copies of every text of a group; none for an empty text.

    Args:
        group: whose records the texts are of.
        texts: what is swapped, in the records' order.
        protocol: says whether each text has a random stream of its own, each class's file has one, or all have one.
    """
    copies: list[tuple[str, ...]] = [()] * len(texts)
    if protocol.pac_seed == "text":
        for i, text in enumerate(texts):
            if text:
                (copies[i],) = _copies_of((text,), seed_of(text))
        return copies
    for seed, places in _streams(group, protocol):
        places = [i for i in places if texts[i]]
        for i, five in zip(places, _copies_of(tuple(texts[i] for i in places), seed), strict=True):
            copies[i] = five
    return copies


def _streams(group: Group, protocol: Protocol) -> Iterator[tuple[int, list[int]]]:
    """The seed of each random stream and the places of the records that draw from it, one after the other."""
    files = {label: [i for i, r in enumerate(group.records) if r.label == label] for label in _FILES}
    if protocol.pac_seed == "list":
        yield 0, [i for places in files.values() for i in places]
        return
    seed = 42 if protocol.pac_seed == "file_42" else 0
    for label, places in files.items():
        # The released tuner starts its non-members from the next seed.
        yield seed + (group.tuning and label == NON_MEMBER), places
