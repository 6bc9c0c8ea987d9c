"""StarCoder: source files that its quality rules just kept or just left out (construction spec, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.boundary import starcoder_member, starcoder_non_member, word_shares
from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import kept_fields, unique, with_text
from olmodetect_jax.errors import DataError

DATED = False
STARS = "max_stars_count"
FIELDS = ("id", STARS, "max_stars_repo_name", "max_stars_repo_path")
TAGS = ("top_20_tokens__top_20_tokens__p1", "top_20_tokens__top_20_tokens__p2")  # of Dolma's tagger


class Options(BaseModel):
    """None."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def non_members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Files of starcoderdata, by stars and word shares, both as they are in the row.

    Raises:
        DataError: a row lacks its content, or its stars are no number.
    """
    return unique(_non_members(rows, choices, steps), steps)


def _non_members(rows: Iterable[Row], choices: Choices, steps: Steps) -> Iterator[Candidate]:
    for row, text in with_text(rows, steps, "content"):
        shares, stars = word_shares(text).shares, _stars(row) or 0
        if len(shares) == 2 and (choices.boundary == "none" or starcoder_non_member(stars, shares)):
            steps.keep("boundary")
            yield _candidate(row, text, *shares)
        else:
            steps.drop("boundary", "stars or word shares outside the bands")


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Files of the training mix, by the word shares that Dolma's tagger stored.

    Raises:
        DataError: a row lacks its text or the tagger's attributes.
    """
    return unique(_members(rows, choices, steps), steps)


def _members(rows: Iterable[Row], choices: Choices, steps: Steps) -> Iterator[Candidate]:
    for row, text in with_text(rows, steps):
        tags = row.field("attributes", dict)
        if any(tags.get(name) == [] for name in TAGS):
            steps.drop("boundary", "fewer than two words")
            continue
        shares = [_share(row, tags, name) for name in TAGS]
        if choices.boundary == "none" or starcoder_member(*shares):
            steps.keep("boundary")
            yield _candidate(row, text, *shares)
        else:
            steps.drop("boundary", "word shares below the bands")


def _share(row: Row, tags: dict[str, Any], name: str) -> float:
    """The value of a tag's first span: `[[start, end, value], ...]`."""
    match tags.get(name):
        case [[_, _, int() | float() as value], *_]:
            return value
    raise DataError(f"{row.where}: field 'attributes': {name} is {tags.get(name)!r}; expected [[start, end, share]]")


def _stars(row: Row) -> float | None:
    return None if row.value.get(STARS) is None else row.field(STARS, (int, float))


def _candidate(row: Row, text: str, top1: float, top2: float) -> Candidate:
    record = kept_fields(row, FIELDS) | {"text": text, "top1_word_freq": top1, "top2_word_freq": top2}
    quality = {"top1": top1, "top2": top2}
    if (stars := _stars(row)) is not None:
        quality["stars"] = stars
    return single(record, row.where, quality=quality)
