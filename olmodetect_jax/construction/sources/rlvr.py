"""Reinforcement learning with verifiable rewards: problems after worked examples (construction spec, 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import kept_fields, unique
from olmodetect_jax.construction.sources.messages import messages_of, render
from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import load_yaml

DATED = False
_FIELDS = ("ground_truth", "dataset", "constraint_type", "constraint")


class Options(BaseModel):
    """Which rows, and what comes before each problem.

    Attributes:
        dataset: of the mixture's rows.
        exemplars: (question, answer) of the worked examples.
        exemplars_file: the same from a YAML file, a list of {question, answer}; in place of `exemplars`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: Literal["gsm8k", "MATH"]
    exemplars: tuple[tuple[str, str], ...] = ()
    exemplars_file: Path | None = None


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows of the training mixture that begin with the worked examples.

    Raises:
        UsageError: the examples cannot be read.
        DataError: a row lacks a field.
    """
    return unique(_members(rows, options.dataset, _prefix(options), steps), steps)


def _members(rows: Iterable[Row], dataset: str, prefix: str, steps: Steps) -> Iterator[Candidate]:
    for row in rows:
        if row.field("dataset") != dataset:
            steps.drop("rows", "another data set")
            continue
        messages = messages_of(row.field("messages", list), row.where)
        if not messages or not messages[0]["content"].startswith(prefix):
            steps.drop("rows", "other examples")
            continue
        steps.keep("rows")
        question = messages[0]["content"].removeprefix(prefix)
        record = kept_fields(row, _FIELDS) | {"messages": messages, "text": render(messages), "text_no_cot": question}
        yield single(record, row.where, overlap_text=question)


def non_members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Problems that were not trained on (`id`, `question`, `ground_truth`), after the same worked examples.

    Raises:
        UsageError: the examples cannot be read.
        DataError: a row lacks a field.
    """
    return unique(_non_members(rows, options.dataset, _prefix(options), steps), steps)


def _non_members(rows: Iterable[Row], dataset: str, prefix: str, steps: Steps) -> Iterator[Candidate]:
    for row in rows:
        question = f"Question: {row.field('question')}"
        messages = [{"role": "user", "content": prefix + question}]
        record = {
            "id": row.field("id"), "messages": messages, "ground_truth": row.field("ground_truth"), "dataset": dataset,
            "constraint_type": None, "constraint": None, "text": render(messages), "text_no_cot": question,
        }  # fmt: skip
        steps.keep("rows")
        yield single(record, row.where, overlap_text=question)


def _prefix(options: Options) -> str:
    """The worked examples, each followed by a blank line."""
    return "".join(f"Question: {question}\nAnswer:{answer}\n\n" for question, answer in _exemplars(options))


def _exemplars(options: Options) -> Iterable[tuple[str, str]]:
    if options.exemplars_file is None:
        if not options.exemplars:
            raise UsageError("source rlvr: give the worked examples as `exemplars` or `exemplars_file`")
        return options.exemplars
    if options.exemplars:
        raise UsageError("source rlvr: give either `exemplars` or `exemplars_file`")
    value = load_yaml(options.exemplars_file)
    pairs = (
        [(e.get("question"), e.get("answer")) for e in value if isinstance(e, dict)] if isinstance(value, list) else []
    )
    if not pairs or len(pairs) < len(value) or not all(isinstance(part, str) for pair in pairs for part in pair):
        raise UsageError(f"{options.exemplars_file}: expected a list of {{question, answer}}, both strings")
    return pairs
