"""The report as one HTML file without any outside resource; every text of a run is escaped by the template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation.aggregate import Column
from olmodetect_jax.evaluation.budget import read_budget
from olmodetect_jax.evaluation.formatting import ABSENT, share, two_decimals
from olmodetect_jax.evaluation.intervals import Bootstrap, RunIntervals, bootstrap
from olmodetect_jax.evaluation.metrics import LOW_FPR, RocCurve, roc_curve
from olmodetect_jax.evaluation.protocols import read_protocols
from olmodetect_jax.evaluation.results import METHOD_AVG, Row, RunMetrics, evaluate, mean_over_runs
from olmodetect_jax.evaluation.runs import Run
from olmodetect_jax.evaluation.tables import caption, notes, summary_columns
from olmodetect_jax.evaluation.texts import LABELS, TextTable
from olmodetect_jax.evaluation.training import read_training
from olmodetect_jax.evaluation.tuning import read_tuning
from olmodetect_jax.files import write_text
from olmodetect_jax.report.budget_plot import BudgetPlot, budget_plot
from olmodetect_jax.report.cells import Cell
from olmodetect_jax.report.heat import HeatTable, filled_groups, heat_tables, summary_map
from olmodetect_jax.report.interval_plot import IntervalPlot, interval_plots, verdict
from olmodetect_jax.report.pair_table import pair_table
from olmodetect_jax.report.plots import Histogram, RocPlot, chance_on_log_axis, histogram, mean_curve, roc_line
from olmodetect_jax.report.protocol_table import ProtocolTable, protocol_table
from olmodetect_jax.report.published import PublishedTable, published_tables
from olmodetect_jax.report.records import records_json
from olmodetect_jax.report.shift_plot import shift_section
from olmodetect_jax.report.supervised_table import SupervisedSection, supervised_section
from olmodetect_jax.report.templates import template
from olmodetect_jax.report.token_view import TokenViews
from olmodetect_jax.report.training_plot import TrainingPlot, training_plot
from olmodetect_jax.report.trend_plot import TrendPlot, size_trends, stage_trend
from olmodetect_jax.report.tuning_plot import TuningPlot, tuning_plot
from olmodetect_jax.report.wording import CLASSES, PRESETS, describe

SHOWN_MISSING = 200  # records without a score that the page lists; metrics.json lists all
SHOWN_TEXTS = 1000  # a user's own texts that the page lists; tables/texts.csv lists all


@dataclass(frozen=True)
class OwnTexts:
    """A user's own texts; a row is (record id, label, tokens, cells), the cells under `headings`.

    Attributes:
        title: heading.
        explanation: what the cells mean.
        hint: which cells are marked.
        labelled: whether any text has a label.
        headings: of the cells: the mean of the shares where there is a reference, then the attacks.
        rows: the first texts.
        n_texts: how many there are in all.
    """

    title: str
    explanation: str
    hint: str
    labelled: bool
    headings: tuple[str, ...]
    rows: tuple[tuple[str, str, str, tuple[Cell, ...]], ...]
    n_texts: int


@dataclass(frozen=True)
class SubsetCounts:
    """Records of one subset."""

    title: str
    members: int
    non_members: int
    unlabelled: int
    texts: int
    truncated: int


@dataclass(frozen=True)
class Comparison:
    """AUC over All of several runs, and their mean where they are comparable; a line is (attack, values)."""

    headings: tuple[str, ...]
    lines: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class RunSection:
    """What the page shows of one run."""

    caption: str
    preset: str
    attacks: tuple[str, ...]
    descriptions: tuple[tuple[str, str], ...]
    texts: OwnTexts | None
    verdict: str | None
    overview: HeatTable | None
    intervals: tuple[IntervalPlot, ...]
    stages: TrendPlot | None
    pairs: HeatTable | None
    tables: tuple[HeatTable, ...]
    mean_rocs: tuple[RocPlot, ...]
    subset_rocs: tuple[RocPlot, ...]
    histograms: tuple[tuple[str, tuple[Histogram, ...]], ...]  # (heading, plots)
    classes: tuple[tuple[str, str], ...]
    counts: tuple[SubsetCounts, ...]
    notes: tuple[str, ...]
    missing: tuple[tuple[str, str, str, str], ...]
    n_missing: int
    n_left_out: int
    records: Markup
    protocols: ProtocolTable | None
    tuning: TuningPlot | None
    supervised: SupervisedSection | None
    training: TrainingPlot | None
    budget: BudgetPlot | None
    protocol: tuple[tuple[str, str, bool], ...]
    manifest: tuple[tuple[str, str], ...]


def write_report(
    run_paths: Sequence[Path],
    out: Path,
    *,
    views_of: Callable[[Run], TokenViews] | None = None,
    against_paper: bool = False,
) -> None:
    """Writes one page about one or more runs; the same runs give the same bytes.

    Args:
        run_paths: run folders.
        out: the HTML file to write.
        views_of: finds the records of a run that are shown token by token; None for none.
        against_paper: whether the AUC and TPR by stage are held against the published ones.

    Raises:
        UsageError: `out` is a folder.
        DataError: a folder that is no run, or a score file that cannot be used.
    """
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder; give the report's file, such as {out / 'report.html'}")
    results = evaluate(run_paths)
    found = bootstrap(results)
    views = [views_of(r.run) if views_of else TokenViews((), "they were not asked for") for r in results]
    published = published_tables(results, found.n_resamples) if against_paper else ()
    write_text(out, render(results, found, views, published))


def render(
    results: Sequence[RunMetrics],
    found: Bootstrap,
    views: Sequence[TokenViews],
    published: Sequence[PublishedTable] = (),
) -> str:
    """The page of evaluated runs.

    Args:
        results: of the runs.
        found: their intervals.
        views: of each, some records token by token.
        published: tables held against the paper's.
    """
    given = zip(results, found.runs, found.draws, views, strict=True)
    sections = [_section(*of) for of in given]
    return template("template.html.j2").render(
        sections=sections,
        comparison=_comparison(results),
        sizes=size_trends(results),
        shift=shift_section(results, found.n_resamples),
        published=published,
        chance_on_log_axis=chance_on_log_axis(),
        n_resamples=found.n_resamples,
        seed=found.seed,
        has_auc=any(section.tables for section in sections),
        has_tree=any(result.run.tree for result in results),
    )


def _section(result: RunMetrics, intervals: RunIntervals, draws: Sequence[Row], views: TokenViews) -> RunSection:
    run = result.run
    curves = {
        attack: {s: roc_curve(run.class_scores(attack, s)) for s, value in values.items() if value.auc is not None}
        for attack, values in result.subsets.items()
    }
    titles = {row.id: row.title for row in result.rows}
    gone = [
        (titles[attack], run.subset_title(subset), record)
        for attack, values in result.subsets.items()
        for subset, value in values.items()
        for record in value.missing
    ]
    missing = [(attack, subset, r.record_id, r.reason) for attack, subset, r in gone if not r.left_out]
    comparison, tuning = read_protocols(run.path), read_tuning(run.path)
    training, budget = read_training(run.path), read_budget(run.path)
    means = tuple(c for c in summary_columns(result) if c.level in ("stage", "all"))
    subsets = tuple(c for c in result.columns if c.level == "subset" and c.id in run.subsets)
    histograms = _histograms(result, titles)
    drawn = {kind for _, plots in histograms for plot in plots for kind, _ in plot.areas}
    return RunSection(
        caption=caption(run),
        preset=PRESETS.get(run.manifest["protocol"]["preset"], ""),
        attacks=tuple(row.title for row in result.rows if row.id != METHOD_AVG),
        descriptions=tuple((titles[attack], text) for attack, text in describe(run.attacks, run.manifest)),
        texts=_own_texts(result.texts) if result.texts else None,
        verdict=verdict(result, intervals),
        overview=summary_map(result, intervals),
        intervals=interval_plots(result, intervals),
        stages=stage_trend(result),
        pairs=pair_table(result.rows, draws),
        tables=heat_tables(result, intervals),
        mean_rocs=_rocs(result, means, curves),
        subset_rocs=_rocs(result, subsets, curves),
        histograms=histograms,
        classes=tuple((kind, words) for kind, words in CLASSES.items() if kind in drawn),
        counts=tuple(_counts(run, s) for s in run.subsets if any(s in scores for scores in run.scores.values())),
        notes=tuple(notes(result)),
        missing=tuple(missing[:SHOWN_MISSING]),
        n_missing=len(missing),
        n_left_out=len(gone) - len(missing),
        records=records_json(result, views),
        protocols=protocol_table(comparison, run.attack_title) if comparison else None,
        tuning=tuning_plot(tuning) if tuning else None,
        supervised=supervised_section(result.supervised, filled_groups(result)) if result.supervised else None,
        training=training_plot(training) if training else None,
        budget=budget_plot(budget, run.tree.domain_titles if run.tree else {}) if budget else None,
        protocol=_protocol(run.manifest),
        manifest=_manifest(run.manifest),
    )


def _own_texts(table: TextTable) -> OwnTexts:
    rows = []
    for row in table.rows[:SHOWN_TEXTS]:
        values = row.shares if table.n_reference else row.scores
        cells = [
            _text_cell(bool(table.n_reference), text, value, score)
            for text, value, score in zip(table.cells(row), values, row.scores, strict=True)
        ]
        if table.n_reference:
            mean = share(row.mean_share, min(table.n_reference))
            cells.insert(0, Cell(mean, row.mean_share, "mean of the attacks' shares", 0, "high"))
        tokens = ABSENT if row.n_tokens is None else str(row.n_tokens)
        rows.append((row.record_id, LABELS[row.label] or ABSENT, tokens, tuple(cells)))
    headings = (("Mean",) if table.n_reference else ()) + table.titles
    labelled = any(row.label is not None for row in table.rows)
    hint = f"{two_decimals(LOW_FPR)} or less is marked." if table.n_reference else ""
    return OwnTexts(table.title, table.explanation, hint, labelled, headings, tuple(rows), len(table.rows))


def _text_cell(is_share: bool, text: str, value: float | None, score: float | None) -> Cell:
    """A text's share or score under one attack; a share that few unseen texts get stands out."""
    rare = is_share and value is not None and round(value, 2) <= LOW_FPR
    return Cell(text, value, "no score" if score is None else f"score {score:.4g}", 40 if rare else 0, "high")


def _rocs(
    result: RunMetrics, columns: Sequence[Column], curves: Mapping[str, Mapping[str, RocCurve]]
) -> tuple[RocPlot, ...]:
    tree = result.run.tree
    plots = []
    for column in columns:
        lines = []
        for index, row in enumerate(r for r in result.rows if r.id in curves):
            auc = column.of(row.auc)
            if auc is None:
                continue
            own = curves[row.id]
            is_mean = tree is not None and column.level != "subset"
            curve = mean_curve(own, column, row.id, result.run) if is_mean else own[column.id]
            lines.append(roc_line(index, row.title, auc, curve))
        if lines:
            plots.append(RocPlot(column.title, tuple(lines)))
    return tuple(plots)


def _histograms(result: RunMetrics, titles: Mapping[str, str]) -> tuple[tuple[str, tuple[Histogram, ...]], ...]:
    """A row an attack with a plot a subset; of one subset alone, one row with a plot an attack."""
    run = result.run
    alone = len(run.subsets) == 1
    rows = []
    for attack in run.attacks:
        plots = []
        reference = [s.value for s in run.reference.get(attack, ()) if s.value is not None]
        for subset, lines in run.scores[attack].items():
            groups = {"reference": reference} | {
                name: [s.value for s in lines if s.label == label and s.value is not None]
                for name, label in (("non-member", 0), ("member", 1), ("unlabelled", None))
            }
            title = titles[attack] if alone else run.subset_title(subset)
            plots.append(histogram(title, groups, result.subsets[attack][subset].auc))
        rows.append((titles[attack], tuple(plot for plot in plots if plot is not None)))
    if alone:
        return ((run.subset_title(run.subsets[0]), tuple(plot for _, plots in rows for plot in plots)),)
    return tuple(rows)


def _counts(run: Run, subset: str) -> SubsetCounts:
    lines = next(scores[subset] for scores in run.scores.values() if subset in scores)
    labels = [s.label for s in lines]
    return SubsetCounts(
        title=run.subset_title(subset),
        members=labels.count(1),
        non_members=labels.count(0),
        unlabelled=labels.count(None),
        texts=len({(s.label, s.text_sha1) for s in lines}),
        truncated=sum(s.truncated for s in lines),
    )


def _protocol(manifest: Mapping[str, Any]) -> tuple[tuple[str, str, bool], ...]:
    protocol, used = manifest["protocol"], manifest.get("max_tokens_used")
    rows = []
    for name, value in protocol["fields"].items():
        text = _text(value)
        if name == "max_tokens" and used is not None:
            text += f" (used: {_text(used)}{'' if used == value else ', the model’s context'})"
        rows.append((name, text, name in protocol["changed"]))
    return tuple(rows)


def _manifest(manifest: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    rows = []
    for name, value in manifest.items():
        if name == "protocol":
            rows.append(("protocol.preset", _text(value["preset"])))  # its fields have their own table
        elif isinstance(value, dict):
            rows += [(f"{name}.{key}", _text(inner)) for key, inner in value.items()]
        else:
            rows.append((name, _text(value)))
    return tuple(rows)


def _text(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _comparison(results: Sequence[RunMetrics]) -> Comparison | None:
    compared = [r for r in results if r.run.tree is not None]
    # Shifted members are held against matched ones in their own plot, and some subsets have none.
    compared = [r for r in compared if r.run.manifest["variant"] == "matched"] or compared
    if len(compared) < 2:
        return None
    averages = {(row.id, row.title): row for row in mean_over_runs(compared)}
    headings = [caption(r.run) for r in compared] + (["Mean"] if averages else [])
    own = [{(row.id, row.title): row for row in r.rows} for r in compared]
    lines = []
    for key in dict.fromkeys(key for rows in own for key in rows):
        rows = [found.get(key) for found in (own + [averages] if averages else own)]
        lines.append((key[1], tuple(two_decimals(row.auc.all).strip() if row else ABSENT for row in rows)))
    return Comparison(tuple(headings), tuple(lines))
