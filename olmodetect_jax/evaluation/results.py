"""Every metric of a run, computed once: of subsets, and their means over domains, stages and All."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.base import LEFT_OUT
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.aggregate import (
    OUTSIDE_METHOD_AVG,
    Aggregate,
    Column,
    aggregate,
    attack_domains,
    is_representative,
    method_avg,
    model_avg,
)
from olmodetect_jax.evaluation.runs import Run, Score, read_run
from olmodetect_jax.evaluation.supervised import SupervisedTable, supervised_table
from olmodetect_jax.evaluation.texts import TextTable, text_table

METHOD_AVG = "method_avg"


@dataclass(frozen=True)
class Missing:
    """A record without a usable score."""

    record_id: str
    label: int | None
    reason: str

    @property
    def left_out(self) -> bool:
        """Whether there is no score by choice, not by fault."""
        return self.reason.startswith(LEFT_OUT)


@dataclass(frozen=True)
class SubsetMetrics:
    """What one attack reaches on one subset; the metrics are None where `undefined` says why.

    Attributes:
        n_records: records in the score file.
        n_texts: distinct texts among them, each side counted for itself.
        n_member: members with a score.
        n_non_member: non-members with a score.
        n_unlabelled: records with a score and no label: they enter no metric.
        n_truncated: records of which only the start was read.
        complete: the number of records with a score is `n_texts` (the coverage flag).
        missing: the records without a usable score.
        undefined: why there are no metrics; None if there are.
        auc: area under the ROC curve.
        tpr_at_5fpr: TPR at 5% FPR on the interpolated ROC curve.
        tpr_at_1fpr: TPR at 1% FPR on it.
        tpr_at_5fpr_quantile: share of members strictly above the 95% quantile of the non-members.
        partial_auc_5: ROC area for FPR <= 5%.
        partial_auc_5_standardised: the same in McClish's form.
        balanced_accuracy: mean of TPR and 1 - FPR at the best threshold, chosen on these very labels.
        delong_variance: DeLong's variance of the AUC; also None if a class has fewer than two scores.
        delong_low: lower end of the 95% interval that it gives.
        delong_high: upper end.
    """

    n_records: int
    n_texts: int
    n_member: int
    n_non_member: int
    n_unlabelled: int
    n_truncated: int
    complete: bool
    missing: tuple[Missing, ...]
    undefined: str | None
    auc: float | None = None
    tpr_at_5fpr: float | None = None
    tpr_at_1fpr: float | None = None
    tpr_at_5fpr_quantile: float | None = None
    partial_auc_5: float | None = None
    partial_auc_5_standardised: float | None = None
    balanced_accuracy: float | None = None
    delong_variance: float | None = None
    delong_low: float | None = None
    delong_high: float | None = None


@dataclass(frozen=True)
class Row:
    """One line of a table: an attack, or a mean over attacks; `id` is the attack's, or `method_avg`."""

    id: str
    title: str
    auc: Aggregate
    tpr: Aggregate


@dataclass(frozen=True)
class RunMetrics:
    """Every metric of one run.

    Attributes:
        run: the run, with its scores.
        subsets: attack id to subset id to metrics.
        rows: one an attack in the run's order, then Method-Avg if there are two unsupervised attacks or more.
        columns: subsets, domains and stages in the tree's order, then All; for a user's own texts one subset.
        texts: a user's own texts one by one; None for a benchmark.
        supervised: the supervised attacks' own tables; None where none of them has scored a benchmark.
    """

    run: Run
    subsets: Mapping[str, Mapping[str, SubsetMetrics]]
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    texts: TextTable | None
    supervised: SupervisedTable | None


def evaluate(run_paths: Sequence[Path]) -> list[RunMetrics]:
    """Reads run folders and computes every metric.

    Raises:
        DataError: a folder that is no run, or a score file that cannot be used.
    """
    return [evaluate_run(read_run(path)) for path in run_paths]


def evaluate_run(run: Run) -> RunMetrics:
    """Computes every metric of a run; a subset without both classes gets none, and its groups are missing."""
    subsets = {
        attack: {subset: _subset_metrics(run, attack, subset) for subset in run.scores[attack]}
        for attack in run.attacks
    }
    rows = []
    for attack in run.attacks:
        auc = {name: value.auc for name, value in subsets[attack].items()}
        tpr = {name: value.tpr_at_5fpr for name, value in subsets[attack].items()}
        rows.append(
            Row(attack, run.attack_title(attack), aggregate_of(run, attack, auc), aggregate_of(run, attack, tpr))
        )
    supervised = supervised_table(run, {row.id: row.auc for row in rows}, {row.id: row.tpr for row in rows})
    return RunMetrics(run, subsets, with_method_avg(rows), _columns(run), text_table(run), supervised)


def with_method_avg(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows, and after them Method-Avg if two or more of them are unsupervised attacks."""
    unsupervised = [row for row in rows if row.id not in OUTSIDE_METHOD_AVG]
    if len(unsupervised) < 2:
        return tuple(rows)
    means = (method_avg([r.auc for r in unsupervised]), method_avg([r.tpr for r in unsupervised]))
    return (*rows, Row(METHOD_AVG, "Method-Avg", *means))


def aggregate_of(run: Run, attack: str, values: Mapping[str, float | None]) -> Aggregate:
    """Means of an attack's subsets, as the attack and the run's protocol ask for them.

    Args:
        run: whose tree and protocol count; own texts have no means.
        attack: attack id.
        values: subset id to value.
    """
    if run.tree is None:
        return Aggregate(values, {}, {}, None)
    alone = is_representative(attack, run.manifest["protocol"]["fields"].get("lodo_subsets"))
    return aggregate(values, run.tree, domains=attack_domains(attack, run.tree), representative=alone)


def _columns(run: Run) -> tuple[Column, ...]:
    if run.tree is None:
        return tuple(Column("subset", s, run.subset_title(s)) for s in run.subsets)
    subsets = [Column("subset", s.id, s.title) for s in run.tree.subsets]
    domains = [Column("domain", name, title) for name, title in run.tree.domain_titles.items()]
    stages = [Column("stage", name, title) for name, title in run.tree.stage_titles.items()]
    return (*subsets, *domains, *stages, Column("all", "all", "All"))


def _subset_metrics(run: Run, attack: str, subset: str) -> SubsetMetrics:
    lines = run.lines(attack, subset)
    scored = [s for s in lines if s.value is not None]
    texts = [f"{s.label} {s.text_sha1}" for s in lines]
    counts: dict[str, Any] = {
        "n_records": len(lines),
        "n_texts": len(set(texts)),
        "n_member": sum(s.label == 1 for s in scored),
        "n_non_member": sum(s.label == 0 for s in scored),
        "n_unlabelled": sum(s.label is None for s in scored),
        "n_truncated": sum(s.truncated for s in lines),
        "complete": not m.is_incomplete(len(scored), texts),
        "missing": tuple(Missing(s.record_id, s.label, s.missing or "") for s in lines if s.value is None),
    }
    return SubsetMetrics(**counts, **_values(run, attack, subset, lines))


def _values(run: Run, attack: str, subset: str, lines: Sequence[Score]) -> dict[str, Any]:
    if all(s.label is None for s in lines):
        return {"undefined": f"{subset}: no record has a label, so there is no AUC"}
    try:
        scores = run.class_scores(attack, subset)
    except DataError as error:
        return {"undefined": str(error)}
    curve, variance = m.roc_curve(scores), m.delong_variance(scores)
    low, high = m.delong_interval(scores) or (None, None)
    return {
        "undefined": None,
        "auc": m.auc(scores),
        "tpr_at_5fpr": m.tpr_at_fpr(curve),
        "tpr_at_1fpr": m.tpr_at_fpr(curve, m.LOWEST_FPR),
        "tpr_at_5fpr_quantile": m.tpr_at_fpr_quantile(scores),
        "partial_auc_5": m.partial_auc(curve),
        "partial_auc_5_standardised": m.standardised_partial_auc(curve),
        "balanced_accuracy": m.balanced_accuracy(curve),
        "delong_variance": variance,
        "delong_low": low,
        "delong_high": high,
    }


def mean_over_runs(results: Sequence[RunMetrics]) -> tuple[Row, ...]:
    """Model-Avg: each attack's mean over the runs; empty unless two or more scored the same thing the same way.

    An attack that was limited to fewer records in one run than in another, as its title says, has no mean.
    """

    def what(run: Run) -> Any:
        return run.tree, run.manifest["split"], run.manifest["variant"], run.manifest["protocol"]

    runs = [result.run for result in results]
    if len(runs) < 2 or runs[0].tree is None or any(what(run) != what(runs[0]) for run in runs):
        return ()
    averages = []
    for first in (row for row in results[0].rows if row.id != METHOD_AVG):
        rows = [row for result in results for row in result.rows if (row.id, row.title) == (first.id, first.title)]
        if len(rows) == len(runs):
            auc, tpr = model_avg([row.auc for row in rows]), model_avg([row.tpr for row in rows])
            averages.append(Row(first.id, first.title, auc, tpr))
    return with_method_avg(averages)
