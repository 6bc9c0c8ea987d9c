"""Reading records, the benchmark's tree, protocols and tokens."""

import json
from collections import Counter

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax import sample
from olmodetect_jax.benchmark import load_tree, read_benchmark, tree_of
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import atomic_path, write_json
from olmodetect_jax.protocol import PRESETS, load_protocol
from olmodetect_jax.records import read_jsonl, read_records
from olmodetect_jax.tokenization import Tokenizer


def write(path, *lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass"))
    return path


def test_ids_labels_and_stripping(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        '{"id": " x ", "text": " one\u2028still one ", "label": 1}',
        "",
        '{"text": "two", "label": "non-member"}',
        '{"id": 7, "value": "three"}',
        '{"text": "four", "label": "1"}',
        '{"text": "five", "label": false}',
    )
    records = read_records(path, subset="s")
    assert [(r.record_id, r.text, r.label) for r in records] == [
        ("x", "one\u2028still one", 1),
        ("sample_1", "two", 0),
        ("sample_2", "three", None),
        ("sample_3", "four", 1),
        ("sample_4", "five", 0),
    ]
    assert records[1].source == f"{path}, line 3"
    assert records[1].text_sha1 == "ad782ecdac770fc6eb9a"
    assert [r.label for r in read_records(path, subset="s", label=0)] == [0] * 5


def test_a_record_without_text_stays_and_is_empty(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"id": "x", "text": "  "}', '{"text": "one"}')
    assert [r.text for r in read_records(path, subset="s")] == ["", "one"]


def test_a_file_without_any_text_names_the_fields_it_has(tmp_path):
    path = write(tmp_path / "a.jsonl", "", '{"id": "x", "content": "one"}', '{"content": "two"}')
    with pytest.raises(DataError, match="a.jsonl: no record has a text.*`text`, line 2 has id, content"):
        read_records(path, subset="s")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files(tmp_path, suffix):
    import gzip

    import zstandard

    compress = {".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(b'{"text": "one"}\r\n{"text": "two"}\n'))
    assert [(r.text, r.source) for r in read_records(path, subset="s")] == [
        ("one", f"{path}, line 1"),
        ("two", f"{path}, line 2"),
    ]
    for content in (path.read_bytes()[:-12], b"plain"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"a.jsonl{suffix}: cannot be read"):
            read_records(path, subset="s")


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\n')
    assert read_records(path, subset="s")[0].text == "one"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no record"),
        (["", "  "], "holds no record"),
        (['{"text": "a"}', "{'text': 'b'}"], "line 2: not a JSON"),
        (['{"text": "a"'], "line 1: not a JSON"),
        (["[" * 100_000], "line 1: not a JSON"),
        (['{"text": "a \\ud800 b", "id": "r7"}'], "line 1.*'r7'.*lone surrogate U\\+D800"),
        (['{"text": "a", "id": "\\udfff"}'], "line 1.*id holds a lone surrogate"),
        (['{"text": "a", "label": "yes"}'], "line 1.*label 'yes'.*non-member"),
        (['{"text": "a", "label": 2}'], "label 2"),
        (['{"text": "a", "label": [1]}'], "label"),
    ],
)
def test_bad_files_are_named(tmp_path, lines, message):
    with pytest.raises(DataError, match=message) as error:
        read_records(write(tmp_path / "bad.jsonl", *lines), subset="s")
    assert "bad.jsonl" in str(error.value)


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes('{"text": "é"}'.encode("latin-1"))
    for name, message in [("latin.jsonl", "not UTF-8"), ("none.jsonl", "cannot be read"), (".", "cannot be read")]:
        with pytest.raises(DataError, match=message):
            read_records(tmp_path / name, subset="s")


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda s: s.strip()), min_size=1, max_size=5))
def test_any_text_comes_back_stripped(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("texts") / "t.jsonl"
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts), encoding="utf-8")
    assert [r.text for r in read_records(path, subset="s")] == [t.strip() for t in texts]


def test_the_papers_tree():
    tree = load_tree("olmo2")
    assert len(tree.subsets) == 13 and len(tree.domain_titles) == 9 and list(tree.stage_titles) == [
        "pretraining",
        "midtraining",
        "posttraining",
    ]  # fmt: skip
    from pathlib import Path

    java, sft, dpo, rlvr = (s for s in tree.subsets if s.id in ("sc_java", "sft_aya", "dpo", "rlvr_cot-math"))

    def names(subset, size=None, variant="matched"):
        return [str(p) for p, _, _ in tree.paths(Path("b"), subset, split="test", variant=variant, size=size)]

    folder = "b/pretraining/starcoder"
    assert names(java, variant="shifted") == [
        f"{folder}/member/shifted/test/member_pretraining_starcoder_java_shifted_test.jsonl",
        f"{folder}/non-member/test/non-member_pretraining_starcoder_java_test.jsonl",
    ]
    assert names(rlvr)[0] == "b/posttraining/rlvr/member/test/member_posttraining_rlvr_cot-math_test.jsonl"
    aya = "b/posttraining/sft/1b-32b/member/matched/test/member_posttraining_sft_1b-32b_aya_matched_test.jsonl"
    assert names(sft, "32b")[0] == aya
    assert [("chosen" in n, "rejected" in n, "/non-member/" in n) for n in names(dpo, "7b")] == [
        (True, False, False),
        (False, True, False),
        (True, False, True),
        (False, True, True),
    ]
    with pytest.raises(UsageError, match="--size"):
        names(dpo)


def test_tree_errors(tmp_path):
    with pytest.raises(UsageError, match="no such benchmark"):
        tree_of(tmp_path / "none")
    assert tree_of(tmp_path).name == "olmo2"
    (tmp_path / "benchmark.yaml").write_text("tree: other\n")
    with pytest.raises(UsageError, match="olmo2, sample"):
        tree_of(tmp_path)
    (tmp_path / "benchmark.yaml").write_text("- 1\n")
    with pytest.raises(UsageError, match="tree: NAME"):
        tree_of(tmp_path)
    tree = load_tree("sample")
    with pytest.raises(UsageError, match="subset.*speeches"):
        tree.select(["other"])
    with pytest.raises(DataError, match="10 benchmark files are missing"):
        read_benchmark(tmp_path, tree, tree.subsets, split="test", variant="matched", size=None)
    for options, field in [({"split": "train"}, "split"), ({"variant": "old"}, "variant")]:
        with pytest.raises(UsageError, match=field):
            read_benchmark(tmp_path, tree, (), **{"split": "test", "variant": "matched", "size": None, **options})


def test_the_sample_is_read_whole():
    root = sample.benchmark_directory()
    tree = tree_of(root)
    built = json.loads((root / "construction.json").read_text())["subsets"]
    for split in ("dev", "test"):
        records = read_benchmark(root, tree, tree.subsets, split=split, variant="matched", size=None)
        for name, facts in built.items():
            dev = facts["non_members"]["dev_records"]
            count = dev if split == "dev" else facts["non_members"]["records"] - dev
            assert Counter(r.label for r in records[name]) == {1: count, 0: count}


def test_protocols():
    for preset in PRESETS:
        protocol = load_protocol(preset)
        assert protocol.preset == preset and protocol.changed() == {}
    assert load_protocol("release").score_dtype == "bfloat16" and load_protocol("paper").max_tokens == 1024
    changed = load_protocol("audited", {"max_tokens": "512", "text_span": "full"})
    assert changed.changed() == {"max_tokens": 512, "text_span": "full"}
    for preset, overrides, message in [
        ("other", {}, "audited, paper, release"),
        ("audited", {"maximum": "1"}, "protocol field.*max_tokens"),
        ("audited", {"max_tokens": "1"}, "max_tokens.*at least 2"),
        ("audited", {"max_tokens": "1e3"}, "max_tokens"),
        ("audited", {"lower_form": "sum"}, "lower_form.*difference, ratio"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_protocol(preset, overrides)


def test_token_ids_are_the_tokenizers_own():
    """nothing is put before or after a plain text."""
    from transformers import AutoTokenizer

    ours = Tokenizer(sample.model_directory())
    theirs = AutoTokenizer.from_pretrained(sample.model_directory())
    for text in [
        "The sea, the sea!",
        "def f(x):\n    return x  # 😀\n",
        "<|user|>\nhi\n<|assistant|>\nyes",
        "\u2028 a",
    ]:
        assert ours.encode(text, 4096).ids.tolist() == theirs(text)["input_ids"]
    assert ours.eos_id == theirs.eos_token_id and ours.vocabulary == len(theirs) == 4096


def test_truncation_and_span():
    tokenizer = Tokenizer(sample.model_directory())
    text = "Call me Ishmael. Some years ago, never mind how long precisely."
    whole = tokenizer.encode(text, 4096)
    assert whole.span == text and not whole.truncated and whole.n_tokens == len(whole.ids)
    cut = tokenizer.encode(text, 5)
    assert cut.truncated and cut.n_tokens == whole.n_tokens and (cut.ids == whole.ids[:5]).all()
    assert text.startswith(cut.span) and (tokenizer.encode(cut.span, 4096).ids == cut.ids).all()
    assert tokenizer.encode("", 5).ids.dtype == np.int32 and len(tokenizer.encode("", 5).ids) == 0


def test_special_and_end_tokens(tmp_path):
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as FastTokenizer

    fast = FastTokenizer.from_file(str(sample.model_directory() / "tokenizer.json"))
    fast.add_tokens([AddedToken("zebra", special=False)])
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": [5, 7]}')
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.special_ids == {0, 1} and tokenizer.largest_id == 4096 and tokenizer.vocabulary == 4097
    assert tokenizer.eos_id == 5 and not tokenizer.adds_tokens
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|pad|>"}}')
    assert Tokenizer(tmp_path).eos_id == 1
    for value in ('"<nope>"', "true", '["<nope>"]', "1.5"):
        (tmp_path / "tokenizer_config.json").write_text(f'{{"eos_token": {value}}}')
        with pytest.raises(UsageError, match="eos_token is .*no token"):
            Tokenizer(tmp_path)


def test_subsets_keep_the_trees_order():
    assert [s.id for s in load_tree("sample").select(["mbpp", "novel"])] == ["novel", "mbpp"]


def test_tokenizer_errors(tmp_path):
    with pytest.raises(UsageError, match="tokenizer.json: not found"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="not a tokenizer"):
        Tokenizer(tmp_path)


def test_atomic_writes_leave_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert json.loads(path.read_text()) == {"old": 1} and [p.name for p in tmp_path.iterdir()] == ["a.json"]
    with pytest.raises(ValueError):
        write_json(path, {"nan": float("nan")})
    assert json.loads(path.read_text()) == {"old": 1}
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_every_frame_of_a_compressed_file_is_read(tmp_path):
    frames = [zstandard.compress(f'{{"text": "t{i}"}}\n'.encode()) for i in range(3)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    assert [value["text"] for _, value in read_jsonl(tmp_path / "a.jsonl.zst")] == ["t0", "t1", "t2"]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames)[:-2])
    with pytest.raises(DataError, match="cut off"):
        list(read_jsonl(tmp_path / "a.jsonl.zst"))
    (tmp_path / "a.jsonl.zst").write_bytes(b"")
    assert list(read_jsonl(tmp_path / "a.jsonl.zst")) == []
