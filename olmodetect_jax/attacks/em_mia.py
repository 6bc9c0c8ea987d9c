"""EMMIA: every text of a subset as a prefix of every other (likelihood spec, section 9)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score, ScoredText
from olmodetect_jax.attacks.conditional import score_texts_and
from olmodetect_jax.attacks.em_mia_iterations import (
    AUCS,
    Run,
    best_of_four,
    draw_pool,
    iterate,
    texts_in_the_way,
)
from olmodetect_jax.attacks.reductions import VARIANCE_FLOOR
from olmodetect_jax.attacks.zlib import compressed_length
from olmodetect_jax.errors import DataError, one_of
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, Record
from olmodetect_jax.requests import ScoreTargets, Targets, TokenStatistics
from olmodetect_jax.tokenization import Tokenizer

BASES = ("loss", "zlib", "mink", "minkpp")  # in the order in which the first of equals wins
FROM = tuple(f"from_{base}" for base in BASES)  # fields of a score line: what the text gets from each of them


def base_scores(text: ScoredText, protocol: Protocol) -> dict[str, float]:
    """The four scores EMMIA can start from, by its own rules: float64 throughout, a fifth of the n tokens for MinK.

    Args:
        text: cut to EMMIA's window, at least one target.
        protocol: says which text Zlib compresses.
    """
    log_prob, mean, variance = (a.astype(np.float64) for a in (text.log_prob, text.mean, text.variance))
    count = max(1, len(log_prob) * 20 // 100)
    standardised = (log_prob - mean) / np.sqrt(np.maximum(variance, VARIANCE_FLOOR))
    compressed = text.span if protocol.text_span == "scored" else text.text
    return {
        "loss": float(np.mean(log_prob)),
        "zlib": float(np.sum(log_prob)) / compressed_length(compressed),
        "mink": float(np.mean(np.sort(log_prob)[:count])),
        "minkpp": float(np.mean(np.sort(standardised)[:count])),
    }


def window_of(group: Group, protocol: Protocol) -> int:
    """Tokens of a text that are read: a prefix and a target of that length must fit the window together."""
    wanted = protocol.em_mia_tokens_rlvr if group.domain == "rlvr" else protocol.em_mia_tokens
    return min(wanted, protocol.window // 2, protocol.max_tokens)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Every text by itself and every usable one after every usable one.

    Attributes:
        texts: one a record, cut to EMMIA's window.
        usable: [N], places of the records that take part.
        pool: [K], which of the N are targets: all of them unless the protocol draws a pool.
        conditional: [N, K], mean log-probability of each target after each prefix, its first token left aside.
    """

    texts: list[ScoredText]
    usable: np.ndarray
    pool: np.ndarray
    conditional: np.ndarray


@dataclass(frozen=True)
class EmMia:
    """Members are poor prefixes: a prefix that tells the texts apart is likely no member.

    Attributes:
        base: the scores it starts from, one of `BASES`; the protocol can ask for the best of all four instead.
    """

    base: str
    id: ClassVar[str] = "em_mia"
    needs_dev: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the base."""
        if self.base not in BASES:
            raise one_of("em_mia_base", self.base, BASES)

    def requests(self, group: Group, tokenizer: Tokenizer, protocol: Protocol) -> Generator[Requests, Answers, Pairs]:
        """The base pass and every usable text as a prefix, in one list.

        Raises:
            DataError: the protocol needs the true labels and a record has none, or a class is absent.
        """
        labelled = protocol.em_mia_choice == "best_of_four"
        return (yield from _requests(group, tokenizer, protocol, labelled=labelled))

    def score(self, group: Group, answers: Pairs, protocol: Protocol) -> list[Score]:
        """The scores after the last step."""
        return self.score_sides([group], [answers], protocol)[0]

    def score_sides(self, groups: Sequence[Group], answers: Sequence[Pairs], protocol: Protocol) -> list[list[Score]]:
        """The same for all the sides of a subset."""
        return _scores(groups, answers, protocol, None if protocol.em_mia_choice == "best_of_four" else self.base)


@dataclass(frozen=True)
class EmMiaBestOfFour:
    """EMMIA as the paper's table reports it: the base score that turned out best on the very labels it is judged by."""

    id: ClassVar[str] = "em_mia_best_of_four"
    needs_dev: ClassVar[bool] = False

    def requests(self, group: Group, tokenizer: Tokenizer, protocol: Protocol) -> Generator[Requests, Answers, Pairs]:
        """What `EmMia` asks.

        Raises:
            DataError: a record has no label, or a class is absent.
        """
        return (yield from _requests(group, tokenizer, protocol, labelled=True))

    def score(self, group: Group, answers: Pairs, protocol: Protocol) -> list[Score]:
        """The scores after the last step from the base with the best AUC."""
        return self.score_sides([group], [answers], protocol)[0]

    def score_sides(self, groups: Sequence[Group], answers: Sequence[Pairs], protocol: Protocol) -> list[list[Score]]:
        """The same for all the sides of a subset: one base for all of them, by the AUC of their pooled scores."""
        return _scores(groups, answers, protocol, None)


def _requests(
    group: Group, tokenizer: Tokenizer, protocol: Protocol, *, labelled: bool
) -> Generator[Requests, Answers, Pairs]:
    texts = [r.text for r in group.records]
    width, upcast = window_of(group, protocol), protocol.score_dtype == "bfloat16"
    cut = tokenizer.encode_all(texts, width)
    usable = [i for i, t in enumerate(cut) if texts[i] and len(t.ids) > 1]
    records = [group.records[i] for i in usable]
    if labelled and len(records) > 1:
        members_of(records)
    pool = _pool(records, protocol)
    targets = Targets(cut[usable[k]].ids for k in pool) if usable else None
    prefixes = [ScoreTargets(cut[i].ids, targets, upcast) for i in usable]
    # In float32 the base pass is the other attacks' own: what comes later changes none of the first statistics.
    base = dataclasses.replace(protocol, max_tokens=width) if upcast else protocol
    scored, answers = yield from score_texts_and(prefixes, texts, tokenizer, base, upcast=upcast)
    short = [
        ScoredText.of(s.text, tokens, TokenStatistics(s.log_prob, s.mean, s.variance), tokenizer)
        for s, tokens in zip(scored, cut, strict=True)
    ]
    conditional = np.reshape([a.rest for a in answers], (len(usable), len(pool)))
    return Pairs(short, np.asarray(usable, np.intp), pool, conditional.astype(np.float64))


def members_of(records: Sequence[Record]) -> np.ndarray:
    """The true labels as [N] bool.

    Raises:
        DataError: a record has none, or a class is absent.
    """
    what = "EMMIA's best of four and its pool of targets need the true labels of both classes"
    advice = "take --set em_mia_choice=dev and --set em_mia_pool=0, and leave em_mia_best_of_four out of --attacks"
    for record in records:
        if record.label is None:
            raise DataError(f"{record}: no label; {what}. Label every record, or {advice}")
    members = np.asarray([r.label == MEMBER for r in records])
    if members.all() or not members.any():
        absent = "non-member" if members.all() else "member"
        raise DataError(f"subset {records[0].subset}: no {absent} can be used; {what}. Or {advice}")
    return members


def _pool(records: Sequence[Record], protocol: Protocol) -> np.ndarray:
    """Places of the targets among the records that take part."""
    if not protocol.em_mia_pool or len(records) < 2:
        return np.arange(len(records))
    members = members_of(records)
    by_class = np.concatenate([np.flatnonzero(members), np.flatnonzero(~members)])
    return by_class[draw_pool(int(members.sum()), int((~members).sum()), protocol.em_mia_pool)]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of the usable records of one side.

    Attributes:
        kept: [n], their places without those in the way.
        in_the_way: the places of the others, with a likelihood that cannot be used.
        runs: by base, each with n scores; none where there are no two texts to hold against each other.
    """

    kept: np.ndarray
    in_the_way: np.ndarray
    runs: dict[str, Run]


def _scores(groups: Sequence[Group], sides: Sequence[Pairs], protocol: Protocol, base: str | None) -> list[list[Score]]:
    """One score a record of each side; from the best of the four bases if none is named."""
    outcomes = [_outcome(pairs, protocol, BASES if base is None else (base,)) for pairs in sides]
    name = base or _best(groups, outcomes)
    return [_scores_of(pairs, own, name, chosen=base is None) for pairs, own in zip(sides, outcomes, strict=True)]


def _outcome(pairs: Pairs, protocol: Protocol, bases: Sequence[str]) -> Outcome:
    texts = [pairs.texts[i] for i in pairs.usable]
    own = np.asarray([np.mean(t.log_prob, dtype=np.float64) for t in texts])
    broken = (own == 0) | np.asarray([t.result(0.0).missing is not None for t in texts], bool)
    own[broken] = np.nan
    ratios = pairs.conditional / own[pairs.pool]
    out = texts_in_the_way(ratios, pairs.pool, broken)
    kept, columns = np.flatnonzero(~out), ~out[pairs.pool]
    runs = {}
    if len(kept) > 1 and columns.any():
        firsts = [base_scores(texts[k], protocol) for k in kept]
        aucs = AUCS[protocol.em_mia_auc](ratios[kept][:, columns])
        pool = np.searchsorted(kept, pairs.pool[columns])  # the columns' places among those kept
        runs = {b: iterate(aucs, np.asarray([f[b] for f in firsts]), pool) for b in bases}
    return Outcome(pairs.usable[kept], pairs.usable[out], runs)


def _best(groups: Sequence[Group], outcomes: Sequence[Outcome]) -> str:
    """The base that is best over all sides, as the AUC of a subset pools their scores."""
    ran = [(group, outcome) for group, outcome in zip(groups, outcomes, strict=True) if outcome.runs]
    if not ran:
        return BASES[0]  # there is nothing to choose
    members = members_of([group.records[i] for group, outcome in ran for i in outcome.kept])
    return best_of_four({b: np.concatenate([o.runs[b].scores for _, o in ran]) for b in BASES}, members)


def _scores_of(pairs: Pairs, outcome: Outcome, name: str, *, chosen: bool) -> list[Score]:
    """One score a record of one side."""
    reasons = dict.fromkeys(
        outcome.in_the_way.tolist(), "a likelihood of this text, or one after it or before it, is 0 or no finite number"
    )
    values: dict[int, float] = {}
    others: dict[int, dict[str, float]] = {}
    note = None
    if run := outcome.runs.get(name):
        values = dict(zip(outcome.kept.tolist(), run.scores.tolist(), strict=True))
        note = _note(run, name if chosen else None)
        if chosen:  # a resample of the records chooses anew
            by_base = zip(*(outcome.runs[b].scores.tolist() for b in BASES), strict=True)
            others = {i: dict(zip(FROM, found, strict=True)) for i, found in zip(values, by_base, strict=True)}
    else:
        alone = "EMMIA holds the texts of a subset against each other, and no other can be used"
        reasons |= dict.fromkeys(outcome.kept.tolist(), alone)
    return [_score(text, values.get(i), reasons.get(i), note, others.get(i, {})) for i, text in enumerate(pairs.texts)]


def _score(
    text: ScoredText, value: float | None, reason: str | None, note: str | None, details: Mapping[str, float]
) -> Score:
    score = text.result(math.nan if value is None else value)
    if value is not None:
        return dataclasses.replace(score, note=note, details=details)
    own = text.result(0.0).missing  # a reason of the text's own says more
    return dataclasses.replace(score, missing=own or reason)


def _note(run: Run, chosen: str | None) -> str | None:
    """What a reader should know of a run."""
    notes = [f"from the base score {chosen}, the best of four on these very labels"] if chosen else []
    if run.degenerate:
        notes.append(
            "the run is degenerate: no score was above the median, all became 0, and an AUC of 0.50 says nothing"
        )
    return "; ".join(notes) or None
