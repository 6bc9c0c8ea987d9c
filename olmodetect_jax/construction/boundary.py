"""Boundary rules: which texts a corpus just kept and which it just left out (construction spec, section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import regex

from olmodetect_jax.errors import DataError

DCLM_THRESHOLD = 0.01811  # smallest score in DCLM-Baseline
DCLM_BANDS = (0.018, 0.0181122)  # non-members from the first on, members below the second

_WORD = regex.compile(r"\w+|[^\w\s]+")  # `re` splits words at combining marks and gives other shares


@dataclass(frozen=True)
class WordShares:
    """How much of a text its most frequent words are; punctuation is a word, too.

    Attributes:
        n_words: words of the text.
        n_distinct: different ones among them.
        top: the two most frequent with their counts, or fewer if there are no two; the first seen of equal ones first.
    """

    n_words: int
    n_distinct: int
    top: tuple[tuple[str, int], ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each of `top`."""
        return tuple(count / self.n_words for _, count in self.top)


def word_shares(text: str) -> WordShares:
    """Counts the words of a raw text: runs of word characters, and runs of what is neither those nor white space."""
    counts = Counter(_WORD.findall(text))
    return WordShares(counts.total(), len(counts), tuple(counts.most_common(2)))


def starcoder_non_member(stars: float, shares: Sequence[float]) -> bool:
    """Whether StarCoder's rules left a file out by a little.

    Args:
        stars: of the repository; 0 if unknown.
        shares: of its two most frequent words.
    """
    if stars < 2 or len(shares) < 2:
        return False
    top, both = shares[0], shares[0] + shares[1]
    return (top <= 0.30 and 0.50 < both < 0.51) or (0.30 < top < 0.31 and both <= 0.50)


def starcoder_member(top1: float, top2: float) -> bool:
    """Whether StarCoder's rules kept a file by a little, by the shares of its two most frequent words."""
    return top1 >= 0.28 or top1 + top2 >= 0.48


def stack_exchange_non_member(question_score: int, answer_score: int) -> bool:
    """Whether the votes left a question with its answer out by a little."""
    return (question_score == 2 and answer_score >= 5) or (question_score >= 3 and answer_score == 4)


def stack_exchange_member(question_score: int, answer_score: int) -> bool:
    """Whether the votes kept a question with its answer by a little."""
    return question_score == 3 or answer_score == 5


def dclm_non_member(score: float, *, closest: bool = False) -> bool:
    """Whether a page may be a non-member of DCLM.

    Args:
        score: fastText's probability of `__label__hq`.
        closest: by the paper's rule (below the threshold) in place of the released band.
    """
    return score < DCLM_THRESHOLD if closest else score >= DCLM_BANDS[0]


def dclm_member(score: float, *, closest: bool = False) -> bool:
    """Whether a page of DCLM may be a member; arguments as for `dclm_non_member`."""
    return score >= DCLM_THRESHOLD if closest else score < DCLM_BANDS[1]


def closest_to_threshold(
    scores: np.ndarray,
    n_tokens: np.ndarray,
    side: Literal["below", "above"],
    threshold: float = DCLM_THRESHOLD,
    *,
    min_records: int,
    min_tokens: int,
) -> np.ndarray:
    """The fewest candidates nearest to a threshold that reach both minima.

    Args:
        scores: [N] float64, finite.
        n_tokens: [N] int64, of the same candidates.
        side: strictly below the threshold, or at it and above.
        threshold: of the scores.
        min_records: wanted.
        min_tokens: wanted.

    Returns:
        Their positions, nearest first, equal scores in pool order: int64.

    Raises:
        DataError: a score is not finite, or the whole side does not reach the minima.
    """
    if not np.isfinite(scores).all():
        position = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise DataError(f"candidate {position}: boundary score {scores[position]}; expected a finite number")
    positions = np.flatnonzero(scores < threshold if side == "below" else scores >= threshold)
    nearest_first = -scores if side == "below" else scores  # not distances, whose rounding would make equal ones
    positions = positions[np.argsort(nearest_first[positions], kind="stable")]
    reached = np.cumsum(n_tokens[positions])
    wanted = max(min_records, int(np.searchsorted(reached, min_tokens)) + 1)
    if wanted > len(positions):
        raise DataError(
            f"{len(positions)} candidates with {int(n_tokens[positions].sum()):,} tokens lie {side} the threshold of "
            f"{threshold}; at least {min_records} with {min_tokens:,} are wanted: add candidates or lower the minima"
        )
    return positions[:wanted]


def fasttext_line(text: str) -> str:
    """The one line that fastText reads of a text."""
    return " ".join(text.strip().splitlines())


def hq_probability(labels: Sequence[str], probabilities: Sequence[float], model: str = "the fastText model") -> float:
    """The probability of `__label__hq` in what fastText predicts; it can exceed 1 by a rounding error.

    Raises:
        DataError: there is no such label; names the model.
    """
    found = dict(zip(labels, probabilities, strict=True))
    if "__label__hq" not in found:
        raise DataError(f"{model}: predicts {', '.join(labels) or 'nothing'}; expected a label __label__hq")
    return float(found["__label__hq"])
