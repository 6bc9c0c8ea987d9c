"""The commands about what was scored: evaluate, report, tables. As in `cli`, imports wait until one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from olmodetect_jax.commands.words import ids

Runs = Annotated[list[Path], typer.Argument(help="Run folders of `olmodetect score`.")]
Against = Annotated[str | None, typer.Option(help="paper: hold each value against the published one.")]
Resamples = Annotated[int, typer.Option("--bootstrap", help="Resamples for 95% intervals; 0 for none.")]


def evaluate(runs: Runs, n_resamples: Resamples = 2000) -> None:
    """AUC and TPR@5%FPR from scores, with intervals; writes tables/.

    Example: olmodetect evaluate runs/olmo2-1b
    """
    from rich.console import Console

    from olmodetect_jax.commands.evaluate import evaluate_runs
    from olmodetect_jax.evaluation.tables import print_tables

    print_tables(*evaluate_runs(runs, n_resamples), Console())


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    compare_protocols: Annotated[
        bool, typer.Option("--compare-protocols", help="Repeat each run with one protocol field changed at a time.")
    ] = False,
    against: Against = None,
    mesh: Annotated[str | None, typer.Option(help="data=N,fsdp=N,tensor=N; all devices on data if left out.")] = None,
) -> None:
    """One HTML page: which attack works where, how sure that is, and single records token by token.

    Example: olmodetect report runs/olmo2-1b --out report.html

    Example: olmodetect report quickstart --compare-protocols --out protocols.html
    """
    from olmodetect_jax.commands.report import report_runs

    if compare_protocols:
        from rich.console import Console

        from olmodetect_jax.commands.compare_protocols import compare_protocols as compare
        from olmodetect_jax.evaluation.protocols import print_protocols, read_protocols

        for run in runs:
            compare(run, mesh=mesh)
            print_protocols(read_protocols(run), Console())
    report_runs(runs, out, against=against)
    print(f"report: {out}")


def tables(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("tables"),
    verification: Annotated[
        Path | None, typer.Option(help="The verification.json of `olmodetect verify`, for tables of the texts.")
    ] = None,
    against: Against = None,
    only: Annotated[str | None, typer.Option(help="Numbers of tables separated by commas; all if left out.")] = None,
    n_resamples: Resamples = 2000,
    seed: Annotated[int, typer.Option(help="Of the resamples and draws.")] = 0,
    resample: Annotated[
        str, typer.Option(help="prompts or texts: whether a DPO prompt's two texts are drawn together.")
    ] = "prompts",
) -> None:
    """The paper's tables, as far as the runs support them: terminal, CSV, Markdown, LaTeX, JSON.

    Example: olmodetect tables runs/olmo2-1b runs/olmo2-7b --against paper --out tables

    Example: olmodetect tables quickstart --only 4,28 --out tables
    """
    from rich.console import Console

    from olmodetect_jax.commands.tables import make_tables
    from olmodetect_jax.tables.write import print_table

    made = make_tables(
        runs, out, verification=verification, against=against, only=ids(only), n_resamples=n_resamples, seed=seed,
        resample=resample,
    )  # fmt: skip
    console = Console()
    for table in made:
        print_table(table, console)
    print(f"{out}: {len(made)} tables as CSV, Markdown, LaTeX and JSON; all in {out / 'tables.md'}")


def import_released(
    tree: Annotated[Path, typer.Argument(help="Folder of released scores: holds `results`.")],
    out: Annotated[Path, typer.Option(help="Folder to make run folders in.")],
    benchmark: Annotated[
        Path | None, typer.Option(help="The benchmark, to join scores to its records; as they are if left out.")
    ] = None,
    reading: Annotated[
        str, typer.Option(help="as_stored: all, as the published numbers do; current: one a record of the benchmark.")
    ] = "as_stored",
    em_mia: Annotated[
        str, typer.Option(help="published: the best of four on the test labels; dev: chosen on development texts.")
    ] = "published",
) -> None:
    """Make run folders of the scores that the benchmark's authors released.

    Example: olmodetect import-released OLMo-Detect --benchmark OLMo-Detect/benchmark --out released
    """
    from olmodetect_jax.commands.released import import_released as run

    runs = run(tree, out, benchmark=benchmark, reading=reading, em_mia=em_mia)
    print(f"{out}: {len(runs)} runs; next: olmodetect tables {' '.join(map(str, runs))} --against paper")


def export_released(
    run: Annotated[Path, typer.Argument(help="Run folder of `olmodetect score` on a benchmark.")],
    out: Annotated[Path, typer.Option(help="Root of the tree to write.")],
    shape: Annotated[str, typer.Option(help="B: with settings and counts; A: samples alone, compact.")] = "B",
) -> None:
    """Write a run in the layout of the released scores, for others' evaluation.

    Example: olmodetect export-released runs/olmo2-1b --out tree
    """
    from olmodetect_jax.commands.released import export_released as write

    files = write(run, out, shape=shape)
    print(f"{out}: {len(files)} files")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (evaluate, report, tables, import_released, export_released):
        app.command()(command)
