"""A run's tables: terminal, CSV, JSON; and what a reader must know about its scores."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from olmodetect_jax.evaluation.aggregate import Column
from olmodetect_jax.evaluation.comparisons import Pair, models_comparison
from olmodetect_jax.evaluation.formatting import ABSENT, printable, signed, two_decimals
from olmodetect_jax.evaluation.intervals import Bootstrap, Interval, RunIntervals
from olmodetect_jax.evaluation.results import METHOD_AVG, Row, RunMetrics, mean_over_runs
from olmodetect_jax.evaluation.runs import Run, Score
from olmodetect_jax.evaluation.supervised import mean_over_tables, print_supervised, write_supervised
from olmodetect_jax.evaluation.texts import print_texts, texts_csv
from olmodetect_jax.files import write_json, write_text

METRICS_FORMAT = 1
FEW = 20  # with fewer non-members, 5% of them is less than one


def write_tables(metrics: RunMetrics, run_path: Path, intervals: RunIntervals | None = None) -> None:
    """Writes `metrics.json`, `tables/auc.csv`, `tables/tpr_at_5fpr.csv` and, where there are any, further tables.

    Those are `tables/intervals.csv`, `tables/texts.csv` of own texts, `tables/supervised.csv` and
    `tables/fsd_gain.csv`. Values are unrounded.

    Args:
        metrics: of the run.
        run_path: its folder.
        intervals: of its rows; None if there are none.
    """
    write_json(run_path / "metrics.json", _json(metrics, intervals))
    if intervals:
        write_text(run_path / "tables" / "intervals.csv", _intervals_csv(metrics, intervals))
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


def _intervals_csv(metrics: RunMetrics, intervals: RunIntervals) -> str:
    """A line a row and group: both metrics with the ends of their 95% intervals."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    names = [f"{metric}{end}" for metric in ("auc", "tpr_at_5fpr") for end in ("", "_low", "_high")]
    writer.writerow(["attack", "title", "level", "group", *names])
    for row in metrics.rows:
        for c in metrics.columns:
            numbers: list[float | None] = []
            for value, found in ((row.auc, intervals.auc), (row.tpr, intervals.tpr)):
                ends = c.of(found[row.id])
                numbers += [c.of(value), *((ends.low, ends.high) if ends else (None, None))]
            if any(n is not None for n in numbers):
                writer.writerow([row.id, row.title, c.level, c.id, *numbers])
    return file.getvalue()


def _json(metrics: RunMetrics, intervals: RunIntervals | None) -> dict[str, Any]:
    manifest = metrics.run.manifest
    return {
        "format": METRICS_FORMAT,
        **{name: manifest[name] for name in ("model", "benchmark", "split", "variant", "protocol")},
        "auc": {row.id: dataclasses.asdict(row.auc) for row in metrics.rows},
        "tpr_at_5fpr": {row.id: dataclasses.asdict(row.tpr) for row in metrics.rows},
        "intervals": intervals and dataclasses.asdict(intervals),
        "subsets": {
            attack: {subset: dataclasses.asdict(value) for subset, value in values.items()}
            for attack, values in metrics.subsets.items()
        },
    }


def write_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """Writes compared pairs as CSV, unrounded: second minus first, the ends of its intervals, p, and p after Holm."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["first", "second", "difference", "low_95", "high_95", "low_99", "high_99", "p", "p_holm"])
    for p in pairs:
        ends = (p.interval.low, p.interval.high, p.interval_99.low, p.interval_99.high)
        writer.writerow([p.first, p.second, p.difference, *ends, p.p, p.p_holm])
    write_text(path, file.getvalue())


def print_tables(metrics: Sequence[RunMetrics], found: Bootstrap | None, console: Console) -> None:
    """Prints each run's tables and what to know about its scores, then the mean over comparable runs.

    Args:
        metrics: of the runs.
        found: their intervals; None to show none.
        console: where to.
    """
    for i, result in enumerate(metrics):
        ends = found.runs[i] if found else None
        _print_table(console, caption(result.run), result.rows, summary_columns(result), ends)
        if result.texts:
            print_texts(result.texts, console)
        if result.supervised:
            print_supervised(result.supervised, summary_columns(result), console)
        for note in notes(result):
            console.print(Padding(Text(note), (0, 0, 0, 2)))
    averages = mean_over_runs(metrics)
    if averages:
        ends = found.mean if found else None
        _print_table(console, f"Mean over the {len(metrics)} runs", averages, summary_columns(metrics[0]), ends)
        supervised = mean_over_tables([result.supervised for result in metrics])
        if supervised:
            print_supervised(supervised, summary_columns(metrics[0]), console)
        for pair in models_comparison(metrics, found) if found else ():
            console.print(Text(_model_pair(pair)))


def _model_pair(pair: Pair) -> str:
    ends = pair.interval
    return printable(
        f"{pair.second} against {pair.first}: mean AUC over attacks {signed(pair.difference)} "
        f"(95%: {ends.low:+.2f} to {ends.high:+.2f}; {pair.p:.3f} of the resamples are not above 0)"
    )


def summary_columns(metrics: RunMetrics) -> tuple[Column, ...]:
    """Stages and All; of a run of some subsets only, every group that has a value."""
    run = metrics.run
    if run.tree is not None and len(run.subsets) == len(run.tree.subsets):
        return tuple(c for c in metrics.columns if c.level in ("stage", "all"))
    return tuple(
        c for c in metrics.columns if c.level != "domain" and any(c.of(r.auc) is not None for r in metrics.rows)
    )


def _print_table(
    console: Console, title: str, rows: Iterable[Row], columns: Sequence[Column], intervals: RunIntervals | None
) -> None:
    console.print(Text(title, style="bold"))  # Text: a model's name is never read as markup
    if not columns:
        return
    # Without lines between columns the stages, All and its interval fit 80 characters.
    narrow = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(**narrow) if intervals else Table()
    table.add_column("Attack", overflow="fold")
    for column in columns:
        title = column.title.replace("-", "-\n") if intervals else column.title
        table.add_column(Text(f"{title}\n AUC   TPR"), justify="right", no_wrap=True)
    last = columns[-1]
    if intervals:
        table.add_column(Text(f"95% of\n{last.title}"), justify="right", no_wrap=True)
    for row in rows:
        if row.id == METHOD_AVG:
            table.add_section()
        cells = [f"{two_decimals(c.of(row.auc))}  {two_decimals(c.of(row.tpr))}" for c in columns]
        table.add_row(row.title, *cells, *([between(last.of(intervals.auc[row.id]))] if intervals else []))
    console.print(table)
    console.print(Text("TPR at 5% FPR. Chance: AUC 0.50, TPR 0.05. – : a subset of the group has no AUC.", style="dim"))
    if intervals:
        console.print(Text("95%: bootstrap of every subset's members and non-members.", style="dim"))


def between(interval: Interval | None) -> str:
    """An interval as the paper prints it; a dash if it is missing."""
    return ABSENT if interval is None else f"{interval.low:.2f}–{interval.high:.2f}"


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
