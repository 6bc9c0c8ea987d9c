"""Pools and what lies under them: counts of steps, seeded order, draws, documents of a corpus."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.construction.candidates import Row, Steps, Texts, shuffled, single
from olmodetect_jax.construction.choices import Choices, preset
from olmodetect_jax.construction.config import Side, SubsetConfig
from olmodetect_jax.construction.corpus import corpus_files, document_text, documents
from olmodetect_jax.construction.filtering import drop_members
from olmodetect_jax.construction.pools import Pool, made_from, read_pool
from olmodetect_jax.errors import DataError, UsageError


def encode(texts):
    return [np.zeros(len(t.split()), np.uint32) for t in texts]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def subset(source="texts", **side):
    return SubsetConfig(id="s", source=source, members=Side(paths=["m"], **side), non_members=Side(paths=["n"], **side))


def pool_of(tmp_path, rows, member=True, choices=None, source="texts", seed=0, **side):
    write(tmp_path / ("m" if member else "n") / "a.jsonl", rows)
    side_name = "members" if member else "non-members"
    return read_pool(subset(source, **side), side_name, tmp_path, choices or Choices(), seed=seed, encode=encode)


def test_steps_are_counted_in_the_order_they_are_met():
    steps = Steps()
    steps.keep("rows", 3)
    steps.drop("rows", "no text")
    steps.drop("boundary", "far")
    steps.keep("boundary", 2)
    rows = steps.rows()
    assert rows == [
        {"step": "rows", "seen": 4, "kept": 3, "dropped": {"no text": 1}},
        {"step": "boundary", "seen": 3, "kept": 2, "dropped": {"far": 1}},
    ]
    again = Steps.from_rows(rows)
    again.keep("rows")
    assert again.rows()[0]["kept"] == 4 and steps.rows() == rows


def test_a_field_that_is_missing_or_of_another_type_is_named():
    row = Row("a.jsonl, line 3", {"text": 1, "flag": True})
    with pytest.raises(DataError, match=re.escape("a.jsonl, line 3: field 'title' is missing; it has text, flag")):
        row.field("title")
    with pytest.raises(DataError, match="field 'text' is int; expected str"):
        row.field("text")
    with pytest.raises(DataError, match="field 'flag' is bool; expected int or float"):
        row.field("flag", (int, float))
    assert row.field("text", int) == 1


@given(st.lists(st.text(max_size=3), unique=True, max_size=20), st.integers(0, 9), st.randoms())
def test_a_seeded_order_follows_from_the_keys_alone(keys, seed, random):
    order = [keys[i] for i in shuffled(keys, seed, "x")]
    mixed = list(keys)
    random.shuffle(mixed)
    assert [mixed[i] for i in shuffled(mixed, seed, "x")] == order
    assert sorted(order) == sorted(keys)
    if len(keys) > 8:
        assert [keys[i] for i in shuffled(keys, seed + 10, "x")] != order
        assert [keys[i] for i in shuffled(keys, seed, "y")] != order


def test_texts_are_taken_by_position():
    texts = Texts([np.arange(i, dtype=np.uint32) for i in (3, 5, 7)], np.array([1.0, np.nan, 3.0]), ["a", "b", "c"])
    taken = texts.take(np.array([2, 0]))
    assert taken.n_tokens.tolist() == [7, 3] and taken.days.tolist() == [3.0, 1.0] and taken.keys == ["c", "a"]


def test_a_limit_draws_by_hash_whatever_the_order(tmp_path):
    rows = [{"text": f"text {i}"} for i in range(50)]
    one = pool_of(tmp_path, rows, limit=10)
    two = pool_of(tmp_path, rows[::-1], limit=10)
    assert {c.texts for c in one.candidates} == {c.texts for c in two.candidates}
    assert {c.texts for c in one.candidates} != {c.texts for c in pool_of(tmp_path, rows, limit=10, seed=1).candidates}
    assert [c.where for c in one.candidates] == sorted(
        (c.where for c in one.candidates), key=lambda w: int(w.split()[-1])
    )
    assert one.steps.rows()[-1] == {"step": "drawn", "seen": 50, "kept": 10, "dropped": {"beyond the limit": 40}}
    assert len(pool_of(tmp_path, rows, limit=60).candidates) == 50


def test_the_nearest_to_the_threshold_are_taken_where_the_paper_is_followed(tmp_path):
    field = "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob"
    rows = [{"text": f"page {i}", field: 0.01811 + i / 1e5} for i in (5, 1, 3, 2, 4)]
    paper = preset("paper")
    pool = pool_of(tmp_path, rows, choices=paper, source="dclm", nearest={"records": 2, "tokens": 5})
    assert [c.texts[0] for c in pool.candidates] == ["page 1", "page 2", "page 3"]
    assert pool.steps.rows()[-1]["dropped"] == {"farther from the threshold": 2}
    with pytest.raises(UsageError, match="s: members: boundary closest needs `nearest"):
        pool_of(tmp_path, rows, choices=paper, source="dclm")
    with pytest.raises(DataError, match="no candidate is left"):  # all are above the released band
        pool_of(tmp_path, rows, source="dclm")


def test_shifted_members_have_no_boundary_rule(tmp_path):
    field = "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob"
    write(tmp_path / "m" / "a.jsonl", [{"text": f"page {i}", field: i / 10} for i in range(10)])
    for choices in (Choices(), preset("paper")):
        pool = read_pool(subset("dclm"), "shifted members", tmp_path, choices, seed=0, encode=encode)
        assert len(pool.candidates) == 10 and pool.steps.rows()[-1]["step"] == "drawn"
    votes = {"question_score": 90, "answer_score": 90}
    write(tmp_path / "m" / "a.jsonl", [{"text": "t", "metadata": votes}])
    assert read_pool(subset("stackexchange"), "shifted members", tmp_path, Choices(), seed=0, encode=encode).candidates
    tags = {f"top_20_tokens__top_20_tokens__p{i}": [[0, 9, 0.01]] for i in (1, 2)}
    write(tmp_path / "m" / "a.jsonl", [{"id": "a", "text": "t", "attributes": tags}])
    assert read_pool(subset("starcoder"), "shifted members", tmp_path, Choices(), seed=0, encode=encode).candidates
    own = subset().model_copy(update={"shifted": Side(paths=["other"])})
    write(tmp_path / "other" / "a.jsonl", [{"text": "elsewhere"}])
    (found,) = read_pool(own, "shifted members", tmp_path, Choices(), seed=0, encode=encode).candidates
    assert found.texts == ("elsewhere",)


def test_an_empty_pool_and_wrong_options_are_named(tmp_path):
    with pytest.raises(DataError, match=r"s: members: no candidate is left of m; .*no text"):
        pool_of(tmp_path, [{"text": " "}])
    with pytest.raises(UsageError, match="s: members: options: 1 wrong fields:\n  date: no such field"):
        pool_of(tmp_path, [{"text": "x"}], options={"date": "d"})
    with pytest.raises(UsageError, match="source: unknown value 'arxiv'"):
        pool_of(tmp_path, [{"text": "x"}], source="arxiv")


def test_relative_paths_of_options_start_where_those_of_the_texts_do(tmp_path):
    write(tmp_path / "m" / "a.jsonl", [{"id": "x", "question": "q", "ground_truth": "1"}])
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "a.jsonl").write_text((tmp_path / "m" / "a.jsonl").read_text())
    (tmp_path / "shots.yaml").write_text("- {question: a, answer: b}")
    options = {"dataset": "gsm8k", "exemplars_file": "shots.yaml"}
    pool = read_pool(subset("rlvr", options=options), "non-members", tmp_path, Choices(), seed=0, encode=encode)
    assert pool.candidates[0].texts[0].startswith("<|user|>\nQuestion: a\nAnswer:b\n\n")


def test_a_pool_is_kept_and_read_again(tmp_path):
    pool = pool_of(tmp_path, [{"text": "one", "id": "é"}, {"text": "two"}])
    again = Pool.from_json(json.loads(json.dumps(pool.as_json())))
    assert again.candidates == pool.candidates and again.steps.rows() == pool.steps.rows()


def test_a_members_text_is_no_non_member():
    members, others = (Pool([single({"text": t}, "w") for t in texts], Steps()) for texts in (("a", "b"), ("b", "c")))
    kept = drop_members(others, [members])
    assert [c.texts for c in kept.candidates] == [("c",)]
    assert kept.steps.rows() == [
        {"step": "not among members", "seen": 2, "kept": 1, "dropped": {"its text is a member's": 1}}
    ]


def test_what_a_source_was_is_told_by_size_and_time(tmp_path):
    write(tmp_path / "m" / "a.jsonl", [{"text": "x"}])
    before = made_from(["m"], tmp_path)
    assert made_from(["m"], tmp_path) == before and made_from(["hub:a/b/c"], tmp_path) == [["hub:a/b/c"]]
    write(tmp_path / "m" / "a.jsonl", [{"text": "xy"}])
    assert made_from(["m"], tmp_path) != before


def test_documents_of_a_corpus(tmp_path):
    turns = [{"role": "user", "content": "hi"}]
    rows = [{"text": "a b"}, {"content": "c"}, {"messages": turns}]
    assert [document_text(Row("w", r)) for r in rows] == ["a b", "c", "<|user|>\nhi"]
    with pytest.raises(DataError, match="w: expected a field text, content or messages; it has body"):
        document_text(Row("w", {"body": "x"}))
    write(tmp_path / "m" / "a.jsonl", rows * 200)
    write(tmp_path / "m" / "b.jsonl", rows[:1])
    read, files = [], corpus_files([tmp_path / "m"])
    found = list(documents(files, encode, read.append))
    assert [len(ids) for ids in found] == [2, 1, 2] * 200 + [2]
    assert read == [size for _, size in files]
