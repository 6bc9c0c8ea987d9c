"""`olmodetect quiz`: the options of DCQ's quizzes, made once for all models that are scored."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.benchmark import SIZES
from olmodetect_jax.commands.open_model import OpenModel, open_tokenizer
from olmodetect_jax.commands.options import ScoreOptions, check_dtype
from olmodetect_jax.commands.text_files import text_files
from olmodetect_jax.errors import DataError, OlmoDetectError, UsageError, one_of
from olmodetect_jax.quiz import perturber as perturber_module
from olmodetect_jax.quiz.endpoint import Endpoint, EndpointError, NoReply, Sleep
from olmodetect_jax.quiz.files import Quiz, Quizzes, load_quizzes, read_cache, read_table, write_quizzes
from olmodetect_jax.quiz.local_model import ask_model
from olmodetect_jax.quiz.options import Options, problem
from olmodetect_jax.quiz.perturber import perturb
from olmodetect_jax.records import Record, read_records, text_key
from olmodetect_jax.runtime.progress import progress

SAVE_EVERY = 10.0  # seconds of work that a kill can cost
AT_ONCE = 256  # texts that a local model is given together
STOP_AFTER = 3  # texts one after another that an endpoint does not reply to: it will not reply to the others either
CHARACTERS = 4  # of a token, in an estimate
OPTIONS = 4

Made = Iterator[tuple[Record, Options | str]]  # each text's options, or why it has none


@dataclass(frozen=True)
class QuizOptions:
    """What makes the options: one of `model` (behind an endpoint), `from_model`, `perturber` and `imported`.

    Attributes:
        model: name of a judge behind the endpoint that the environment names; with `imported`, the judge whose replies
            the cache holds.
        from_model: directory of an instruction model.
        perturber: whether words are replaced from a table, without any model.
        imported: a CSV file of the original DCQ, or the cache folder of the released code.
        prompt: the user's wording of the request; None for this project's own.
        price_in: of a million tokens that are sent, in any currency; to say what it will cost.
        price_out: of a million tokens that are received.
        size: of a benchmark that has texts of its own for each model size; None takes all.
        subsets: of a benchmark; None takes all.
        dtype: of the local model.
        mesh: of the local model, as `olmodetect score` takes it.
    """

    model: str | None = None
    from_model: Path | None = None
    perturber: bool = False
    imported: Path | None = None
    prompt: Path | None = None
    price_in: float | None = None
    price_out: float | None = None
    size: str | None = None
    subsets: Sequence[str] | None = None
    dtype: str = "float32"
    mesh: str | None = None


def make_quiz(
    inputs: Path,
    out: Path,
    options: QuizOptions,
    *,
    confirm: Callable[[str], bool],
    sleep: Sleep = time.sleep,
    environment: Mapping[str, str] = os.environ,
) -> Quizzes:
    """Makes the options of every text of a benchmark or of a file; texts that `out` has already are not made again.

    A text that gets no options is named on standard error, and the others are kept.

    Args:
        inputs: a benchmark's folder (all its splits and variants that are there), or a JSONL file of texts.
        out: the quiz file; work on it can be broken off at any time and taken up again.
        options: what makes the options.
        confirm: is asked, with a question that says what is sent where and what it will cost, before any text is sent.
        sleep: waits between an endpoint's tries.
        environment: holds the endpoint's address and key.

    Returns:
        All that `out` holds then.

    Raises:
        UsageError: an option or the environment is wrong.
        DataError: texts cannot be read, `out` is no quiz file, or not one text has options.
        EndpointError: the endpoint does not answer or refuses; what was made before is kept.
        OlmoDetectError: `confirm` said no.
    """
    _check(options)
    prompts = Prompts.load({"dcq_options": options.prompt} if options.prompt else {})

    def prompt_of(text: str) -> str:
        return prompts.fill("dcq_options", original_instance=text)

    endpoint = None
    if options.model and not options.imported:
        endpoint = Endpoint.from_environment(options.model, environment)
    files = [read_records(path, subset="texts") for path in text_files(inputs, options.size, options.subsets)]
    done = dict(load_quizzes(out).by_key) if out.exists() else {}
    new = {r.text: r for records in reversed(files) for r in reversed(records) if r.text and not _has(done, r.text)}
    todo = [*reversed(new.values())]
    with tempfile.TemporaryDirectory() as folder:
        if endpoint:
            generator, created = endpoint.model, None
            made = _from_endpoint(endpoint, todo, prompt_of, sleep) if todo else iter(())
            if todo and not confirm(_question(endpoint, todo, prompt_of, options)):
                raise OlmoDetectError("nothing was sent, and nothing written")
        elif options.from_model:
            judge = _LocalModel(options, Path(folder)) if todo else None
            generator, created = judge.name if judge else "", None
            made = judge.ask(todo, prompt_of) if judge else iter(())
        elif options.imported:
            generator, created, made = _imported(options, todo, prompt_of)
        else:
            generator, created = perturber_module.NAME, perturber_module.CREATED
            made = ((r, perturb(r.text) or f"{generator} finds too few words to replace") for r in todo)
        _collect(made, len(todo), out, done, generator, created)
    if not done:
        raise DataError(f"{out}: not written, for none of {len(todo)} texts has options")
    return Quizzes(out, done)


def _check(options: QuizOptions) -> None:
    makers = {
        "--model": options.model and not options.imported, "--from-model": options.from_model,
        "--perturber": options.perturber, "--import": options.imported,
    }  # fmt: skip
    if sum(map(bool, makers.values())) != 1:
        raise UsageError(f"what makes the options? Give one of {', '.join(makers)}")
    if options.model and not options.imported and not options.model.strip():
        raise UsageError("--model: expected the name of a model behind the endpoint")
    if options.imported and (options.imported.suffix != ".csv") != bool(options.model):
        raise UsageError("--import: a CSV file, or a cache folder together with the --model whose replies it holds")
    if options.size not in (None, *SIZES):
        raise one_of("--size", options.size, SIZES)
    prices = (options.price_in, options.price_out)
    if any(price is not None for price in prices):
        if None in prices or not makers["--model"]:
            raise UsageError("--price-in and --price-out go together, with an endpoint's --model")
        if not all(0 <= price < float("inf") for price in prices):
            raise UsageError("--price-in, --price-out: expected what a million tokens cost")
    check_dtype(options.dtype)


def _has(done: Mapping[str, Quiz], text: str) -> bool:
    quiz = done.get(text_key(text))
    return quiz is not None and problem(quiz.options, text) is None


def _collect(made: Made, count: int, out: Path, done: dict[str, Quiz], generator: str, created: str | None) -> None:
    """Takes up what is made, and writes it from time to time, and at the end whatever the end is."""
    saved, changed = time.monotonic(), False
    try:
        with progress("Making options", count, unit="texts") as advance:
            for record, options in made:
                reason = options if isinstance(options, str) else problem(options, record.text)
                if reason:
                    print(f"left out: {record}: {reason}", file=sys.stderr)
                else:
                    when = datetime.now(UTC).isoformat(timespec="seconds") if created is None else created
                    done[text_key(record.text)] = Quiz(options, generator, when)
                    changed = True
                if changed and time.monotonic() - saved > SAVE_EVERY:
                    write_quizzes(out, done)
                    saved, changed = time.monotonic(), False
                advance(1)
    finally:
        if changed:
            write_quizzes(out, done)


def _question(endpoint: Endpoint, todo: Sequence[Record], prompt_of: Callable[[str], str], options: QuizOptions) -> str:
    """What is sent where, how much of it, and what that costs."""
    sent = sum(len(prompt_of(r.text)) for r in todo) / CHARACTERS
    received = OPTIONS * sum(len(r.text) for r in todo) / CHARACTERS
    lines = [
        f"{len(todo)} texts will be sent to {endpoint.host}, for {endpoint.model} to reword each four times.",
        f"About {sent:,.0f} tokens in and {received:,.0f} out, at {CHARACTERS} characters a token; what is asked again "
        "comes on top.",
    ]
    if options.price_in is not None:
        price = (sent * options.price_in + received * options.price_out) / 1e6
        lines.append(f"At {options.price_in:g} and {options.price_out:g} a million tokens that is about {price:,.2f}.")
    else:
        lines.append("What that costs is up to the endpoint; --price-in and --price-out reckon it.")
    if endpoint.is_open:
        lines.append("The address begins with http, not https: others on the way can read texts and key.")
    return "\n".join([*lines, "Send them?"])


def _from_endpoint(endpoint: Endpoint, todo: Iterable[Record], prompt_of: Callable[[str], str], sleep: Sleep) -> Made:
    """One text at a time.

    Raises:
        EndpointError: several texts in a row have no reply.
    """
    silent = 0
    for record in todo:
        try:
            made: Options | str = endpoint.options(prompt_of(record.text), sleep)
            silent = 0
        except NoReply as error:
            made = str(error)
            silent += 1
        yield record, made
        if silent == STOP_AFTER:
            raise EndpointError(f"{STOP_AFTER} texts in a row have no reply, the last because of {made}")


class _LocalModel:
    """A model that is asked on this machine; what it writes is kept in the quiz file alone."""

    def __init__(self, options: QuizOptions, folder: Path):
        tokenizer = open_tokenizer(options.from_model)
        if not tokenizer.has_chat:
            print(f"warning: {options.from_model} has no chat template; it may not do as it is told", file=sys.stderr)
        own = ScoreOptions(options.from_model, folder, dtype=options.dtype, mesh=options.mesh)
        self._model = OpenModel(own, tokenizer)
        model = self._model.facts["model"]
        self.name = f"{model['name']} ({model['weights_digest'][:12]}, {options.dtype})"

    def ask(self, todo: Sequence[Record], prompt_of: Callable[[str], str]) -> Made:
        model = self._model
        answer = model.engine("float32")
        for start in range(0, len(todo), AT_ONCE):
            records = todo[start : start + AT_ONCE]
            replies = ask_model([r.text for r in records], prompt_of, model.tokenizer, answer, model.context)
            yield from zip(records, replies, strict=True)


def _imported(options: QuizOptions, todo: Sequence[Record], prompt_of: Callable[[str], str]) -> tuple[str, str, Made]:
    """Generator, date (not known) and options of a file that somebody else made."""
    path = options.imported
    if options.model:
        generator, found = options.model, read_cache(path, options.model, prompt_of, [r.text for r in todo])
    else:
        generator, found = f"imported from {path.name}", read_table(path)
    return generator, "", ((r, found.get(r.text, f"is not in {path}")) for r in todo)
