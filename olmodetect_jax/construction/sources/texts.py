"""A user's own texts: JSON lines or parquet with a `text`, and whatever else a row has; no boundary rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import date_of, unique, with_text

DATED = True  # rows without a date do not count in the temporal term


class Options(BaseModel):
    """Which field is what.

    Attributes:
        date_field: of an ISO 8601 date, such as `metadata.date`; undated if left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    date_field: str | None = None


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows as they are, without those that have no text; `non_members` are read in the same way.

    Raises:
        DataError: a text or a date is no string.
    """
    found = (
        single(row.value, row.where, date=None if options.date_field is None else date_of(row, options.date_field))
        for row, _ in with_text(_having_text(rows, steps), steps)
    )
    return unique(found, steps)


non_members = members


def _having_text(rows: Iterable[Row], steps: Steps) -> Iterator[Row]:
    for row in rows:
        if row.value.get("text") is None:
            steps.drop("rows", "no text")
        else:
            yield row
