"""Single files of the released layout: samples with their keys and scores (released layout, sections 3 to 8)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.json_fields import require_unicode
from olmodetect_jax.evaluation.metrics import is_valid_score
from olmodetect_jax.records import read_jsonl

_FILL = re.compile(r"(.*_)?fill_\d{4}_\d{2}_\d{2}")


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample as stored, all of its fields."""

    raw: Mapping[str, Any]
    where: str

    @property
    def key(self) -> str | None:
        """First 20 hex digits of the SHA-1 of its stripped text; None where it has neither a text nor a hash."""
        text = self.raw.get("text")
        if isinstance(text, str) and text.strip():
            return key_of(text)
        stored = self.raw.get("text_sha1")
        return stored if isinstance(stored, str) and stored else None

    @property
    def sample_id(self) -> str:
        """Its id; empty if it has none."""
        value = self.raw.get("sample_id")
        return value if isinstance(value, str) else ""

    @property
    def index(self) -> int | None:
        """Its line in the file as it was scored then: a hint, no key."""
        value = self.raw.get("record_index")
        return value if type(value) is int else None

    @property
    def fill(self) -> str | None:
        """The marker of a score that was filled in later."""
        return next((name for name, value in self.raw.items() if value is True and _FILL.fullmatch(name)), None)

    def score(self, column: str) -> float | None:
        """A column's value; None for null, a string, a boolean or a number that is not finite."""
        value = self.raw.get(column)
        return float(value) if is_valid_score(value) else None


@dataclass(frozen=True, eq=False)
class ScoreFile:
    """A score file: the whole object as read, and its samples."""

    value: dict[str, Any]
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Line:
    """One line of a benchmark file: what a sample joins to."""

    record_id: str
    key: str


def key_of(text: str) -> str:
    """The key of a text."""
    return hashlib.sha1(text.strip().encode("utf-8")).hexdigest()[:20]


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object, with or without a byte-order mark; bare NaN and infinities are read as what they are.

    Raises:
        DataError: the file cannot be read or holds none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    require_unicode(value, str(path))
    return value


def read_scores(path: Path) -> ScoreFile:
    """A file of one method and one side, in either envelope.

    Raises:
        DataError: it is no such file; names what was expected.
    """
    value = read_object(path)
    result = value.get("result")
    samples = result.get("samples") if isinstance(result, dict) else None
    if not isinstance(samples, list):
        raise DataError(f"{path}: expected result.samples, a list")
    for i, sample in enumerate(samples):
        if not isinstance(sample, dict):
            raise DataError(f"{path}: result.samples[{i}]: expected an object, got {type(sample).__name__}")
    return ScoreFile(value, tuple(Sample(s, f"{path}, sample {i}") for i, s in enumerate(samples)))


def compact(value: Any) -> str:
    """A value as the released files hold it: one line, ASCII, no spaces, no final newline."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def read_lines(path: Path) -> tuple[Line, ...]:
    """The lines of a benchmark file; pairs are known by their prompt.

    Raises:
        DataError: the file cannot be read, or a line has neither text nor prompt.
    """
    lines: list[Line] = []
    for number, value in read_jsonl(path):
        text = next((t for t in (value.get("text"), value.get("prompt")) if isinstance(t, str) and t.strip()), None)
        if text is None:
            raise DataError(f"{path}, line {number}: expected a text or a prompt")
        own = value.get("id")
        record_id = own if isinstance(own, str) and own.strip() else f"sample_{len(lines)}"
        lines.append(Line(record_id, key_of(text)))
    return tuple(lines)


@dataclass(frozen=True)
class Joined:
    """Where a sample belongs.

    Attributes:
        by: `text_sha1` or `sample_id`.
        line: its line in the benchmark file, from 0; None if there is none.
    """

    by: str
    line: int | None


def join(samples: Sequence[Sample], lines: Sequence[Line]) -> list[Joined]:
    """Joins samples to the lines of the benchmark file of their side: by key, else by id; never by place."""
    by_key: dict[str, int] = {}
    by_id: dict[str, int] = {}
    for i, line in enumerate(lines):
        by_key.setdefault(line.key, i)
        by_id.setdefault(line.record_id, i)
    found = []
    for sample in samples:
        key = sample.key
        if key is not None:
            found.append(Joined("text_sha1", by_key.get(key)))
        else:
            found.append(Joined("sample_id", by_id.get(sample.sample_id)))
    return found


def unscored(joined: Sequence[Joined], n_lines: int) -> list[int]:
    """Lines that no sample joins to."""
    there = {j.line for j in joined}
    return [line for line in range(n_lines) if line not in there]
