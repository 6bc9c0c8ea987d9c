"""Preference tuning: prompts with a chosen and a rejected answer (construction spec, sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.candidates import Candidate, Row, Steps
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import kept_fields, unique
from olmodetect_jax.construction.sources.messages import messages_of, of_mixture, render
from olmodetect_jax.errors import UsageError

DATED = False
FIELDS = ("id", "source", "chosen_model", "rejected_model", "chosen_rating", "rejected_rating")  # of members


class Options(BaseModel):
    """Which rows.

    Attributes:
        source: of a mixture's rows, which members are picked by; it names the model size they were made for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str | None = None


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows of the preference mixture whose source is the one wanted.

    Raises:
        UsageError: no source was given.
        DataError: a row lacks its prompt or one of its answers.
    """
    if options.source is None:
        raise UsageError("source dpo: members need the option `source`, the mixture's word for their rows")
    return unique(_pairs(of_mixture(rows, options.source, steps), FIELDS, steps), steps)


def non_members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Pairs made for unused prompts by the model's own preference pipeline; they keep no field but the texts.

    Raises:
        DataError: a row lacks its prompt or one of its answers.
    """
    return unique(_pairs(rows, (), steps), steps)


def _pairs(rows: Iterable[Row], fields: tuple[str, ...], steps: Steps) -> Iterator[Candidate]:
    for row in rows:
        prompt = row.field("prompt")
        chosen, rejected = (messages_of(row.field(side, list), row.where) for side in ("chosen", "rejected"))
        texts = render(chosen), render(rejected)
        shared = kept_fields(row, fields) | {"prompt": prompt}
        steps.keep("rows")
        yield Candidate(
            files={
                "chosen": shared | {"chosen": chosen, "text": texts[0]},
                "rejected": shared | {"rejected": rejected, "text": texts[1]},
                "pair": shared
                | {"chosen": chosen, "rejected": rejected, "chosen_text": texts[0], "rejected_text": texts[1]},
            },
            texts=texts,
            overlap_texts={"prompt": prompt, "chosen": texts[0], "rejected": texts[1]},
            date=None,
            quality={},
            where=row.where,
        )
