"""The runs that the paper's tables are made from: whose, which variant, and their means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.benchmark import SIZES, Tree
from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation.aggregate import OUTSIDE_METHOD_AVG, Aggregate, Column
from olmodetect_jax.evaluation.intervals import Bootstrap, Interval, RunIntervals, bootstrap
from olmodetect_jax.evaluation.results import METHOD_AVG, Row, RunMetrics, mean_over_runs
from olmodetect_jax.evaluation.supervised import SupervisedTable, mean_over_tables
from olmodetect_jax.tables import names

OPTIMISTIC = TITLES["em_mia_best_of_four"]  # the paper's EMMIA
ALL = Column("all", "all", "All")


@dataclass(frozen=True, eq=False)
class Source:
    """One column of values: a model, or the mean over models.

    Attributes:
        title: of the column.
        paper: the paper's name of it; None where the paper has no like.
        rows: row id to row.
        intervals: of them.
        supervised: the supervised attacks' tables; None without them.
        result: the run; None for a mean.
    """

    title: str
    paper: str | None
    rows: Mapping[str, Row]
    intervals: RunIntervals | None
    supervised: SupervisedTable | None
    result: RunMetrics | None

    def interval(self, metric: str, row: str, column: Column) -> Interval | None:
        """The interval of a cell; `metric` is auc or tpr."""
        found: Mapping[str, Aggregate] = getattr(self.intervals, metric) if self.intervals else {}
        return column.of(found[row]) if row in found else None

    def why_not(self, row: str, column: Column) -> str:
        """Why a cell has no value."""
        if row not in self.rows:
            return "no two unsupervised attacks were scored" if row == METHOD_AVG else f"{row} was not scored"
        if self.result is None:
            return f"one of the models has no value of {row} on {column.title}"
        return f"a subset of {column.title} has no value of {row}"


@dataclass(frozen=True, eq=False)
class Study:
    """What the tables are made from.

    Attributes:
        tree: the benchmark's.
        sources: the models' matched runs in order of size, then the mean over them where there is one.
        results: their runs.
        others: matched runs of models beside the OLMo 2 sizes.
        pairs: (matched, shifted) runs of the same model.
        bootstrap: of `results`; None where none was wanted.
    """

    tree: Tree
    sources: tuple[Source, ...]
    results: tuple[RunMetrics, ...]
    others: tuple[RunMetrics, ...]
    pairs: tuple[tuple[RunMetrics, RunMetrics], ...]
    bootstrap: Bootstrap | None

    @property
    def is_papers(self) -> bool:
        """Whether the runs are of the paper's benchmark."""
        return self.tree.name == names.PAPER_TREE

    @property
    def models(self) -> tuple[Source, ...]:
        """The sources that are models."""
        return tuple(s for s in self.sources if s.result is not None)

    @property
    def mean(self) -> Source:
        """Model-Avg; of one model, itself."""
        return self.sources[-1]

    def unsupervised(self, *, everything: bool) -> list[str]:
        """Ids of the unsupervised attacks that any model has, or of all of the paper's, and Method-Avg."""
        known = [a for a in TITLES if a not in OUTSIDE_METHOD_AVG or a == "em_mia_best_of_four"]
        had = {row for source in self.sources for row in source.rows}
        return [a for a in (*known, METHOD_AVG) if a in had or (everything and a != "em_mia_best_of_four")]

    def title(self, row: str) -> str:
        """Title of a row."""
        found = [source.rows[row].title for source in self.sources if row in source.rows]
        return found[0] if found else "Method-Avg" if row == METHOD_AVG else TITLES[row]

    def paper_name(self, row: str) -> str | None:
        """What the paper calls a row; None where it has no like: an attack on fewer records, or another rule."""
        title = self.title(row)
        if row == METHOD_AVG:
            return "Method-Avg" if self._has_all_attacks() else None
        if title == OPTIMISTIC:
            return TITLES["em_mia"]
        return title if title == TITLES[row] and row != "em_mia" else None

    def _has_all_attacks(self) -> bool:
        """Whether Method-Avg is over the paper's fifteen, EMMIA by the paper's rule."""
        needed = [a for a in TITLES if a not in OUTSIDE_METHOD_AVG]
        return all(a in s.rows for a in needed for s in self.models) and self.title("em_mia") == OPTIMISTIC


def study_of(
    results: Sequence[RunMetrics],
    *,
    n_resamples: int | None,
    seed: int = 0,
    together: bool = True,
    advance: Callable[[int], None] = lambda done: None,
) -> Study:
    """Sorts evaluated runs by variant and model.

    Args:
        results: runs on one benchmark.
        n_resamples: of the bootstrap; None for no intervals.
        seed: of its draws.
        together: whether the two texts of a DPO prompt are drawn together.
        advance: told of each subset that the bootstrap has done.

    Raises:
        UsageError: runs of own texts, of several benchmarks or splits, two of the same model, or none with matched
            members.
    """
    trees = {result.run.tree.name if result.run.tree else None for result in results}
    if None in trees or len(trees) != 1:
        raise UsageError("the tables need runs on one benchmark; give runs of own texts to `olmodetect evaluate`")
    splits = {result.run.manifest["split"] for result in results}
    if splits != {"test"}:
        raise UsageError(f"the tables need runs on the test split, not on {', '.join(sorted(map(str, splits)))}")
    tree = results[0].run.tree
    assert tree is not None
    by_variant: dict[str, dict[str, RunMetrics]] = {"matched": {}, "shifted": {}}
    for result in results:
        known = by_variant[result.run.manifest["variant"]]
        if result.run.model in known:
            raise UsageError(
                f"{result.run.path} and {known[result.run.model].run.path}: both are runs of {result.run.model} on "
                f"{result.run.manifest['variant']} members; give one, `olmodetect score` adds attacks to a run"
            )
        known[result.run.model] = result
    matched = by_variant["matched"]
    if not matched:
        raise UsageError("no run on matched members; every table starts from one")
    sized = sorted((r for r in matched.values() if _size(r)), key=lambda r: SIZES.index(_size(r) or ""))
    chosen = tuple(sized or matched.values())
    draws = None
    if n_resamples:
        draws = bootstrap(chosen, n_resamples=n_resamples, seed=seed, together=together, advance=advance)
    return Study(
        tree,
        _sources(chosen, draws, tree),
        chosen,
        tuple(r for r in matched.values() if r not in chosen),
        tuple((r, by_variant["shifted"][r.run.model]) for r in chosen if r.run.model in by_variant["shifted"]),
        draws,
    )


def _size(result: RunMetrics) -> str | None:
    size = result.run.manifest["model"].get("size")
    return size if size in SIZES else None


def _sources(results: Sequence[RunMetrics], draws: Bootstrap | None, tree: Tree) -> tuple[Source, ...]:
    sources = []
    for i, result in enumerate(results):
        size = _size(result)
        title = names.SIZES[size] if size else result.run.model
        whole = tree.name == names.PAPER_TREE and result.run.manifest.get("limit") is None
        sources.append(
            Source(
                title, title if size and whole else None, {row.id: row for row in result.rows},
                draws.runs[i] if draws else None, result.supervised, result,
            )
        )  # fmt: skip
    mean = mean_over_runs(results)
    if mean:
        paper = names.MODEL_AVG if [s.paper for s in sources] == list(names.SIZES.values()) else None
        supervised = mean_over_tables([result.supervised for result in results])
        intervals = draws.mean if draws else None
        sources.append(Source(names.MODEL_AVG, paper, {r.id: r for r in mean}, intervals, supervised, None))
    return tuple(sources)
