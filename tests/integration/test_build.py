"""A new benchmark from two folders of JSONL: index, build, verify, score; killed, changed and spoilt on the way."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest
import yaml

from olmodetect_jax.benchmark import SPLITS, read_benchmark, tree_of
from olmodetect_jax.cli import main
from olmodetect_jax.records import MEMBER, NON_MEMBER
from olmodetect_jax.sample import model_directory, sources_directory
from olmodetect_jax.sample.candidates import make_candidates
from olmodetect_jax.sample.sources import read_documents, source_path
from olmodetect_jax.tokenization import Tokenizer

BUDGET, MARGIN = 4000, 40


def passages():
    """Real passages of the sample's novel, no two alike."""
    documents = read_documents(source_path(sources_directory(), "novel"))
    return [c.text for c in make_candidates("novel", documents)]


def write_jsonl(path, texts, **fields):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": t, "id": f"r{i}", **fields}) + "\n" for i, t in enumerate(texts)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders, and a configuration: 120 texts trained on and 90 not, of which 10 were trained on after all."""
    root = tmp_path_factory.mktemp("corpus")
    texts = passages()
    write_jsonl(root / "trained_on" / "a.jsonl", texts[0:120:2])
    write_jsonl(root / "trained_on" / "more" / "b.jsonl", texts[1:120:2])
    leaked = [texts[i] + " And so on." for i in range(5)] + texts[5:10]  # near copies, and exact ones
    write_jsonl(root / "not_trained_on" / "c.jsonl", leaked + texts[200:280])
    config = {
        "title": "Ours", "tokenizer": str(model_directory()), "indices": {"training": {"corpus": ["trained_on"]}},
        "budget": BUDGET, "annealing": {"steps": 20_000, "margin": MARGIN}, "shifted": True,
        "subsets": [
            {"id": "mine", "title": "Mine", "source": "texts", "members": {"paths": ["trained_on"]},
             "non_members": {"paths": ["not_trained_on"]}},
        ],
    }  # fmt: skip
    (root / "build.yaml").write_text(yaml.safe_dump(config))
    return root


@pytest.fixture(scope="module")
def built(folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "benchmark"
    assert main(["build", str(folders / "build.yaml"), "--out", str(out)]) == 0
    return out


def records(root, split, variant="matched"):
    tree = tree_of(root)
    return read_benchmark(root, tree, tree.subsets, split=split, variant=variant, size=None)["mine"]


def contents(root):
    return {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_members_were_trained_on_and_non_members_were_not(built):
    texts = passages()
    trained, clean = set(texts[:120]), set(texts[200:280])
    for variant in ("matched", "shifted"):
        for split in SPLITS:
            for record in records(built, split, variant):
                assert record.text in (trained if record.label == MEMBER else clean)


def test_classes_have_as_many_texts_and_nearly_as_many_tokens(built):
    tokenizer = Tokenizer(model_directory())
    for variant in ("matched", "shifted"):
        found = {split: records(built, split, variant) for split in SPLITS}
        for split in SPLITS:
            counts = Counter(r.label for r in found[split])
            assert counts[MEMBER] == counts[NON_MEMBER] > 0
        everything = found["dev"] + found["test"]
        assert len({(r.label, r.text) for r in everything}) == len(everything)
        tokens = Counter()
        for record in everything:
            tokens[record.label] += len(tokenizer.bare_ids([record.text])[0])
        assert abs(tokens[NON_MEMBER] - BUDGET) <= 300
        assert abs(tokens[MEMBER] - tokens[NON_MEMBER]) <= MARGIN
        assert abs(len(found["dev"]) - len(everything) / 10) <= 4


def test_the_recipe_counts_every_step(built):
    facts = json.loads((built / "construction.json").read_text())
    steps = {s["step"]: s for s in facts["subsets"]["mine"]["steps"]["non_members"]}
    assert steps["not among members"]["dropped"] == {"its text is a member's": 5}
    assert sum(steps["13-gram overlap"]["dropped"].values()) >= 5
    assert steps["13-gram overlap"]["kept"] <= 80
    line = json.loads(next((built / "corpus/mine/non-member/test").glob("*.jsonl")).read_text().splitlines()[0])
    assert 0 <= line["all_13-gram_overlap_score"] < 0.2
    assert facts["subsets"]["mine"]["annealing"]["jsd"] < facts["subsets"]["mine"]["annealing"]["start_loss"]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(folders, built, tmp_path):
    order = folders / "not_trained_on" / "c.jsonl"
    other = tmp_path / "sources"
    shutil.copytree(folders, other, ignore=shutil.ignore_patterns("*.work"))
    lines = order.read_text().splitlines(keepends=True)
    (other / "not_trained_on" / "c.jsonl").write_text("".join(lines[::-1]))  # the order of a file does not count
    again = tmp_path / "again"
    assert main(["build", str(folders / "build.yaml"), "--sources", str(other), "--out", str(again)]) == 0
    assert contents(again) == contents(built)
    config = yaml.safe_load((folders / "build.yaml").read_text()) | {"seed": 7}
    (tmp_path / "seven.yaml").write_text(yaml.safe_dump(config))
    seven = tmp_path / "seven"
    assert main(["build", str(tmp_path / "seven.yaml"), "--sources", str(folders), "--out", str(seven)]) == 0
    assert contents(seven) != contents(built)


def test_a_killed_build_goes_on_and_ends_with_the_same_bytes(folders, built, tmp_path, monkeypatch):
    from olmodetect_jax.construction import build, matching

    out, read = tmp_path / "out", []

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    real = build.read_pool
    monkeypatch.setattr(build, "read_pool", lambda *a, **k: read.append(1) or real(*a, **k))
    with monkeypatch.context() as patch:
        patch.setattr(matching, "anneal", killed)
        assert main(["build", str(folders / "build.yaml"), "--out", str(out)]) == 1
    assert not out.exists() and len(read) == 3
    assert main(["build", str(folders / "build.yaml"), "--out", str(out)]) == 0
    assert len(read) == 3  # the pools were not read again
    assert contents(out) == contents(built)


def test_a_folder_that_is_not_empty_is_left_alone(folders, built, capsys):
    before = contents(built)
    assert main(["build", str(folders / "build.yaml"), "--out", str(built)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert contents(built) == before


@pytest.mark.parametrize(
    "change, code, message",
    [
        ({"budget": 10**6}, 1, "fewer than the budget of 1,000,000"),
        (
            {
                "subsets": [
                    {
                        "id": "mine",
                        "source": "texts",
                        "members": {"paths": ["trained_on"], "limit": 5},
                        "non_members": {"paths": ["not_trained_on"]},
                    }
                ]
            },
            1,
            "the pool holds 5 members",
        ),
        ({"tokenizer": "nowhere"}, 2, "tokenizer.json: not found"),
        ({"indices": {"training": {"path": "nowhere"}}}, 2, "nowhere"),
    ],
)
def test_what_cannot_be_built_says_why(folders, tmp_path, capsys, change, code, message):
    config = yaml.safe_load((folders / "build.yaml").read_text()) | change
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(config))
    arguments = ["build", str(tmp_path / "bad.yaml"), "--sources", str(folders), "--out", str(tmp_path / "out")]
    assert main(arguments) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_built_benchmark_is_scored_and_verified(built, tmp_path, capsys):
    run = tmp_path / "run"
    assert (
        main(["score", "--model", "sample", "--benchmark", str(built), "--attacks", "zlib,ppl", "--out", str(run)]) == 0
    )
    assert main(["evaluate", str(run)]) == 0
    out, index = tmp_path / "verified", built.with_name("benchmark.work") / "index-training"
    assert main(["verify", str(built), "--tokenizer", "sample", "--index", str(index), "--out", str(out)]) == 0
    found = json.loads((out / "verification.json").read_text())["copies"]
    assert found and all(n >= 1 for n in found.values())  # every member stands in what was trained on
    assert (out / "verification.html").is_file() and "mine, matched" in capsys.readouterr().out
    measured = json.loads((out / "verification.json").read_text())["measured"]["mine"]
    assert measured["members"]["mean"] == 1.0 and measured["non-members"]["mean"] < 0.2


def test_an_index_is_made_and_used_by_path(folders, built, tmp_path, capsys):
    index = tmp_path / "index"
    arguments = ["index", str(folders / "trained_on"), "--tokenizer", "sample", "--out", str(index)]
    assert main(arguments) == 0
    assert "120 documents" in capsys.readouterr().out
    config = yaml.safe_load((folders / "build.yaml").read_text()) | {"indices": {"training": {"path": str(index)}}}
    (tmp_path / "by_path.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "out"
    assert main(["build", str(tmp_path / "by_path.yaml"), "--sources", str(folders), "--out", str(out)]) == 0
    kept = [p for p in contents(out) if p.suffix == ".jsonl"]
    assert {p: contents(out)[p] for p in kept} == {p: contents(built)[p] for p in kept}
    assert np.all([s in contents(built) for s in kept])


def test_a_build_without_an_index_says_so(folders, tmp_path, capsys):
    config = yaml.safe_load((folders / "build.yaml").read_text()) | {"indices": {}}
    (tmp_path / "none.yaml").write_text(yaml.safe_dump(config))
    arguments = ["build", str(tmp_path / "none.yaml"), "--sources", str(folders), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert "no 13-gram filter" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["none.yaml", "out", "out.work"]
