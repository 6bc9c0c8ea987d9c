"""From subsets to domains, stages and All: plain means of unrounded values; a missing part is missing above too.

The same rule serves the AUC, the TPR and every other value of a subset, and arrays of them, a value a resample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmodetect_jax.attacks.self_critique import SelfCritique
from olmodetect_jax.attacks.supervised import IN_DOMAIN, SUPERVISED_TITLES, parts_of
from olmodetect_jax.benchmark import Tree

# Method-Avg is a mean over unsupervised attacks. These learn from labels, see no model (the baseline), or exist to show
# what choosing on the labels that judge the choice is worth (EMMIA's best of four).
OUTSIDE_METHOD_AVG = frozenset({*SUPERVISED_TITLES, "bag_of_words", "em_mia_best_of_four"})

# Attacks that exist for some domains only (of the paper's benchmark and of the sample): the others are then no part of
# their stages and of All.
DOMAINS_OF = {SelfCritique.id: SelfCritique.DOMAINS}


@dataclass(frozen=True)
class Aggregate:
    """One value (AUC, TPR …) of one attack at every level, or arrays of a value a resample; None is missing.

    Attributes:
        subset: subset id to value, in the tree's order.
        domain: domain id to value.
        stage: stage id to value.
        all: mean of the stages.
    """

    subset: Mapping[str, Any]
    domain: Mapping[str, Any]
    stage: Mapping[str, Any]
    all: Any

    def map(self, change: Callable[[Any], Any]) -> Aggregate:
        """The same with every value changed that is not missing."""

        def of(value: Any) -> Any:
            return None if value is None else change(value)

        levels = [
            {name: of(value) for name, value in level.items()} for level in (self.subset, self.domain, self.stage)
        ]
        return Aggregate(*levels, of(self.all))


@dataclass(frozen=True)
class Column:
    """One group of records in a table: a subset, a domain, a stage, or All."""

    level: str
    id: str
    title: str

    def of(self, row: Aggregate) -> Any:
        """The row's value for this group."""
        return row.all if self.level == "all" else getattr(row, self.level)[self.id]


def mean(values: Iterable[Any]) -> Any:
    """Mean of numbers, or of arrays element by element; None if there is no value or any is missing."""
    known: list[Any] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    if not known:
        return None
    return np.mean(known, axis=0) if isinstance(known[0], np.ndarray) else math.fsum(known) / len(known)


def mean_of_present(values: Iterable[Any]) -> Any:
    """Mean of the values that are not missing; None if all are."""
    return mean(v for v in values if v is not None)


def is_defined_on(attack: str, domain: str | None) -> bool:
    """Whether an attack can be run on a domain; on texts of no domain, a user's own, every attack can."""
    return domain is None or domain in DOMAINS_OF.get(attack, (domain,))


def attack_domains(attack: str, tree: Tree) -> tuple[str, ...]:
    """Domains of a tree on which an attack is defined, in the tree's order."""
    return tuple(domain for domain in tree.domain_titles if is_defined_on(attack, domain))


def aggregate(
    values: Mapping[str, Any],
    tree: Tree,
    *,
    domains: Sequence[str] | None = None,
    representative: bool = False,
) -> Aggregate:
    """Means subset → domain → stage → All.

    Args:
        values: subset id to value; a subset that is absent is missing.
        tree: the benchmark's tree.
        domains: the domains that count (`attack_domains`); None for all.
        representative: a domain's value is that of the one subset that stands for it.

    Raises:
        UsageError: a subset that is not in the tree.
    """
    tree.select(tuple(values))  # names an unknown subset
    counted = tuple(tree.domain_titles) if domains is None else domains
    subset = {s.id: values.get(s.id) for s in tree.subsets}
    domain = {
        d: mean(subset[s.id] for s in tree.subsets if s.domain == d and (s.representative or not representative))
        if d in counted
        else None
        for d in tree.domain_titles
    }
    parts: dict[str, dict[str, Any]] = {stage: {} for stage in tree.stage_titles}
    for s in tree.subsets:
        if s.domain in counted:
            parts[s.stage][s.domain] = domain[s.domain]
    stage = {name: mean(inside.values()) for name, inside in parts.items()}
    return Aggregate(subset, domain, stage, mean(stage[name] for name, inside in parts.items() if inside))


def is_representative(attack: str, lodo_subsets: str | None) -> bool:
    """Whether one subset stands for each domain: Sup-CAMIA trained beyond its own domain, where the protocol says so.

    Args:
        attack: row id.
        lodo_subsets: the protocol's field; None where a run has none.
    """
    row = parts_of(attack)
    return lodo_subsets == "representative" and row is not None and row[0] == "sup_camia" and row[2] != IN_DOMAIN


def model_avg(rows: Sequence[Aggregate]) -> Aggregate:
    """Model-Avg: mean over models cell by cell, for one attack; a cell one model lacks is missing."""
    return _cell_by_cell(rows, mean)


def method_avg(rows: Sequence[Aggregate]) -> Aggregate:
    """Method-Avg: mean over attacks cell by cell; an attack without a value is skipped."""
    return _cell_by_cell(rows, mean_of_present)


def _cell_by_cell(rows: Sequence[Aggregate], combine: Callable[[Iterable[Any]], Any]) -> Aggregate:
    def level(name: str) -> dict[str, Any]:
        parts = [getattr(row, name) for row in rows]
        return {cell: combine(part[cell] for part in parts) for cell in parts[0]}

    return Aggregate(level("subset"), level("domain"), level("stage"), combine(row.all for row in rows))
