"""From candidate texts to pools: what is trained on, what is held out, and what is kept apart from both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from olmodetect_jax.errors import DataError
from olmodetect_jax.sample.candidates import Candidate
from olmodetect_jax.sample.seeding import chance

MIN_TOKENS, MAX_TOKENS = 60, 256
MIN_POOL = 150  # texts of each class in a subset
NGRAM = 13
_WORD = re.compile(r"\w+")

# Shares of a subset's texts (what is left goes to the reference): sized for about 180 texts of each class, so that a
# model of this size can learn them in minutes. MBPP has few problems: most must go to the two classes.
SHARES = {
    "speeches": {"members": 0.036, "non_members": 0.036},
    "novel": {"members": 0.08, "non_members": 0.08},
    "code": {"members": 0.13, "non_members": 0.13},
    "gsm8k": {"members": 0.18, "non_members": 0.18},
    "mbpp": {"members": 0.42, "non_members": 0.40},
}


@dataclass(frozen=True)
class Pools:
    """One subset's texts by the part they play, each part sorted by id.

    Attributes:
        members: all that the model is trained on; records are chosen from these.
        non_members: never seen; records are chosen from these.
        reference: never trained on, in neither class; token frequencies are counted on these.
    """

    members: tuple[Candidate, ...]
    non_members: tuple[Candidate, ...]
    reference: tuple[Candidate, ...]

    @property
    def texts(self) -> tuple[Candidate, ...]:
        """Every text of the subset."""
        return self.members + self.non_members + self.reference


def word_ngrams(text: str) -> set[str]:
    """The text's runs of 13 words, lower-cased and without punctuation; the whole text if it has fewer."""
    words = _WORD.findall(text.lower())
    return {" ".join(words[i : i + NGRAM]) for i in range(max(1, len(words) - NGRAM + 1))}


def drop_overlapping(candidates: Iterable[Candidate]) -> tuple[list[Candidate], Counter[str]]:
    """Keeps texts of which no two share a run of 13 words, across all subsets.

    This comes before any text has a part to play, so what is dropped cannot depend on its class. Texts are
    looked at in the order of a hash of their ids; the first of those that overlap stays.

    Returns:
        The texts kept, and the number dropped by subset.
    """
    seen: set[str] = set()
    kept, dropped = [], Counter()
    for candidate in sorted(candidates, key=lambda c: chance("overlap", c.subset, c.id)):
        ngrams = word_ngrams(candidate.text)
        if seen.isdisjoint(ngrams):
            seen |= ngrams
            kept.append(candidate)
        else:
            dropped[candidate.subset] += 1
    return kept, dropped


def split_parts(subset: str, candidates: Iterable[Candidate]) -> Pools:
    """Gives each text of one subset its part, by a hash of its id alone."""
    parts: dict[str, list[Candidate]] = {name: [] for name in ("members", "non_members", "reference")}
    for candidate in sorted(candidates, key=_id):
        parts[_part(subset, candidate.id)].append(candidate)
    return Pools(**{name: tuple(texts) for name, texts in parts.items()})


def _part(subset: str, candidate_id: str) -> str:
    number = chance("part", subset, candidate_id)
    for name, share in SHARES[subset].items():
        if number < share:
            return name
        number -= share
    return "reference"


def limit_lengths(pools: Pools, n_tokens: Mapping[str, int]) -> Pools:
    """Keeps texts of 60 to 256 tokens in both classes.

    A non-member outside the limits is dropped. A training text outside them joins the reference: the tokenizer has
    learned from it, so it must stay among the texts that the tokenizer is said to have seen.

    Args:
        pools: one subset's parts.
        n_tokens: tokens of each text, by id.

    Raises:
        DataError: fewer than 150 texts are left in a class.
    """

    def fits(candidate: Candidate) -> bool:
        return MIN_TOKENS <= n_tokens[candidate.id] <= MAX_TOKENS

    members, non_members = (tuple(filter(fits, part)) for part in (pools.members, pools.non_members))
    for name, part in (("members", members), ("non-members", non_members)):
        if len(part) < MIN_POOL:
            raise DataError(f"{pools.texts[0].subset}: {len(part)} {name} of a fit length, at least {MIN_POOL} needed")
    moved = (c for c in pools.members if not fits(c))
    reference = tuple(sorted((*pools.reference, *moved), key=_id))
    return Pools(members, non_members, reference)


def _id(candidate: Candidate) -> str:
    return candidate.id
