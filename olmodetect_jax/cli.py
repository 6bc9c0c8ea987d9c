"""The command line: reads options, calls `olmodetect_jax.commands`, turns errors into messages and exit codes.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from olmodetect_jax import __version__, cli_construction, cli_results
from olmodetect_jax.commands.words import benchmark_folder, ids, model_folder
from olmodetect_jax.errors import OlmoDetectError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Membership inference attacks on language models, with known error. Start with: olmodetect quickstart",
)

Attacks = Annotated[
    str, typer.Option(help="Ids separated by commas (`olmodetect attacks`), fsd, unsupervised, supervised or all.")
]
Limit = Annotated[int | None, typer.Option(help="Only the first N records of each class and subset.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16: of weights and activations.")]
Mesh = Annotated[str | None, typer.Option(help="data=N,fsdp=N,tensor=N; all devices on data if left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Run folder to make.")] = Path("quickstart"),
    attacks: Attacks = "unsupervised",
    limit: Limit = None,
    full: Annotated[
        bool, typer.Option("--full", help="All records for EMMIA and generative attacks; all epochs for MIA-Tuner.")
    ] = False,
) -> None:
    """Tune, score and evaluate the embedded model: table and report.

    Example: olmodetect quickstart --out quickstart
    """
    from olmodetect_jax.commands.quickstart import quickstart as run

    report = run(out, attacks=attacks, limit=limit, full=full)
    print(f"report: {report}")


@app.command()
def convert(
    hf_dir: Annotated[Path, typer.Argument(help="Hugging Face directory: config.json and safetensors.")],
    out: Annotated[Path, typer.Argument(help="Checkpoint directory to make.")],
    dtype: Dtype = "float32",
    mesh: Mesh = None,
) -> None:
    """Hugging Face safetensors to an Orbax checkpoint.

    Example: olmodetect convert OLMo-2-0425-1B-Instruct olmo2-1b --dtype bfloat16
    """
    from conversion.checkpoint import convert as run
    from olmodetect_jax.commands.options import check_dtype
    from olmodetect_jax.models.sharding import leaf_sharding, make_mesh, parse_mesh

    places = make_mesh(parse_mesh(mesh) if mesh is not None else None)
    model = run(model_folder(hf_dir), out, check_dtype(dtype), lambda path, shape: leaf_sharding(places, path, shape))
    print(f"{out}: {model.name}, {dtype}, weights {model.weights_digest[:12]}")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Model directory: of `convert` or Hugging Face; or the word sample.")],
    out: Annotated[Path, typer.Argument(help="Hugging Face directory to make.")],
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; as stored if left out.")] = None,
) -> None:
    """A checkpoint back to Hugging Face safetensors.

    Example: olmodetect export olmo2-1b olmo2-1b-hf
    """
    from conversion import load_model_directory
    from conversion.export import export_hf
    from olmodetect_jax.commands.options import check_dtype

    model = model_folder(model)
    loaded = load_model_directory(model)
    export_hf(loaded, out, dtype and check_dtype(dtype), source=model)
    print(f"{out}: {loaded.name}, {dtype or loaded.dtype}")


@app.command()
def score(
    model: Annotated[Path, typer.Option(help="Model directory: of `convert` or Hugging Face; or the word sample.")],
    out: Annotated[Path, typer.Option(help="Run folder to make, or to go on with after a kill.")],
    benchmark: Annotated[
        Path | None, typer.Option(help="Benchmark folder in the released layout, or the word sample.")
    ] = None,
    texts: Annotated[Path | None, typer.Option(help="JSONL file of your own texts, labelled or not.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="JSONL file of non-members to hold --texts against; the sample has its own."),
    ] = None,
    dev: Annotated[
        Path | None,
        typer.Option(help="JSONL file of labelled texts that ReCaLL, CAMIA and the supervised learn from."),
    ] = None,
    attacks: Attacks = "unsupervised",
    setting: Annotated[
        str, typer.Option(help="in-domain,lodo,pooled or some: supervised attacks learn from this domain, others, all.")
    ] = "in-domain",
    protocol: Annotated[
        str, typer.Option(help="audited, paper or release; `olmodetect protocols` shows them.")
    ] = "audited",
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: one protocol field or hyperparameter; repeatable.")
    ] = None,
    hyperparameters: Annotated[
        Path | None, typer.Option(help="What `olmodetect tune` chose: the hyperparameters.yaml of its run folder.")
    ] = None,
    em_mia_limit: Annotated[
        int | None, typer.Option(help="EMMIA compares N records of each class only, drawn by a hash of their text.")
    ] = None,
    generation_limit: Annotated[
        int | None, typer.Option(help="The generative attacks take N records of each class only, drawn in that way.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: your wording of a prompt or the table of sources; another NAME lists all."),
    ] = None,
    quiz: Annotated[
        Path | None, typer.Option(help="What `olmodetect quiz` made, for dcq; the benchmark folder's own if left out.")
    ] = None,
    neighbours: Annotated[
        Path | None,
        typer.Option(help="What `olmodetect neighbours` made, for neighborhood; by the model itself if left out."),
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
    token_budget: Annotated[
        int | None, typer.Option(help="Tokens of a batch on each place rows are split over: 2048 on a CPU, else 16384.")
    ] = None,
    frequencies: Annotated[
        Path | None, typer.Option(help="Token-frequency table for dc_pdd; the model directory's own if left out.")
    ] = None,
    adapters: Annotated[
        Path | None, typer.Option(help="Folder where trained adapters are kept and found; RUN/adapters if left out.")
    ] = None,
) -> None:
    """Score a benchmark, or your own texts.

    Example: olmodetect score --model sample --benchmark sample --out runs/sample

    Example: olmodetect score --model sample --benchmark sample --attacks supervised --setting lodo --out runs/sample

    Example: olmodetect score --model sample --texts mine.jsonl --reference others.jsonl --out runs/mine
    """
    from olmodetect_jax.commands.options import ScoreOptions
    from olmodetect_jax.commands.score import score as run

    options = ScoreOptions(
        model=model_folder(model), out=out, benchmark=benchmark_folder(benchmark), texts=texts, reference=reference,
        dev=dev,
        attacks=attacks, setting=setting, protocol=protocol, settings=tuple(changes or ()), dtype=dtype,
        hyperparameters=hyperparameters, em_mia_limit=em_mia_limit, generation_limit=generation_limit, quiz=quiz,
        prompts=tuple(prompt or ()), neighbours=neighbours, split=split, variant=variant, size=size, adapters=adapters,
        subsets=ids(subsets), limit=limit, mesh=mesh, token_budget=token_budget, frequencies=frequencies,
    )  # fmt: skip
    scores = run(options)
    found = [s for column in scores.values() for s in column]
    left_out = sum(s.left_out for s in found)
    missing = sum(s.missing is not None for s in found) - left_out
    more = f", {left_out} left out by choice" if left_out else ""
    print(f"{out}: {len(found) - missing - left_out} scores, {missing} missing{more}; next: olmodetect evaluate {out}")


@app.command()
def tune(
    run: Annotated[Path, typer.Argument(help="Run folder of `olmodetect score` on a benchmark.")],
    attacks: Annotated[str | None, typer.Option(help="Attack ids separated by commas; the run's if left out.")] = None,
    mesh: Mesh = None,
) -> None:
    """Choose hyperparameters on the benchmark's development split.

    Writes hyperparameters.yaml into the run folder, for `olmodetect score --hyperparameters`, and the whole grid.

    Example: olmodetect tune runs/sample
    """
    from rich.console import Console

    from olmodetect_jax.commands.rerun import tuned_command
    from olmodetect_jax.commands.tune import tune_run
    from olmodetect_jax.evaluation.tuning import print_tuning, read_tuning
    from olmodetect_jax.report.tuning_plot import write_tuning_plot

    tune_run(run, attacks=attacks, mesh=mesh)
    write_tuning_plot(run)
    print_tuning(read_tuning(run), Console())
    print(f"{run / 'hyperparameters.yaml'}; next: {tuned_command(run)}")


cli_results.register(app)


@app.command()
def budget(
    run: Annotated[Path, typer.Argument(help="Run folder of `olmodetect score` on a benchmark.")],
    mesh: Mesh = None,
) -> None:
    """Show how Sup-CAMIA fares with more labelled texts to learn from: ten to fifty per cent of each subset.

    Example: olmodetect budget runs/sample
    """
    from olmodetect_jax.commands.budget import budget as measure

    measure(run, mesh=mesh)
    print(f"{run}: budget.json; next: olmodetect report {run} --out report.html")


@app.command()
def frequencies(
    texts: Annotated[list[Path], typer.Argument(help="JSONL files of text that is in neither class.")],
    model: Annotated[Path, typer.Option(help="Model directory whose tokenizer.json makes the ids.")],
    out: Annotated[Path, typer.Option(help="Table to write, such as MODEL/token_frequencies.safetensors.")],
    max_tokens: Annotated[int, typer.Option(help="Tokens of each text that count, from its start.")] = 4096,
) -> None:
    """Count tokens of ordinary text, for dc_pdd.

    Example: olmodetect frequencies web.jsonl --model olmo2-1b --out olmo2-1b/token_frequencies.safetensors
    """
    from olmodetect_jax.commands.frequencies import frequencies as run

    table = run(texts, model_folder(model), out, max_tokens=max_tokens)
    print(f"{out}: {table.documents} documents, {table.counts.sum()} tokens")


@app.command()
def neighbours(
    texts: Annotated[Path, typer.Argument(help="Benchmark folder, the word sample, or a JSONL file of texts.")],
    filler: Annotated[Path, typer.Option(help="Directory of a T5 or of a masked language model (Hugging Face).")],
    out: Annotated[Path, typer.Option(help="File to write, or to go on with after a kill.")],
    window: Annotated[
        str, typer.Option(help="kept or flattened: the white space of long texts; the protocol's neighborhood_window.")
    ] = "kept",
    seed_rule: Annotated[
        str, typer.Option(help="text or file: what gaps are drawn by; the protocol's neighborhood_seed.")
    ] = "text",
    size: Annotated[str | None, typer.Option(help="1b, 7b, 13b or 32b; all of the benchmark's if left out.")] = None,
    subsets: Annotated[str | None, typer.Option(help="Subset ids separated by commas; all if left out.")] = None,
) -> None:
    """Fill gaps of texts with another model's words, for neighborhood. Needs torch.

    Example: olmodetect neighbours BENCHMARK --filler t5-large --out neighbours.jsonl
    """
    from olmodetect_jax.commands.neighbours import make_neighbours

    made = make_neighbours(
        benchmark_folder(texts), filler, out, seed_rule=seed_rule, window=window, size=size, subsets=ids(subsets)
    )
    print(f"{out}: neighbours of {len(made.by_key)} texts; next: olmodetect score --neighbours {out}")


@app.command()
def quiz(
    texts: Annotated[Path, typer.Argument(help="Benchmark folder, the word sample, or a JSONL file of texts.")],
    out: Annotated[Path, typer.Option(help="File to write, or to go on with after a kill; .gz and .zst are packed.")],
    model: Annotated[
        str | None,
        typer.Option(help="A model at the OpenAI-compatible address OPENAI_BASE_URL, with the key OPENAI_API_KEY."),
    ] = None,
    from_model: Annotated[Path | None, typer.Option(help="Directory of an instruction model to run here.")] = None,
    perturber: Annotated[
        bool, typer.Option("--perturber", help="Replace words from a table, without a model.")
    ] = False,
    imported: Annotated[
        Path | None,
        typer.Option("--import", help="CSV file of the original DCQ; or the released cache, with --model."),
    ] = None,
    prompt: Annotated[Path | None, typer.Option(help="Your wording of the request, in place of ours.")] = None,
    price_in: Annotated[float | None, typer.Option(help="Price of a million tokens sent, for the estimate.")] = None,
    price_out: Annotated[float | None, typer.Option(help="Price of a million tokens received.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Send texts without asking.")] = False,
    dtype: Dtype = "float32",
    mesh: Mesh = None,
    size: Annotated[str | None, typer.Option(help="1b, 7b, 13b or 32b; all of the benchmark's if left out.")] = None,
    subsets: Annotated[str | None, typer.Option(help="Subset ids separated by commas; all if left out.")] = None,
) -> None:
    """Make the options of DCQ's quizzes, once for all models.

    Example: olmodetect quiz BENCHMARK --model gpt-4o-mini-2024-07-18 --out quiz.jsonl
    """
    from olmodetect_jax.commands.quiz import QuizOptions, make_quiz
    from olmodetect_jax.errors import UsageError

    options = QuizOptions(
        model=model, from_model=from_model and model_folder(from_model), perturber=perturber, imported=imported,
        prompt=prompt, price_in=price_in, price_out=price_out, size=size, subsets=ids(subsets), dtype=dtype, mesh=mesh,
    )  # fmt: skip

    def confirm(question: str) -> bool:
        if yes:
            return True
        try:
            return typer.confirm(question)
        except typer.Abort:
            raise UsageError("nobody answers the question; add --yes to send the texts without it") from None

    made = make_quiz(benchmark_folder(texts), out, options, confirm=confirm)
    print(f"{out}: quizzes of {len(made.by_key)} texts; next: olmodetect score --quiz {out}")


cli_construction.register(app)


@app.command()
def attacks(as_json: AsJson = False) -> None:
    """List the attacks, and the rows of the supervised ones: id and title.

    Example: olmodetect attacks --json
    """
    from olmodetect_jax.commands.lists import print_attacks

    print_attacks(as_json=as_json)


@app.command()
def protocols(as_json: AsJson = False) -> None:
    """List protocol fields and their presets.

    Example: olmodetect protocols --json
    """
    from olmodetect_jax.commands.lists import print_protocols

    print_protocols(as_json=as_json)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 done; 1 the work failed (the message says at which file or record); 2 wrong usage or configuration.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character shows its code
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=arguments, prog_name="olmodetect")
    except SystemExit as end:
        if end.code in (0, 2):  # done, or wrong usage: typer has said what is wrong
            return int(end.code)
        if not isinstance(end.__context__, OSError):  # a closed pipe is no news to whoever closed it
            _say("interrupted; finished work is kept, the same command goes on from there")
        return 1
    except OlmoDetectError as error:
        _say(f"error: {error}")
        return error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        hint = "; free some space, finished work is kept" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        _say(f"error: {where}{error.strerror or error}{hint}")
        return 1
    return 0


def _say(message: str) -> None:
    """Prints to standard error; control characters from file and tensor names do not reach the terminal."""
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in message)
    print(shown, file=sys.stderr)


def entry() -> None:
    """The `olmodetect` script."""
    sys.exit(main())
