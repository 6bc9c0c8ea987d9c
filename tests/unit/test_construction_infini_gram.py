"""The infini-gram backend against brute force, with ids beyond 16 bits; and what it refuses."""

import json
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from olmodetect_jax.construction.index import infini_gram
from olmodetect_jax.construction.index.base import windows
from olmodetect_jax.construction.index.infini_gram import build_infini_gram, open_infini_gram, open_prepared
from olmodetect_jax.errors import DataError, OlmoDetectError, UsageError

pytest.importorskip("infini_gram", reason="the extra [infini-gram] has no wheel for this platform")
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "construction_ngrams.json").read_text())
SEPARATOR = 100_277


def build(documents, folder, **options):
    options = {"separator": SEPARATOR, "tokenizer_digest": "t", "memory_gb": 1, "cpus": 2} | options
    return build_infini_gram([np.asarray(d, np.uint32) for d in documents], folder, **options)


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(3)
    documents = [(rng.zipf(1.3, rng.integers(0, 80)) % 40 + 65_520).tolist() for _ in range(120)]
    return [*documents, [], [1, 65_537, 1, 65_537, 1], documents[0]]


@pytest.fixture(scope="module")
def index(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("infini") / "index"
    facts = build(corpus, folder)
    assert (facts["documents"], facts["tokens"]) == (len(corpus), sum(map(len, corpus)))
    return folder


@pytest.mark.parametrize("n", [1, 3, 13])
def test_counts_are_those_of_brute_force(index, corpus, n):
    counts = Counter(tuple(w) for d in corpus for w in windows(np.array(d, np.int64), n).tolist())
    rng = np.random.default_rng(n)
    present = [list(counts)[i] for i in rng.permutation(len(counts))[:150]]
    absent = rng.integers(65_520, 65_560, (50, n)).tolist()
    queries = np.array([*present, *absent, [0] * n], np.uint32)
    found = open_infini_gram(index, tokenizer_digest="t").count(queries)
    assert found.tolist() == [counts[tuple(q)] for q in queries.tolist()]


def test_golden_counts(tmp_path):
    (case,) = [(i, e) for i, e in zip(GOLDEN["inputs"], GOLDEN["expected"], strict=True) if i["kind"] == "count"]
    given, expected = case
    for name, documents in given["indices"].items():
        if not documents:
            continue
        build(documents, tmp_path / name)
        index = open_infini_gram(tmp_path / name, tokenizer_digest="t")
        found = [int(index.count(np.array([q], np.uint32))[0]) for q in given["queries"]]
        assert found == expected["per_index"][name]


def test_what_cannot_be_built(index, tmp_path):
    with pytest.raises(UsageError, match="exists already"):
        build([[1]], index)
    with pytest.raises(DataError, match="holds no document"):
        build([], tmp_path / "i")
    with pytest.raises(DataError, match="document 2: holds the id 100277"):
        build([[1], [SEPARATOR]], tmp_path / "i")
    assert not (tmp_path / "i").exists()


def test_a_builder_that_fails_says_its_last_lines(tmp_path, monkeypatch):
    failed = types.SimpleNamespace(returncode=1, stderr="first\nout of luck", stdout="")
    monkeypatch.setattr(infini_gram.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(OlmoDetectError, match="builder failed:\nfirst\nout of luck"):
        build([[1, 2]], tmp_path / "i")
    assert not (tmp_path / "i").exists()


def test_an_index_that_counts_wrongly_is_not_kept(tmp_path, monkeypatch, corpus):
    real = infini_gram.InfiniGramIndex.count
    monkeypatch.setattr(infini_gram.InfiniGramIndex, "count", lambda self, queries: real(self, queries) + 1)
    with pytest.raises(OlmoDetectError, match=r"counts \d+ where \d+ are right"):
        build(corpus, tmp_path / "i")
    assert not (tmp_path / "i").exists()


def test_what_cannot_be_opened(index, corpus, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="is of another tokenizer"):
        open_infini_gram(index, tokenizer_digest="other")
    folder = tmp_path / "i"
    build(corpus[:5], folder)
    table = folder / "table.0"
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"table\.0: has \d+ bytes, expected \d+"):
        open_infini_gram(folder, tokenizer_digest="t")
    with pytest.raises(UsageError, match="do not fit into 16 bits"):
        open_prepared(index, token_dtype="u16", eos=1, vocabulary=100_278, tokenizer="t")
    found = open_prepared(index, token_dtype="u16", eos=1, vocabulary=32_000, tokenizer="t")
    with pytest.raises(DataError, match="id 65536 does not fit into u16"):
        found.count(np.array([[65_536]]))
    monkeypatch.setattr(found._engine, "count", lambda input_ids: {"error": "bad query"}, raising=False)
    with pytest.raises(DataError, match="infini-gram: bad query"):
        found.count(np.array([[5]]))
    monkeypatch.setitem(__import__("sys").modules, "infini_gram.engine", None)
    with pytest.raises(UsageError, match=r"olmodetect-jax\[infini-gram\]"):
        open_infini_gram(index, tokenizer_digest="t")
