"""Golden files of `evaluation_*.json`: their cases by kind, and comparison at their own tolerance."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest


@functools.cache
def _file(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())


def golden(name: str, kind: str) -> list[Any]:
    """(input, expected) of every case of a kind, as parameters of a test."""
    file = _file(name)
    cases = zip(file["case_names"], file["inputs"], file["expected"], strict=True)
    found = [pytest.param(case, expected, id=title) for title, case, expected in cases if case["kind"] == kind]
    assert found, f"{name}: no case of kind {kind}"
    return found


def kinds(name: str) -> set[str]:
    """All kinds of case in a file."""
    return {case["kind"] for case in _file(name)["inputs"]}


def plain(value: Any) -> Any:
    """A golden value with its infinite numbers as floats."""
    if isinstance(value, dict):
        return float(value["$float"]) if value.keys() == {"$float"} else {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def assert_close(name: str, got: Any, expected: Any, where: str = "") -> None:
    """Holds a value against a golden one: numbers within the file's tolerance, all else exactly."""
    tolerance, expected = _file(name)["tolerance"], plain(expected)
    if isinstance(expected, dict):
        assert got.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_close(name, got[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(got) == len(expected), where
        for i, value in enumerate(expected):
            assert_close(name, got[i], value, f"{where}[{i}]")
    elif isinstance(expected, float) and got is not None:
        close = got == expected or abs(got - expected) <= tolerance["abs"] + tolerance["rel"] * abs(expected)
        assert close and not math.isnan(got), f"{where}: {got} is not {expected}"
    else:
        assert got == expected and type(got) is type(expected), f"{where}: {got!r} is not {expected!r}"
