"""Verification of a finished benchmark: everything that can be said of it without a model (construction spec, 9)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from olmodetect_jax.benchmark import tree_entry, tree_of
from olmodetect_jax.construction.verification.bag_of_words import FOLDS, Blind, blind, mean_blind
from olmodetect_jax.construction.verification.data import Line, SubsetLines, read_lines
from olmodetect_jax.construction.verification.leaks import Leak, leaks
from olmodetect_jax.construction.verification.overlap_summary import OverlapSummary, overlap_summary
from olmodetect_jax.construction.verification.statistics import GroupFacts, group_facts
from olmodetect_jax.errors import DataError

_SCORE = "_13-gram_overlap_score"
Measure = Callable[[Sequence[str]], list[float]]
Count = Callable[[Sequence[str]], list[int | None]]


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        title: of the benchmark.
        tree: name of its tree, or the tree itself as `benchmark.yaml` holds it.
        groups: facts of each subset and of each domain with several, in the tree's order; matched, then shifted.
        blind: the blind baseline, by (id of a subset or domain, variant); those with too few texts are left out.
        overlap: by model size, by domain: overlap of the non-members.
        copies: by subset: how often a member stands in the given indices, mean; None if none was given.
        measured: by domain: overlap of both classes with a given index; None if none was given.
        leaks: warnings.
        notes: what could not be computed, and why.
    """

    title: str
    tree: str | dict[str, Any]
    groups: tuple[GroupFacts, ...]
    blind: Mapping[tuple[str, str], Blind]
    overlap: Mapping[str, Mapping[str, OverlapSummary]]
    measured: Mapping[str, Mapping[str, OverlapSummary]] | None
    copies: Mapping[str, float] | None
    leaks: tuple[Leak, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values; an infinite temporal term, which is no number of JSON, is a word."""
        value = dataclasses.asdict(self)
        for group in value["groups"]:
            if math.isinf(group["temporal"]):
                group["temporal"] = "infinite"
        value["blind"] = {"/".join(key): found for key, found in value["blind"].items()}
        return value


def verify(
    benchmark: Path,
    *,
    encode: Callable[[Sequence[str]], list[np.ndarray]],
    measure: Measure | None = None,
    count: Count | None = None,
    seed: int = 0,
) -> Verification:
    """Verifies a benchmark.

    Args:
        benchmark: its folder.
        encode: texts to ids.
        count: texts to how often each stands in an index; None for one too short to say.
        measure: texts to the share of their windows that occur in an index, to measure overlap anew.
        seed: of halves and folds.

    Raises:
        MissingFilesError: files are missing.
        DataError: a file cannot be read, or a class has a single text.
    """
    tree = tree_of(benchmark)
    subsets = read_lines(benchmark, tree)
    groups, blinds, found, notes = [], {}, [], []
    for subset in subsets:
        groups.append(_facts("subset", subset.id, subset.subset.title, [subset], encode, seed))
        if min(len(subset.members), len(subset.non_members)) < FOLDS * len(subset.sides):
            notes.append(f"{subset.id} ({subset.variant}): too few texts for the blind baseline")
        else:
            blinds[subset.id, subset.variant] = blind(subset, seed=seed)
        found += leaks(subset)
    for (domain, variant), own in _by_domain(subsets).items():
        if len(own) > 1:
            groups.append(_facts("domain", domain, tree.domain_titles[own[0].subset.domain], own, encode, seed))
            known = [blinds[s.id, variant] for s in own if (s.id, variant) in blinds]
            if len(known) == len(own):
                blinds[f"{domain} (domain)", variant] = mean_blind(known)
    matched = [s for s in subsets if s.variant == "matched"]
    measured = None if measure is None else _measured(matched, measure)
    copies = None if count is None else _copies(matched, count)
    return Verification(
        tree.title,
        tree_entry(benchmark),
        tuple(groups),
        blinds,
        _stored(matched),
        measured,
        copies,
        tuple(found),
        tuple(notes),
    )


def _facts(
    level: str,
    name: str,
    title: str,
    subsets: Sequence[SubsetLines],
    encode: Callable[[Sequence[str]], list[np.ndarray]],
    seed: int,
) -> GroupFacts:
    members = [line for s in subsets for line in s.members]
    others = [line for s in subsets for line in s.non_members]
    return group_facts(level, name, title, subsets[0].variant, members, others, encode, seed=seed)


def _by_domain(subsets: Iterable[SubsetLines]) -> dict[tuple[str, str], list[SubsetLines]]:
    """Subsets by domain (with the size of those that have their own texts for each) and variant."""
    found: dict[tuple[str, str], list[SubsetLines]] = {}
    for s in subsets:
        size = s.id.removeprefix(s.subset.id)
        found.setdefault((f"{s.subset.domain}{size}", s.variant), []).append(s)
    return found


def _stored(subsets: Sequence[SubsetLines]) -> dict[str, dict[str, OverlapSummary]]:
    """Overlap that the records hold: by size, then domain; the fields of DPO count like subsets.

    Raises:
        DataError: a score is no number.
    """
    scores: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (domain, _), own in _by_domain(subsets).items():
        for subset in own:
            for line in subset.non_members:  # both files of a pair hold the same scores, so means and spreads stay
                for size, field, value in _scores(line):
                    parts = scores.setdefault(size, {}).setdefault(domain, {})
                    parts.setdefault(f"{subset.id} {field}".strip(), []).append(value)
    return {size: {d: overlap_summary(parts) for d, parts in domains.items()} for size, domains in scores.items()}


def _scores(line: Line) -> Iterable[tuple[str, str, float]]:
    for name, value in line.value.items():
        if name.endswith(_SCORE):
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise DataError(f"{line.where}: {name} is {value!r}; expected a number")
            size, _, field = name.removesuffix(_SCORE).partition("_")
            yield size, field, float(value)


def _copies(subsets: Sequence[SubsetLines], count: Count) -> dict[str, float]:
    """Mean over the members of each subset that are long enough; a subset without one has none."""
    found = {}
    for subset in subsets:
        known = [n for n in count([line.own_text for line in subset.members]) if n is not None]
        if known:
            found[subset.id] = float(np.mean(known))
    return found


def _measured(subsets: Sequence[SubsetLines], measure: Measure) -> dict[str, dict[str, OverlapSummary]]:
    """Overlap of both classes with an index: members should occur in what was trained on, non-members should not."""
    found: dict[str, dict[str, OverlapSummary]] = {}
    for (domain, _), own in _by_domain(subsets).items():
        sides = {"members": {s.id: s.members for s in own}, "non-members": {s.id: s.non_members for s in own}}
        for title, lines in sides.items():
            values = {name: measure([line.own_text for line in part]) for name, part in lines.items()}
            found.setdefault(domain, {})[title] = overlap_summary(values)
    return found
