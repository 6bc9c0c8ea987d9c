"""Neighborhood attack: a member is more likely than texts that differ from it in a few words (generative spec, 1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score, ScoredText
from olmodetect_jax.errors import one_of
from olmodetect_jax.neighbours.files import NeighbourFile
from olmodetect_jax.neighbours.masking import FEWEST_TOKENS
from olmodetect_jax.neighbours.target_model import Proposal, propose
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.tokenization import TokenizedText, Tokenizer

SCORES = ("d", "z")
_SAME = (
    "every neighbour is the text itself as far as it is read: a text of fewer than "
    f"{FEWEST_TOKENS} words between single spaces has no others"
)
_NOTHING = TokenStatistics(*[np.zeros(0, np.float32)] * 3)


def compare(own: float, neighbours: np.ndarray) -> tuple[float, float]:
    """The scores d = own - mean of the neighbours, and z = d / their standard deviation.

    The deviation is the population's, and 1 for fewer than two neighbours or where it is 0. NaN if `own` is not finite
    or no neighbour is; neighbours that are not finite are left out.

    Args:
        own: mean log-probability of the text.
        neighbours: [n] float64, of its neighbours.
    """
    values = neighbours[np.isfinite(neighbours)]
    if not math.isfinite(own) or not len(values):
        return math.nan, math.nan
    from_first = values - values[0]  # exactly zero where all are equal, which sums of the values need not be
    d = own - (float(values[0]) + float(from_first.mean()))
    deviation = float(from_first.std()) if len(values) > 1 else 0.0
    return d, d / (deviation or 1.0)


@dataclass(frozen=True, eq=False)
class Compared:
    """A text and how likely its neighbours are.

    Attributes:
        plain: the text's own pass.
        neighbours: [n] float64, mean log-probability of each; NaN for one that cannot be scored.
        same: whether every neighbour is the text itself.
        hole: why it has no score, if its neighbours are missing.
    """

    plain: ScoredText
    neighbours: np.ndarray
    same: bool = False
    hole: str | None = None


@dataclass(frozen=True, eq=False)
class Neighborhood:
    """How much likelier a text is than its neighbours.

    Only `score` depends on `measure`: what `requests` returns serves both.

    Attributes:
        measure: `d`, the difference, or `z`, in standard deviations of the neighbours.
        neighbours: of the texts; None lets the attacked model propose them.
    """

    measure: str
    neighbours: NeighbourFile | None = None
    id: ClassVar[str] = "neighborhood"
    needs_dev: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.measure not in SCORES:
            raise one_of("neighborhood_score", self.measure, SCORES)

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Compared]]:
        """One pass over each text and each of its neighbours, once these are known."""
        neighbours = yield from self._neighbours(group, tokenizer, protocol)
        upcast = protocol.score_dtype == "bfloat16"  # the released likelihoods are float32 ones of bfloat16 logits
        texts = [r.text for r in group.records]
        own = tokenizer.encode_all(texts, protocol.generation_context)
        read: list[dict[str, TokenizedText]] = []  # of each text that is asked for, its distinct neighbours
        asked = []
        for tokens, others in zip(own, neighbours, strict=True):
            distinct = list(dict.fromkeys(others or ())) if len(tokens.ids) > 1 else []
            around = tokenizer.encode_once(distinct, protocol.generation_context)
            read.append(dict(zip(distinct, around, strict=True)))
            asked += [ScoreTokens(t.ids, upcast) for t in (tokens, *around) if distinct and len(t.ids) > 1]
        answers = iter((yield asked))
        compared = []
        for text, tokens, others, around in zip(texts, own, neighbours, read, strict=True):
            plain = ScoredText.of(text, tokens, next(answers) if around else _NOTHING, tokenizer)
            likelihood = {n: _mean(next(answers)) if len(t.ids) > 1 else math.nan for n, t in around.items()}
            values = np.asarray([likelihood[n] for n in others or () if n in likelihood], np.float64)
            same = all(np.array_equal(t.ids, tokens.ids) for t in around.values())
            hole = self._hole if others is None and len(tokens.ids) > 1 else None
            compared.append(Compared(plain, values, same, hole))
        return compared

    def _neighbours(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Sequence[str] | None]]:
        """The neighbours of each record's text; None where there are none of it."""
        if self.neighbours is not None:
            found = [self.neighbours.of(r.text) for r in group.records]
            return [own and own.texts for own in found]
        proposals: dict[int, Proposal] = {}  # by the record's place
        for label in dict.fromkeys(r.label for r in group.records):  # each class is a file of its own
            places = [i for i, r in enumerate(group.records) if r.label == label and r.text]
            own = propose([group.records[i].text for i in places], tokenizer, protocol)
            proposals |= zip(places, own, strict=True)
        answers = iter((yield [p.request for p in proposals.values() if p.request]))
        made = {i: p.neighbours(next(answers) if p.request else None, tokenizer) for i, p in proposals.items()}
        return [made.get(i) for i in range(len(group.records))]

    @property
    def _hole(self) -> str:
        return f"no neighbours of this text in {self.neighbours.path}; make them with `olmodetect neighbours`"

    def score(self, group: Group, answers: list[Compared], protocol: Protocol) -> list[Score]:
        """One score a record, in order."""
        del group, protocol
        return [self._score(compared) for compared in answers]

    def _score(self, compared: Compared) -> Score:
        d, z = compare(_mean(compared.plain), compared.neighbours)
        score = compared.plain.result(d if self.measure == "d" else z)
        finite = int(np.isfinite(compared.neighbours).sum())
        if compared.hole:
            return dataclasses.replace(score, n_scored=0, missing=compared.hole)
        if compared.plain.result(0.0).missing:  # of the text itself, whatever its neighbours
            return score
        if not finite:
            return dataclasses.replace(score, missing="none of its neighbours has a finite likelihood")
        note = _SAME if compared.same else None
        if finite < len(compared.neighbours):
            left = len(compared.neighbours) - finite
            note = f"{left} of {len(compared.neighbours)} neighbours have no finite likelihood and are left out"
        return dataclasses.replace(score, note=note)


def _mean(statistics: TokenStatistics | ScoredText) -> float:
    """Mean log-probability over the scored tokens, in float64; NaN if there is none."""
    return float(np.mean(statistics.log_prob, dtype=np.float64)) if len(statistics.log_prob) else math.nan
