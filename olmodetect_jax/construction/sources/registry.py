"""The sources by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from pydantic import BaseModel

from olmodetect_jax.construction.candidates import Candidate, Row, Steps
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.errors import one_of

SOURCES = ("texts", "dclm", "pes2o", "openwebmath", "starcoder", "gsm8k", "stackexchange", "sft", "dpo", "rlvr")


class Source(Protocol):
    """What a module of this package offers.

    Attributes:
        Options: its options.
        DATED: whether its subsets have a temporal term.
    """

    Options: type[BaseModel]
    DATED: bool

    def members(self, rows: Iterable[Row], options: Any, choices: Choices, steps: Steps) -> Iterator[Candidate]:
        """Candidates of the class that was trained on."""
        ...

    def non_members(self, rows: Iterable[Row], options: Any, choices: Choices, steps: Steps) -> Iterator[Candidate]:
        """Candidates of the class that was not."""
        ...


def load_source(name: str) -> Source:
    """The module of a source.

    Raises:
        UsageError: no such source.
    """
    if name not in SOURCES:
        raise one_of("source", name, SOURCES)
    return importlib.import_module(f"olmodetect_jax.construction.sources.{name}")
