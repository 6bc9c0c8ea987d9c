"""Divergence and dates against `construction_jsd.json`, and their properties."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.construction.dates import days, temporal_term
from olmodetect_jax.construction.jsd import divergence_of_texts, js_divergence
from olmodetect_jax.errors import DataError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "construction_jsd.json").read_text())
CASES = [
    pytest.param(i, e, id=name)
    for name, i, e in zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True)
]
COUNTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=30)


def near(value):
    """Within what the golden file states."""
    if isinstance(value, dict):
        return float(value["$float"])
    return pytest.approx(value, rel=GOLDEN["tolerance"]["rel"], abs=GOLDEN["tolerance"]["abs"])


def dates_of(values):
    return np.array([np.nan if (d := days(v)) is None else d for v in values])


def divergence_of_counts(p, q):
    tokens = sorted({*p, *q})
    return js_divergence(*(np.array([side.get(t, 0) for t in tokens]) for side in (p, q)))


def check(given, expected):
    kind = given["kind"]
    if kind == "counts" and expected["jsd"] is None:
        with pytest.raises(DataError, match="without a single token"):
            divergence_of_counts(given["p"], given["q"])
    elif kind == "counts":
        assert divergence_of_counts(given["p"], given["q"]) == near(expected["jsd"])
    elif kind == "texts":
        assert divergence_of_texts(given["members"], given["non_members"]) == near(expected["jsd"])
    elif kind == "subsets":
        subsets = given["subsets"]
        for name, value in expected["per_subset"].items():
            assert divergence_of_texts(subsets[name]["members"], subsets[name]["non_members"]) == near(value)
        pooled = [[t for s in subsets.values() for t in s[side]] for side in ("members", "non_members")]
        assert divergence_of_texts(*pooled) == near(expected["domain"])
    elif kind == "dates":
        assert [days(d) for d in given["dates"]] == [d if d is None else near(d) for d in expected["days"]]
    elif kind == "temporal":
        members, others = dates_of(given["members"]), dates_of(given["non_members"])
        assert (~np.isnan(members)).sum() == expected["n_dated_members"]
        assert (~np.isnan(others)).sum() == expected["n_dated_non_members"]
        assert temporal_term(members, others) == near(expected["temporal"])
    else:
        assert kind == "loss"
        tokens = [[r["tokens"] for r in given[side]] for side in ("members", "non_members")]
        dates = [dates_of([r["date"] for r in given[side]]) for side in ("members", "non_members")]
        jsd, temporal = divergence_of_texts(*tokens), temporal_term(*dates)
        assert (jsd, temporal) == (near(expected["jsd"]), near(expected["temporal"]))
        assert jsd + temporal == near(expected["loss"])


@pytest.mark.parametrize("given, expected", CASES)
def test_golden(given, expected):
    check(given, expected)


@given(COUNTS)
def test_divergence_is_symmetric_and_between_0_and_1(counts):
    p, q = (np.array(side) for side in zip(*counts, strict=True))
    if not p.sum() or not q.sum():
        return
    value = js_divergence(p, q)
    assert 0 <= value <= 1 + 1e-12
    assert value == pytest.approx(js_divergence(q, p), abs=1e-12)
    assert js_divergence(p, 3 * p) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "text", ["2020-02-30T00:00:00", "2020-01-01T", "2020-01", "2020-01-01T24:00:00", "0000-01-01T00:00:00", "x"]
)
def test_what_is_no_date_is_undated(text):
    assert days(text) is None


@pytest.mark.parametrize("zone", ["Z", "+05", "-0930", "+05:30"])
def test_a_zone_is_not_read(zone):
    assert days(f"2020-01-01T12:00:00{zone}") == days("2020-01-01T12:00:00")


def test_hours_are_not_lost():
    assert days("2020-01-02T12:00:00Z") - days("2020-01-01T00:00:00+05:00") == 1.5
    assert math.isinf(temporal_term(np.array([np.nan]), np.array([737000.0])))
