"""Supervised fine-tuning: conversations of WildChat and prompts of Aya (construction spec, sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import unique
from olmodetect_jax.construction.sources.messages import Message, messages_of, of_mixture, render
from olmodetect_jax.errors import UsageError

DATED = False


class Options(BaseModel):
    """Which rows.

    Attributes:
        subset: whose rows the non-members are.
        source: of a mixture's rows, which members are picked by.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    subset: Literal["aya", "wildchat"]
    source: str | None = None


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows of the training mixture whose source is the one wanted.

    Raises:
        UsageError: no source was given.
        DataError: a row lacks its source or its messages.
    """
    if options.source is None:
        raise UsageError("source sft: members need the option `source`, the mixture's word for their rows")
    chosen = of_mixture(rows, options.source, steps)
    return unique(
        _records(((row, messages_of(row.field("messages", list), row.where)) for row in chosen), steps), steps
    )


def non_members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows of the whole data set that the mixture did not take.

    Raises:
        DataError: a row lacks its conversation, or its prompt and completion.
    """
    found = _prompts(rows) if options.subset == "aya" else _conversations(rows, "conversation")
    return unique(_records(found, steps), steps)


def _prompts(rows: Iterable[Row]) -> Iterator[tuple[Row, list[Message]]]:
    for row in rows:
        turns = (("user", row.field("inputs")), ("assistant", row.field("targets")))
        yield row, [{"role": role, "content": content} for role, content in turns]


def _conversations(rows: Iterable[Row], name: str) -> Iterator[tuple[Row, list[Message]]]:
    for row in rows:
        yield row, messages_of(row.field(name, list), row.where)


def _records(found: Iterable[tuple[Row, list[Message]]], steps: Steps) -> Iterator[Candidate]:
    for row, messages in found:
        if any(m["content"].strip() for m in messages):
            steps.keep("rows")
            yield single({"messages": messages, "text": render(messages)}, row.where)
        else:
            steps.drop("rows", "no text")
