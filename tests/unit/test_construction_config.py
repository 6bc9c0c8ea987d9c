"""The configuration of a build, the tree and the files that follow from it, and what a build keeps."""

import re

import pytest
import yaml

from olmodetect_jax.benchmark import load_tree, tree_of
from olmodetect_jax.construction.config import load_build_config
from olmodetect_jax.construction.layout import (
    file_of,
    label_of,
    sizes_of,
    subset_of,
    tree_description,
    tree_of_config,
)
from olmodetect_jax.construction.stages import Stages
from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import config_path
from olmodetect_jax.records import MEMBER, NON_MEMBER

MINIMAL = {
    "tokenizer": "model",
    "indices": {"training": {"corpus": ["trained_on"]}},
    "budget": 1000,
    "subsets": [
        {"id": "mine", "source": "texts", "members": {"paths": ["a"]}, "non_members": {"paths": ["b"]}},
    ],
}


def write(tmp_path, value):
    path = tmp_path / "build.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def changed(**changes):
    return MINIMAL | changes


def subset(**changes):
    return changed(subsets=[MINIMAL["subsets"][0] | changes])


@pytest.mark.parametrize("name", ["two_folders", "olmo2", "sample"])
def test_shipped_configurations_are_valid(name):
    path = config_path("construction", f"{name}.yaml")
    config = load_build_config(path)
    tree_of_config(config, path)


def test_the_paper_has_every_subset_of_every_size():
    path = config_path("construction", "olmo2.yaml")
    config = load_build_config(path)
    tree = tree_of_config(config, path)
    assert {e.id for e in config.subsets} == {s.id for s in tree.subsets}
    sizes = {label_of(e, tree): sizes_of(e, tree, config.copies()) for e in config.subsets}
    assert sizes["dclm"] == ("1b", "7b", "13b", "32b")
    assert sizes["sft_aya_1b-32b"] == ("1b", "32b") and sizes["sft_aya_7b-13b"] == ("7b", "13b")
    assert {s: sizes[f"dpo_{s}"] for s in ("1b", "7b", "13b", "32b")} == {s: (s,) for s in ("1b", "7b", "13b", "32b")}


def test_the_preset_gives_the_choices_and_single_ones_go_over_it(tmp_path):
    config = load_build_config(write(tmp_path, changed(preset="release", choices={"title": True})))
    chosen = config.chosen()
    assert chosen.stale_loss and chosen.title and chosen.boundary == "bands"
    assert load_build_config(write(tmp_path, changed(preset="paper"))).chosen().boundary == "closest"
    assert not load_build_config(write(tmp_path, MINIMAL)).chosen().stale_loss


@pytest.mark.parametrize(
    "value, message",
    [
        ("just text", "expected fields (tokenizer"),
        (changed(bugdet=3), "bugdet: no such field; there are tree, title"),
        (changed(budget="many"), "budget: "),
        (changed(budget=0), "budget: "),
        ({k: v for k, v in MINIMAL.items() if k != "tokenizer"}, "tokenizer: Field required"),
        (changed(subsets=[]), "subsets: "),
        (subset(members={"paths": []}), "subsets.0.members.paths: "),
        (subset(id="../x"), "subsets.0.id: "),
        (subset(source_options={}), "subsets.0.source_options: "),
        (changed(choices={"titel": True}), "choices: 1 wrong fields:\n  titel: no such field; there are boundary"),
        (changed(preset="mine"), "preset: "),
        (changed(indices={"x": {}}), "indices.x: give exactly one of corpus, path, scan, prepared and remote"),
        (changed(indices={"x": {"path": "a", "remote": "b"}}), "indices.x: give exactly one"),
        (changed(sizes={"1b": {"other": 1}}), "sizes.1b: no such index: other"),
        (subset(sizes=["7b"]), "subset mine: sizes: no such size: 7b"),
    ],
)
def test_a_wrong_configuration_names_the_field(tmp_path, value, message):
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        load_build_config(write(tmp_path, value))
    assert "build.yaml" in str(error.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tree": "olmo2"}, "unknown value 'mine'"),
        ({"tree": "nothing"}, "unknown value 'nothing'"),
        ({"tree": "olmo2", "subsets": [MINIMAL["subsets"][0] | {"id": "dpo"}]}, "size is None; expected: one of 1b"),
        ({"tree": "olmo2", "subsets": [MINIMAL["subsets"][0] | {"id": "dclm", "size": "7b"}]}, "expected: left out"),
        ({"subsets": MINIMAL["subsets"] * 2}, "subset mine stands there twice"),
    ],
)
def test_a_subset_that_does_not_fit_the_tree_is_named(tmp_path, changes, message):
    path = write(tmp_path, changed(**changes))
    with pytest.raises(UsageError, match=re.escape(message)):
        tree_of_config(load_build_config(path), path)


def test_one_pair_of_sizes_is_built_once(tmp_path):
    entry = MINIMAL["subsets"][0] | {"id": "sft_aya"}
    path = write(tmp_path, changed(tree="olmo2", subsets=[entry | {"size": "1b"}, entry | {"size": "32b"}]))
    with pytest.raises(UsageError, match="sft_aya_1b-32b stands there twice"):
        tree_of_config(load_build_config(path), path)


def test_a_benchmark_without_a_known_tree_describes_its_own(tmp_path):
    config = load_build_config(write(tmp_path, changed(shifted=True, title="Ours")))
    (tmp_path / "benchmark.yaml").write_text(yaml.safe_dump({"tree": tree_description(config)}))
    tree = tree_of(tmp_path)
    assert tree.title == "Ours" and [s.id for s in tree.subsets] == ["mine"]
    (found,) = tree.subsets
    path = tree.path(tmp_path, found, file_of(found, ""), MEMBER, split="dev", variant="shifted", size=None)
    assert path == tmp_path / "corpus/mine/member/shifted/dev/member_corpus_mine_shifted_dev.jsonl"


@pytest.mark.parametrize("value", ["tree: [1]", "tree: {stages: 3}", "tree: {name: x}", "[]"])
def test_a_marker_that_is_no_tree_is_an_error(tmp_path, value):
    (tmp_path / "benchmark.yaml").write_text(value)
    with pytest.raises(UsageError, match=r"benchmark\.yaml"):
        tree_of(tmp_path)


def test_files_of_a_pair(tmp_path):
    tree = load_tree("olmo2")
    dpo = next(s for s in tree.subsets if s.id == "dpo")
    names = [file_of(dpo, part) for part in ("chosen", "rejected", "pair")]
    found = [
        tree.path(tmp_path, dpo, name, NON_MEMBER, split="test", variant="matched", size="7b").name for name in names
    ]
    assert found == [f"non-member_posttraining_dpo_7b_{part}_test.jsonl" for part in ("chosen", "rejected", "pair")]


def test_what_is_finished_is_kept_until_what_it_was_made_from_changes(tmp_path):
    made = []

    def compute():
        made.append(1)
        return {"n": len(made), "text": "é"}

    stages = Stages(tmp_path)
    assert stages.get("a/b", {"seed": 1}, compute) == stages.get("a/b", {"seed": 1}, compute) == {"n": 1, "text": "é"}
    assert Stages(tmp_path).get("a/b", {"seed": 2}, compute)["n"] == 2
    (path,) = tmp_path.rglob("*.zst")
    path.write_bytes(path.read_bytes()[:-5])
    assert stages.get("a/b", {"seed": 2}, compute)["n"] == 3
    path.write_bytes(b"")
    assert stages.get("a/b", {"seed": 2}, compute)["n"] == 4
    assert subset_of(load_build_config(config_path("construction", "sample.yaml")).subsets[0], load_tree("sample"))
