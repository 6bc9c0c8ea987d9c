"""Every metric of a run, computed once, and its tables: terminal, CSV, JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from olmodetect_jax.attacks.base import LEFT_OUT
from olmodetect_jax.attacks.supervised import IN_DOMAIN, parts_of
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.aggregate import (
    OUTSIDE_METHOD_AVG,
    Aggregate,
    Column,
    aggregate,
    attack_domains,
    method_avg,
    model_avg,
)
from olmodetect_jax.evaluation.formatting import printable, two_decimals
from olmodetect_jax.evaluation.runs import Run, Score, read_run
from olmodetect_jax.evaluation.supervised import (
    SupervisedTable,
    mean_over_tables,
    print_supervised,
    supervised_table,
    write_supervised,
)
from olmodetect_jax.evaluation.texts import TextTable, print_texts, text_table, texts_csv
from olmodetect_jax.files import write_json, write_text

METRICS_FORMAT = 1
METHOD_AVG = "method_avg"
FEW = 20  # with fewer non-members, 5% of them is less than one


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
        tpr_at_5fpr_quantile: share of members strictly above the 95% quantile of the non-members.
        partial_auc_5: ROC area for FPR <= 5%.
        partial_auc_5_standardised: the same in McClish's form.
        delong_variance: DeLong's variance of the AUC; also None if a class has fewer than two scores.
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
    tpr_at_5fpr_quantile: float | None = None
    partial_auc_5: float | None = None
    partial_auc_5_standardised: float | None = None
    delong_variance: float | None = None


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
    supervised = supervised_table(run, {row.id: row.auc for row in rows})
    return RunMetrics(run, subsets, _with_method_avg(rows), _columns(run), text_table(run), supervised)


def _with_method_avg(rows: Sequence[Row]) -> tuple[Row, ...]:
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
    row = parts_of(attack)
    released = run.manifest["protocol"]["fields"].get("lodo_subsets") == "representative"
    alone = released and row is not None and row[0] == "sup_camia" and row[2] != IN_DOMAIN
    return aggregate(values, run.tree, domains=attack_domains(attack, run.tree), representative=alone)


def _columns(run: Run) -> tuple[Column, ...]:
    if run.tree is None:
        return tuple(Column("subset", s, run.subset_title(s)) for s in run.subsets)
    subsets = [Column("subset", s.id, s.title) for s in run.tree.subsets]
    domains = [Column("domain", name, title) for name, title in run.tree.domain_titles.items()]
    stages = [Column("stage", name, title) for name, title in run.tree.stage_titles.items()]
    return (*subsets, *domains, *stages, Column("all", "all", "All"))


def _subset_metrics(run: Run, attack: str, subset: str) -> SubsetMetrics:
    lines = run.scores[attack][subset]
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
    curve = m.roc_curve(scores)
    return {
        "undefined": None,
        "auc": m.auc(scores),
        "tpr_at_5fpr": m.tpr_at_fpr(curve),
        "tpr_at_5fpr_quantile": m.tpr_at_fpr_quantile(scores),
        "partial_auc_5": m.partial_auc(curve),
        "partial_auc_5_standardised": m.standardised_partial_auc(curve),
        "delong_variance": m.delong_variance(scores),
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
    return _with_method_avg(averages)


def write_tables(metrics: RunMetrics, run_path: Path) -> None:
    """Writes `metrics.json`, `tables/auc.csv`, `tables/tpr_at_5fpr.csv` and, where there are any, further tables.

    Those are `tables/texts.csv` of own texts, `tables/supervised.csv` and `tables/fsd_gain.csv`. Values are unrounded.
    """
    write_json(run_path / "metrics.json", _json(metrics))
    for name, values in (("auc", [r.auc for r in metrics.rows]), ("tpr_at_5fpr", [r.tpr for r in metrics.rows])):
        file = io.StringIO(newline="")
        writer = csv.writer(file, lineterminator="\n")
        # A subset and its domain may share an id, so a heading names the level too.
        headings = [c.id if c.level == "all" else f"{c.level}:{c.id}" for c in metrics.columns]
        writer.writerow(["attack", "title", *headings])
        for row, value in zip(metrics.rows, values, strict=True):
            writer.writerow([row.id, row.title, *(c.of(value) for c in metrics.columns)])
        write_text(run_path / "tables" / f"{name}.csv", file.getvalue())
    if metrics.texts:
        write_text(run_path / "tables" / "texts.csv", texts_csv(metrics.texts))
    if metrics.supervised:
        write_supervised(metrics.supervised, metrics.columns, run_path)


def _json(metrics: RunMetrics) -> dict[str, Any]:
    manifest = metrics.run.manifest
    return {
        "format": METRICS_FORMAT,
        **{name: manifest[name] for name in ("model", "benchmark", "split", "variant", "protocol")},
        "auc": {row.id: dataclasses.asdict(row.auc) for row in metrics.rows},
        "tpr_at_5fpr": {row.id: dataclasses.asdict(row.tpr) for row in metrics.rows},
        "subsets": {
            attack: {subset: dataclasses.asdict(value) for subset, value in values.items()}
            for attack, values in metrics.subsets.items()
        },
    }


def print_tables(metrics: Sequence[RunMetrics], console: Console) -> None:
    """Prints each run's tables and what to know about its scores, then the mean over comparable runs."""
    for result in metrics:
        _print_table(console, caption(result.run), result.rows, summary_columns(result))
        if result.texts:
            print_texts(result.texts, console)
        if result.supervised:
            print_supervised(result.supervised, summary_columns(result), console)
        for note in notes(result):
            console.print(Padding(Text(note), (0, 0, 0, 2)))
    averages = mean_over_runs(metrics)
    if averages:
        _print_table(console, f"Mean over the {len(metrics)} runs", averages, summary_columns(metrics[0]))
        supervised = mean_over_tables([result.supervised for result in metrics])
        if supervised:
            print_supervised(supervised, summary_columns(metrics[0]), console)


def summary_columns(metrics: RunMetrics) -> tuple[Column, ...]:
    """Stages and All; of a run of some subsets only, every group that has a value."""
    run = metrics.run
    if run.tree is not None and len(run.subsets) == len(run.tree.subsets):
        return tuple(c for c in metrics.columns if c.level in ("stage", "all"))
    return tuple(
        c for c in metrics.columns if c.level != "domain" and any(c.of(r.auc) is not None for r in metrics.rows)
    )


def _print_table(console: Console, title: str, rows: Iterable[Row], columns: Sequence[Column]) -> None:
    console.print(Text(title, style="bold"))  # Text: a model's name is never read as markup
    if not columns:
        return
    table = Table()
    table.add_column("Attack", overflow="fold")
    for column in columns:
        table.add_column(Text(f"{column.title}\n AUC   TPR"), justify="right", no_wrap=True)
    for row in rows:
        if row.id == METHOD_AVG:
            table.add_section()
        cells = (f"{two_decimals(c.of(row.auc))}  {two_decimals(c.of(row.tpr))}" for c in columns)
        table.add_row(row.title, *cells)
    console.print(table)
    console.print(Text("TPR at 5% FPR. Chance: AUC 0.50, TPR 0.05. – : a subset of the group has no AUC.", style="dim"))


def caption(run: Run) -> str:
    """Model, benchmark and protocol of a run in one line."""
    manifest = run.manifest
    what = [f"{run.tree.title} {manifest['split']} ({manifest['variant']})"] if run.tree else ["own texts"]
    protocol = manifest["protocol"]
    changed = "".join(f", {name}={value}" for name, value in protocol["changed"].items())
    tuned = ["tuned"] if manifest.get("tuned") else []
    return printable(" · ".join([run.model, *what, f"protocol: {protocol['preset']}{changed}", *tuned]))


def notes(metrics: RunMetrics, shown: int = 5) -> list[str]:
    """What a reader must know about the scores: no AUC, few non-members, missing scores, duplicate texts, notes.

    Args:
        metrics: of one run.
        shown: how many records without a score to name for an attack.
    """
    found: list[str] = []
    for attack, values in metrics.subsets.items():
        for subset, value in values.items():
            if value.undefined:
                found.append(value.undefined)
            elif value.n_unlabelled:
                found.append(f"{subset}: {value.n_unlabelled} records have no label and enter no metric")
            if value.n_texts != value.n_records:
                found.append(f"{subset}: {value.n_records} records hold {value.n_texts} distinct texts")
        n_records = sum(value.n_records for value in values.values())
        gone = [(subset, record) for subset, value in values.items() for record in value.missing]
        for reason, count in Counter(record.reason for _, record in gone if record.left_out).items():
            found.append(f"{attack}: {count} of {n_records} records {reason}")
        missing = [f"{subset}/{record.record_id}" for subset, record in gone if not record.left_out]
        if missing:
            names = ", ".join(missing[:shown]) + (", …" if len(missing) > shown else "")
            found.append(f"{attack}: {len(missing)} of {n_records} records have no score and are left out: {names}")
        found += _notes_of_scores(attack, metrics.run.scores[attack])
    # The same for every attack: once.
    return [printable(note) for note in dict.fromkeys([*found, *_few_non_members(metrics)])]


def _notes_of_scores(attack: str, scores: Mapping[str, Sequence[Score]]) -> list[str]:
    """Each distinct note of an attack's scores once, with the subsets in which it stands."""
    subsets: dict[str, list[str]] = {}
    for subset, lines in scores.items():
        for note in dict.fromkeys(line.note for line in lines if line.note):
            subsets.setdefault(note, []).append(subset)
    return [f"{attack} on {', '.join(names)}: {note}" for note, names in subsets.items()]


def _few_non_members(metrics: RunMetrics) -> list[str]:
    """Names the subsets whose non-members are too few for a TPR at 5% FPR, those of like number together."""
    few: dict[int, list[str]] = {}
    for subset in metrics.run.subsets:
        found = [values[subset] for values in metrics.subsets.values() if subset in values]
        n = max((value.n_non_member for value in found if value.auc is not None), default=FEW)
        if n < FEW:
            few.setdefault(n, []).append(subset)
    return [
        f"{', '.join(subsets)}: {n} non-members: TPR at 5% FPR cannot be resolved (needs {FEW} or more)"
        for n, subsets in few.items()
    ]
