"""GSM8K: school problems, trained on and tested with (construction spec, sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import kept_fields, unique
from olmodetect_jax.errors import DataError

DATED = False  # all rows have one date
CREATED = "2021-10-27T00:00:00.000Z"
_END = "\n#### "  # comes before the result


class Options(BaseModel):
    """Which rows.

    Attributes:
        split: of GSM8K that the rows are; train for members and test for non-members if left out.
        exclude_indices: rows that are left out, counted from 0 over all rows: those that OLMo 2 was evaluated on while
            it was developed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    split: Literal["train", "test"] | None = None
    exclude_indices: tuple[int, ...] = ()


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows of the training split, as questions and answers or as the training mix has them rendered.

    Raises:
        DataError: a row lacks its question, its answer, or the answer's result.
    """
    return unique(_problems(rows, options, options.split or "train", steps), steps)


def non_members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows of the test split; see `members`."""
    return unique(_problems(rows, options, options.split or "test", steps), steps)


def _problems(rows: Iterable[Row], options: Options, split: str, steps: Steps) -> Iterator[Candidate]:
    excluded = frozenset(options.exclude_indices)
    for index, row in enumerate(rows):
        if index in excluded:
            steps.drop("rows", "excluded")
            continue
        steps.keep("rows")
        if "question" in row.value:
            yield single(_record(row, index, split), row.where)
        else:  # rendered already
            record = kept_fields(row, ("text", "id", "added", "created", "source", "metadata"))
            row.field("text")
            yield single(record, row.where)


def _record(row: Row, index: int, split: str) -> dict[str, object]:
    question, answer = row.field("question"), row.field("answer")
    reasoning, end, result = answer.rpartition(_END)
    if not end:
        raise DataError(f"{row.where}: field 'answer' has no line that begins with ####; expected the result there")
    return {
        "text": f"Question: {question}\nReasoning: {reasoning}\nAnswer: {result}",
        "id": f"main_{split}_{index}",
        "source": f"gsm8k-main-{split}",
        "created": CREATED,
        "metadata": {"question": question, "answer": answer},
    }
