"""A run goes on with the very same model, records and choices only."""

import json

import pytest

from olmodetect_jax.commands.run_folder import join_run, records_digest
from olmodetect_jax.errors import UsageError
from olmodetect_jax.records import Record
from tests.run_folders import MANIFEST

FREE = {"created_at", "command", "attacks", "libraries", "mesh", "version", "texts", "reference"}


def manifest(**changes):
    return {**MANIFEST, "created_at": "now", "attacks": ["ppl"], **changes}


def test_every_other_field_must_be_the_same(tmp_path):
    path = tmp_path / "manifest.json"
    join_run(path, manifest())
    for field, value in manifest().items():
        if field in FREE or field == "frequencies":
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
