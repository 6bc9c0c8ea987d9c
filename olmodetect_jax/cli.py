"""The command line: reads options, calls `olmodetect_jax.commands`, turns errors into messages and exit codes.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from olmodetect_jax import __version__
from olmodetect_jax.errors import OlmoDetectError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Membership inference attacks on language models, with known error. Start with: olmodetect quickstart",
)

Attacks = Annotated[str, typer.Option(help="Attack ids separated by commas, or all; `olmodetect attacks` lists them.")]
Limit = Annotated[int | None, typer.Option(help="Only the first N records of each class and subset.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16: of weights and activations.")]
Mesh = Annotated[str | None, typer.Option(help="data=N,fsdp=N,tensor=N; all devices on data if left out.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders of `olmodetect score`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Run folder to make.")] = Path("quickstart"),
    attacks: Attacks = "all",
    limit: Limit = None,
) -> None:
    """Score the embedded model on the embedded benchmark; print the table, write report.html.

    Example: olmodetect quickstart --out quickstart
    """
    from olmodetect_jax.commands.quickstart import quickstart as run

    report = run(out, attacks=attacks, limit=limit)
    print(f"report: {report}")


@app.command()
def convert(
    hf_dir: Annotated[Path, typer.Argument(help="Hugging Face directory: config.json and safetensors.")],
    out: Annotated[Path, typer.Argument(help="Checkpoint directory to make.")],
    dtype: Dtype = "float32",
    mesh: Mesh = None,
) -> None:
    """Turn Hugging Face safetensors into an Orbax checkpoint that loads shard by shard.

    Example: olmodetect convert OLMo-2-0425-1B-Instruct olmo2-1b --dtype bfloat16
    """
    from conversion.checkpoint import convert as run
    from olmodetect_jax.commands.options import check_dtype
    from olmodetect_jax.models.sharding import leaf_sharding, make_mesh, parse_mesh

    places = make_mesh(parse_mesh(mesh) if mesh else None)
    model = run(hf_dir, out, check_dtype(dtype), lambda path, shape: leaf_sharding(places, path, shape))
    print(f"{out}: {model.name}, {dtype}, weights {model.weights_digest[:12]}")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Model directory: a checkpoint of `convert`, or Hugging Face.")],
    out: Annotated[Path, typer.Argument(help="Hugging Face directory to make.")],
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; as stored if left out.")] = None,
) -> None:
    """Turn a checkpoint back into Hugging Face safetensors.

    Example: olmodetect export olmo2-1b olmo2-1b-hf
    """
    from conversion import load_model_directory
    from conversion.export import export_hf
    from olmodetect_jax.commands.options import check_dtype

    loaded = load_model_directory(model)
    export_hf(loaded, out, dtype and check_dtype(dtype), source=model)
    print(f"{out}: {loaded.name}, {dtype or loaded.dtype}")


@app.command()
def score(
    model: Annotated[Path, typer.Option(help="Model directory: a checkpoint of `convert`, or Hugging Face.")],
    out: Annotated[Path, typer.Option(help="Run folder to make, or to go on with after a kill.")],
    benchmark: Annotated[Path | None, typer.Option(help="Benchmark folder in the released layout.")] = None,
    texts: Annotated[Path | None, typer.Option(help="JSONL file of your own texts, labelled or not.")] = None,
    reference: Annotated[Path | None, typer.Option(help="JSONL file of non-members to hold --texts against.")] = None,
    attacks: Attacks = "all",
    protocol: Annotated[
        str, typer.Option(help="audited, paper or release; `olmodetect protocols` shows them.")
    ] = "audited",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: one protocol field or hyperparameter; repeatable.")
    ] = None,
    split: Annotated[str, typer.Option(help="test or dev.")] = "test",
    variant: Annotated[str, typer.Option(help="matched or shifted.")] = "matched",
    size: Annotated[
        str | None, typer.Option(help="1b, 7b, 13b or 32b; read from the model's name if left out.")
    ] = None,
    subsets: Annotated[str | None, typer.Option(help="Subset ids separated by commas; all if left out.")] = None,
    limit: Limit = None,
    dtype: Dtype = "float32",
    mesh: Mesh = None,
    token_budget: Annotated[int, typer.Option(help="Tokens of a batch on each place rows are split over.")] = 16_384,
    frequencies: Annotated[
        Path | None, typer.Option(help="Token-frequency table for dc_pdd; the model directory's own if left out.")
    ] = None,
) -> None:
    """Score a benchmark, or your own texts, under a model.

    Example: olmodetect score --model olmo2-1b --benchmark benchmark --out runs/olmo2-1b

    Example: olmodetect score --model olmo2-1b --texts mine.jsonl --reference others.jsonl --out runs/mine
    """
    from olmodetect_jax.commands.score import ScoreOptions
    from olmodetect_jax.commands.score import score as run

    chosen = [s.strip() for s in subsets.split(",") if s.strip()] if subsets is not None else None
    options = ScoreOptions(
        model=model, out=out, benchmark=benchmark, texts=texts, reference=reference, attacks=attacks, protocol=protocol,
        settings=tuple(setting or ()), split=split, variant=variant, size=size, subsets=chosen, limit=limit,
        dtype=dtype, mesh=mesh, token_budget=token_budget, frequencies=frequencies,
    )  # fmt: skip
    scores = run(options)
    missing = sum(s.missing is not None for column in scores.values() for s in column)
    total = sum(map(len, scores.values()))
    print(f"{out}: {total - missing} scores, {missing} missing; next: olmodetect evaluate {out}")


@app.command()
def evaluate(runs: Runs) -> None:
    """Turn scores into AUC and TPR@5%FPR by subset, domain, stage and All; writes metrics.json and tables/.

    Example: olmodetect evaluate runs/olmo2-1b
    """
    from rich.console import Console

    from olmodetect_jax.evaluation.tables import evaluate as run
    from olmodetect_jax.evaluation.tables import print_tables, write_tables

    results = run(runs)
    for metrics, path in zip(results, runs, strict=True):
        write_tables(metrics, path)
    print_tables(results, Console())


@app.command()
def report(runs: Runs, out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html")) -> None:
    """Write one self-contained HTML page with tables, ROC curves and score histograms.

    Example: olmodetect report runs/olmo2-1b --out report.html
    """
    from olmodetect_jax.report.page import write_report

    write_report(runs, out)
    print(f"report: {out}")


@app.command()
def frequencies(
    texts: Annotated[list[Path], typer.Argument(help="JSONL files of text that is in neither class.")],
    model: Annotated[Path, typer.Option(help="Model directory whose tokenizer.json makes the ids.")],
    out: Annotated[Path, typer.Option(help="Table to write, such as MODEL/token_frequencies.safetensors.")],
    max_tokens: Annotated[int, typer.Option(help="Tokens of each text that count, from its start.")] = 4096,
) -> None:
    """Count how often each token occurs in ordinary text, for the attack dc_pdd.

    Example: olmodetect frequencies web.jsonl --model olmo2-1b --out olmo2-1b/token_frequencies.safetensors
    """
    from olmodetect_jax.commands.frequencies import frequencies as run

    table = run(texts, model, out, max_tokens=max_tokens)
    print(f"{out}: {table.documents} documents, {table.counts.sum()} tokens")


@app.command()
def attacks(as_json: AsJson = False) -> None:
    """List the attacks: id and title.

    Example: olmodetect attacks --json
    """
    from olmodetect_jax.attacks.base import TITLES
    from olmodetect_jax.attacks.registry import ATTACKS

    if as_json:
        print(json.dumps([{"id": a, "title": TITLES[a]} for a in ATTACKS], indent=2))
    else:
        for name in ATTACKS:
            print(f"{name:<16} {TITLES[name]}")


@app.command()
def protocols(as_json: AsJson = False) -> None:
    """Show every protocol field with its value in each preset.

    Example: olmodetect protocols --json
    """
    from olmodetect_jax.protocol import PRESETS, load_protocol

    presets = {name: load_protocol(name).fields() for name in PRESETS}
    if as_json:
        print(json.dumps(presets, indent=2))
        return
    print(f"{'field':<16} " + " ".join(f"{name:<11}" for name in PRESETS))
    for field in presets[PRESETS[0]]:
        print(f"{field:<16} " + " ".join(f"{presets[name][field]!s:<11}" for name in PRESETS))


def main(arguments: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 done; 1 the work failed (the message says at which file or record); 2 wrong usage or configuration.
    """
    try:
        app(args=arguments, prog_name="olmodetect")
    except SystemExit as end:
        if end.code in (0, 2):  # done, or wrong usage: typer has said what is wrong
            return int(end.code)
        print("interrupted; finished work is kept, the same command goes on from there", file=sys.stderr)
        return 1
    except OlmoDetectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        hint = "; free some space, finished work is kept" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        print(f"error: {where}{error.strerror or error}{hint}", file=sys.stderr)
        return 1
    return 0


def entry() -> None:
    """The `olmodetect` script."""
    sys.exit(main())
