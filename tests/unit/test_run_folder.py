"""A run goes on with the very same model, records and choices only."""

import json

import pytest

from olmodetect_jax.commands.run_folder import join_run, records_digest
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.records import Record
from tests.run_folders import MANIFEST

FREE = {"created_at", "command", "attacks", "libraries", "mesh", "version", "texts", "reference"}


def manifest(**changes):
    return {**MANIFEST, "created_at": "now", "attacks": ["ppl"], **changes}


def test_every_other_field_must_be_the_same(tmp_path):
    path = tmp_path / "manifest.json"
    join_run(path, manifest())
    for field, value in manifest().items():
        if field in FREE or field in ("frequencies", "generation"):
            join_run(path, manifest(**{field: value}))
            continue
        changed = {**value, "other": 1} if isinstance(value, dict) else "other"
        with pytest.raises(UsageError, match="--out"):
            join_run(path, manifest(**{field: changed}))


def test_what_may_differ(tmp_path):
    path = tmp_path / "manifest.json"
    join_run(path, manifest())
    moved = {**MANIFEST["model"], "path": "/elsewhere"}
    later = join_run(path, manifest(created_at="later", model=moved, attacks=["zlib"], libraries={}))
    assert later["created_at"] == "now" and json.loads(path.read_text())["attacks"] == []
    path.write_text(json.dumps({**later, "attacks": ["ppl"]}))
    assert join_run(path, manifest(attacks=["zlib"]))["attacks"] == ["ppl", "zlib"]


def test_the_frequency_table_counts_once_it_is_there(tmp_path):
    path = tmp_path / "manifest.json"
    table = {"sha256": "a", "source": "s", "documents": 1, "max_tokens": 2}
    join_run(path, manifest())
    assert join_run(path, manifest(frequencies=table))["frequencies"] == table
    assert join_run(path, manifest())["frequencies"] == table
    for field, value in {"sha256": "b", "source": "t", "documents": 2, "max_tokens": 3}.items():
        with pytest.raises(UsageError, match="frequencies"):
            join_run(path, manifest(frequencies={**table, field: value}))


def test_ids_labels_and_texts_are_in_the_records_digest():
    def digest(record_id="a", text="one", label=1):
        return records_digest([Record(record_id, text, label, "s", "file, line 1")])

    assert digest() == digest()
    assert len({digest(), digest(record_id="b"), digest(text="two"), digest(label=0), digest(label=None)}) == 5


def generation(**parts):
    return {"generation": {"limit": 3, **parts}}


def test_facts_of_the_generative_attacks_count_where_both_runs_have_the_attack(tmp_path):
    path = tmp_path / "manifest.json"
    guided = {"guided": {"path": "/a", "sha256": "a"}, "sources": {"path": None, "sha256": "s"}}
    quiz = {"quiz": {"path": "/q", "sha256": "q"}}
    join_run(path, manifest())
    assert join_run(path, manifest(**generation(prompts=guided)))["generation"] == {"limit": 3, "prompts": guided}
    join_run(path, manifest())  # attacks that write nothing can still be added
    later = {"dcq_quiz": {"path": None, "sha256": "d"}, "sources": {"path": "/moved", "sha256": "s"}}
    joined = join_run(path, manifest(**generation(prompts=later, **quiz)))["generation"]
    assert joined == {"limit": 3, "prompts": {**guided, **later}, **quiz}
    for parts, name in (
        ({"limit": 4}, "another generation.limit (3, now 4)"),
        ({"limit": None}, "another generation.limit (3, now null)"),
        ({"prompts": {"guided": {"path": "/a", "sha256": "b"}}}, "another prompt guided"),
        ({"quiz": {"path": "/q", "sha256": "r"}}, "another generation.quiz"),
    ):
        with pytest.raises(UsageError) as error:
            join_run(path, manifest(**generation(**parts)))
        assert name in str(error.value)
    join_run(path, manifest(**generation(neighbours={"backend": "the target model"})))
    with pytest.raises(UsageError, match="another generation.neighbours"):
        join_run(path, manifest(**generation(neighbours={"backend": "a file", "sha256": "n"})))


@pytest.mark.parametrize("facts", [[1], "x", {"prompts": [1]}])
def test_facts_that_are_none(tmp_path, facts):
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest(), "generation": facts}))
    with pytest.raises(DataError, match="generation or training_records has another type"):
        join_run(tmp_path / "manifest.json", manifest())
