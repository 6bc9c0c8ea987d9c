"""OpenWebMath: mathematical web pages; no boundary rule (construction spec, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import date_of, kept_fields, unique, with_text

DATED = True
FIELDS = ("url", "created", "metadata", "text")  # `metadata` is a JSON string, and stays one


class Options(BaseModel):
    """None."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Pages of the training mix; those of the test and validation files come as `non_members`, in the same format.

    Raises:
        DataError: a row lacks a text, or its date is no string.
    """
    return unique(map(_candidate, with_text(rows, steps)), steps)


non_members = members


def _candidate(found: tuple[Row, str]) -> Candidate:
    row, _ = found
    date = date_of(row, "date" if "date" in row.value else "created")
    record = kept_fields(row, FIELDS)
    if "date" in row.value:  # its name in the original corpus
        record["created"] = date
    return single(record, row.where, date=date)
