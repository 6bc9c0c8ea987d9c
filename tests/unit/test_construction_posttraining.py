"""Mid- and post-training sources: rows to candidates against their golden files and small pools in true formats."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.benchmark import SPLITS, VARIANTS, load_tree
from olmodetect_jax.construction.boundary import stack_exchange_non_member
from olmodetect_jax.construction.candidates import Row, Steps
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.layout import file_of
from olmodetect_jax.construction.readers import read_rows
from olmodetect_jax.construction.sources import dpo, gsm8k, rlvr, sft, stackexchange
from olmodetect_jax.construction.sources.common import unique
from olmodetect_jax.construction.sources.html_text import html_to_text
from olmodetect_jax.construction.sources.posts_xml import read_xml_rows
from olmodetect_jax.construction.sources.registry import SOURCES, load_source
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import config_path
from olmodetect_jax.records import MEMBER, NON_MEMBER

TESTS = Path(__file__).parents[1]
POOLS = TESTS / "fixtures" / "construction"
GSM8K = {"dataset": "gsm8k", "exemplars": [["One oar?", "1 oar."]]}
DOMAINS = {"gsm8k", "stackexchange", "sft", "dpo", "rlvr"}


def cases(name, wanted):
    golden = json.loads((TESTS / "golden" / name).read_text())
    return [
        pytest.param(i, e, id=title)
        for title, i, e in zip(golden["case_names"], golden["inputs"], golden["expected"], strict=True)
        if wanted(i)
    ]


def read(module, side, values, choices=None, /, **options):
    """Candidates of one class and what the steps counted."""
    steps = Steps()
    rows = [Row(f"pool.jsonl, line {i}", value) for i, value in enumerate(values, 1)]
    found = list(getattr(module, side)(rows, module.Options(**options), choices or Choices(), steps))
    return found, {row["step"]: row for row in steps.rows()}


def options_of(case):
    known = {"gsm8k": ("split", "exclude_indices"), "rlvr": ("dataset", "exemplars"), "sft": ("subset", "source"),
             "dpo": ("source",), "stackexchange": ()}[case["domain"]]  # fmt: skip
    return {name: case[name] for name in known if name in case}


@pytest.mark.parametrize("case, expected", cases("construction_sources.json", lambda i: i.get("domain") in DOMAINS))
def test_golden(case, expected):
    side = case.get("side", "member").replace("-", "_") + "s"
    found, _ = read(load_source(case["domain"]), side, case["rows"], **options_of(case))
    files = expected.get("files") or {"": expected["records"]}
    for part, records in files.items():
        assert [c.files[part] for c in found] == records
    for i, candidate in enumerate(found):
        assert set(candidate.files) == set(files)
        if "pair" in files:
            pair = files["pair"][i]
            assert candidate.texts == (pair["chosen_text"], pair["rejected_text"])
            assert list(candidate.overlap_texts.items()) == [
                ("prompt", pair["prompt"]), ("chosen", pair["chosen_text"]), ("rejected", pair["rejected_text"]),
            ]  # fmt: skip
        else:
            assert candidate.texts == (files[""][i]["text"],)
            assert candidate.overlap_texts == {"": files[""][i].get("text_no_cot", files[""][i]["text"])}
    if "dates" in expected:
        assert [c.date for c in found] == expected["dates"]


@pytest.mark.parametrize("case, expected", cases("construction_sources.json", lambda i: i.get("kind") == "paths"))
def test_files_of_a_subset(case, expected):
    tree, root = load_tree("olmo2"), Path("benchmark")
    found = {}
    for subset in tree.subsets:
        for size in tree.size_pairs if subset.sized else [None]:
            parts = ("chosen", "rejected", "pair") if len(subset.files) > 1 else ("",)
            for file in (file_of(subset, part) for part in parts):
                name = file.format(size=size, pair=tree.size_pairs.get(size))
                for label in (MEMBER, NON_MEMBER):
                    for variant in VARIANTS if subset.variants else VARIANTS[:1]:
                        for split in SPLITS:
                            path = tree.path(root, subset, file, label, split=split, variant=variant, size=size)
                            found.setdefault(name, set()).add(path.as_posix())
    for name in case["names"]:
        assert found[name] == set(expected["paths"][name])


@pytest.mark.parametrize(
    "case, expected", cases("construction_stackexchange.json", lambda i: i["kind"] == "html_to_text")
)
def test_html(case, expected):
    assert html_to_text(case["html"]) == expected["text"]


@pytest.mark.parametrize("case, expected", cases("construction_stackexchange.json", lambda i: i["kind"] == "posts_xml"))
def test_dumps(case, expected, tmp_path):
    path = tmp_path / "Posts.xml"
    path.write_text(case["xml"], encoding="utf-8", newline="")
    steps = Steps()
    found = list(stackexchange.answered(read_xml_rows(path), steps, title=case["with_title"]))
    assert [c.files[""] for c in found] == expected["records"]
    dropped = {row["step"]: row["dropped"] for row in steps.rows()}.get("answered", {})
    assert {name: dropped.get(name, 0) for name in expected["skipped"]} == expected["skipped"]
    near = [stack_exchange_non_member(c.quality["question"], c.quality["answer"]) for c in found]
    assert near == expected["non_member_boundary"]
    kept = list(unique((c for c, n in zip(found, near, strict=True) if n), Steps()))
    assert [found.index(c) for c in kept] == expected["candidates_after_deduplication"]
    again, _ = read(
        stackexchange, "non_members", [r.value for r in read_xml_rows(path)], Choices(title=case["with_title"])
    )
    assert [c.files for c in again] == [c.files for c in kept]


def test_every_golden_case_is_used():
    kinds = {i["kind"] for i in json.loads((TESTS / "golden/construction_stackexchange.json").read_text())["inputs"]}
    assert kinds == {"html_to_text", "posts_xml"}


@pytest.mark.parametrize(
    "domain, side, options, texts",
    [
        ("gsm8k", "members", {}, ["Question: Two oars", "Question: Two oars"]),
        ("gsm8k", "non_members", {"exclude_indices": [0]}, ["Question: 4 nets less 2?\nReasoning: 4-2=<<4-2=2>>2"]),
        ("stackexchange", "members", {"site": "math"}, ["How deep?"]),
        ("stackexchange", "non_members", {}, ["A knot\n\n\nHow do I tie this?\n\n\nTwice around, & through."]),
        ("sft", "members", {"subset": "wildchat", "source": "tulu_v3.9_wildchat_100k"}, ["<|user|>\nName a wind."]),
        ("sft", "non_members", {"subset": "wildchat"}, ["<|user|>\nName a sea.\n<|assistant|>\nAral.\n<|user|>"]),
        ("dpo", "members", {"source": "wildchat_v3.9_unused_on_policy_olmo2_7b"}, ["<|user|>\nGreet the crew."]),
        ("dpo", "non_members", {}, ["<|user|>\nDescribe fog.\n<|assistant|>\nGrey and near."]),
        ("rlvr", "members", GSM8K, ["<|user|>\nQuestion: One oar?\nAnswer:1 oar."]),
        ("rlvr", "non_members", GSM8K, ["<|user|>\nQuestion: One oar?\nAnswer:1"]),
    ],
)  # fmt: skip
def test_pools_in_their_true_format(domain, side, options, texts):
    (path,) = (POOLS / domain).glob(f"{side}.*")
    source, steps = load_source(domain), Steps()
    found = list(getattr(source, side)(read_rows([path]), source.Options(**options), Choices(), steps))
    assert [c.texts[0][: len(t)] for c, t in zip(found, texts, strict=True)] == texts
    assert all(str(path) in c.where for c in found)
    assert steps.rows()[-1]["kept"] == len(texts)


def test_the_example_exemplars_can_be_read():
    for name in ("gsm8k", "math"):
        path = config_path("construction", f"exemplars_{name}.yaml")
        row = {"id": "x", "question": "3?", "ground_truth": "3"}
        found, _ = read(rlvr, "non_members", [row], dataset="gsm8k", exemplars_file=path)
        assert found[0].files[""]["text"].endswith("\n\nQuestion: 3?") and "Answer: " in found[0].files[""]["text"]


@given(
    st.lists(
        st.sampled_from(["a", " b", "<p>", "</p>", "<br>", "<pre>", "</pre>", "<li>", "&lt;", "&nbsp;", "\n", "<b"])
    )
)
def test_any_html_becomes_text(parts):
    text = html_to_text("".join(parts))
    assert "\n\n\n" not in re.sub("(?s)<pre>.*", "", text) or "<pre>" in parts
    assert text == text.strip(" \n") or "<pre>" in parts


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source, side, row, options, message",
    [
        (gsm8k, "members", {"question": "q", "answer": "no result"}, {}, "no line that begins with ####"),
        (gsm8k, "members", {"metadata": {}}, {}, "field 'text' is missing"),
        (gsm8k, "members", {"question": 3, "answer": "x"}, {}, "field 'question' is int"),
        (stackexchange, "members", {"text": "t", "metadata": {}}, {}, "metadata: field 'question_score'"),
        (stackexchange, "non_members", {"Id": "x"}, {}, "field 'Id' is 'x'; expected a whole number"),
        (stackexchange, "non_members", {"Id": "1"}, {}, "field 'PostTypeId' is missing"),
        (sft, "non_members", {"inputs": "a"}, {"subset": "aya"}, "field 'targets' is missing"),
        (sft, "non_members", {"conversation": [{"role": "user"}]}, {"subset": "wildchat"}, "turn 1: expected"),
        (sft, "members", {"messages": MESSAGES}, {"subset": "aya", "source": "s"}, "field 'source' is missing"),
        (dpo, "non_members", {"prompt": "p", "chosen": MESSAGES}, {}, "field 'rejected' is missing"),
        (dpo, "non_members", {"prompt": "p", "chosen": "text", "rejected": []}, {}, "field 'chosen' is str"),
        (rlvr, "members", {"messages": MESSAGES}, GSM8K, "field 'dataset'"),
        (rlvr, "non_members", {"id": "x"}, GSM8K, "field 'question' is missing"),
    ],
)  # fmt: skip
def test_a_row_that_breaks_the_format_is_named(source, side, row, options, message):
    with pytest.raises(DataError, match=re.escape(message)) as error:
        read(source, side, [row], **options)
    assert "pool.jsonl, line 1" in str(error.value)


def test_options_that_are_needed(tmp_path):
    with pytest.raises(UsageError, match="sft: members need the option `source`"):
        read(sft, "members", [], subset="aya")
    with pytest.raises(UsageError, match="dpo: members need the option `source`"):
        read(dpo, "members", [])
    with pytest.raises(UsageError, match="give the worked examples"):
        read(rlvr, "members", [], dataset="MATH")
    path = tmp_path / "e.yaml"
    for content in ("[]", "- {question: q}", "- x", "question: q"):
        path.write_text(content)
        with pytest.raises(UsageError, match=r"e\.yaml: expected a list of \{question, answer\}"):
            read(rlvr, "members", [], dataset="MATH", exemplars_file=path)
    path.write_text("- {question: q, answer: a}")
    with pytest.raises(UsageError, match="give either"):
        read(rlvr, "members", [], dataset="MATH", exemplars_file=path, exemplars=[["q", "a"]])


def test_what_is_dropped_is_counted_by_reason():
    _, steps = read(rlvr, "members", [
        {"dataset": "MATH", "messages": MESSAGES}, {"dataset": "gsm8k", "messages": MESSAGES},
    ], dataset="gsm8k", exemplars=[["q", "a"]])  # fmt: skip
    assert steps["rows"]["dropped"] == {"another data set": 1, "other examples": 1}
    _, steps = read(sft, "non_members", [{"conversation": []}], subset="wildchat")
    assert steps["rows"]["dropped"] == {"no text": 1}
    votes = {"question_score": 3, "answer_score": 5, "site": "x"}
    _, steps = read(stackexchange, "members", [{"text": "t", "metadata": votes}], site="math")
    assert steps["site"]["dropped"] == {"another site": 1}


def question(number, answer, **more):
    return {"Id": str(number), "PostTypeId": "1", "AcceptedAnswerId": str(answer), "Score": "3", "Body": "<p>q</p>",
            "CreationDate": "2020-01-01T00:00:00.000", "Title": "t", **more}  # fmt: skip


def reply(number, parent, **more):
    return {"Id": str(number), "PostTypeId": "2", "ParentId": str(parent), "Score": "4", "Body": "<p>a</p>", **more}


def test_answers_before_their_question_and_rows_out_of_order():
    found, _ = read(stackexchange, "non_members", [reply(1, 2), question(2, 1)], Choices(title=False))
    assert [c.texts for c in found] == [("q\n\n\na",)]
    _, steps = read(stackexchange, "non_members", [question(1, 3), question(2, 3), reply(3, 1)])
    assert steps["answered"]["dropped"] == {"accepted_answer_missing": 1}  # another question's
    _, steps = read(stackexchange, "non_members", [question(1, 2), reply(2, 1, Body="<![bad[x]]>")])
    assert sum(steps["answered"]["dropped"].values()) == 1
    with pytest.raises(DataError, match="Id 1 comes after 2"):
        read(stackexchange, "non_members", [question(2, 3), question(1, 3)])


@pytest.mark.parametrize(
    "content, message",
    [
        ('<posts><row Id="1" /><row Id=', "not valid XML"),
        ('<posts><row Id="1" />', "not valid XML"),
        ("", "not valid XML"),
        ('<!DOCTYPE p [<!ENTITY a "b">]><posts><row Id="&a;" /></posts>', "declares entities"),
    ],
)
def test_a_damaged_dump_is_named(tmp_path, content, message):
    path = tmp_path / "Posts.xml"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as error:
        list(read_xml_rows(path))
    assert "Posts.xml" in str(error.value)
    with pytest.raises(DataError, match="cannot be read"):
        list(read_xml_rows(tmp_path))


def test_rows_of_a_dump_are_streamed(tmp_path):
    path = tmp_path / "Posts.xml"
    path.write_text("<posts>" + "".join(f'<row Id="{i}" />' for i in range(20_000)))
    rows = read_xml_rows(path)
    assert next(rows).value == {"Id": "0"}  # long before the missing end is met


def test_every_source_is_there():
    for name in SOURCES:
        source = load_source(name)
        assert isinstance(source.DATED, bool) and callable(source.members) and callable(source.non_members)
    with pytest.raises(UsageError, match="source: unknown value 'arxiv'"):
        load_source("arxiv")
