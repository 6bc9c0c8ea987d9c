"""Pre-training sources and a user's own: rows to candidates against `construction_sources.json` and small pools."""

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from olmodetect_jax.construction.candidates import Row, Steps
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.readers import read_rows
from olmodetect_jax.construction.sources import dclm, openwebmath, pes2o, starcoder, texts
from olmodetect_jax.construction.sources.common import date_of
from olmodetect_jax.construction.sources.registry import load_source
from olmodetect_jax.errors import DataError

TESTS = Path(__file__).parents[1]
GOLDEN = json.loads((TESTS / "golden" / "construction_sources.json").read_text())
POOLS = TESTS / "fixtures" / "construction"
DOMAINS = ("dclm", "pes2o", "openwebmath", "starcoder")
CASES = [
    pytest.param(i, e, id=name)
    for name, i, e in zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True)
    if i.get("domain") in DOMAINS
]
SCORES = {"members": dclm.MEMBER_SCORE, "non_members": dclm.NON_MEMBER_SCORE}


def candidates(source, side, values, choices=None, **options):
    """Candidates of one class and what the steps counted."""
    steps = Steps()
    rows = [Row(f"pool.jsonl, line {i}", value) for i, value in enumerate(values, 1)]
    found = list(getattr(source, side)(rows, source.Options(**options), choices or Choices(), steps))
    return found, {row["step"]: row for row in steps.rows()}


def from_pool(domain, side, choices=None):
    """The same through the reader, from a pool in the corpus's own format."""
    (path,) = (POOLS / domain).glob(f"{side}.*")
    source, steps = load_source(domain), Steps()
    found = list(getattr(source, side)(read_rows([path]), source.Options(), choices or Choices(), steps))
    return found, {row["step"]: (row["seen"], row["kept"]) for row in steps.rows()}


@pytest.mark.parametrize(("case", "expected"), CASES)
def test_golden(case, expected):
    rows = case["rows"]
    if "hq_probability" in case:
        rows = [r | {dclm.NON_MEMBER_SCORE: p} for r, p in zip(rows, case["hq_probability"], strict=True)]
    found, _ = candidates(load_source(case["domain"]), case["side"].replace("-", "_") + "s", rows)
    for candidate, record in zip(found, expected["records"], strict=True):
        shares = {k: near(v) for k, v in record.items() if isinstance(v, float)}
        assert candidate.files == {"": record | shares}
        assert candidate.texts == (record["text"],)
        assert candidate.overlap_texts == {"": record["text"]}
    if "dates" in expected:
        assert [c.date for c in found] == expected["dates"]
    else:
        assert not load_source(case["domain"]).DATED


def near(number):
    return pytest.approx(number, abs=GOLDEN["tolerance"]["abs"], rel=GOLDEN["tolerance"]["rel"])


def test_every_case_is_met():
    assert [case.id for case in CASES] == [
        "dclm_non_member", "dclm_member", "pes2o", "openwebmath", "starcoder_non_member", "starcoder_member",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("domain", "side", "ids", "steps"),
    [
        ("dclm", "members", [1, 3], {"rows": (4, 4), "boundary": (4, 3), "duplicates": (3, 2)}),
        ("dclm", "non_members", [1, 3], {"rows": (3, 3), "boundary": (3, 2), "duplicates": (2, 2)}),
        ("pes2o", "members", [1, 2], {"rows": (3, 3), "duplicates": (3, 2)}),
        ("pes2o", "non_members", [1, 2], {"rows": (2, 2), "duplicates": (2, 2)}),
        ("openwebmath", "members", [1, 2], {"rows": (2, 2), "duplicates": (2, 2)}),
        ("openwebmath", "non_members", [1], {"rows": (2, 2), "duplicates": (2, 1)}),
        ("starcoder", "members", [1, 3], {"rows": (3, 3), "boundary": (3, 2), "duplicates": (2, 2)}),
        ("starcoder", "non_members", [1, 4], {"rows": (4, 4), "boundary": (4, 2), "duplicates": (2, 2)}),
    ],
)
def test_pools_in_the_formats_of_the_corpora(domain, side, ids, steps):
    found, counted = from_pool(domain, side)
    assert counted == steps
    assert [int(c.where.rsplit(" ", 1)[1]) for c in found] == ids
    for candidate in found:
        assert str(POOLS / domain / side) in candidate.where
        json.dumps(candidate.files, allow_nan=False)


def test_what_a_record_of_each_pool_holds():
    def first(domain, side):
        return from_pool(domain, side)[0][0]

    page = first("dclm", "non_members")
    assert sorted(page.files[""]) == sorted({*dclm.FIELDS} - {dclm.MEMBER_SCORE})
    assert (page.date, page.quality) == ("2014-01-20T06:30:00Z", {"hq": 0.01805})
    paper = first("pes2o", "non_members")
    assert sorted(paper.files[""]) == ["added", "created", "id", "source", "text"]
    assert (paper.date, paper.quality) == ("2020-05-04T00:00:00.000Z", {})
    for side in ("members", "non_members"):
        maths = first("openwebmath", side)
        assert sorted(maths.files[""]) == ["created", "metadata", "text", "url"]
        assert isinstance(maths.files[""]["metadata"], str)
        assert maths.files[""]["created"] == maths.date
    code = first("starcoder", "non_members")
    assert sorted(code.files[""]) == sorted([*starcoder.FIELDS, "text", "top1_word_freq", "top2_word_freq"])
    assert code.quality == {"stars": 3, "top1": 61 / 200, "top2": 39 / 200}
    assert first("starcoder", "members").quality == {"top1": 0.29, "top2": 0.05}


@pytest.mark.parametrize("side", ["members", "non_members"])
@given(scores=st.lists(st.one_of(st.sampled_from([0.01811, 0.018, 0.0181122]), st.floats(0, 1)), max_size=8))
def test_dclm_by_the_papers_rule(side, scores):
    rows = [{"text": f"page {i}", SCORES[side]: score} for i, score in enumerate(scores)]
    found, _ = candidates(dclm, side, rows, Choices(boundary="closest"))
    wanted = [s for s in scores if (s >= 0.01811 if side == "members" else s < 0.01811)]
    assert [c.quality["hq"] for c in found] == wanted


def test_dclm_scores_what_has_no_score(monkeypatch):
    asked = []

    def load(path):
        assert path == Path("m.bin")
        return lambda text: asked.append(text) or 0.0181

    monkeypatch.setattr(dclm, "load_scorer", load)
    rows = [{"text": " new\n"}, {"text": "known", dclm.NON_MEMBER_SCORE: 0.0182}]
    found, _ = candidates(dclm, "non_members", rows, model="m.bin")
    assert [c.files[""][dclm.NON_MEMBER_SCORE] for c in found] == [0.0181, 0.0182]
    assert asked == [" new\n"]
    with pytest.raises(DataError, match=re.escape("line 1: field 'fasttext_openhermes_reddit")):
        candidates(dclm, "members", rows, model="m.bin")


def test_dclm_without_score_and_model():
    with pytest.raises(
        DataError, match=r"pool.jsonl, line 1: no field 'fasttext-oh-eli5_quality_score', and no option"
    ):
        candidates(dclm, "non_members", [{"text": "a"}])


@pytest.mark.parametrize("side", ["members", "non_members"])
@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 18, 10**400])
def test_dclm_scores_that_are_no_probability(side, score):
    with pytest.raises(DataError, match=r"pool.jsonl, line 1: field 'fasttext.* expected a probability"):
        candidates(dclm, side, [{"text": "a", SCORES[side]: score}])


MINIMAL = {
    (dclm, "members"): {"text": "a b", dclm.MEMBER_SCORE: 0.0181},
    (dclm, "non_members"): {"text": "a b", dclm.NON_MEMBER_SCORE: 0.0181},
    (pes2o, "members"): {"text": "a b"},
    (openwebmath, "non_members"): {"text": "a b"},
    (starcoder, "members"): {
        "text": "a b",
        "attributes": {name: [[0, 3, 0.5]] for name in starcoder.TAGS},
    },
    (starcoder, "non_members"): {"content": "a b", "max_stars_count": 2},
    (texts, "members"): {"text": "a b"},
}


@pytest.mark.parametrize(("source", "side"), MINIMAL)
def test_a_blank_text_is_dropped_and_one_of_another_type_is_an_error(source, side):
    row = MINIMAL[source, side]
    field = "content" if "content" in row else "text"
    found, steps = candidates(source, side, [row | {field: " \n"}, row])
    assert steps["rows"] == {"step": "rows", "seen": 2, "kept": 1, "dropped": {"no text": 1}}
    with pytest.raises(DataError, match=f"pool.jsonl, line 1: field '{field}' is int"):
        candidates(source, side, [row | {field: 5}])
    with pytest.raises(ValidationError, match="extra_forbidden"):
        source.Options(other=1)


@pytest.mark.parametrize("source", [dclm, pes2o, openwebmath, starcoder])
def test_a_row_without_its_text_is_an_error(source):
    for side in ("members", "non_members"):
        with pytest.raises(DataError, match=r"pool.jsonl, line 1: field '(text|content)' is missing; it has url"):
            candidates(source, side, [{"url": "a"}])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "top_20_tokens__top_20_tokens__p1 is None"),
        ({starcoder.TAGS[0]: [[0, 3, 0.5]], starcoder.TAGS[1]: [[0, 3]]}, "p2 is [[0, 3]]"),
        ({name: [[0, 3, "0.5"]] for name in starcoder.TAGS}, "p1 is [[0, 3, '0.5']]"),
    ],
)
def test_starcoder_attributes_of_another_form(attributes, message):
    with pytest.raises(DataError, match=re.escape(message) + ".*expected "):
        candidates(starcoder, "members", [{"text": "a", "attributes": attributes}])
    with pytest.raises(DataError, match="field 'attributes' is missing"):
        candidates(starcoder, "members", [{"text": "a"}])


def test_starcoder_members_of_one_word_have_no_second_share():
    tags = {starcoder.TAGS[0]: [[0, 3, 1.0]], starcoder.TAGS[1]: []}
    found, steps = candidates(starcoder, "members", [{"text": "a", "attributes": tags}])
    assert found == []
    assert steps["boundary"]["dropped"] == {"fewer than two words": 1}


def test_starcoder_stars_that_are_no_number():
    with pytest.raises(DataError, match="field 'max_stars_count' is str; expected int or float"):
        candidates(starcoder, "non_members", [{"content": "a", "max_stars_count": "many"}])


def test_own_texts_keep_every_field_and_lose_rows_without_text():
    rows = [
        {"text": " a \n", "id": "x", "metadata": {"date": "2020-01-02", "n": [1]}},
        {"id": "y"},
        {"text": None},
        {"text": "b", "metadata": None},
        {"text": " a \n", "id": "z"},
        {"text": "a"},
    ]
    found, steps = candidates(texts, "members", rows, date_field="metadata.date")
    assert [c.files[""] for c in found] == [rows[0], rows[3], rows[5]]
    assert [c.date for c in found] == ["2020-01-02", None, None]
    assert steps["rows"]["dropped"] == {"no text": 2}
    assert steps["duplicates"]["dropped"] == {"its text came before": 1}
    assert [c.date for c in candidates(texts, "non_members", rows)[0]] == [None] * 3


@pytest.mark.parametrize(
    ("value", "message"),
    [({"a": {"b": 2020}}, "field 'a.b' is int; expected an ISO 8601"), ({"a": "x"}, "field 'a.b' leads into str")],
)
def test_dates_that_are_no_text(value, message):
    with pytest.raises(DataError, match=f"f, line 3: {message}"):
        date_of(Row("f, line 3", value), "a.b")
