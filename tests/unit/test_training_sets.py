"""What each supervised attack learns from: pool sizes of the released results, leaks, sides, what is left out."""

import dataclasses
import json
import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.supervised import SETTINGS, SUPERVISED
from olmodetect_jax.attacks.training_sets import (
    BenchmarkTexts,
    own_training_set,
    question_of,
    trained_for,
    training_set,
)
from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import config_path, load_yaml
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import Record, text_hash

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "supervised_pools.json").read_text())
TREE = load_tree("olmo2")
LEAVES = {s.id: s for s in (*TREE.subsets, *TREE.ablations)}
AUDITED = load_protocol()


def golden_name(file, size):
    """What the golden file calls the leaf of a file of the released layout."""
    _, name = file.split("_", 1)
    name = name.replace("_{pair}", "").replace("_{size}", "")
    return next(n for n in (name, f"{name}@{size}") if n in GOLDEN["dev_per_class"])


def leaf_records(subset, split, counts, tag=""):
    """As read from files: members first, each class file by file."""
    return [
        Record(f"{i}", f"{subset.id} {file} {split} {label} {i}{tag}", label, subset.id, "f", file if sides else "")
        for sides in (len(subset.files) > 1,)
        for label in (1, 0)
        for file, n in zip(subset.files, counts, strict=True)
        for i in range(n)
    ]


def golden_texts(size):
    dev = {
        s.id: leaf_records(s, "dev", [GOLDEN["dev_per_class"][golden_name(f, size)] for f in s.files])
        for s in LEAVES.values()
    }
    test = {s.id: leaf_records(s, "test", [3] * len(s.files)) for s in TREE.subsets}
    return BenchmarkTexts(TREE, test, lambda s, split: (dev if split == "dev" else test)[s.id])


def small(dev=3, *, changed=(), scored=(), tree=TREE):
    """Texts of every subset, `dev` of each class and file; (subset, index, text) replace single ones."""
    texts = {}
    for kind, n, changes in (("dev", dev, changed), ("test", 3, scored)):
        for s in (*tree.subsets, *tree.ablations):
            texts[kind, s.id] = leaf_records(s, kind, [n] * len(s.files))
        for subset, i, text in changes:
            texts[kind, subset][i] = dataclasses.replace(texts[kind, subset][i], text=text)
    test = {s.id: texts["test", s.id] for s in tree.subsets}
    return BenchmarkTexts(tree, test, lambda s, split: texts[split, s.id])


def made(texts, subset, setting, protocol=AUDITED, family="fsd", **fields):
    by_id = {s.id: s for s in texts.tree.subsets}
    protocol = dataclasses.replace(protocol, **fields)
    return training_set(texts, by_id[subset], family=family, setting=setting, protocol=protocol)


def subsets_of(found):
    return list(dict.fromkeys((r.subset, r.side) if r.side else r.subset for r in found.records))


@pytest.mark.parametrize("size", GOLDEN["pools"])
@pytest.mark.parametrize(("kind", "preset"), [("released", "release"), ("paper", "paper")])
def test_pools_have_the_released_sizes(size, kind, preset):
    texts, protocol, golden = golden_texts(size), load_protocol(preset), GOLDEN["pools"][size][kind]
    titles = {d: title.replace(" ", "") for d, title in TREE.domain_titles.items()}
    assert sorted(titles.values()) == GOLDEN["fold_order"]
    for family in ("fsd", "mia_tuner"):
        sizes, steps = {}, {}
        for subset in TREE.subsets:
            found = training_set(texts, subset, family=family, setting="lodo", protocol=protocol)
            members, non_members = (sum(r.label == label for r in found.records) for label in (1, 0))
            assert members == non_members and found.trained_for == subset.domain and not found.notes
            sizes[titles[subset.domain]] = members
            steps[titles[subset.domain]] = 3 * math.ceil(non_members / 8)
        assert sizes == golden["lodo"] and steps == golden["lodo_fsd_steps"]
        everything = training_set(texts, TREE.subsets[0], family=family, setting="pooled", protocol=protocol)
        assert sum(r.label for r in everything.records) == golden["all_nine"]
    if kind == "released":
        for confirmed in GOLDEN["confirmed_in_released_results"]:
            known = GOLDEN["pools"][confirmed["size"]]["released"]["lodo"][confirmed["held_out"]]
            assert confirmed["size"] != size or known == sizes[confirmed["held_out"]] == confirmed["pool"]


@pytest.mark.parametrize("size", GOLDEN["pools"])
def test_every_leaf_has_the_released_steps_in_domain(size):
    texts, names = golden_texts(size), []
    for subset in TREE.subsets:
        found = training_set(texts, subset, family="fsd", setting="in-domain", protocol=AUDITED)
        for file in subset.files:
            side = file if len(subset.files) > 1 else ""
            n = sum(r.label == 0 and r.side == side for r in found.records)
            names.append(golden_name(file, size))
            assert 3 * math.ceil(n / 8) == GOLDEN["in_domain_fsd_steps"][names[-1]]
    assert len(set(names)) == 14


def test_the_texts_of_a_pool_stand_in_the_order_of_the_leaves():
    leaves = ["dclm", "pes2o", "openwebmath", "sc_python", "sc_java", "gsm8k", "se_stackoverflow", "se_math",
              "sft_wildchat", "sft_aya", ("dpo", "posttraining_dpo_{size}_chosen"),
              ("dpo", "posttraining_dpo_{size}_rejected"), "rlvr_cot-gsm8k", "rlvr_cot-math"]  # fmt: skip
    texts = small()
    pooled = made(texts, "dclm", "pooled")
    for label in (1, 0):  # each class for itself, as the attacks take them
        own = [r for r in pooled.records if r.label == label]
        assert subsets_of(dataclasses.replace(pooled, records=own)) == leaves
        assert [r for r in own if r.subset == "gsm8k"] == [
            r for r in texts.read(LEAVES["gsm8k"], "dev") if r.label == label
        ]
    without = [leaf for leaf in leaves if leaf not in ("sc_python", "sc_java")]
    assert subsets_of(made(texts, "sc_java", "lodo")) == without
    assert subsets_of(made(texts, "dclm", "pooled", lodo_pool="released")) == [*leaves, "rlvr_gsm8k_no_cot"]
    assert "rlvr_gsm8k_no_cot" not in subsets_of(made(texts, "rlvr_cot-math", "lodo", lodo_pool="released"))
    domain = made(texts, "se_math", "in-domain", in_domain_unit="domain")
    assert subsets_of(domain) == ["se_stackoverflow", "se_math"]


@pytest.mark.parametrize(
    "changes",
    [
        {"training_order": ["dclm"]},
        {"training_order": [*(s.id for s in TREE.subsets), "dclm"]},
        {"training_order": [*(s.id for s in TREE.subsets[1:]), "news"]},
        {"representative": ["another_file"]},
    ],
)
def test_a_tree_that_does_not_fit_itself_is_none(monkeypatch, changes):
    value = load_yaml(config_path("benchmark", "olmo2.yaml"))
    (value if "training_order" in changes else value["stages"][0]["domains"][0]["subsets"][0]).update(changes)
    monkeypatch.setattr("olmodetect_jax.benchmark.load_yaml", lambda path: value)
    with pytest.raises(UsageError, match=r"olmo2\.yaml: not a benchmark tree"):
        load_tree("olmo2")


def test_in_domain_every_leaf_or_every_domain_learns_for_itself():
    texts = small()
    leaf = made(texts, "sft_aya", "in-domain")
    assert subsets_of(leaf) == ["sft_aya"] and leaf.trained_for == "sft_aya" and leaf.sides_apart
    assert leaf.held_out == {text_hash(r.text) for r in texts.scored["sft_aya"]}
    domain = made(texts, "sft_aya", "in-domain", in_domain_unit="domain")
    assert domain.trained_for == "sft" and not domain.sides_apart
    assert domain.held_out == {text_hash(r.text) for s in ("sft_aya", "sft_wildchat") for r in texts.scored[s]}
    dpo = made(texts, "dpo", "in-domain")
    group = dpo.given_to(Group(texts.scored["dpo"], domain="dpo"))
    assert group.sides_apart and group.dev == dpo.records and group.trained_for == "dpo"
    assert (group.records, group.domain, group.held_out) == (texts.scored["dpo"], "dpo", dpo.held_out)
    assert not made(texts, "dpo", "in-domain", in_domain_unit="domain").sides_apart


def test_subsets_that_share_a_pool_have_one_name():
    for unit, expected in (("leaf", ["sc_java", "starcoder", "all"]), ("domain", ["starcoder", "starcoder", "all"])):
        protocol = dataclasses.replace(AUDITED, in_domain_unit=unit)
        assert [trained_for(LEAVES["sc_java"], setting, protocol) for setting in SETTINGS] == expected


def test_sup_camia_may_learn_from_one_leaf_a_domain_and_from_test_texts():
    texts = small()
    chosen = ("dpo", "posttraining_dpo_{size}_chosen")
    representative = ["dclm", "pes2o", "openwebmath", "sc_java", "gsm8k", "se_stackoverflow", "sft_aya", chosen,
                      "rlvr_cot-gsm8k"]  # fmt: skip
    release = load_protocol("release")
    asked = []
    noted = dataclasses.replace(texts, read=lambda s, split: asked.append((s.id, split)) or texts.read(s, split))
    pooled = made(noted, "dclm", "pooled", release, "sup_camia")
    assert len(asked) == 9 and {split for _, split in asked} == {"dev"} and not pooled.notes
    assert subsets_of(pooled) == representative and {r.text.split()[-3] for r in pooled.records} == {"dev"}
    lodo = made(texts, "dclm", "lodo", release, "sup_camia")
    assert subsets_of(lodo) == representative[1:]
    assert len(lodo.records) == 2 * (len(pooled.records) - 6) and len(pooled.records) == 9 * 6
    assert {r.text.split()[-3] for r in lodo.records if r.subset == "dpo"} == {"dev", "test"}
    for family in ("fsd", "mia_tuner"):  # neither choice is theirs
        assert len(made(texts, "dclm", "lodo", release, family).records) == 14 * 6
    assert subsets_of(made(texts, "sc_python", "in-domain", release, "sup_camia")) == ["sc_python"]


GSM8K = "Question: How many  pens\nhas Ann?\nReasoning: 1 + 2 = <<1+2=3>>3\nAnswer: 3"
RLVR = "<|user|>\nQuestion: Example?\nAnswer:It is 4.\n\nQuestion: How many pens has Ann?"


def test_questions_are_known_in_both_forms():
    assert question_of(GSM8K) == question_of(RLVR) == text_hash("How many pens has Ann?")
    for end in ("\n", "\nAnswer:", "\n<|assistant|>\nThree."):
        assert question_of(RLVR + end) == question_of(RLVR)
    assert question_of("Question: Example?\nAnswer:It is 4.") == question_of("<|user|>\nQuestion: Example?")
    for none in ("", "A text.", "Question:", "Question: \nAnswer: 3", "My Question: How many pens has Ann?"):
        assert question_of(none) is None


@pytest.mark.parametrize(("rule", "kept", "said"), [
    ("keep", 78, r"1 of 78 training texts ask a question .*\(rlvr 1\); they stay \(lodo_related=keep\)"),
    ("questions", 77, r"1 of 78 training texts .*; they are left out \(lodo_related=questions\)"),
    ("domain", 66, r"1 of 78 training texts .*; all 12 texts of rlvr are left out \(lodo_related=domain\)"),
])  # fmt: skip
def test_near_copies_of_another_domain(rule, kept, said):
    texts = small(changed=[("rlvr_cot-gsm8k", 1, RLVR)], scored=[("gsm8k", 0, GSM8K)])
    found = made(texts, "gsm8k", "lodo", lodo_related=rule)
    (note,) = found.notes
    assert len(found.records) == kept and note.startswith("lodo, gsm8k held out: ") and re.search(said, note)
    assert (RLVR in {r.text for r in found.records}) == (rule == "keep")
    for other in ("dclm", "rlvr_cot-math"):  # only the scored texts of the domain that is held out count
        assert not made(texts, other, "lodo", lodo_related=rule).notes
    assert not made(texts, "gsm8k", "pooled", lodo_related=rule).notes


def test_no_scored_text_is_learnt_from_and_that_is_said():
    texts = small(changed=[("gsm8k", 0, "same"), ("dpo", 0, "same"), ("dclm", 2, "")], scored=[("dclm", 4, "same")])
    held_out = made(texts, "dclm", "lodo")
    assert held_out.notes == ("lodo, dclm held out: training texts left out because they are scored too: 2",)
    assert "same" not in {r.text for r in held_out.records} and text_hash("same") in held_out.held_out
    pooled = made(texts, "gsm8k", "pooled")
    assert pooled.notes == (
        "pooled, all: training texts left out because they have no text: 1",
        "pooled, all: training texts left out because they are scored too: 2",
    )
    assert not made(texts, "gsm8k", "in-domain").notes  # the equal text is another domain's
    assert len(made(texts, "rlvr_cot-math", "lodo").records) == 71  # so is it here


def test_a_subset_without_development_texts_is_named():
    texts = small()
    some = dataclasses.replace(texts, read=lambda s, split: texts.read(s, split) if s.id in ("dclm", "gsm8k") else ())
    found = made(some, "dclm", "lodo")
    assert subsets_of(found) == ["gsm8k"]
    (note,) = found.notes
    assert note.startswith("lodo: no development texts of pes2o, openwebmath, sc_python, sc_java, se_stackoverflow, ")
    alone = dataclasses.replace(texts, read=lambda s, split: texts.read(s, split) if s.domain == "dclm" else ())
    with pytest.raises(UsageError, match=r"--setting lodo: .* outside dclm; .* at least two domains"):
        made(alone, "dclm", "lodo")


@pytest.mark.parametrize(
    ("subset", "setting", "changed", "message"),
    [
        ("novel", "in-domain", [], "in-domain, novel: 1 usable development members .*at least 2"),
        ("novel", "in-domain", [("novel", 0, ""), ("novel", 1, "")], r" 0 usable .*they have no text: 2\. Add some"),
        ("dpo", "in-domain", [], r"in-domain, dpo \(posttraining_dpo_\{size\}_chosen\): 1 usable development members"),
    ],
)
def test_too_little_to_learn_from(subset, setting, changed, message):
    texts = small(1, changed=changed, tree=TREE if subset == "dpo" else load_tree("sample"))
    with pytest.raises(DataError, match=message) as error:
        made(texts, subset, setting)
    assert "raise --limit" in str(error.value)


def test_each_side_needs_texts_of_its_own():
    texts = small()
    dev = [r for r in texts.read(LEAVES["dpo"], "dev") if not (r.label == 0 and r.side.endswith("rejected"))]
    some = dataclasses.replace(texts, read=lambda s, split: dev)
    with pytest.raises(
        DataError, match=r"dpo \(posttraining_dpo_\{size\}_rejected\): 0 usable development non-members"
    ):
        made(some, "dpo", "in-domain")
    assert made(some, "dpo", "in-domain", in_domain_unit="domain").records == tuple(dev)


def test_own_texts_learn_from_what_was_given_with_them():
    texts = small()
    group = Group(texts.scored["gsm8k"], [*texts.read(LEAVES["gsm8k"], "dev"), texts.scored["gsm8k"][0]])
    found = own_training_set(group, "texts")
    assert found.records == tuple(group.dev[:-1]) and found.trained_for == "texts" and found.sides_apart
    assert found.notes == ("in-domain, texts: training texts left out because they are scored too: 1",)
    with pytest.raises(DataError, match="in-domain, texts: 0 usable development members"):
        own_training_set(Group(group.records), "texts")


VALUES = st.fixed_dictionaries(
    {
        "in_domain_unit": st.sampled_from(["leaf", "domain"]),
        "lodo_train": st.sampled_from(["dev", "dev_and_test"]),
        "lodo_subsets": st.sampled_from(["all", "representative"]),
        "lodo_pool": st.sampled_from(["benchmark", "released"]),
        "lodo_related": st.sampled_from(["keep", "questions", "domain"]),
    }
)


@given(
    fields=VALUES,
    family=st.sampled_from(SUPERVISED),
    setting=st.sampled_from(SETTINGS),
    subset=st.sampled_from([s.id for s in TREE.subsets]),
    seed=st.integers(0, 2**32),
)
def test_never_learns_from_a_scored_text(fields, family, setting, subset, seed):
    """Texts are drawn from so few that splits, domains and sides share many."""
    rng = random.Random(seed)

    def drawn(kind):
        return [(s.id, i, rng.choice(ALPHABET)) for s in LEAVES.values() for i in range(2, 6 * len(s.files))
                if rng.random() < 0.3]  # fmt: skip

    texts = small(6, changed=drawn("dev"), scored=[change for change in drawn("test") if change[1] < 6])
    try:
        found = made(texts, subset, setting, family=family, **fields)
    except DataError:
        return
    protocol = dataclasses.replace(AUDITED, **fields)
    name = trained_for(LEAVES[subset], setting, protocol)
    judged = {r.text for s in TREE.subsets if trained_for(s, setting, protocol) == name for r in texts.scored[s.id]}
    assert judged and not judged & {r.text for r in found.records}
    assert found.held_out == {text_hash(text) for text in judged}
    domain = LEAVES[subset].domain
    inside = [LEAVES[r.subset].domain == domain for r in found.records]
    assert (setting == "lodo" and not any(inside)) or (setting == "in-domain" and all(inside)) or setting == "pooled"


ALPHABET = [*"abcdefgh", "", GSM8K, RLVR]
