"""peS2o: scientific papers; no boundary rule (construction spec, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import date_of, kept_fields, unique, with_text

DATED = True
FIELDS = ("id", "source", "added", "created", "text")


class Options(BaseModel):
    """None."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Papers of the training mix; those of the validation files come as `non_members`, in the same format.

    Raises:
        DataError: a row lacks a text, or its date is no string.
    """
    papers = (
        single(kept_fields(row, FIELDS), row.where, date=date_of(row, "created")) for row, _ in with_text(rows, steps)
    )
    return unique(papers, steps)


non_members = members
