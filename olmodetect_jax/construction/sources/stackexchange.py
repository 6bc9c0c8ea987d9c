"""Stack Exchange: questions with their accepted answers, by votes (construction spec, sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict

from olmodetect_jax.construction.boundary import stack_exchange_member, stack_exchange_non_member
from olmodetect_jax.construction.candidates import Candidate, Row, Steps, single
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.sources.common import date_of, unique, with_text
from olmodetect_jax.construction.sources.html_text import html_to_text
from olmodetect_jax.errors import DataError

DATED = True
BETWEEN = "\n\n\n"  # title, question and answer
_QUESTION, _ANSWER = "1", "2"


class Options(BaseModel):
    """Which rows.

    Attributes:
        site: only rows whose `metadata.site` is this; all if left out. Dumps hold one site each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: str | None = None


def members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows of the training mix, whose votes are in their metadata.

    Raises:
        DataError: a row lacks its text or a vote.
    """
    return unique(_members(rows, options, choices, steps), steps)


def _members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    for row, text in with_text(rows, steps):
        votes = Row(f"{row.where}, metadata", row.field("metadata", dict))
        if options.site is not None:
            if votes.field("site") != options.site:
                steps.drop("site", "another site")
                continue
            steps.keep("site")
        question, answer = (votes.field(name, int) for name in ("question_score", "answer_score"))
        candidate = _candidate(question, answer, date_of(row, "created"), text, row.where)
        if choices.boundary == "none" or stack_exchange_member(question, answer):
            steps.keep("boundary")
            yield candidate
        else:
            steps.drop("boundary", "votes far from the threshold")


def non_members(rows: Iterable[Row], options: Options, choices: Choices, steps: Steps) -> Iterator[Candidate]:
    """Rows of a dump's `Posts.xml`: what the votes left out by a little.

    Raises:
        DataError: a row lacks an attribute, or the rows are not in the order of their ids.
    """
    return unique(_non_members(rows, choices, steps), steps)


def _non_members(rows: Iterable[Row], choices: Choices, steps: Steps) -> Iterator[Candidate]:
    for candidate in answered(rows, steps, title=choices.title):
        votes = (int(candidate.quality[side]) for side in ("question", "answer"))
        if choices.boundary == "none" or stack_exchange_non_member(*votes):
            steps.keep("boundary")
            yield candidate
        else:
            steps.drop("boundary", "votes far from the threshold")


def answered(rows: Iterable[Row], steps: Steps, *, title: bool) -> Iterator[Candidate]:
    """Questions with their accepted answers, in the order of the questions; what has none is counted by reason.

    All questions whose answer is still to come are held, and all that were answered, for they are put in order.

    Args:
        rows: of a dump, in the order of their ids.
        steps: counts (step "answered").
        title: whether the title comes first.

    Raises:
        DataError: as `non_members`.
    """
    waiting: dict[tuple[str, str], Row] = {}  # by (accepted answer, question)
    early: dict[tuple[str, str], Row] = {}  # answers that come before their question
    pairs: list[tuple[int, Row, Row]] = []
    last = 0
    for row in rows:
        number = _number(row, "Id")
        if number <= last:
            raise DataError(f"{row.where}: Id {number} comes after {last}; a dump's rows are in the order of their ids")
        last, kind, own = number, row.field("PostTypeId"), str(number)
        if kind == _QUESTION:
            accepted = row.value.get("AcceptedAnswerId")
            if accepted is None:
                steps.drop("answered", "no_accepted_answer")
            elif (answer := early.pop((accepted, own), None)) is not None:
                pairs.append((number, row, answer))
            else:
                waiting[accepted, own] = row
        elif kind == _ANSWER:
            parent = str(_number(row, "ParentId"))
            if (question := waiting.pop((own, parent), None)) is not None:
                pairs.append((int(parent), question, row))
            elif int(parent) > number:
                early[own, parent] = row
    if waiting:  # gone, no answer, or another question's
        steps.drop("answered", "accepted_answer_missing", len(waiting))
    for _, question, answer in sorted(pairs, key=lambda pair: pair[0]):
        yield from _pair(question, answer, steps, title=title)


def _pair(question: Row, answer: Row, steps: Steps, *, title: bool) -> Iterator[Candidate]:
    try:
        parts = [html_to_text(row.field("Body")) for row in (question, answer)]
    except ValueError:
        steps.drop("answered", "unreadable_html")
        return
    if not all(parts):
        steps.drop("answered", "empty_text")
        return
    if title:
        parts.insert(0, question.field("Title"))
    steps.keep("answered")
    yield _candidate(
        _number(question, "Score"), _number(answer, "Score"), question.field("CreationDate"), BETWEEN.join(parts),
        question.where,
    )  # fmt: skip


def _number(row: Row, name: str) -> int:
    text = row.field(name)
    try:
        return int(text)
    except ValueError:
        raise DataError(f"{row.where}: field {name!r} is {text!r}; expected a whole number") from None


def _candidate(question: int, answer: int, created: str | None, text: str, where: str) -> Candidate:
    record = {"question_score": question, "answer_score": answer, "created": created, "text": text}
    return single(record, where, date=created, quality={"question": question, "answer": answer})
