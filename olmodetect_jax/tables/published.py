"""The published values: the paper's tables as CSV files of this package, looked up by what a cell is of."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "evaluation" / "reference"


@functools.cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    with (_FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


@functools.cache
def _index(name: str, column: str, keys: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    for row in _rows(name):
        found.setdefault(tuple(row[key] for key in keys), row[column])
    return found


def published(name: str, column: str, **where: str) -> float | str | None:
    """One published value.

    Args:
        name: of the file, without its ending.
        column: which of its columns.
        where: column to value, of the row.

    Returns:
        A number where it is one, words else; None for a dash or where the paper has no such row.
    """
    keys = tuple(sorted(where))
    return _value(_index(name, column, keys).get(tuple(where[key] for key in keys), ""))


def find(name: str, column: str, wanted: Callable[[Mapping[str, str]], bool]) -> float | str | None:
    """The value in the first row that is wanted; as `published` else."""
    return _value(next((row[column] for row in _rows(name) if wanted(row)), ""))


def _value(text: str) -> float | str | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def listed(name: str, column: str) -> tuple[str, ...]:
    """The different values of a column, in the paper's order."""
    return tuple(dict.fromkeys(row[column] for row in _rows(name)))
