"""The commands that construct a benchmark: index, build, verify. As in `cli`, imports wait until one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from olmodetect_jax.commands.words import benchmark_folder, model_folder

TokenizerFolder = Annotated[Path, typer.Option(help="Folder of the tokenizer.json to count and compare tokens with.")]
Memory = Annotated[float, typer.Option(help="GB that building and reading an index may hold.")]


def index(
    corpus: Annotated[list[Path], typer.Argument(help="Files or folders: JSONL (.gz, .zst), parquet.")],
    out: Annotated[Path, typer.Option(help="Folder of the index to make.")],
    tokenizer: TokenizerFolder,
    backend: Annotated[str, typer.Option(help="builtin, or infini-gram (an extra).")] = "builtin",
    n: Annotated[int, typer.Option(help="Tokens of an n-gram; infini-gram takes any later.")] = 13,
    memory: Memory = 2.0,
) -> None:
    """Index the n-grams of a corpus: what a model was trained on.

    Example: olmodetect index TRAINED_ON --tokenizer MODEL --out index
    """
    from olmodetect_jax.commands.index import make_index

    facts = make_index(corpus, out, model_folder(tokenizer), backend=backend, n=n, memory_gb=memory)
    print(f"{out}: {facts['documents']:,} documents, {facts['tokens']:,} tokens; {backend}")


def build(
    config: Annotated[Path, typer.Argument(help="YAML file; `configs/construction` has examples.")],
    out: Annotated[Path, typer.Option(help="Benchmark folder to make.")],
    sources: Annotated[
        Path | None, typer.Option(help="Folder that the configuration's paths start from; its own if left out.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder of indices and finished steps; OUT.work if left out.")
    ] = None,
) -> None:
    """Construct a benchmark: pools, boundary, 13-gram filter, budget, annealing, splits.

    Example: olmodetect build my_benchmark.yaml --out benchmark
    """
    from olmodetect_jax.commands.build import build_benchmark, summary

    facts = build_benchmark(config, out, sources=sources, work=work)
    print(summary(facts))
    print(f"{out}: built; next: olmodetect verify {out}, olmodetect score --benchmark {out}")


def verify(
    benchmark: Annotated[Path, typer.Argument(help="Benchmark folder, or the word sample.")],
    tokenizer: TokenizerFolder,
    out: Annotated[
        Path | None, typer.Option(help="Folder to make for tables and a page; NAME.verified here if left out.")
    ] = None,
    index: Annotated[
        list[Path] | None, typer.Option(help="Index of what was trained on, to measure overlap anew; repeatable.")
    ] = None,
) -> None:
    """Check a benchmark: overlap, likeness of its classes, a blind baseline, signs of leaks.

    Example: olmodetect verify sample --tokenizer sample
    """
    from olmodetect_jax.commands.verify import verify_benchmark

    folder = benchmark_folder(benchmark)
    print(verify_benchmark(folder, tokenizer=model_folder(tokenizer), out=out, indices=index or ()))


def register(app: typer.Typer) -> None:
    """Adds the three commands."""
    for command in (index, build, verify):
        app.command()(command)
