"""The 13-gram filter against `construction_ngrams.json`."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from olmodetect_jax.construction.index.base import windows
from olmodetect_jax.construction.index.build_builtin import build_index
from olmodetect_jax.construction.index.builtin import open_index
from olmodetect_jax.construction.index.text_index import TextIndex
from olmodetect_jax.construction.overlap import OverlapMeasure, score_field
from olmodetect_jax.construction.pieces import Pieces
from olmodetect_jax.construction.verification.overlap_summary import overlap_summary
from olmodetect_jax.sample import model_directory
from olmodetect_jax.tokenization import Tokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "construction_ngrams.json").read_text())
CASES = list(zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True))


def of_kind(*kinds):
    return [pytest.param(i, e, id=name) for name, i, e in CASES if i["kind"] in kinds]


def near(value):
    return pytest.approx(value, rel=GOLDEN["tolerance"]["rel"], abs=GOLDEN["tolerance"]["abs"])


class Listed:
    """Windows of documents in memory, asked `block` at a time; remembers what it was asked."""

    asked_with = "ids"

    def __init__(self, documents, block=None):
        self.block, self.asked = block, []
        self.documents = [np.asarray(d, np.uint32) for d in documents]
        self.description = {}

    def count(self, queries):
        self.asked += [tuple(q) for q in queries.tolist()]
        n = queries.shape[1]
        found = {}
        for document in self.documents:
            for window in windows(document, n):
                found[tuple(window.tolist())] = found.get(tuple(window.tolist()), 0) + 1
        return np.array([found.get(tuple(q), 0) for q in queries.tolist()], np.int64)


def measure_of(given, make=Listed):
    indices = {name: make(documents) for name, documents in given["indices"].items()}
    indices |= {name: TextIndex(documents) for name, documents in given.get("byte_indices", {}).items()}
    pieces = Pieces({int(i): p for i, p in given["pieces"].items()}) if "pieces" in given else None
    spelt = {}
    if "window_texts" in given:
        tokens = np.asarray(given["tokens"], np.uint32)
        spelt = {w.tobytes(): t for w, t in zip(windows(tokens, given["n"]), given["window_texts"], strict=True)}
    return OverlapMeasure(
        indices, given["sizes"], n=given["n"], threshold=given["threshold"], pieces=pieces,
        decode=lambda window: spelt[np.ascontiguousarray(window).tobytes()],
    )  # fmt: skip


def built(folder, n):
    """Makes the built-in index of documents."""

    def make(documents):
        path = folder / f"index-{len(list(folder.iterdir()))}"
        arrays = [np.asarray(d, np.uint32) for d in documents] or [np.zeros(0, np.uint32)]
        build_index(arrays, path, n=n, tokenizer_digest="t", memory=10**6)
        return open_index(path, tokenizer_digest="t")

    return make


@pytest.mark.parametrize("block", [None, 1, 7, "built in"])
@pytest.mark.parametrize("given, expected", of_kind("eta"))
def test_overlap(given, expected, block, tmp_path):
    make = built(tmp_path, given["n"]) if block == "built in" else lambda documents: Listed(documents, block)
    block = None if block == "built in" else block
    measure = measure_of(given, make)
    (found,) = measure.measure(
        [np.asarray(given["tokens"], np.uint32)], list(given["sizes"]), short_text=given["short_text"]
    )
    assert found.kept == expected["kept"]
    assert list(found.by_size) == expected["sizes_checked"]
    assert found.first_failing == expected["first_failing_size"]
    stored = {score_field(size, ""): o.eta for size, o in found.by_size.items()} if found.kept else {}
    assert stored == {name: near(value) for name, value in expected["stored_fields"].items()}
    for size, wanted in expected["per_size"].items():
        (alone,) = measure.measure([np.asarray(given["tokens"], np.uint32)], [size], short_text=given["short_text"])
        overlap = found.by_size.get(size, alone.by_size[size])
        assert overlap.kept == wanted["kept"]
        assert overlap.stopped_after == wanted["windows_read_when_stopped_early"]
        assert len(overlap.hits) == expected["n_windows"]
        if block is not None and overlap.stopped_after is not None:
            continue  # the rest was not read
        assert overlap.eta == near(wanted["eta"])
        if wanted["hits"] is not None:
            assert overlap.hits.astype(int).tolist() == wanted["window_hits"]
            assert overlap.hits.sum() == wanted["hits"]
            assert overlap.total_count == wanted["total_count"]
            assert overlap.plain_hits == wanted.get("plain_hits", overlap.plain_hits)


@pytest.mark.parametrize("given, expected", of_kind("dpo"))
def test_fields_of_a_pair(given, expected):
    texts = [np.asarray(ids, np.uint32) for ids in given["fields"].values()]
    found = measure_of(given).measure(texts, list(given["sizes"]), short_text=given["short_text"])
    assert {f: o.by_size["7b"].eta for f, o in zip(given["fields"], found, strict=True)} == {
        name: near(value) for name, value in expected["per_field"].items()
    }
    assert all(o.kept for o in found) == expected["kept"]
    stored = {score_field("7b", f): o.by_size["7b"].eta for f, o in zip(given["fields"], found, strict=True)}
    assert (stored if expected["kept"] else {}) == {k: near(v) for k, v in expected["stored_fields"].items()}


@pytest.mark.parametrize("given, expected", of_kind("count"))
def test_counts(given, expected, tmp_path):
    """An index of each length that is asked for."""
    total = np.zeros(len(given["queries"]), np.int64)
    for name, documents in given["indices"].items():
        arrays = [np.asarray(d, np.uint32) for d in documents] or [np.zeros(0, np.uint32)]
        for i, query in enumerate(given["queries"]):
            folder = tmp_path / f"{name}-{len(query)}"
            if not folder.exists():
                build_index(arrays, folder, n=len(query), tokenizer_digest="t", memory=10**6)
            (found,) = open_index(folder, tokenizer_digest="t").count(np.asarray([query], np.uint32))
            assert found == expected["per_index"][name][i]
            total[i] += given["copies"][name] * found
    assert total.tolist() == expected["weighted_sum"]


@pytest.mark.parametrize("given, expected", of_kind("byte_count"))
def test_counts_of_text(given, expected):
    assert TextIndex(given["documents"]).count(given["queries"]).tolist() == expected["counts"]


@pytest.mark.parametrize("given, expected", of_kind("overlap_summary"))
def test_summaries(given, expected):
    found = overlap_summary(given["subsets"])
    assert found.subset_mean == {k: near(v) for k, v in expected["subset_mean"].items()}
    assert found.subset_std == {k: near(v) for k, v in expected["subset_std"].items()}
    assert (found.mean, found.std) == (near(expected["domain_mean"]), near(expected["domain_std"]))


def test_every_golden_case_is_used():
    assert {i["kind"] for _, i, _ in CASES} == {"eta", "dpo", "count", "byte_count", "overlap_summary"}


def test_texts_measured_together_are_as_alone():
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 3, rng.integers(0, 40)).astype(np.uint32) for _ in range(30)]
    documents = [rng.integers(0, 3, 400) for _ in range(4)]
    sizes = {"a": {"x": 1}, "b": {"x": 2, "y": 1}}

    def measure(batch):
        indices = {"x": Listed(documents[:2]), "y": Listed(documents[2:])}
        found = OverlapMeasure(indices, sizes, n=5, threshold=0.6).measure(batch, ["a", "b"], short_text="reject")
        return [{s: (o.eta, o.kept, o.total_count, o.stopped_after) for s, o in f.by_size.items()} for f in found]

    together = measure(texts)
    assert together == [measure([text])[0] for text in texts]
    assert {len(f) for f in together} == {1, 2}  # some are rejected by the first size, some are not


LETTERS = st.lists(st.sampled_from([0, 1, 65_536, 65_537]), max_size=14)


@settings(max_examples=150)
@drawn(
    text=LETTERS, documents=st.lists(LETTERS, min_size=2, max_size=4), block=st.sampled_from([None, 1, 3]),
    threshold=st.sampled_from([0.2, 0.5, 2.0]), short_text=st.sampled_from(["reject", "zero"]), variant=st.booleans(),
)  # fmt: skip
def test_as_counted_one_window_after_the_other(text, documents, block, threshold, short_text, variant):
    partner = {0: 65_536, 65_536: 0} if variant else {}
    pieces = Pieces({0: "a", 65_536: "▁a", 1: "▁", 65_537: "7"}) if variant else None
    n, corpora = 3, {"x": documents[:1], "y": documents[1:]}
    sizes = {"first": {"x": 2}, "second": {"x": 1, "y": 3}}
    indices = {name: Listed(corpus, block) for name, corpus in corpora.items()}
    measure = OverlapMeasure(indices, sizes, n=n, threshold=threshold, pieces=pieces)
    (found,) = measure.measure([np.array(text, np.uint32)], list(sizes), short_text=short_text)

    def occurrences(name, window):
        return sum(d[i : i + n] == window for d in corpora[name] for i in range(len(d) - n + 1))

    for size, copies in sizes.items():
        stopped = None
        asked = [text[i : i + n] for i in range(len(text) - n + 1)]
        plain = [sum(c * occurrences(name, w) for name, c in copies.items()) for w in asked]
        for i in range(len(asked)):
            if stopped is None and sum(p > 0 for p in plain[: i + 1]) / len(asked) >= threshold:
                stopped = i + 1
        other = [[partner[w[0]], *w[1:]] if w[0] in partner else None for w in asked]
        hits = [
            p > 0 or (o is not None and any(occurrences(c, o) for c in copies))
            for p, o in zip(plain, other, strict=True)
        ]
        total, eta = sum(plain), sum(hits) / len(hits) if hits else float(short_text == "reject")
        overlap = found.by_size[size]
        assert overlap.stopped_after == stopped
        assert overlap.kept == (eta < threshold if hits else short_text == "zero")
        if stopped is None:
            assert (overlap.eta, overlap.hits.tolist(), overlap.total_count) == (eta, hits, total)
        if not overlap.kept:
            assert list(found.by_size) == list(sizes)[: list(sizes).index(size) + 1]
            break


def test_an_index_is_asked_once_and_not_after_a_text_is_given_up():
    document, text = np.arange(100), np.arange(100)
    index = Listed([document], block=4)
    sizes = {s: {"x": 1} for s in ("a", "b")}
    measure = OverlapMeasure({"x": index}, sizes, n=5, threshold=0.2)
    (found,) = measure.measure([text.astype(np.uint32)], ["a", "b"], short_text="reject")
    assert found.first_failing == "a" and found.by_size["a"].stopped_after == 20  # of 96
    assert len(index.asked) == 20
    index = Listed([document], block=None)
    other = np.arange(50, 150).astype(np.uint32) + 30  # a third of it occurs
    OverlapMeasure({"x": index}, sizes, n=5, threshold=0.5).measure([other, other], ["a", "b"], short_text="reject")
    assert len(index.asked) == len(set(index.asked)) == 96


@pytest.mark.parametrize("block", [None, 1])
@pytest.mark.parametrize("threshold, hits", [(0.07, 7), (0.55, 55), (0.2, 20)])
def test_reading_stops_where_the_share_reaches_the_threshold(threshold, hits, block):
    """Of 100 windows; as a product of floats 0.07 * 100 and 0.55 * 100 are a little more than 7 and 55."""
    text = np.arange(104).astype(np.uint32)
    for n_hits, kept in ((hits - 1, True), (hits, False)):
        index = Listed([text[: n_hits + 4]], block)
        measure = OverlapMeasure({"x": index}, {"a": {"x": 1}}, n=5, threshold=threshold)
        (found,) = measure.measure([text], ["a"], short_text="reject")
        assert found.kept == kept and found.by_size["a"].stopped_after == (None if kept else hits)


def test_case_and_word_starts_with_a_real_tokenizer():
    """As the module says: other case is another window, and the variant finds a text's start within a document."""
    tokenizer = Tokenizer(model_directory())
    pieces = Pieces.of_tokenizer(tokenizer.path)
    assert pieces.mark == "Ġ"

    def etas(text, document, with_variant):
        ids, corpus = tokenizer.bare_ids([text, document])
        measure = OverlapMeasure(
            {"x": Listed([corpus])}, {"all": {"x": 1}}, n=5, threshold=1.0, pieces=pieces if with_variant else None
        )
        (found,) = measure.measure([ids], ["all"], short_text="reject")
        return found.by_size["all"].hits.astype(int).tolist()

    document = "He said that the whale was seen near the ship on that day, and all the men were glad."
    text = "the whale was seen near the ship on that day"
    plain, variant = etas(text, document, False), etas(text, document, True)
    assert plain[0] == 0 and all(plain[1:])  # at the start of a text the word has no mark
    assert all(variant)
    assert etas("that " + text, document, False)[1:] == [1] * len(plain)
    assert not any(etas(text.upper(), document, True))


def test_what_a_vocabulary_offers(tmp_path):
    unigram = tmp_path / "tokenizer.json"
    unigram.write_text(json.dumps({"model": {"vocab": [["▁a", 0.0], ["a", -1.0], ["▁", -2.0], ["7", -2], ["▁7", -2]]}}))
    pieces = Pieces.of_tokenizer(unigram)
    assert [pieces.toggled(i) for i in range(6)] == [1, 0, None, None, None, None]
    assert Pieces({0: "", 1: "▁", 2: "▁a"}).toggled(0) is None  # the empty piece is no partner of the bare mark
    assert Pieces({0: "", 1: "▁", 2: "▁a"}).toggled(1) is None
    unigram.write_text("{}")
    from olmodetect_jax.errors import UsageError

    with pytest.raises(UsageError, match="no vocabulary of pieces"):
        Pieces.of_tokenizer(unigram)
