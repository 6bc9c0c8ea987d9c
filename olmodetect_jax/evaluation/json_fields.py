"""Reading a JSON file of a run field by field: what is wrong with one is said with its file and its name."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.metrics import is_valid_score


@dataclass(frozen=True)
class Field:
    """A value and where it stands.

    Attributes:
        path: the file.
        name: from the file's object down: `attacks.pac.grid[3].auc`.
        value: as parsed.
    """

    path: Path
    name: str
    value: Any

    def __getitem__(self, name: str) -> Field:
        """A field of an object, which must be there."""
        fields = self.fields()
        if name not in fields:
            raise DataError(f"{self.path}: field {self._below(name)} is missing")
        return fields[name]

    def fields(self) -> dict[str, Field]:
        """An object's fields in the file's order."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return {name: Field(self.path, self._below(name), value) for name, value in self.value.items()}

    def elements(self) -> list[Field]:
        """A list's elements."""
        if not isinstance(self.value, list):
            raise self.error("a list")
        return [Field(self.path, f"{self.name}[{i}]", value) for i, value in enumerate(self.value)]

    def text(self, allowed: Collection[str]) -> str:
        """A string, one of `allowed`."""
        if not isinstance(self.value, str) or self.value not in allowed:
            raise self.error(f"one of {', '.join(allowed)}")
        return self.value

    def string(self) -> str:
        """Any string."""
        if not isinstance(self.value, str):
            raise self.error("a string")
        return self.value

    def number(self) -> float | None:
        """A finite number; None for null."""
        if self.value is None:
            return None
        if not is_valid_score(self.value):
            raise self.error("a finite number or null")
        return float(self.value)

    def setting(self) -> float | int | str:
        """The value of a hyperparameter or of a protocol's field: a finite number or a string."""
        if not isinstance(self.value, str) and not is_valid_score(self.value):
            raise self.error("a number or a string")
        return self.value

    def count(self) -> int:
        """An integer of at least 0."""
        if type(self.value) is not int or self.value < 0:
            raise self.error("an integer of at least 0")
        return self.value

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.error("true or false")
        return self.value

    def auc(self) -> float | None:
        """A number from 0 to 1; None for null."""
        if self.value is None:
            return None
        if not (is_valid_score(self.value) and 0 <= self.value <= 1):
            raise self.error("a number from 0 to 1 or null")
        return float(self.value)

    def error(self, expected: str) -> DataError:
        """The error for a value that is not what it should be."""
        return DataError(f"{self.path}: field {self.name}: expected {expected}, got {short(self.value)}")

    def _below(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name


def read_fields(path: Path, version: int) -> Field | None:
    """A file's object, whose `format` this version reads; None if there is no such file.

    Raises:
        DataError: it cannot be read, is no JSON object, or has another format.
    """
    try:
        value = read_object(path, version)
    except FileNotFoundError:
        return None
    return Field(path, "", value)


def read_plain(path: Path) -> Field:
    """A file's object that has no `format`.

    Raises:
        DataError: there is no such file, or it is no JSON object.
    """
    try:
        return Field(path, "", _object(path))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None


def read_object(path: Path, version: int) -> dict[str, Any]:
    """Parses a JSON object in which `format` is `version`; a number that is not finite is no JSON.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: it cannot be read, is no JSON object, or has another format.
    """
    value = _object(path)
    if value.get("format") != version:
        raise DataError(f"{path}: field format: this version reads {version}, got {value.get('format')!r}")
    return value


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {short(value)}")
    require_unicode(value, str(path))
    return value


def short(value: object, limit: int = 60) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= limit else text[:limit] + "…"


def require_unicode(value: object, where: str) -> None:
    """JSON can spell lone surrogates, which no UTF-8 file can hold: they would end the command when it writes.

    Raises:
        DataError: naming `where`.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where}: a string holds a lone surrogate, which is not valid Unicode text") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
