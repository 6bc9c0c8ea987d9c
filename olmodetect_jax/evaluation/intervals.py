"""Confidence intervals: a stratified bootstrap of the whole aggregate (evaluation spec, section 4).

In each resample the members and the non-members of every subset are drawn anew, and the means over domains, stages,
All, models and attacks follow from the resampled subsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.aggregate import Aggregate
from olmodetect_jax.evaluation.metrics import ClassScores, Floats
from olmodetect_jax.evaluation.resampling import Counts, Population, resampled
from olmodetect_jax.evaluation.results import METHOD_AVG, Row, RunMetrics, aggregate_of, mean_over_runs, with_method_avg
from olmodetect_jax.evaluation.runs import Run, Score
from olmodetect_jax.records import MEMBER, NON_MEMBER

N_RESAMPLES = 2000
MOST_RESAMPLES = 100_000
SEED = 0


def check_resamples(n_resamples: int) -> int:
    """A number of resamples that has 95% intervals and fits the memory.

    Raises:
        UsageError: it is below 40 or above `MOST_RESAMPLES`.
    """
    if n_resamples > MOST_RESAMPLES:
        raise UsageError(f"--bootstrap {n_resamples}: at most {MOST_RESAMPLES}")
    if n_resamples < 40:
        raise UsageError(f"--bootstrap {n_resamples}: a 95% interval needs at least 40 resamples; the paper took 2000")
    return n_resamples


@dataclass(frozen=True)
class Interval:
    """Ends of a percentile interval, percentiles interpolated linearly."""

    low: float
    high: float

    @classmethod
    def of(cls, draws: Floats, level: float = 0.95) -> Interval:
        """The middle `level` of the draws."""
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
        return cls(float(low), float(high))

    @property
    def direction(self) -> int:
        """1 entirely above 0, -1 entirely below, else 0; an end at exactly 0 is not significant."""
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True)
class RunIntervals:
    """Intervals of one run: row id, `method_avg` among them, to an `Aggregate` of intervals; None is missing."""

    auc: Mapping[str, Aggregate]
    tpr: Mapping[str, Aggregate]


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The resampled rows of some runs, and their intervals.

    Attributes:
        n_resamples: B.
        seed: of the draws.
        runs: of each run.
        mean: of Model-Avg; None where the runs have none.
        draws: for each run the rows of its results, with arrays [B] for numbers.
        mean_draws: those of Model-Avg; empty where there is none.
    """

    n_resamples: int
    seed: int
    runs: tuple[RunIntervals, ...]
    mean: RunIntervals | None
    draws: tuple[tuple[Row, ...], ...]
    mean_draws: tuple[Row, ...]


@dataclass(frozen=True, eq=False)
class Scored:
    """One attack's scores of one class of a subset, in an order that is the records' own.

    Attributes:
        population: the records.
        choices: the scores [n]; several where the best is chosen on the labels.
    """

    population: Population
    choices: tuple[Floats, ...]


class Draws:
    """Resamples by the records: drawn once, whoever asks.

    Attributes:
        n_resamples: B.
        seed: of all draws.
    """

    def __init__(self, n_resamples: int = N_RESAMPLES, seed: int = SEED):
        """Nothing is drawn yet."""
        self.n_resamples, self.seed = n_resamples, seed
        self._known: dict[tuple[Population, str], Counts] = {}

    def of(self, population: Population, purpose: str) -> Counts:
        """Counts [B, n]; the same records and purpose have the same."""
        key = population, purpose
        if key not in self._known:
            self._known[key] = population.draws(self.n_resamples, self.seed, purpose)
        return self._known[key]

    def forget(self) -> None:
        """Lets go of what was drawn; it would be drawn again the same."""
        self._known.clear()


def bootstrap(
    results: Sequence[RunMetrics],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = SEED,
    together: bool = True,
    advance: Callable[[int], None] = lambda done: None,
) -> Bootstrap:
    """Resamples every row of evaluated runs.

    Records that several attacks or runs scored are drawn together, so their differences can be judged by the draws too.

    Args:
        results: of the runs.
        n_resamples: B.
        seed: of the draws.
        together: whether the two texts of a DPO prompt are drawn together; else each text for itself.
        advance: told of each subset that is done.
    """
    draws = Draws(n_resamples, seed)
    found: list[dict[str, dict[str, tuple[Floats, Floats]]]] = [{} for _ in results]
    for subset in dict.fromkeys(s for result in results for s in result.run.subsets):
        for result, rows in zip(results, found, strict=True):
            for attack, values in result.subsets.items():
                if subset in values and values[subset].auc is not None:
                    sides = [scored(result.run, attack, subset, label, together) for label in (MEMBER, NON_MEMBER)]
                    rows.setdefault(attack, {})[subset] = metrics_of_draws(*sides, draws, subset)
        draws.forget()  # the records of one subset at a time
        advance(1)
    rows_of = [_rows(result, rows) for result, rows in zip(results, found, strict=True)]
    resampled_runs = [replace(result, rows=rows) for result, rows in zip(results, rows_of, strict=True)]
    mean = mean_over_runs(resampled_runs)
    return Bootstrap(
        n_resamples, seed, tuple(map(_intervals, rows_of)), _intervals(mean) if mean else None, tuple(rows_of), mean
    )


def _rows(result: RunMetrics, found: Mapping[str, Mapping[str, tuple[Floats, Floats]]]) -> tuple[Row, ...]:
    def row(row: Row) -> Row:
        of = found.get(row.id, {})
        auc, tpr = ({s: of[s][i] if s in of else None for s in result.run.subsets} for i in range(2))
        return replace(row, auc=aggregate_of(result.run, row.id, auc), tpr=aggregate_of(result.run, row.id, tpr))

    return with_method_avg([row(r) for r in result.rows if r.id != METHOD_AVG])


def _intervals(rows: Sequence[Row]) -> RunIntervals:
    return RunIntervals(
        {row.id: row.auc.map(Interval.of) for row in rows}, {row.id: row.tpr.map(Interval.of) for row in rows}
    )


def scored(run: Run, attack: str, subset: str, label: int, together: bool = True) -> Scored:
    """The scores of one class.

    Args:
        run: whose.
        attack: row id.
        subset: subset id.
        label: the class.
        together: whether records of the same id, the two texts of a DPO prompt, are drawn together.
    """
    lines = [s for s in run.lines(attack, subset) if s.label == label and s.value is not None]
    lines.sort(key=lambda s: (s.record_id, s.text_sha1))
    several = run.tree is not None and len(next(s.files for s in run.tree.subsets if s.id == subset)) > 1
    keys = tuple((s.record_id, s.text_sha1) for s in lines)
    if together and several:
        places = {name: i for i, name in enumerate(dict.fromkeys(s.record_id for s in lines))}
        clusters = tuple(places[s.record_id] for s in lines)
    else:
        clusters = tuple(range(len(lines)))
    return Scored(Population(keys, clusters), _choices(lines))


def _choices(lines: Sequence[Score]) -> tuple[Floats, ...]:
    """The scores; each of the alternatives, where all lines have them."""
    if lines and all(s.choices for s in lines):
        return tuple(np.array(column) for column in zip(*(s.choices for s in lines), strict=True))
    return (np.array([s.value for s in lines], np.float64),)


def metrics_of_draws(member: Scored, non_member: Scored, draws: Draws, purpose: str) -> tuple[Floats, Floats]:
    """AUC and TPR of every resample of a subset; of alternatives the one with the best AUC in that resample.

    Args:
        member: the members' scores.
        non_member: the non-members'.
        draws: which to take.
        purpose: of the draws.
    """
    counts = (
        draws.of(member.population, f"{purpose} member"),
        draws.of(non_member.population, f"{purpose} non-member"),
    )
    return best(
        [resampled(ClassScores(*pair), *counts) for pair in zip(member.choices, non_member.choices, strict=True)]
    )


def best(found: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """(AUC, TPR) of the alternative with the best AUC, resample by resample; the first of equals."""
    if len(found) == 1:
        return found[0]
    aucs, tprs = (np.stack([pair[i] for pair in found]) for i in range(2))
    chosen = np.argmax(aucs, axis=0)[None]
    return tuple(np.take_along_axis(values, chosen, 0)[0] for values in (aucs, tprs))  # type: ignore[return-value]


def point(member: Scored, non_member: Scored) -> float:
    """The AUC itself, by the same rule."""
    return max(m.auc(ClassScores(*pair)) for pair in zip(member.choices, non_member.choices, strict=True))
