"""Rows of every kind of file: the same whatever the compression, and a message for every damaged one."""

import datetime
import decimal
import gzip
import json
import random
import re
import sys
import tracemalloc
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from olmodetect_jax.construction import readers
from olmodetect_jax.construction.readers import read_rows, row_files
from olmodetect_jax.errors import DataError, UsageError

ROWS = [{"text": "one\u2028two", "n": 1}, {"text": "naïve 🍎", "deep": {"a": [None, True]}}, {"text": ""}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def packed(content, suffix):
    if suffix.endswith(".gz"):
        return gzip.compress(content)
    return zstandard.ZstdCompressor().compress(content) if suffix.endswith(".zst") else content


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(content, name))
    return path


def values(*paths):
    return [dict(row.value) for row in read_rows(paths)]


def refused(path, *parts):
    with pytest.raises(DataError) as caught:
        list(read_rows([path]))
    message = str(caught.value)
    for part in (str(path), *parts):
        assert part in message, message
    return message


@pytest.mark.parametrize("suffix", ["jsonl", "json", "jsonl.gz", "json.gz", "jsonl.zst", "json.zst", "JSONL.GZ"])
def test_json_lines(tmp_path, suffix):
    path = write(tmp_path, f"a.{suffix}", LINES) if suffix.islower() else tmp_path / f"a.{suffix}"
    if not suffix.islower():
        path.write_bytes(gzip.compress(LINES))
    rows = list(read_rows([path]))
    assert [row.value for row in rows] == ROWS
    assert [row.where for row in rows] == [f"{path}, line {i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_blank_lines_count_and_a_byte_order_mark_does_not(tmp_path, suffix):
    path = write(tmp_path, f"a.{suffix}", b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}')
    assert [(row.where, row.value["a"]) for row in read_rows([path])] == [
        (f"{path}, line 1", 1),
        (f"{path}, line 4", 2),
    ]


@settings(max_examples=60)
@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=8),
    st.lists(st.integers(0, 200), max_size=3),
    st.sampled_from([1, 2, 7, 64]),
)
def test_frames_and_chunks_may_end_anywhere(tmp_path_factory, texts, cuts, chunk):
    content = "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts).encode()
    ends = [0, *sorted(min(c, len(content)) for c in cuts), len(content)]
    path = tmp_path_factory.mktemp("z") / "a.jsonl.zst"
    pieces = [content[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(p) for p in pieces))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_CHUNK", chunk)
        assert values(path) == [{"text": t} for t in texts]


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst"])
def test_a_file_is_not_held_in_memory(tmp_path, suffix):
    """Four megabytes of digits, which compress by half."""
    digits = random.Random(1)
    lines = (f'{{"text": "{digits.getrandbits(6400)}"}}\n' for _ in range(2000))
    path = write(tmp_path, f"a.{suffix}", "".join(lines).encode())
    tracemalloc.start()
    assert sum(1 for _ in read_rows([path])) == 2000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "line 2: expected one JSON object a line"),
        (b"[1, 2]", "line 2: expected one JSON object a line: this one holds list"),
        (b'"text"', "line 2: expected one JSON object a line: this one holds str"),
        (b'{"a": "\xff"}', "line 2: not UTF-8: invalid start byte at byte 8"),
        (b'{"a": "\\ud83d!"}', "line 2: expected one JSON object a line: lone surrogate U+D83D"),
        (b"[" * 100_000, "line 2: expected one JSON object a line"),
    ],
)
def test_a_line_that_is_no_object(tmp_path, suffix, line, message):
    refused(write(tmp_path, f"a.{suffix}", b'{"a": 0}\n' + line + b"\n"), message)


def test_surrogates_in_pairs_are_characters(tmp_path):
    assert values(write(tmp_path, "a.jsonl", b'{"a": "\\ud83c\\udf4e"}')) == [{"a": "🍎"}]


@pytest.mark.parametrize("suffix", ["json.gz", "json.zst", "parquet"])
@pytest.mark.parametrize("damage", ["cut off", "overwritten", "other content", "empty"])
def test_damaged_files(tmp_path, suffix, damage):
    rows = [{"text": f"line {i} " + "".join(chr(97 + i * k % 26) for k in range(60))} for i in range(3000)]
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(packed("".join(json.dumps(r) + "\n" for r in rows).encode(), suffix))
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "cut off": content[:-9],
            "overwritten": content[:middle] + b"\xff" * 64 + content[middle + 64 :],
            "other content": b"no such format",
            "empty": b"",
        }[damage]
    )
    if damage == "empty" and suffix == "json.gz":
        assert values(path) == []  # to gzip, nothing is nothing
    else:
        refused(path)


def test_gzip_that_is_no_deflate(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES)[:10] + b"\xff" * 40)
    refused(path, "cannot be read after line 0")


def test_every_cut_of_a_compressed_file_is_seen(tmp_path):
    content = packed(LINES, ".zst") * 2
    whole_frames = {len(content) // 2, len(content)}
    for n in range(len(content) + 1):
        path = tmp_path / "a.jsonl.zst"
        path.write_bytes(content[:n])
        if n in whole_frames:
            assert len(values(path)) == 3 * n // (len(content) // 2)
        else:
            refused(path, "cannot be read")


def test_parquet_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_BATCH", 2)
    path = tmp_path / "a.parquet"
    rows = [{"text": f"t{i}", "votes": None if i == 1 else i, "turns": [{"role": "user"}] * i} for i in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    found = list(read_rows([path]))
    assert [row.value for row in found] == rows
    assert [row.where for row in found] == [f"{path}, row {i}" for i in range(1, 6)]


def test_parquet_values_become_those_of_json(tmp_path):
    path = tmp_path / "a.parquet"
    day = datetime.datetime(2023, 4, 9, 1, 2, 3)
    table = {
        "at": pa.array([day], pa.timestamp("us", "UTC")),
        "nanoseconds": pa.array([day], pa.timestamp("ns")),
        "day": pa.array([day.date()]),
        "price": pa.array([decimal.Decimal("1.50")]),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
    }
    pq.write_table(pa.table(table), path)
    assert values(path) == [
        {
            "at": "2023-04-09T01:02:03+00:00",
            "nanoseconds": "2023-04-09T01:02:03",
            "day": "2023-04-09",
            "price": 1.5,
            "map": {"a": 1},
        }
    ]


def test_parquet_with_what_json_cannot_hold(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], "image": [b"\x89PNG"]}), path)
    refused(path, "column 'image' holds bytes")


def test_parquet_that_is_no_utf_8(tmp_path):
    path = tmp_path / "a.parquet"
    text = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff"]).buffers()[1:]])
    pq.write_table(pa.table({"text": text}), path)
    refused(path, "after row 0", "utf-8")


def test_folders_are_read_in_the_order_of_names(tmp_path):
    for name in ("b/2.jsonl", "b/10.json.gz", "a.jsonl", "c/deep/1.jsonl.zst"):
        write(tmp_path, name, json.dumps({"from": name}).encode())
    for name in ("README.md", "LICENSE", "b/NOTICE.txt", ".gitattributes", ".cache/x.bin", "README_zh.md"):
        write(tmp_path, name, b"no data")
    expected = ["a.jsonl", "b/10.json.gz", "b/2.jsonl", "c/deep/1.jsonl.zst"]
    assert [row["from"] for row in values(tmp_path)] == expected
    assert [str(path.relative_to(tmp_path)) for path in row_files(tmp_path)] == expected


def test_data_named_like_a_note_is_data(tmp_path):
    write(tmp_path, "notice.jsonl", b'{"text": "a"}')
    assert values(tmp_path) == [{"text": "a"}]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.bz2", "notes", "noticeboard.csv"])
def test_a_file_of_another_kind(tmp_path, name):
    write(tmp_path, "pool/a.jsonl", LINES)
    path = write(tmp_path, f"pool/{name}", b"x")
    refused(path, "unknown kind of file; expected .jsonl")
    with pytest.raises(DataError, match=re.escape(f"{path}: unknown kind of file")):
        list(read_rows([tmp_path / "pool"]))


def test_what_is_not_there(tmp_path):
    refused(tmp_path / "a.jsonl", "no such file or folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no file to read below it")
    (tmp_path / "dangling.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    refused(tmp_path / "dangling.jsonl", "no such file or folder")


def test_a_folder_within_itself(tmp_path):
    write(tmp_path, "a/a.jsonl", LINES)
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    with pytest.raises(DataError, match="a link to a folder that it lies in"):
        row_files(tmp_path)


def hub(monkeypatch, folder, commit="c0ffee"):
    """A hub whose files lie in a folder; returns what was asked of it."""
    asked = []

    class Api:
        def dataset_info(self, repo, revision=None):
            asked.append((repo, revision))
            names = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
            return types.SimpleNamespace(sha=commit, siblings=[types.SimpleNamespace(rfilename=n) for n in names])

    def download(repo, name, *, repo_type, revision):
        assert (repo_type, revision) == ("dataset", commit)
        asked.append(name)
        return str(folder / name)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=Api, hf_hub_download=download))
    return asked


def test_hub_files_are_of_one_commit(tmp_path, monkeypatch):
    for name in ("data/b.jsonl.gz", "data/a.jsonl", "data/README.md", "other/c.jsonl"):
        write(tmp_path, name, json.dumps({"from": name}).encode())
    asked = hub(monkeypatch, tmp_path)
    rows = list(read_rows(["hub:own/ships@v1/data/*"]))
    assert [row.value["from"] for row in rows] == ["data/a.jsonl", "data/b.jsonl.gz"]
    assert rows[0].where == "hub:own/ships@c0ffee/data/a.jsonl, line 1"
    assert asked == [("own/ships", "v1"), "data/a.jsonl", "data/b.jsonl.gz"]


@pytest.mark.parametrize(
    ("path", "revision"),
    [("hub:own/ships/*.jsonl", None), ("hub:own/ships@refs/convert/parquet/*.jsonl", "refs/convert/parquet")],
)
def test_hub_revisions(tmp_path, monkeypatch, path, revision):
    write(tmp_path, "a.jsonl", LINES)
    asked = hub(monkeypatch, tmp_path)
    assert values(path) == ROWS
    assert asked[0] == ("own/ships", revision)


def test_hub_paths_that_cannot_be_read(tmp_path, monkeypatch):
    write(tmp_path, "a.csv", b"a")
    hub(monkeypatch, tmp_path)
    refused("hub:own/ships/*.jsonl", "no such file; the data set has 1 others")
    refused("hub:own/ships/*.csv", "a.csv: unknown kind of file")
    for path in ("hub:own/ships", "hub:ships/", "hub:own/ships@v1"):
        with pytest.raises(UsageError, match="expected hub:OWNER/NAME"):
            list(read_rows([path]))


def test_hub_failures_name_the_path(monkeypatch, tmp_path):
    hub(monkeypatch, tmp_path)
    monkeypatch.setattr(sys.modules["huggingface_hub"], "HfApi", lambda: (_ for _ in ()).throw(KeyError("gone")))
    refused("hub:own/ships/*.jsonl", "cannot be fetched")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=re.escape("olmodetect-jax[hub]")):
        list(read_rows(["hub:own/ships/*.jsonl"]))


def test_the_true_hub_client_without_a_network():
    pytest.importorskip("huggingface_hub")
    refused("hub:own/ships/*.jsonl", "cannot be fetched")


def test_dumps_are_read_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "read_xml_rows", lambda path: iter([path]))
    path = write(tmp_path, "Posts.xml", b"<posts/>")
    assert list(read_rows([Path(path)])) == [path]
