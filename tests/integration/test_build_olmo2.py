"""The paper's configuration as it is shipped, with small pools in true formats in the places that it names."""

import gzip
import html
import json
import random
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard

from olmodetect_jax.benchmark import SPLITS, load_tree, read_benchmark
from olmodetect_jax.cli import main
from olmodetect_jax.construction.sources.dclm import MEMBER_SCORE, NON_MEMBER_SCORE
from olmodetect_jax.construction.verification import bag_of_words
from olmodetect_jax.files import config_path
from olmodetect_jax.records import MEMBER, NON_MEMBER, read_jsonl
from olmodetect_jax.sample import model_directory, sources_directory
from olmodetect_jax.sample.sources import read_documents, source_path

N = 60  # candidates a pool
RNG = random.Random(0)


@pytest.fixture(scope="module")
def words():
    return [w for d in read_documents(source_path(sources_directory(), "novel")) for w in d.fields["text"].split()]


def packed(path, rows):
    """A file in the format that its name says; a folder gets one of the compressed ones."""
    if path.suffix not in {".jsonl", ".xml"}:
        path = path / RNG.choice(["part.jsonl.zst", "part.json.gz", "part.parquet"])
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".xml":
        path.write_text("<posts>" + "".join(f"<row {attributes(row)} />" for row in rows) + "</posts>")
    else:
        path.write_bytes({".zst": zstandard.compress, ".gz": gzip.compress}.get(path.suffix, bytes)(lines))


def attributes(row):
    return " ".join(f'{name}="{html.escape(value)}"' for name, value in row.items())


def turns(*contents):
    return [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]


def rows_of(entry, member, say):
    """Rows of one pool; `say(n)` gives n words that were not said before."""
    day = [f"20{10 + i % 12}-0{1 + i % 9}-11T10:0{i % 6}:00" for i in range(N)]
    kind, texts = entry["source"], [say(30) for _ in range(N)]
    options = entry.get("options", {}) | entry["members" if member else "non_members"].get("options", {})
    if kind == "dclm":
        score, values = (MEMBER_SCORE, (0.01812, 0.5)) if member else (NON_MEMBER_SCORE, (0.018, 0.0001))
        return [
            {"text": t, "url": "u", "metadata": {"WARC-Date": f"{d}Z"}, score: values[i % 4 == 3] + i * 1e-7}
            for i, (t, d) in enumerate(zip(texts, day, strict=True))
        ]
    if kind == "pes2o":
        return [
            {"id": str(i), "source": "s2ag", "created": d, "text": t}
            for i, (t, d) in enumerate(zip(texts, day, strict=True))
        ]
    if kind == "openwebmath":
        return [{"url": "u", "date": d, "metadata": "{}", "text": t} for t, d in zip(texts, day, strict=True)]
    if kind == "starcoder" and member:
        tags = {f"top_20_tokens__top_20_tokens__p{i}": [[0, 9, v]] for i, v in ((1, 0.3), (2, 0.1))}
        return [{"id": f"m{i}", "text": f"<reponame>x\n{say(200 + i)}", "attributes": tags} for i in range(N)]
    if kind == "starcoder":
        names = [[f"{re.sub(r'[^A-Za-z]', '', w)}_{i}" for w in say(50).split()] for i in range(N)]
        code = [" ".join([","] * 26 + [";"] * 26 + own) for own in names]  # 0.255 and 0.51 of the words
        return [{"content": c, "max_stars_count": 2 + i % 3, "id": str(i)} for i, c in enumerate(code)]
    if kind == "gsm8k":
        return [{"question": t, "answer": f"{say(8)}\n#### {i}"} for i, t in enumerate(texts)]
    if kind == "stackexchange" and member:
        votes = {"question_score": 3, "answer_score": 9}
        return [
            {"text": f"{t[:40]}\n\n\n{t}\n\n\n{say(9)}", "created": d, "metadata": votes}
            for t, d in zip(texts, day, strict=True)
        ]
    if kind == "stackexchange":
        found = []
        for i, (t, d) in enumerate(zip(texts, day, strict=True)):
            found.append({"Id": str(2 * i + 1), "PostTypeId": "1", "AcceptedAnswerId": str(2 * i + 2), "Score": "2",
                          "CreationDate": d, "Title": t[:40], "Body": f"<p>{html.escape(t)}</p>"})  # fmt: skip
            found.append({"Id": str(2 * i + 2), "PostTypeId": "2", "ParentId": str(2 * i + 1), "Score": "5",
                          "CreationDate": d, "Body": f"<p>{html.escape(say(9))}</p>"})  # fmt: skip
        return found
    if kind == "sft" and (member or options["subset"] == "wildchat"):
        field = "messages" if member else "conversation"
        return [{"source": f"x/{options.get('source')}", field: turns(t, say(12))} for t in texts]
    if kind == "sft":
        return [{"inputs": t, "targets": say(12)} for t in texts]
    if kind == "dpo":
        return [
            {"prompt": t, "chosen": turns(t, say(9)), "rejected": turns(t, say(9)), "source": options.get("source")}
            for t in texts
        ]
    exemplars = yaml.safe_load(config_path("construction", options["exemplars_file"]).read_text())
    prefix = "".join(f"Question: {e['question']}\nAnswer:{e['answer']}\n\n" for e in exemplars)
    if member:
        return [{"messages": turns(f"{prefix}Question: {t}"), "ground_truth": "1", "dataset": options["dataset"],
                 "constraint_type": None, "constraint": None} for t in texts]  # fmt: skip
    return [{"id": f"test_{i}", "question": t, "ground_truth": "1"} for i, t in enumerate(texts)]


@pytest.fixture(scope="module")
def built(words, tmp_path_factory):
    root = tmp_path_factory.mktemp("olmo2")
    config = yaml.safe_load(config_path("construction", "olmo2.yaml").read_text())
    place = iter(range(0, len(words), 7))

    def say(n):
        start = next(place) % (len(words) - 200)
        return " ".join(words[start : start + n])

    pools: dict[str, list] = {}
    for entry in config["subsets"]:
        entry |= {"training_tokens": 1, "min_records": 2}
        if entry["source"] == "dclm":
            entry["options"] = {}  # the scores are stored
        if entry["source"] == "rlvr":
            file = entry["options"]["exemplars_file"]
            (root / file).write_text(config_path("construction", file).read_text())
        for member in (True, False):
            side = entry["members" if member else "non_members"]
            if "nearest" in side:
                side["nearest"] = {"records": 40, "tokens": 10}
            for path in side["paths"]:
                pools.setdefault(path, []).extend(rows_of(entry, member, say))
    for path, rows in pools.items():
        packed(root / path, rows)
    packed(root / "corpus/all.jsonl", [{"text": say(200)} for _ in range(20)])
    config |= {
        "tokenizer": str(model_directory()), "budget": 1500, "annealing": {"steps": 3000, "margin": 200},
        "choices": {"title": False},  # as released
        "indices": dict.fromkeys(config["indices"], {"corpus": ["corpus"]}),
    }  # fmt: skip
    (root / "olmo2.yaml").write_text(yaml.safe_dump(config))
    assert main(["build", str(root / "olmo2.yaml"), "--out", str(root / "benchmark")]) == 0
    return root / "benchmark"


@pytest.mark.parametrize("size", ["1b", "7b", "13b", "32b"])
def test_every_subset_is_there_for_every_size(built, size):
    tree = load_tree("olmo2")
    shifted = [s for s in tree.subsets if s.variants]
    for variant, subsets in (("matched", tree.subsets), ("shifted", shifted)):
        for split in SPLITS:
            found = read_benchmark(built, tree, subsets, split=split, variant=variant, size=size)
            for records in found.values():
                counts = Counter(r.label for r in records)
                assert counts[MEMBER] == counts[NON_MEMBER] > 0


def test_scores_say_which_sizes_a_record_is_for(built):
    def fields(pattern):
        (path,) = built.rglob(f"non-member_{pattern}_test.jsonl")
        return {name for _, line in read_jsonl(path) for name in line if name.endswith("_13-gram_overlap_score")}

    sizes = ("1b", "7b", "13b", "32b")
    assert fields("pretraining_dclm") == {f"{s}_13-gram_overlap_score" for s in sizes}
    assert fields("posttraining_sft_7b-13b_aya") == {f"{s}_13-gram_overlap_score" for s in ("7b", "13b")}
    parts = {f"13b_{part}_13-gram_overlap_score" for part in ("prompt", "chosen", "rejected")}
    assert fields("posttraining_dpo_13b_pair") == fields("posttraining_dpo_13b_chosen") == parts


def test_pairs_stay_together(built):
    for split in SPLITS:
        lines = {}
        for part in ("chosen", "rejected", "pair"):
            (path,) = built.rglob(f"member_posttraining_dpo_7b_{part}_matched_{split}.jsonl")
            lines[part] = [line["prompt"] for _, line in read_jsonl(path)]
        assert lines["chosen"] == lines["rejected"] == lines["pair"]


def test_the_result_is_verified_and_its_confounders_are_found(built, tmp_path, capsys, monkeypatch):
    """The made pools repeat the paper's own: members of Stack Exchange begin with their title."""
    monkeypatch.setattr(bag_of_words, "SEEDS", 1)  # five take five times as long
    assert main(["verify", str(built), "--tokenizer", "sample", "--out", str(tmp_path / "out")]) == 0
    assert "warnings" in capsys.readouterr().out
    facts = json.loads((tmp_path / "out" / "verification.json").read_text())
    assert {w["subset"] for w in facts["leaks"] if "two blank lines" in w["message"]} >= {"se_math", "se_stackoverflow"}
    assert set(facts["overlap"]) == {"1b", "7b", "13b", "32b"}
    assert "Question votes" in (tmp_path / "out" / "quality.csv").read_text()
