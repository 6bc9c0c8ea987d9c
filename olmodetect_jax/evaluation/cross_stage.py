"""Whether curated mathematics is told more easily than the rest, across stages (paper Table 6; evaluation spec, 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from olmodetect_jax.benchmark import Tree
from olmodetect_jax.evaluation.aggregate import Aggregate, aggregate, mean

CURATED = ("gsm8k", "rlvr_cot-gsm8k", "rlvr_cot-math")  # subset ids of the paper's benchmark
EFFECTIVE = 0.60  # least Model-Avg over All of an effective attack


@dataclass(frozen=True)
class SignedRank:
    """Wilcoxon's signed-rank test, one-sided, exact.

    Attributes:
        n_used: differences that are not 0.
        statistic: sum of the ranks of the positive ones.
        p: chance of at least that sum if each sign were a coin's.
    """

    n_used: int
    statistic: float
    p: float


@dataclass(frozen=True)
class StageRow:
    """The mean over some attacks.

    Attributes:
        attacks: row ids.
        subset: subset id to mean AUC.
        stage: stage id to mean.
        stage_without_curated: the same without the curated subsets.
        curated: mean of the curated subsets.
        others: mean of the other subsets.
        contrast: mean over the attacks of curated minus others.
        n_positive: attacks whose contrast is above 0.
        test: of the contrasts.
    """

    attacks: tuple[str, ...]
    subset: Mapping[str, float | None]
    stage: Mapping[str, float | None]
    stage_without_curated: Mapping[str, float | None]
    curated: float | None
    others: float | None
    contrast: float
    n_positive: int
    test: SignedRank


@dataclass(frozen=True)
class CrossStage:
    """All attacks, and those that work.

    Attributes:
        contrast: attack to curated minus others.
        everything: the mean over all attacks.
        effective: over those with a Model-Avg of `EFFECTIVE` and more; None if there is none.
    """

    contrast: Mapping[str, float]
    everything: StageRow
    effective: StageRow | None


def cross_stage(
    values: Mapping[str, Sequence[Aggregate]],
    tree: Tree,
    *,
    curated: Sequence[str] = CURATED,
    effective_from: float = EFFECTIVE,
) -> CrossStage | None:
    """Contrasts the curated subsets with the others.

    Args:
        values: attack to its AUCs, a model each.
        tree: the benchmark's.
        curated: subset ids.
        effective_from: least mean over models of All.

    Returns:
        None if no attack has every subset.
    """
    others = [s.id for s in tree.subsets if s.id not in curated]
    by_subset = {a: {s.id: mean(row.subset[s.id] for row in rows) for s in tree.subsets} for a, rows in values.items()}
    whole = {a: of for a, of in by_subset.items() if all(value is not None for value in of.values())}
    if not whole or not others:
        return None
    contrast = {a: mean(of[s] for s in curated) - mean(of[s] for s in others) for a, of in whole.items()}
    overall = {a: mean(row.all for row in values[a]) for a in whole}
    works = [a for a in whole if overall[a] is not None and overall[a] >= effective_from]

    def row(attacks: Sequence[str]) -> StageRow:
        subset = {s.id: mean(whole[a][s.id] for a in attacks) for s in tree.subsets}
        apart = [contrast[a] for a in attacks]
        return StageRow(
            tuple(attacks),
            subset,
            aggregate(subset, tree).stage,
            _without(subset, tree, curated),
            mean(subset[s] for s in curated),
            mean(subset[s] for s in others),
            mean(apart),
            sum(d > 0 for d in apart),
            signed_rank(apart),
        )

    return CrossStage(contrast, row(list(whole)), row(works) if works else None)


def _without(subset: Mapping[str, float | None], tree: Tree, left_out: Sequence[str]) -> dict[str, float | None]:
    """Stage means over the domains that keep a subset."""
    means = {}
    for stage in tree.stage_titles:
        domains: dict[str, list[float | None]] = {}
        for s in tree.subsets:
            if s.stage == stage and s.id not in left_out:
                domains.setdefault(s.domain, []).append(subset[s.id])
        means[stage] = mean(mean(values) for values in domains.values())
    return means


def signed_rank(differences: Sequence[float]) -> SignedRank:
    """Tests whether differences tend to be above 0: zeros dropped, midranks, every pattern of signs counted.

    Args:
        differences: one a pair.
    """
    apart = np.asarray([d for d in differences if d != 0], np.float64)
    if not apart.size:
        return SignedRank(0, 0.0, 1.0)
    doubled = np.rint(2 * rankdata(np.abs(apart))).astype(int)  # midranks are halves at most
    reached = int(doubled[apart > 0].sum())
    share = np.zeros(doubled.sum() + 1)  # of the patterns of signs, by the sum of the positive ranks
    share[0] = 1.0
    for rank in doubled:
        positive = np.zeros_like(share)
        positive[rank:] = share[:-rank]
        share = (share + positive) / 2
    return SignedRank(int(apart.size), reached / 2, float(share[reached:].sum()))
