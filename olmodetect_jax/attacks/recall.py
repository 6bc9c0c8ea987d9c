"""ReCaLL: how much a text gains from a prefix of non-members (likelihood spec, section 8)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import LEFT_OUT, Answers, Group, Requests, Score, ScoredText
from olmodetect_jax.attacks.conditional import score_texts_and
from olmodetect_jax.attacks.reductions import rounded
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import NON_MEMBER, text_hash
from olmodetect_jax.requests import ScoreTargets, Targets
from olmodetect_jax.tokenization import TokenizedText, Tokenizer


def ratio(conditional: float, unconditional: float) -> float:
    """LL(x|P) / LL(x); NaN where a value or the quotient is not finite, or LL(x) is 0."""
    if not (math.isfinite(conditional) and math.isfinite(unconditional)) or unconditional == 0:
        return math.nan
    quotient = conditional / unconditional
    return quotient if math.isfinite(quotient) else math.nan


def mean_target_length(lengths: Sequence[int], most: int) -> int:
    """Mean of the texts' token counts, none counted above `most`, rounded down; at least one text."""
    return sum(min(length, most) for length in lengths) // len(lengths)


def cut_shots(lengths: Sequence[int], shots: int, average: int, window: int, most: int) -> list[int]:
    """How many tokens of each shot enter the prefix: an equal share of what the average text leaves.

    Args:
        lengths: tokens of the texts that can be shots, in their order.
        shots: how many are wanted; fewer if there are fewer.
        average: tokens of the average text.
        window: tokens that prefix and text may fill together.
        most: most tokens of a shot.

    Returns:
        One number for each shot that is used; empty if nothing fits. What a short shot leaves is not handed on.
    """
    used = lengths[:shots]
    share = min(most, (window - average) // len(used)) if used else 0
    return [min(length, share) for length in used] if share > 0 else []


def keep_whole_shots(lengths: Sequence[int], average: int, window: int) -> list[int]:
    """Which shots enter the prefix uncut, as ReCaLL's own code drops them.

    As many as fit beside the average text when taken from the front, but then that many from the end; empty if not
    even one fits.
    """
    filled = average + np.cumsum(lengths)
    count = int(np.sum(filled <= window))
    return list(range(len(lengths) - count, len(lengths)))


def conditional_mean(first: float, rest: float, count: int) -> float:
    """Mean log-probability of all `count` tokens of a target, from the first one's and the others' mean."""
    return float(first) if count == 1 else (float(first) + (count - 1) * float(rest)) / count


@dataclass(frozen=True, eq=False)
class Reading:
    """A text by itself and after the prefix.

    Attributes:
        plain: its own pass.
        count: tokens of it that followed the prefix; 0 if none did.
        first: log-probability of the first of them.
        rest: mean over the others.
        hole: why it has no score, if it was not scored after the prefix.
        note: what a reader should know of the prefix.
    """

    plain: ScoredText
    count: int = 0
    first: float = math.nan
    rest: float = math.nan
    hole: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Recall:
    """Members lose more, in proportion, when non-members stand before them.

    Attributes:
        shots: texts in the prefix, the first of the development non-members.
    """

    shots: int
    id: ClassVar[str] = "recall"
    needs_dev: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Checks the number of shots."""
        if isinstance(self.shots, bool) or not isinstance(self.shots, int) or self.shots < 1:
            raise UsageError(f"recall_shots: expected an integer of at least 1, got {self.shots!r}")

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Reading]]:
        """The plain pass of every text and one prefix for all (or one a class), in one list.

        Raises:
            DataError: the development split has no non-member.
        """
        if not group.records:
            return []
        shots = draw_shots(group, self.shots, protocol)
        texts = [r.text for r in group.records]
        tokens = tokenizer.encode_all(texts, protocol.max_tokens)
        # Whatever the label: a text that stands in the prefix already is not new after it.
        own = LEFT_OUT + "one of the prefix's own shots"
        holes: list[str | None] = [own if text in shots else None for text in texts]
        if not shots:
            holes = ["tuning: of one development non-member no shot can be made and scored too; add more"] * len(texts)
        asked: list[ScoreTargets] = []
        followers: list[list[tuple[int, np.ndarray]]] = []  # of each prefix: places of records with their targets
        for places in _classes(group, protocol):
            places = [i for i in places if texts[i] and not holes[i]]
            if not places:
                continue
            average = mean_target_length([len(tokens[i].ids) for i in places], protocol.recall_shot_tokens)
            prefix = build_prefix(shots, average, tokenizer, protocol)
            if not len(prefix):
                for i in places:
                    holes[i] = (
                        f"no prefix of {len(shots)} shots fits: texts of {average} tokens on average leave a budget "
                        f"of {protocol.window - average} of the window's {protocol.window} tokens"
                    )
                continue
            cut = [(i, tokens[i].ids[: protocol.window - len(prefix)]) for i in places if len(tokens[i].ids) > 1]
            if cut:
                asked.append(ScoreTargets(prefix, Targets(ids for _, ids in cut)))
                followers.append(cut)
        scored, answers = yield from score_texts_and(asked, texts, tokenizer, protocol)
        short = f"{len(shots)} of {self.shots} shots: the development split has no more non-members to spare"
        note = short if len(shots) < self.shots else None
        readings = [Reading(plain, hole=hole) for plain, hole in zip(scored, holes, strict=True)]
        for cut, answer in zip(followers, answers, strict=True):
            for (i, ids), first, rest in zip(cut, answer.first, answer.rest, strict=True):
                readings[i] = Reading(scored[i], len(ids), float(first), float(rest), note=note)
        return readings

    def score(self, group: Group, answers: Sequence[Reading], protocol: Protocol) -> list[Score]:
        """LL(x|P) / LL(x), both means over tokens."""
        del group
        return [_score(reading, protocol) for reading in answers]


def _score(reading: Reading, protocol: Protocol) -> Score:
    same = protocol.recall_span == "same"
    plain, count, hole = reading.plain, reading.count, reading.hole
    if same and count == 1:
        hole = "the prefix leaves room for the text's first token only, which is not scored"
    if hole or not count:
        score = plain.result(0.0)
        return dataclasses.replace(score, value=math.nan, missing=score.missing or hole)
    covered = plain.log_prob[: count - 1] if same else plain.log_prob
    conditional = reading.rest if same else conditional_mean(reading.first, reading.rest, count)
    # The released code rounds the conditional mean and takes the other one in float64.
    value = ratio(float(rounded(conditional, protocol)), float(np.mean(covered, dtype=np.float64)))
    score = dataclasses.replace(plain.result(value), n_scored=len(covered), note=reading.note)
    return dataclasses.replace(score, truncated=score.truncated or len(covered) < len(plain.targets))


def draw_shots(group: Group, count: int, protocol: Protocol) -> list[str]:
    """Texts of the first `count` development non-members, by hash of their text or in the file's order.

    Tuning scores the others and always keeps one of them: with a single non-member there is no shot.

    Raises:
        DataError: there is none.
    """
    texts = [r.text for r in group.dev if r.label == NON_MEMBER and r.text]
    if not texts:
        raise DataError(
            f"subset {group.records[0].subset}: ReCaLL makes its prefix from non-members of the development split, and "
            "there is none; give a benchmark with one, choose other subsets with --subsets, or leave recall out of "
            "--attacks"
        )
    if protocol.recall_shot_order == "hash":
        texts.sort(key=text_hash)
    last = list(dict.fromkeys(texts))[-1]
    return texts[: min(count, texts.index(last)) if group.tuning else count]


def build_prefix(shots: Sequence[str], average: int, tokenizer: Tokenizer, protocol: Protocol) -> np.ndarray:
    """Ids of the prefix for texts of `average` tokens: [P] int32; P = 0 if none fits."""
    none = np.zeros(0, np.int32)
    if protocol.recall_prefix == "per_shot":
        tokens = tokenizer.encode_all(shots, protocol.recall_shot_tokens)
        lengths = [len(t.ids) for t in tokens]
        cuts = cut_shots(lengths, len(shots), average, protocol.window, protocol.recall_shot_tokens)
        # No separator: the shots' ids follow one another.
        return np.concatenate([none, *(t.ids[:cut] for t, cut in zip(tokens, cuts, strict=False))])
    lengths = [t.n_tokens for t in tokenizer.encode_all(shots, protocol.window)]
    kept = keep_whole_shots(lengths, average, protocol.window)
    joined: TokenizedText = tokenizer.encode("".join(shots[i] for i in kept), protocol.window)
    # Kept from the end they can be longer than those counted from the front.
    return joined.ids if kept and joined.n_tokens < protocol.window else none


def _classes(group: Group, protocol: Protocol) -> list[list[int]]:
    """Places of the records that share a prefix: all of them (as always in tuning), or those of one label."""
    apart = protocol.recall_budget == "per_file" and not group.tuning
    labels = [r.label if apart else None for r in group.records]
    return [[i for i, own in enumerate(labels) if own == label] for label in dict.fromkeys(labels)]
