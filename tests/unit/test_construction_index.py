"""The built-in n-gram index against brute force, however it is built, and what it refuses."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmodetect_jax.construction.index import build_builtin, builtin, hashing
from olmodetect_jax.construction.index.base import windows
from olmodetect_jax.construction.index.build_builtin import build_index
from olmodetect_jax.construction.index.builtin import open_index
from olmodetect_jax.errors import DataError, UsageError

IDS = st.sampled_from([0, 1, 2, 65_535, 65_536, 65_537, 100_277, 2**32 - 1])
CORPUS = st.lists(st.lists(IDS, max_size=25), min_size=1, max_size=8)


def arrays(corpus):
    return [np.array(document, np.uint32) for document in corpus]


def brute_force(corpus, queries, n):
    counts = Counter(tuple(w) for d in corpus for w in windows(np.array(d, np.int64), n).tolist())
    return [counts[tuple(q)] for q in queries.tolist()]


def build(corpus, folder, n=3, memory=10**6, **options):
    return build_index(arrays(corpus), folder, n=n, tokenizer_digest="t", memory=memory, **options)


def queries_for(corpus, n, rng):
    """Every window of the corpus, across documents too, and some that are not there."""
    together = np.concatenate([*arrays(corpus), np.zeros(n, np.uint32)])
    present = np.ascontiguousarray(windows(together, n))
    absent = rng.choice(np.array([0, 1, 65_536, 131_072, 9], np.uint32), (20, n))
    return np.concatenate([present, absent])


@settings(max_examples=40)
@given(corpus=CORPUS, n=st.integers(2, 5), seed=st.integers(0, 99))
def test_counts_are_those_of_brute_force(tmp_path_factory, corpus, n, seed):
    folder = tmp_path_factory.mktemp("index") / "i"
    facts = build(corpus, folder, n)
    queries = queries_for(corpus, n, np.random.default_rng(seed))
    assert open_index(folder, tokenizer_digest="t").count(queries).tolist() == brute_force(corpus, queries, n)
    assert facts["tokens"] == sum(map(len, corpus)) and facts["documents"] == len(corpus)
    assert facts["windows"] == sum(max(0, len(d) - n + 1) for d in corpus)


@pytest.fixture(scope="module")
def large():
    rng = np.random.default_rng(1)
    return [(rng.zipf(1.2, rng.integers(0, 90)) % 300 + 65_400).tolist() for _ in range(400)]


@pytest.fixture
def little(monkeypatch):
    """Chunks and parts of 60, so that parts are split again."""
    monkeypatch.setattr(build_builtin, "_LEAST", 60)


def test_what_is_held_while_building_changes_nothing(tmp_path, large, little):
    large = large[:150]
    build(large, tmp_path / "i", 4, 1)
    build(large, tmp_path / "j", 4, 10**9)
    for path in (tmp_path / "j").rglob("*"):
        if path.is_file():
            assert (tmp_path / "i" / path.relative_to(tmp_path / "j")).read_bytes() == path.read_bytes(), path
    queries = queries_for(large, 4, np.random.default_rng(0))[::7]
    for held in (1, 4 * 2**16, 10**9):
        found = open_index(tmp_path / "i", tokenizer_digest=None, memory=held).count(queries)
        assert found.tolist() == brute_force(large, queries, 4)


@pytest.mark.parametrize("bits", [0, 3])
def test_equal_hashes_of_other_windows_do_not_count(tmp_path, large, monkeypatch, bits):
    real = hashing._hash
    monkeypatch.setattr(hashing, "_hash", lambda columns, size: real(columns, size) & np.uint64(2**bits - 1))
    build(large[:60], tmp_path / "i", 3)
    queries = queries_for(large[:60], 3, np.random.default_rng(0))[:300]
    assert open_index(tmp_path / "i", tokenizer_digest="t").count(queries).tolist() == brute_force(
        large[:60], queries, 3
    )


def test_occurrences_are_compared_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(builtin, "_TOGETHER", 7)
    build([[5] * 50, [5, 5, 6] * 9], tmp_path / "i", 2)
    queries = np.array([[5, 5], [6, 5], [5, 6], [6, 6]], np.uint32)
    assert open_index(tmp_path / "i", tokenizer_digest="t").count(queries).tolist() == [49 + 9, 8, 9, 0]


def test_building_holds_little_of_a_long_document_and_of_a_window_that_repeats(tmp_path, little, monkeypatch):
    held = []

    def spied(module, name, size):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given: (held.append(size(*given)), real(*given))[1])

    spied(build_builtin, "_read", lambda path, start, count: count)
    spied(hashing, "rolling", lambda ids, n: len(ids) - n + 1)
    corpus = [[7] * 500, list(range(500))]
    build(corpus, tmp_path / "i", 3, memory=1)
    assert max(held) == 60
    queries = np.array([[7, 7, 7], [7, 7, 0], [0, 1, 2], [497, 498, 499]], np.uint32)
    assert open_index(tmp_path / "i", tokenizer_digest="t").count(queries).tolist() == [498, 0, 1, 1]


def test_look_ups_hold_no_more_than_they_may(tmp_path):
    """Pages of a stretch of hashes, then of a block of tokens; each is one query or region at least."""
    region, memory = 2**16, 2**19
    document = np.random.default_rng(0).integers(0, 2**32, 300_000).astype(np.uint32)
    document[1000:200_000] = 5
    build_index([document], tmp_path / "i", n=3, tokenizer_digest="t", memory=10**8)
    (shard,) = open_index(tmp_path / "i", tokenizer_digest="t", memory=memory)._shards
    wanted = np.sort(np.random.default_rng(1).integers(0, 2**64, 2000, np.uint64))
    stretches = list(shard._stretches(wanted))
    assert len(stretches) > 5
    for span, low, high in stretches:
        assert 8 * (high - low) <= memory // 4 or span.stop == span.start + 1
        assert np.searchsorted(shard._hashes, wanted[span]).min() >= low
        assert np.searchsorted(shard._hashes, wanted[span], side="right").max() <= high
    for position in (np.arange(100_000), np.random.default_rng(2).integers(0, 300_000, 500)):
        blocks = shard._blocks(position)
        assert [i for b in blocks for i in range(b.start, b.stop)] == list(range(len(position)))
        regions = [len(set((position[b] // (region // 4)).tolist())) for b in blocks]
        assert len(blocks) > 1 and max(regions) <= memory // 2 // region
    queries = np.concatenate([windows(document, 3)[::5000], [[5, 5, 6]]]).astype(np.uint32)
    found = open_index(tmp_path / "i", tokenizer_digest="t", memory=memory).count(queries).tolist()
    assert found == [198_998 if q.tolist() == [5, 5, 5] else 1 for q in queries[:-1]] + [0]


def mapped_now():
    """Bytes of mapped files that this process holds."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


@pytest.mark.parametrize("memory, kept", [(10**6, False), (10**9, True)])
def test_pages_are_given_back_where_the_index_is_larger_than_memory(tmp_path, memory, kept):
    document = np.random.default_rng(0).integers(0, 2**32, 300_000).astype(np.uint32)
    build_index([document], tmp_path / "i", n=3, tokenizer_digest="t", memory=10**8)
    index = open_index(tmp_path / "i", tokenizer_digest="t", memory=memory)
    queries = np.ascontiguousarray(windows(document, 3)[::100])
    index.count(queries[:1])  # what the first call loads
    before = mapped_now()
    assert index.count(queries).tolist() == [1] * len(queries)
    assert (mapped_now() - before > 2**21) == kept


def test_a_corpus_beyond_one_shard(tmp_path, large, little, monkeypatch):
    monkeypatch.setattr(build_builtin, "SHARD_TOKENS", 1500)
    facts = build(large, tmp_path / "i", 3, memory=1)
    assert len(facts["shards"]) > 5
    queries = queries_for(large, 3, np.random.default_rng(0))
    assert open_index(tmp_path / "i", tokenizer_digest="t").count(queries).tolist() == brute_force(large, queries, 3)
    size = sum(4 * s["tokens"] + 12 * s["windows"] for s in facts["shards"])
    for memory, back in ((2 * size - 2, True), (2 * size, False)):  # they count together
        assert {s._gives_back for s in open_index(tmp_path / "i", tokenizer_digest="t", memory=memory)._shards} == {
            back
        }
    with pytest.raises(DataError, match="document 1 has 2,000 tokens"):
        build([[1] * 2000], tmp_path / "j")


def test_at_most_four_times_the_tokens_on_disk(tmp_path, large):
    facts = build(large, tmp_path / "i", 13)
    size = sum(p.stat().st_size for p in (tmp_path / "i").rglob("*") if p.is_file() and p.name != "index.json")
    assert size <= 16 * facts["tokens"]


def test_progress_counts_tokens(tmp_path, large, little):
    seen = []
    build(large[:60], tmp_path / "i", 3, memory=1, report=seen.append)
    assert sum(seen) == sum(map(len, large[:60])) and len(seen) > 1


def test_a_killed_build_leaves_no_index(tmp_path, large, little):
    def killed():
        yield from arrays(large[:100])
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build_index(killed(), tmp_path / "i", n=3, tokenizer_digest="t", memory=1)
        with pytest.raises(UsageError, match="no index description"):
            open_index(tmp_path / "i", tokenizer_digest="t")
    build(large, tmp_path / "i", 3)
    assert [p.name for p in tmp_path.iterdir()] == ["i"]


_ENDLESS = """
import itertools, sys
from pathlib import Path
import numpy as np
from olmodetect_jax.construction.index.build_builtin import build_index
build_index(
    (np.arange(5000) + i for i in itertools.count()), Path(sys.argv[1]), n=3, tokenizer_digest="t", memory=1,
    report=lambda done: print(done, flush=True),
)
"""


def test_a_build_that_was_killed_outright(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _ENDLESS, str(tmp_path / "i")], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir()] == [".i.partial"]
    with pytest.raises(UsageError, match="no index description"):
        open_index(tmp_path / "i", tokenizer_digest="t")
    with pytest.raises(UsageError, match="no index description"):
        open_index(tmp_path / ".i.partial", tokenizer_digest="t")
    build([[1, 2, 3, 4]], tmp_path / "i")
    assert [p.name for p in tmp_path.iterdir()] == ["i"]
    assert open_index(tmp_path / "i", tokenizer_digest="t").count(np.array([[2, 3, 4]])).tolist() == [1]


def test_what_cannot_be_indexed(tmp_path):
    build([[1, 2, 3]], tmp_path / "there")
    with pytest.raises(UsageError, match="exists already"):
        build([[1, 2, 3]], tmp_path / "there")
    with pytest.raises(DataError, match="holds no document"):
        build([], tmp_path / "empty")
    for ids in ([-1, 2], [2**32, 1]):
        with pytest.raises(DataError, match=r"document 2: token ids from .*; expected 0 to 4294967295"):
            build_index([np.array([1]), np.array(ids)], tmp_path / "bad", n=2, tokenizer_digest="t", memory=1000)
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    build([[], [1], [2, 3]], tmp_path / "short", n=3)  # documents shorter than a window are none's part
    index = open_index(tmp_path / "short", tokenizer_digest="t")
    assert index.count(np.array([[1, 2, 3]], np.uint32)).tolist() == [0]


def test_what_cannot_be_opened(tmp_path):
    folder = tmp_path / "i"
    build([[1, 2, 3, 4]], folder)
    with pytest.raises(UsageError, match="is of another tokenizer"):
        open_index(folder, tokenizer_digest="other")
    with pytest.raises(UsageError, match="no index description"):
        open_index(tmp_path / "nothing", tokenizer_digest=None)
    with pytest.raises(DataError, match=r"queries of shape \(1, 4\) to an index of 3-grams"):
        open_index(folder, tokenizer_digest=None).count(np.zeros((1, 4), np.uint32))
    with pytest.raises(DataError, match="queries: token ids from -1"):
        open_index(folder, tokenizer_digest=None).count(np.full((1, 3), -1))
    hashes = folder / "shard-00000" / "hashes.u64"
    content = hashes.read_bytes()
    hashes.write_bytes(content[:-3])
    with pytest.raises(DataError, match=r"hashes\.u64: has 13 bytes, expected 16"):
        open_index(folder, tokenizer_digest="t")
    hashes.unlink()
    with pytest.raises(DataError, match=r"hashes\.u64: has None bytes"):
        open_index(folder, tokenizer_digest="t")
    description = json.loads((folder / "index.json").read_text())
    for change in ({"format": 2}, {"backend": "infini-gram"}):
        (folder / "index.json").write_text(json.dumps(description | change))
        with pytest.raises(UsageError, match="no built-in index of format 1"):
            open_index(folder, tokenizer_digest="t")
    for text in ("{", "[]", ""):
        (folder / "index.json").write_text(text)
        with pytest.raises(UsageError, match=r"index\.json"):
            open_index(folder, tokenizer_digest="t")


@pytest.mark.parametrize(
    "change, field",
    [
        ({"n": None}, "n"), ({"n": 0}, "n"), ({"tokenizer": 5}, "tokenizer"), ({"tokens": -1}, "tokens"),
        ({"shards": None}, "shards"), ({"shards": [1]}, "shards.0"), ({"shards": [{}]}, "shards.0.folder"),
        (
            {"shards": [{"folder": "../other", "documents": 1, "tokens": 4, "windows": 2}]},
            "shards.0.folder",
        ),
    ],
)  # fmt: skip
def test_a_damaged_description(tmp_path, change, field):
    description = build([[1, 2, 3, 4]], tmp_path / "i")
    changes = [change, *({k: v for k, v in description.items() if k != name} for name in change)]
    for changed in (description | changes[0], changes[1]):
        (tmp_path / "i" / "index.json").write_text(json.dumps(changed))
        where = field if changed is not changes[1] else next(iter(change))
        with pytest.raises(DataError, match=rf"index\.json: {where}: .*make it anew"):
            open_index(tmp_path / "i", tokenizer_digest="t")
