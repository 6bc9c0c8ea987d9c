"""DCLM: web pages on either side of its quality threshold (construction spec, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.boundary import dclm_member, dclm_non_member
from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.fasttext_score import load_scorer
from olmodetect_jax.construction.sources.common import date_of, kept_fields, unique, with_text
from olmodetect_jax.errors import DataError

DATED = True
MEMBER_SCORE = "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob"
NON_MEMBER_SCORE = "fasttext-oh-eli5_quality_score"
FIELDS = (
    "text", "url", "warcinfo", "metadata", "language_id_whole_page_fasttext", "previous_word_count",
    "bff_contained_ngram_count_before_dedupe", MEMBER_SCORE, NON_MEMBER_SCORE,
)  # fmt: skip


class Options(BaseModel):
    """How non-members get their score.

    Attributes:
        model: the fastText classifier; needed where a row has no field `fasttext-oh-eli5_quality_score`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Path | None = None


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Pages of DCLM-Baseline, by their stored score.

    Raises:
        DataError: a row lacks text or score.
    """
    rule = _rule(dclm_member, choices)
    return unique(_near_threshold(rows, steps, MEMBER_SCORE, None, rule), steps)


def non_members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rejected pages of DCLM-RefinedWeb, by the stored score, else by the model's, which the record then carries.

    Raises:
        DataError: a row lacks text, or its score, and there is no model.
        UsageError: the model cannot be loaded.
    """
    model = _no_model if options.model is None else load_scorer(options.model)
    rule = _rule(dclm_non_member, choices)
    return unique(_near_threshold(rows, steps, NON_MEMBER_SCORE, model, rule), steps)


def _rule(rule: Callable[..., bool], choices: Choices) -> Callable[[float], bool]:
    if choices.boundary == "none":
        return lambda score: True
    return partial(rule, closest=choices.boundary == "closest")


def _no_model(text: str) -> float:
    raise DataError(
        f"no field {NON_MEMBER_SCORE!r}, and no option `model` of source dclm: the fastText file that computes it"
    )


def _near_threshold(
    rows: Iterable[Row],
    steps: Steps,
    stored: str,
    model: Callable[[str], float] | None,
    rule: Callable[[float], bool],
) -> Iterator[Candidate]:
    for row, text in with_text(rows, steps):
        score = _score(row, text, stored, model)
        if rule(score):
            steps.keep("boundary")
            record = kept_fields(row, FIELDS) | {stored: score}
            yield single(record, row.where, date=date_of(row, "metadata.WARC-Date"), quality={"hq": score})
        else:
            steps.drop("boundary", "on the far side of the threshold")


def _score(row: Row, text: str, stored: str, model: Callable[[str], float] | None) -> float:
    if model is None or stored in row.value:
        score = row.field(stored, (int, float))
    else:
        try:
            score = model(text)
        except DataError as error:
            raise DataError(f"{row.where}: {error}") from None
    if not 0 <= score <= 1.0001:  # fastText rounds up to 1.00001
        raise DataError(f"{row.where}: field {stored!r} is {score}; expected a probability")
    return score
