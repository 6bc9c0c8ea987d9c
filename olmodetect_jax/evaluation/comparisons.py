"""Paired comparisons by the bootstrap: shifted and matched members, model sizes, attacks (evaluation spec, 5, 10)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.aggregate import OUTSIDE_METHOD_AVG, mean
from olmodetect_jax.evaluation.intervals import (
    N_RESAMPLES,
    SEED,
    Bootstrap,
    Draws,
    Interval,
    Scored,
    best,
    point,
    scored,
)
from olmodetect_jax.evaluation.metrics import ClassScores, Floats
from olmodetect_jax.evaluation.resampling import Counts, resampled
from olmodetect_jax.evaluation.results import METHOD_AVG, Row, RunMetrics
from olmodetect_jax.records import MEMBER, NON_MEMBER

# Attacks that hold the records of a class against each other, or non-members against members: the same non-member has
# another score in another variant, so the two variants' non-members are drawn apart.
_JOINT = frozenset({"em_mia", "em_mia_best_of_four"})
_PAIRS_ONLY = "self_critique"  # scores prompts, which have no shifted variant of their own


@dataclass(frozen=True, eq=False)
class Effect:
    """A difference and what resampling says of it.

    Attributes:
        delta: of the scores themselves.
        draws: [B].
    """

    delta: float
    draws: Floats

    @property
    def interval(self) -> Interval:
        """95%."""
        return Interval.of(self.draws)

    @property
    def interval_99(self) -> Interval:
        """99%."""
        return Interval.of(self.draws, 0.99)

    @property
    def mark(self) -> str:
        """`‡` where the 99% interval is on one side of 0, `†` where only the 95% interval is."""
        return "‡" if self.interval_99.direction else "†" if self.interval.direction else ""


@dataclass(frozen=True, eq=False)
class ShiftRow:
    """One attack: shifted minus matched AUC.

    Attributes:
        attack: row id.
        title: its title.
        subset: subset id to effect, mean over the pairs of runs.
        domain: domain id to effect; a domain is the mean of its subsets.
        matched: domain id to AUC with matched members.
        shifted: domain id to AUC with shifted members.
    """

    attack: str
    title: str
    subset: Mapping[str, Effect]
    domain: Mapping[str, Effect]
    matched: Mapping[str, float]
    shifted: Mapping[str, float]


@dataclass(frozen=True)
class ShiftCounts:
    """How many domains an attack's AUC rises and falls in at 95%, and the largest change, by absolute value."""

    n_increase: int
    n_decrease: int
    largest_domain: str
    largest_delta: float


@dataclass(frozen=True, eq=False)
class ShiftTable:
    """Every attack's differences.

    Attributes:
        domain_titles: of the domains in order.
        rows: in the runs' order.
        n_resamples: B.
        models: whose runs were compared.
    """

    domain_titles: Mapping[str, str]
    rows: tuple[ShiftRow, ...]
    n_resamples: int
    models: tuple[str, ...]


def shift_effects(
    pairs: Sequence[tuple[RunMetrics, RunMetrics]],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = SEED,
    together: bool = True,
) -> ShiftTable | None:
    """What shifted members do to each attack's AUC, over all subsets that have them.

    Matched and shifted members are held against the same draw of the non-members; each run draws for itself.

    Args:
        pairs: (matched, shifted) runs of the same model.
        n_resamples: B.
        seed: of the draws.
        together: whether the two texts of a DPO prompt are drawn together.

    Returns:
        None if no attack has both variants of a subset in every pair.
    """
    if not pairs or pairs[0][0].run.tree is None:
        return None
    tree = pairs[0][0].run.tree
    draws = Draws(n_resamples, seed)
    rows = []
    for attack in pairs[0][0].run.attacks:
        if attack in OUTSIDE_METHOD_AVG - _JOINT or attack == _PAIRS_ONLY:
            continue
        found = {}
        for subset in tree.subsets:
            effects = [_effect(pair, attack, subset.id, draws, together) for pair in pairs]
            if all(effects):
                found[subset.id] = effects
        if found:
            rows.append(_shift_row(pairs, attack, found))
        draws.forget()
    titles = {d: t for d, t in tree.domain_titles.items() if any(d in row.domain for row in rows)}
    return ShiftTable(titles, tuple(rows), n_resamples, tuple(pair[0].run.model for pair in pairs)) if rows else None


def _effect(
    pair: tuple[RunMetrics, RunMetrics], attack: str, subset: str, draws: Draws, together: bool
) -> tuple[float, float, Floats] | None:
    """(AUC matched, AUC shifted, draws of the difference) of one pair of runs; None where one has no AUC."""
    both = [result.subsets.get(attack, {}).get(subset) for result in pair]
    if any(found is None or found.auc is None for found in both):
        return None
    sides = []
    for variant, result in zip(("matched", "shifted"), pair, strict=True):
        # Released scores have no weights to tell their models apart by, but each size draws for itself all the same.
        purpose = f"shift {result.run.model} {result.run.manifest['model'].get('weights_digest')} {subset}"
        member, other = (scored(result.run, attack, subset, label, together) for label in (MEMBER, NON_MEMBER))
        apart = f" {attack} {variant}" if attack in _JOINT else ""
        counts = (draws.of(member.population, f"{purpose} {variant}"), draws.of(other.population, purpose + apart))
        sides.append((point(member, other), _aucs(member, other, *counts)))
    (before, matched), (after, shifted) = sides
    return before, after, shifted - matched


def _aucs(member: Scored, other: Scored, member_counts: Counts, other_counts: Counts) -> Floats:
    found = [
        resampled(ClassScores(*choice), member_counts, other_counts)
        for choice in zip(member.choices, other.choices, strict=True)
    ]
    return best(found)[0]


def _shift_row(
    pairs: Sequence[tuple[RunMetrics, RunMetrics]],
    attack: str,
    found: Mapping[str, Sequence[tuple[float, float, Floats]]],
) -> ShiftRow:
    run = pairs[0][0].run
    assert run.tree is not None
    matched = {s: mean(e[0] for e in effects) for s, effects in found.items()}
    shifted = {s: mean(e[1] for e in effects) for s, effects in found.items()}
    subset = {
        s: Effect(mean(e[1] - e[0] for e in effects), mean(e[2] for e in effects)) for s, effects in found.items()
    }
    groups: dict[str, list[str]] = {}
    for s in run.tree.subsets:
        if s.variants:
            groups.setdefault(s.domain, []).append(s.id)
    whole = {domain: ids for domain, ids in groups.items() if all(s in subset for s in ids)}
    domain = {d: mean_effect([subset[s] for s in ids]) for d, ids in whole.items()}
    return ShiftRow(
        attack,
        run.attack_title(attack),
        subset,
        domain,
        {d: mean(matched[s] for s in ids) for d, ids in whole.items()},
        {d: mean(shifted[s] for s in ids) for d, ids in whole.items()},
    )


def mean_effect(effects: Sequence[Effect]) -> Effect:
    """Mean of differences, draw by draw."""
    return Effect(mean(e.delta for e in effects), mean(e.draws for e in effects))


def shift_counts(deltas: Mapping[str, float], directions: Mapping[str, int]) -> ShiftCounts:
    """Counts of an attack's domains.

    Args:
        deltas: domain id to difference.
        directions: domain id to the direction of its 95% interval.
    """
    largest = max(deltas, key=lambda domain: abs(deltas[domain]))
    signs = list(directions.values())
    return ShiftCounts(signs.count(1), signs.count(-1), largest, deltas[largest])


@dataclass(frozen=True)
class Pair:
    """Two things compared.

    Attributes:
        first: title of one.
        second: title of the other.
        difference: second minus first.
        interval: 95%, of the difference.
        interval_99: 99%.
        p: what is asked of it, see the function that made it.
        p_holm: `p` after Holm's correction over all pairs; None where there is none.
    """

    first: str
    second: str
    difference: float
    interval: Interval
    interval_99: Interval
    p: float
    p_holm: float | None = None


def models_comparison(results: Sequence[RunMetrics], found: Bootstrap) -> tuple[Pair, ...]:
    """`size_pairs` of comparable runs; none for fewer than two, or runs that have no common mean."""
    return size_pairs(results, found.draws) if found.mean else ()


def size_pairs(results: Sequence[RunMetrics], draws: Sequence[Sequence[Row]]) -> tuple[Pair, ...]:
    """Every two models: difference of the mean over unsupervised attacks of All; `p` is the share of draws <= 0.

    The attacks are those that all models have, two or more of them. Self-Critique, of two domains, is none.

    Args:
        results: of comparable runs.
        draws: their resampled rows (`Bootstrap.draws`), records drawn together.
    """
    points, arrays = (
        [{(row.id, row.title): row.auc.all for row in rows if row.auc.all is not None} for rows in of]
        for of in ([result.rows for result in results], draws)
    )
    outside = OUTSIDE_METHOD_AVG | {METHOD_AVG, _PAIRS_ONLY}
    attacks = [a for a in points[0] if a[0] not in outside and all(a in of for of in (*points, *arrays))]
    if len(attacks) < 2:
        return ()
    grand = [
        (result.run.model, mean(point[a] for a in attacks), mean(array[a] for a in attacks))
        for result, point, array in zip(results, points, arrays, strict=True)
    ]
    return tuple(_pair(a, b, float(np.mean(b[2] - a[2] <= 0))) for a, b in itertools.combinations(grand, 2))


def attack_pairs(rows: Sequence[Row], draws: Sequence[Row]) -> tuple[Pair, ...]:
    """Every two attacks' AUC over All, on the same draws; `p` is two-sided, from the draws on either side of 0.

    Args:
        rows: of a run or of Model-Avg.
        draws: the same rows resampled.
    """
    arrays = {row.id: row.auc.all for row in draws}
    known = [
        (row.title, row.auc.all, arrays[row.id])
        for row in rows
        if row.id != METHOD_AVG and row.auc.all is not None and arrays.get(row.id) is not None
    ]
    pairs = [_pair(a, b, two_sided(b[2] - a[2])) for a, b in itertools.combinations(known, 2)]
    return tuple(
        Pair(p.first, p.second, p.difference, p.interval, p.interval_99, p.p, corrected)
        for p, corrected in zip(pairs, holm([p.p for p in pairs]), strict=True)
    )


def _pair(a: tuple[str, float, Floats], b: tuple[str, float, Floats], p: float) -> Pair:
    apart = b[2] - a[2]
    return Pair(a[0], b[0], b[1] - a[1], Interval.of(apart), Interval.of(apart, 0.99), p)


def two_sided(draws: Floats) -> float:
    """2 min((k + 1) / (B + 1)) over the draws k that are <= 0 and those that are >= 0; at most 1."""
    k = min(int(np.sum(draws <= 0)), int(np.sum(draws >= 0)))
    return min(1.0, 2 * (k + 1) / (draws.size + 1))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given."""
    corrected, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        worst = max(worst, min(1.0, p[i] * (len(p) - rank)))
        corrected[i] = worst
    return corrected


def delong_pairs(result: RunMetrics, subset: str) -> dict[tuple[str, str], m.DelongComparison]:
    """DeLong's comparison of every two attacks on one subset, over the records that both scored.

    Args:
        result: of a run.
        subset: subset id.

    Raises:
        DataError: a class has fewer than two records in common.
    """
    found = {}
    for a, b in itertools.combinations(result.run.attacks, 2):
        columns = []
        for attack in (a, b):
            lines = result.run.scores[attack].get(subset, ())
            columns.append({(s.label, s.record_id, s.text_sha1): s.value for s in lines if s.value is not None})
        both = [key for key in columns[0] if key in columns[1]]
        sides = [[[column[k] for k in both if k[0] == label] for label in (MEMBER, NON_MEMBER)] for column in columns]
        if min(map(len, sides[0])) < 2:
            raise DataError(f"{subset}: {a} and {b} have fewer than two records of a class in common")
        scores = [ClassScores(*side, f"{attack} on {subset}") for side, attack in zip(sides, (a, b), strict=True)]
        found[a, b] = m.delong_compare(*scores)
    return found
