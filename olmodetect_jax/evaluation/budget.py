"""Sup-CAMIA's label-budget curve: its AUC by the share of labelled texts that it learns from (CAMIA and PAC spec, 2.4).

Each subset's development and test texts are pooled and halved; one half is evaluated, the other is learnt from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from olmodetect_jax.attacks.sup_camia_classifier import CLASSIFIERS, Classifier, probabilities
from olmodetect_jax.benchmark import Tree
from olmodetect_jax.evaluation.aggregate import aggregate, mean
from olmodetect_jax.evaluation.json_fields import Field, read_fields
from olmodetect_jax.evaluation.metrics import ClassScores, auc
from olmodetect_jax.files import write_json

FILE_NAME = "budget.json"
FORMAT = 2
ATTACK = "sup_camia"

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)  # of a class's texts
SPLITS, FIRST_SEED = 5, 1000
LEAST_TRAINING = 2  # texts of a class, whatever the fraction
LEAST_TEXTS = 3  # of a class: one to evaluate and two to learn from

Features = tuple[np.ndarray, np.ndarray]  # [n, 71] of members and [m, 71] of non-members, NaN where missing


@dataclass(frozen=True)
class SubsetCurve:
    """One subset's AUCs.

    Attributes:
        n_member: members of its development and test texts.
        n_non_member: their non-members.
        auc: for each fraction the AUC of each split, mean over the sides; None if the subset has none.
        std: for each fraction the population standard deviation over the splits, mean over the sides; None likewise.
        reason: why it has none.
    """

    n_member: int
    n_non_member: int
    auc: tuple[tuple[float, ...], ...] | None
    std: tuple[float, ...] | None
    reason: str | None = None


@dataclass(frozen=True)
class Curve:
    """Mean and population standard deviation over the splits, for each fraction; None where a part has no AUC."""

    mean: tuple[float | None, ...]
    std: tuple[float | None, ...]


@dataclass(frozen=True)
class Budget:
    """The curves of a run.

    Attributes:
        classifier: the protocol's.
        fractions: of a class's texts that are learnt from, ascending.
        splits: how often each subset was halved.
        subsets: subset id to its AUCs.
        domains: domain id to its curve, the mean of its subsets; of the domains that the run has a subset of.
        all: mean of all domains of the benchmark.
    """

    classifier: str
    fractions: tuple[float, ...]
    splits: int
    subsets: Mapping[str, SubsetCurve]
    domains: Mapping[str, Curve]
    all: Curve


@dataclass(frozen=True, eq=False)
class Halves:
    """One class's texts, halved at random.

    Attributes:
        evaluation: [n // 2] places of the texts that are evaluated.
        training: places of the others in the order in which they are learnt from.
    """

    evaluation: np.ndarray
    training: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, n: int) -> Halves:
        """The next halves from a generator."""
        order = rng.permutation(n)
        return cls(order[: n // 2], order[n // 2 :])

    def first(self, fraction: float) -> np.ndarray:
        """Places of the texts that make up a fraction of both halves; those of a smaller fraction are among them."""
        n = len(self.evaluation) + len(self.training)
        return self.training[: max(LEAST_TRAINING, min(len(self.training), round(fraction * n)))]


def split(n_member: int, n_non_member: int, number: int) -> tuple[Halves, Halves]:
    """The halves of both classes in one split, from 0 on."""
    rng = np.random.default_rng(FIRST_SEED + number)
    return Halves.draw(rng, n_member), Halves.draw(rng, n_non_member)


def subset_curve(sides: Sequence[Features], classifier: Classifier) -> SubsetCurve:
    """The AUCs of one subset.

    Args:
        sides: features of each side of it; the AUC is the mean of theirs, for each has a classifier of its own.
        classifier: the protocol's.
    """
    sizes = [tuple(map(len, side)) for side in sides]
    counts = (sum(n for n, _ in sizes), sum(m for _, m in sizes))
    for size in sizes:
        for n, name in zip(size, ("members", "non-members"), strict=True):
            if n < LEAST_TEXTS:
                reason = f"{n} {name} with a text that can be scored: at least {LEAST_TEXTS} are needed"
                return SubsetCurve(*counts, None, None, reason)
    return curve_of_sides(*counts, [_side_aucs(side, classifier) for side in sides])


def curve_of_sides(n_member: int, n_non_member: int, sides: Sequence[np.ndarray]) -> SubsetCurve:
    """A subset's curve from those of its sides, each [fractions, splits]."""
    grid, deviations = np.mean(sides, axis=0), np.mean([side.std(axis=1) for side in sides], axis=0)
    rows = tuple(tuple(map(float, row)) for row in grid)
    return SubsetCurve(n_member, n_non_member, rows, tuple(map(float, deviations)))


def _side_aucs(side: Features, classifier: Classifier) -> np.ndarray:
    """[fractions, splits] float64."""
    grid = np.zeros((len(FRACTIONS), SPLITS))
    for number in range(SPLITS):
        halves = split(*map(len, side), number)
        evaluated = [features[half.evaluation] for features, half in zip(side, halves, strict=True)]
        for row, fraction in zip(grid, FRACTIONS, strict=True):
            learnt = [features[half.first(fraction)] for features, half in zip(side, halves, strict=True)]
            scores = probabilities(*learnt, np.concatenate(evaluated), classifier)
            row[number] = auc(ClassScores(*np.split(scores, [len(evaluated[0])]), "label budget"))
    return grid


def budget_of(subsets: Mapping[str, Sequence[Features]], tree: Tree, classifier: Classifier) -> Budget:
    """The curves subset → domain → mean of the domains; a part without an AUC is missing above too.

    Args:
        subsets: subset id to the features of each of its sides.
        tree: the benchmark's.
        classifier: the protocol's.
    """
    return budget_from({name: subset_curve(sides, classifier) for name, sides in subsets.items()}, tree, classifier)


def budget_from(curves: Mapping[str, SubsetCurve], tree: Tree, classifier: Classifier) -> Budget:
    """The means of subsets' curves.

    Args:
        curves: subset id to its curve.
        tree: the benchmark's.
        classifier: the protocol's.
    """

    def domains_at(row: int, number: int) -> Mapping[str, float | None]:
        return aggregate({name: c.auc and c.auc[row][number] for name, c in curves.items()}, tree).domain

    grid = [[domains_at(row, number) for number in range(SPLITS)] for row in range(len(FRACTIONS))]
    present = dict.fromkeys(s.domain for s in tree.subsets if s.id in curves)
    return Budget(
        classifier,
        FRACTIONS,
        SPLITS,
        curves,
        {domain: _curve([[values[domain] for values in row] for row in grid]) for domain in present},
        _curve([[mean(values.values()) for values in row] for row in grid]),
    )


def _curve(grid: Sequence[Sequence[float | None]]) -> Curve:
    """From the values of every split, for each fraction."""
    means = tuple(mean(row) for row in grid)
    deviations = (
        None if m is None else math.sqrt(mean((value - m) ** 2 for value in row))
        for m, row in zip(means, grid, strict=True)
    )
    return Curve(means, tuple(deviations))


def write_budget(run: Path, budget: Budget) -> None:
    """Writes `budget.json` into a run folder."""
    curves = {
        name: {key: value for key, value in dataclasses.asdict(curve).items() if key != "reason" or value}
        for name, curve in budget.subsets.items()
    }
    write_json(run / FILE_NAME, {"format": FORMAT, "attack": ATTACK, **dataclasses.asdict(budget), "subsets": curves})


def read_budget(run: Path) -> Budget | None:
    """Reads what `olmodetect budget` left in a run folder; None if it left nothing.

    Raises:
        DataError: the file is no such one; names file and field.
    """
    file = read_fields(run / FILE_NAME, FORMAT)
    if file is None:
        return None
    file["attack"].text([ATTACK])
    fractions = tuple(_fraction(field) for field in file["fractions"].elements())
    if not fractions or list(fractions) != sorted(set(fractions)):
        raise file["fractions"].error("at least one number, ascending")
    splits = file["splits"].count()
    if not splits:
        raise file["splits"].error("an integer of at least 1")
    return Budget(
        file["classifier"].text(CLASSIFIERS),
        fractions,
        splits,
        {name: _subset(field, len(fractions), splits) for name, field in file["subsets"].fields().items()},
        {name: _read_curve(field, len(fractions)) for name, field in file["domains"].fields().items()},
        _read_curve(file["all"], len(fractions)),
    )


def _fraction(field: Field) -> float:
    value = field.auc()
    if not value:
        raise field.error("a number above 0, at most 1")
    return value


def _subset(field: Field, fractions: int, splits: int) -> SubsetCurve:
    counts = field["n_member"].count(), field["n_non_member"].count()
    if field["auc"].value is None:
        return SubsetCurve(*counts, None, None, field["reason"].string())
    rows = _elements(field["auc"], fractions)
    grid = tuple(tuple(_number(value, value.auc()) for value in _elements(row, splits)) for row in rows)
    return SubsetCurve(*counts, grid, tuple(_number(v, v.auc()) for v in _elements(field["std"], fractions)))


def _number(field: Field, value: float | None) -> float:
    if value is None:
        raise field.error("a number from 0 to 1")
    return value


def _read_curve(field: Field, fractions: int) -> Curve:
    means = tuple(value.auc() for value in _elements(field["mean"], fractions))
    deviations = tuple(value.auc() for value in _elements(field["std"], fractions))
    if [m is None for m in means] != [s is None for s in deviations]:
        raise field.error("a mean wherever there is a standard deviation")
    return Curve(means, deviations)


def _elements(field: Field, count: int) -> list[Field]:
    elements = field.elements()
    if len(elements) != count:
        raise field.error(f"{count} values")
    return elements
