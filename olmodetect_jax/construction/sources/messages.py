"""Conversations as records hold them: roles, contents, and the text of the turns (construction spec, section 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from olmodetect_jax.construction.candidates import Row, Steps
from olmodetect_jax.errors import DataError

Message = dict[str, str]


def messages_of(value: Any, where: str) -> list[Message]:
    """Role and content of each turn; what else a row says of a turn is left out.

    Raises:
        DataError: not a list of objects with a string `role` and a string `content`.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"{where}: messages are {type(value).__name__}; expected a list of turns")
    found = []
    for number, turn in enumerate(value):
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(k), str) for k in ("role", "content")):
            raise DataError(f"{where}: turn {number + 1}: expected an object with a role and a content, both strings")
        found.append({"role": turn["role"], "content": turn["content"]})
    return found


def render(messages: Sequence[Message]) -> str:
    """The text of a conversation: `<|role|>`, a newline and the content of each turn, joined by newlines."""
    return "\n".join(f"<|{m['role']}|>\n{m['content']}" for m in messages)


def of_mixture(rows: Iterable[Row], source: str, steps: Steps) -> Iterator[Row]:
    """Rows of a mixture whose `source` ends with the wanted word, its last path part (step "source").

    Raises:
        DataError: a row has no source.
    """
    for row in rows:
        if row.field("source").rsplit("/", 1)[-1] == source:
            steps.keep("source")
            yield row
        else:
            steps.drop("source", "another source")
