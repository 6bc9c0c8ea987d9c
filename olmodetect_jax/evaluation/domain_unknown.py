"""What an attack loses when nobody says which domain a text is from (paper Table 84; evaluation spec, section 9).

Given the domain, each has an AUC and a threshold of its own; unknown, the raw scores of all domains are held together.
Both are of the same drawn records, the same for every attack.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from olmodetect_jax.attacks.supervised import IN_DOMAIN, POOLED, parts_of, row_id
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.aggregate import attack_domains, mean
from olmodetect_jax.evaluation.metrics import ClassScores, Floats
from olmodetect_jax.evaluation.results import RunMetrics
from olmodetect_jax.evaluation.runs import Run, Score
from olmodetect_jax.records import MEMBER, NON_MEMBER

N_DRAWS = 20
MOST = 100  # records of each class and domain in a draw
SEED = 0

Rule = Literal["unsupervised", "supervised"]
_WITHOUT_ACCURACY = frozenset({"em_mia", "em_mia_best_of_four", "self_critique"})


@dataclass(frozen=True)
class Threshold:
    """The threshold with the best accuracy, and that accuracy."""

    value: float
    accuracy: float


@dataclass(frozen=True)
class Known:
    """An attack with the domain given and unknown; None where it is not defined.

    Attributes:
        given_auc: mean of the domains' AUCs.
        given_accuracy: mean over domains of the accuracy of one half's threshold on the other, both ways.
        unknown_auc: of the union of the raw scores.
        unknown_accuracy: mean over domains of the accuracy of one threshold, chosen on the whole draw.
    """

    given_auc: float | None
    given_accuracy: float | None
    unknown_auc: float | None
    unknown_accuracy: float | None


@dataclass(frozen=True, eq=False)
class Drawn:
    """One domain's part of a draw.

    Attributes:
        scores: of the drawn records.
        permutation: of the members followed by the non-members; its first half judges the second and the other way.
    """

    scores: ClassScores
    permutation: np.ndarray


def best_threshold(labels: np.ndarray, scores: Floats, rule: Rule) -> Threshold:
    """The first threshold with the best accuracy.

    Args:
        labels: [n] 1 or 0.
        scores: [n].
        rule: `unsupervised`: a member scores at least t; candidates are +inf, midpoints of neighbouring distinct
            scores, -inf, from above. `supervised`: a member scores more than t; candidates are the scores, from below.
    """
    distinct = np.unique(scores)
    if rule == "unsupervised":
        candidates = np.concatenate([[math.inf], ((distinct[1:] + distinct[:-1]) / 2)[::-1], [-math.inf]])
    else:
        candidates = distinct
    member, non_member = (np.sort(scores[labels == label]) for label in (MEMBER, NON_MEMBER))
    side = "left" if rule == "unsupervised" else "right"
    right = member.size - np.searchsorted(member, candidates, side) + np.searchsorted(non_member, candidates, side)
    best = int(np.argmax(right))
    return Threshold(float(candidates[best]), float(right[best] / labels.size))


def _accuracy(labels: np.ndarray, scores: Floats, threshold: float, rule: Rule) -> float:
    said = scores >= threshold if rule == "unsupervised" else scores > threshold
    return float(np.mean(said == (labels == MEMBER)))


def known(drawn: Mapping[str, Drawn], rule: Rule) -> Known:
    """One draw of one attack.

    Args:
        drawn: domain id to its part.
        rule: of thresholds.
    """
    labels = {d: _labels(part.scores) for d, part in drawn.items()}
    values = {d: np.concatenate([part.scores.member, part.scores.non_member]) for d, part in drawn.items()}
    pooled = best_threshold(np.concatenate(list(labels.values())), np.concatenate(list(values.values())), rule)
    return Known(
        mean(m.auc(part.scores) for part in drawn.values()),
        mean(_two_fold(labels[d], values[d], part.permutation, rule) for d, part in drawn.items()),
        m.auc(union([part.scores for part in drawn.values()])),
        mean(_accuracy(labels[d], values[d], pooled.value, rule) for d in drawn),
    )


def union(parts: Sequence[ClassScores]) -> ClassScores:
    """The raw scores of several domains held together."""
    return ClassScores(np.concatenate([p.member for p in parts]), np.concatenate([p.non_member for p in parts]))


def best_of_bases(bases: Sequence[Sequence[ClassScores]]) -> Known:
    """One draw of EMMIA: for each domain, and for their union, the base that does best; no threshold goes with that.

    Args:
        bases: for each base score the domains' drawn scores, in the same order of domains.
    """
    given = mean(max(map(m.auc, of_domain)) for of_domain in zip(*bases, strict=True))
    return Known(given, None, max(m.auc(union(parts)) for parts in bases), None)


def _labels(scores: ClassScores) -> np.ndarray:
    return np.repeat([MEMBER, NON_MEMBER], [scores.member.size, scores.non_member.size])


def _two_fold(labels: np.ndarray, scores: Floats, permutation: np.ndarray, rule: Rule) -> float:
    halves = permutation[: permutation.size // 2], permutation[permutation.size // 2 :]
    if not halves[0].size:  # a single record: nothing to learn a threshold from
        return 0.0
    accuracies = []
    for learnt, judged in (halves, halves[::-1]):
        threshold = best_threshold(labels[learnt], scores[learnt], rule)
        accuracies.append(_accuracy(labels[judged], scores[judged], threshold.value, rule))
    return float(np.mean(accuracies))


def mean_known(values: Sequence[Known]) -> Known:
    """Mean over draws, or over models."""
    return Known(*(mean(getattr(v, name) for v in values) for name in Known.__dataclass_fields__))


def domain_unknown(
    result: RunMetrics, *, n_draws: int = N_DRAWS, most: int = MOST, seed: int = SEED
) -> dict[str, Known]:
    """Every attack of a run whose domains all have scores of both classes.

    A supervised attack's given value is of what was trained in-domain, its unknown one of what was trained on all
    domains pooled, where both are there.

    Args:
        result: of a run on a benchmark.
        n_draws: draws.
        most: records of each class and domain in a draw.
        seed: of the draws.
    """
    run, found = result.run, {}
    if run.tree is None:
        return {}
    for attack in run.attacks:
        parts = parts_of(attack)
        if parts is None:
            value = _of_attack(run, attack, "unsupervised", n_draws, most, seed)
        elif parts[2] == IN_DOMAIN and not attack.startswith("fsd"):
            given = _of_attack(run, attack, "supervised", n_draws, most, seed)
            pooled = row_id(attack, POOLED)
            if given is None or pooled not in run.attacks:
                continue
            unknown = _of_attack(run, pooled, "supervised", n_draws, most, seed)
            value = unknown and Known(
                given.given_auc, given.given_accuracy, unknown.unknown_auc, unknown.unknown_accuracy
            )
        else:
            continue
        if value is not None:
            found[attack] = value
    return found


def _of_attack(run: Run, attack: str, rule: Rule, n_draws: int, most: int, seed: int) -> Known | None:
    assert run.tree is not None
    records = {domain: _records(run, attack, domain) for domain in attack_domains(attack, run.tree)}
    draws = []
    for draw in range(n_draws):
        drawn: dict[str, list[list[Score]]] = {}
        for domain, sides in records.items():
            picked = [
                [side[i] for i in _pick(side, most, [seed, draw, domain, label])]
                for label, side in zip((MEMBER, NON_MEMBER), sides, strict=True)
            ]
            usable = [[s for s in side if s.value is not None] for side in picked]
            if not all(usable):
                return None
            drawn[domain] = usable
        draws.append(_known_of(attack, drawn, rule, [seed, draw]))
    return mean_known(draws)


def _known_of(attack: str, drawn: Mapping[str, Sequence[Sequence[Score]]], rule: Rule, seed: Sequence[int]) -> Known:
    if all(s.choices for sides in drawn.values() for side in sides for s in side):
        n = len(next(iter(drawn.values()))[0][0].choices)
        return best_of_bases(
            [
                [ClassScores(*([s.choices[base] for s in side] for side in sides)) for sides in drawn.values()]
                for base in range(n)
            ]
        )
    parts = {}
    for domain, sides in drawn.items():
        keys = [(s.record_id, s.text_sha1) for side in sides for s in side]
        order = _generator([*seed, domain, "halves", keys]).permutation(len(keys))
        parts[domain] = Drawn(ClassScores(*([s.value for s in side] for side in sides)), order)  # type: ignore[arg-type]
    value = known(parts, rule)
    return Known(value.given_auc, None, value.unknown_auc, None) if attack in _WITHOUT_ACCURACY else value


def _records(run: Run, attack: str, domain: str) -> tuple[list[Score], list[Score]]:
    """All records of a domain, members and non-members, in an order of their own; a prompt's score is of both texts."""
    assert run.tree is not None
    sides: tuple[list[Score], list[Score]] = [], []
    for subset in (s.id for s in run.tree.subsets if s.domain == domain):
        lines = run.scores[attack].get(subset, ())
        if attack == "self_critique":
            lines = with_pair_scores(lines)
        for s in lines:
            if s.label is not None:
                sides[s.label == NON_MEMBER].append(s)
    for side in sides:
        side.sort(key=lambda s: (s.record_id, s.text_sha1))
    return sides


def with_pair_scores(lines: Sequence[Score]) -> list[Score]:
    """Self-Critique asks a prompt once; its score stands for the chosen and for the rejected text."""
    values = {(s.label, s.record_id): s.value for s in lines if s.value is not None}
    return [s if s.value is not None else _scored(s, values.get((s.label, s.record_id))) for s in lines]


def _scored(line: Score, value: float | None) -> Score:
    return Score(line.record_id, line.text_sha1, line.label, value, line.missing, line.truncated)


def _pick(side: Sequence[Score], most: int, seed: Sequence[object]) -> np.ndarray:
    """Places of the drawn records: by the records themselves, whichever attack scored them."""
    keys = [(s.record_id, s.text_sha1) for s in side]
    return _generator([*seed, keys]).choice(len(side), min(most, len(side)), replace=False)


def _generator(named: Sequence[object]) -> np.random.Generator:
    return np.random.default_rng(np.frombuffer(hashlib.sha256(json.dumps(named).encode()).digest(), np.uint32))
