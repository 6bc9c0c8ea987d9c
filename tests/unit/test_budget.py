"""Sup-CAMIA's label-budget curve: its splits, its means, its file, and the command that goes on from a run."""

import dataclasses
import json
import math
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.attacks.sup_camia import read_texts
from olmodetect_jax.attacks.sup_camia_classifier import probabilities
from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.commands import budget as command
from olmodetect_jax.commands.run_folder import records_digest
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation.budget import (
    FRACTIONS,
    SPLITS,
    Budget,
    Curve,
    SubsetCurve,
    budget_from,
    budget_of,
    curve_of_sides,
    read_budget,
    split,
    subset_curve,
    write_budget,
)
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import Record
from tests.golden_cases import assert_close, golden, kinds
from tests.run_folders import MANIFEST, random_scores, write_run
from tests.stub_attacks import StubTokenizer, answer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "camia_budget_splits.json").read_text())
TREE = load_tree("olmo2")


# --- splits and curves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["expected"]["splits"])
def test_splits(case):
    members, others = split(case["n_member"], case["n_nonmember"], case["split"])
    assert members.evaluation.tolist() == case["eval_member"]
    assert members.training.tolist() == case["train_member_order"]
    assert others.evaluation.tolist() == case["eval_nonmember"]
    assert others.training.tolist() == case["train_nonmember_order"]
    for fraction in FRACTIONS:
        sizes = [len(half.first(fraction)) for half in (members, others)]
        assert sizes == case["n_train"][str(fraction)]
        assert members.first(fraction).tolist() == case["train_member_order"][: sizes[0]]


def test_the_golden_file_has_all_splits_and_fractions():
    inputs = GOLDEN["inputs"]
    assert (inputs["fractions"], inputs["splits"]) == (list(FRACTIONS), SPLITS)
    assert len(GOLDEN["expected"]["splits"]) == 15


FILE = "evaluation_budget"


def test_every_kind_is_used():
    assert kinds(FILE) == {"splits", "sizes", "table"}


@pytest.mark.parametrize("case, expected", golden(FILE, "splits"))
def test_halves(case, expected):
    assert (case["splits"], case["fractions"]) == (list(range(SPLITS)), list(FRACTIONS))
    for number, wanted in enumerate(expected["splits"]):
        members, others = split(case["n_member"], case["n_nonmember"], number)
        got = {
            "evaluation_member": members.evaluation.tolist(), "evaluation_nonmember": others.evaluation.tolist(),
            "training_order_member": members.training.tolist(), "training_order_nonmember": others.training.tolist(),
            "n_training": {str(f): [len(members.first(f)), len(others.first(f))] for f in FRACTIONS},
        }  # fmt: skip
        assert_close(FILE, got, wanted)


@pytest.mark.parametrize("case, expected", golden(FILE, "sizes"))
def test_sizes(case, expected):
    halves = [split(n, n, 0)[0] for n in case["n"]]
    got = {
        "n_evaluation": [len(half.evaluation) for half in halves],
        "n_training": [[len(half.first(f)) for f in case["fractions"]] for half in halves],
    }
    assert_close(FILE, got, expected)


@pytest.mark.parametrize("case, expected", golden(FILE, "table"))
def test_the_table_of_given_aucs(case, expected):
    """DPO's row is the mean of its sides, a domain's of its rows, Macro-Avg of the nine domains."""
    found, deviations = {}, []
    for size in expected["macro_avg"]:
        grids = {row: np.array(list(of[size].values())) for row, of in case["seed_auc"].items()}
        sides = {s.id: [grids[s.id]] if s.id in grids else [grids[f"{s.id}_{n}"] for n in ("chosen", "rejected")]
                 for s in TREE.subsets}  # fmt: skip
        curves = {name: curve_of_sides(20, 20, of) for name, of in sides.items()}
        found[size] = budget_from(curves, TREE, "paper")
        deviations += [std for curve in curves.values() for std in curve.std]
        names = list(map(str, FRACTIONS))
        assert_close(FILE, dict(zip(names, found[size].all.mean, strict=True)), expected["macro_avg"][size])
        for domain, of in expected["domain"].items():
            assert_close(FILE, dict(zip(names, found[size].domains[domain].mean, strict=True)), of[size])
        means = [float(np.mean(row)) for row in curves["dpo"].auc]
        dpo = {f: {"mean": m, "std": s} for f, m, s in zip(names, means, curves["dpo"].std, strict=True)}
        assert_close(FILE, dpo, expected["dpo"][size])
    assert len(deviations) == expected["n_cases"]
    assert sum(std < case["std_limit"] for std in deviations) == expected["n_std_below_limit"]
    gains = {size: budget.all.mean[-1] - budget.all.mean[0] for size, budget in found.items()}
    assert_close(FILE, gains, expected["gain_50_over_10"])


@given(n=st.integers(3, 200), m=st.integers(3, 200), number=st.integers(0, 4))
def test_nothing_is_learnt_from_and_evaluated(n, m, number):
    for half, size in zip(split(n, m, number), (n, m), strict=True):
        assert sorted([*half.evaluation, *half.training]) == list(range(size))
        prefixes = [half.first(fraction).tolist() for fraction in FRACTIONS]
        assert all(b[: len(a)] == a for a, b in zip(prefixes, prefixes[1:], strict=False)) and len(prefixes[0]) >= 2


def features(n, m, seed=0, shift=1.0):
    rng = np.random.default_rng(seed)
    members, others = rng.normal(shift, size=(n, 71)), rng.normal(size=(m, 71))
    members[rng.random(members.shape) < 0.05] = math.nan
    return members, others


def plain_auc(members, others):
    return float(np.mean((members[:, None] > others) + 0.5 * (members[:, None] == others)))


def by_definition(side, classifier):
    grid = np.zeros((5, 5))
    for f, fraction in enumerate((0.1, 0.2, 0.3, 0.4, 0.5)):
        for s in range(5):
            rng = np.random.default_rng(1000 + s)
            orders = [rng.permutation(len(x)) for x in side]
            held = [x[order[: len(x) // 2]] for x, order in zip(side, orders, strict=True)]
            rest = [x[order[len(x) // 2 :]] for x, order in zip(side, orders, strict=True)]
            learnt = [r[: max(2, min(len(r), round(fraction * len(x))))] for r, x in zip(rest, side, strict=True)]
            grid[f, s] = plain_auc(*(probabilities(*learnt, x, classifier) for x in held))
    return grid


@pytest.mark.parametrize("classifier", ["plain", "group_pca"])
def test_a_subset(classifier):
    side = features(21, 18, shift=0.2)
    found = subset_curve([side], classifier)
    np.testing.assert_allclose(found.auc, by_definition(side, classifier), rtol=0, atol=1e-12)
    assert (found.n_member, found.n_non_member, found.reason) == (21, 18, None)


def test_two_sides_have_a_classifier_each():
    sides = [features(13, 15, 1, 0.3), features(12, 16, 2, -0.3)]
    found = subset_curve(sides, "plain")
    np.testing.assert_allclose(found.auc, np.mean([by_definition(side, "plain") for side in sides], axis=0), atol=1e-12)
    assert (found.n_member, found.n_non_member) == (25, 31)


@pytest.mark.parametrize(
    ("sides", "reason"),
    [
        ([features(2, 9)], "2 members"),
        ([features(9, 2)], "2 non-members"),
        ([features(9, 9), features(9, 0)], "0 non-members"),
    ],
)
def test_a_class_that_is_too_small(sides, reason):
    found = subset_curve(sides, "plain")
    assert found.auc is None and found.reason.startswith(f"{reason} with a text that can be scored: at least 3")
    assert (found.n_member, found.n_non_member) == tuple(sum(len(side[i]) for side in sides) for i in (0, 1))
    assert subset_curve([features(3, 3)], "plain").auc is not None


def test_domains_and_their_mean():
    subsets = {s.id: [features(7, 8, seed, 0.2)] for seed, s in enumerate(TREE.subsets)}
    found = budget_of(subsets, TREE, "plain")
    assert list(found.domains) == list(TREE.domain_titles) and len(found.domains) == 9
    grids = {name: np.array(curve.auc) for name, curve in found.subsets.items()}
    domains = {d: np.mean([grids[s.id] for s in TREE.subsets if s.domain == d], axis=0) for d in TREE.domain_titles}
    for domain, grid in domains.items():
        np.testing.assert_allclose(found.domains[domain].mean, grid.mean(axis=1), atol=1e-12)
        np.testing.assert_allclose(found.domains[domain].std, grid.std(axis=1), atol=1e-12)
    over_all = np.mean(list(domains.values()), axis=0)
    np.testing.assert_allclose(found.all.mean, over_all.mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(found.all.std, over_all.std(axis=1), atol=1e-12)
    assert (found.fractions, found.splits, found.classifier) == (FRACTIONS, 5, "plain")


def test_a_missing_part_is_missing_above():
    subsets = {s.id: [features(7, 8, 3)] for s in TREE.subsets}
    nothing = Curve((None,) * 5, (None,) * 5)
    undefined = budget_of({**subsets, "sc_java": [features(1, 8)]}, TREE, "plain")
    assert undefined.domains["starcoder"] == undefined.all == nothing and undefined.domains["dclm"] != nothing
    some = budget_of({name: subsets[name] for name in ("sc_java", "gsm8k")}, TREE, "plain")
    assert set(some.domains) == {"starcoder", "gsm8k"}
    assert some.domains["starcoder"] == some.all == nothing


# --- the file ---------------------------------------------------------------------------------------------------------

HALF, NONE = (0.5,) * 5, (None,) * 5
BUDGET = Budget(
    "plain",
    FRACTIONS,
    5,
    {
        "gsm8k": SubsetCurve(20, 21, (HALF, HALF, HALF, HALF, (0.1, 0.2, 0.3, 0.4, 1.0)), (0.0, 0.0, 0.0, 0.0, 0.3)),
        "dpo": SubsetCurve(2, 9, None, None, "2 members …"),
    },
    {"gsm8k": Curve((0.5, 0.5, 0.5, 0.5, 0.4), (0.0, 0.0, 0.0, 0.0, 0.3)), "dpo": Curve(NONE, NONE)},
    Curve(NONE, NONE),
)


def test_the_file(tmp_path):
    assert read_budget(tmp_path) is None
    write_budget(tmp_path, BUDGET)
    assert read_budget(tmp_path) == BUDGET
    written = json.loads((tmp_path / "budget.json").read_text())
    assert {name: written[name] for name in ("format", "attack", "classifier", "fractions", "splits")} == {
        "format": 2, "attack": "sup_camia", "classifier": "plain", "fractions": [0.1, 0.2, 0.3, 0.4, 0.5], "splits": 5,
    }  # fmt: skip
    assert set(written) == {"format", "attack", "classifier", "fractions", "splits", "subsets", "domains", "all"}
    assert set(written["subsets"]["gsm8k"]) == {"n_member", "n_non_member", "auc", "std"}
    assert written["subsets"]["dpo"] == {
        "n_member": 2,
        "n_non_member": 9,
        "auc": None,
        "std": None,
        "reason": "2 members …",
    }


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["format"], 1, "format: this version reads 2"),
        (["attack"], "ppl", "field attack: expected one of sup_camia"),
        (["classifier"], "forest", "field classifier: expected one of plain, pca10"),
        (["fractions"], [], "field fractions: expected at least one number"),
        (["fractions"], [0.1, 0.2, 0.3, 0.5, 0.4], "field fractions: expected at least one number, ascending"),
        (["fractions", 0], 0, r"field fractions\[0\]: expected a number above 0"),
        (["splits"], 0, "field splits: expected an integer of at least 1"),
        (["splits"], 4, r"field subsets.gsm8k.auc\[0\]: expected 4 values"),
        (["subsets", "gsm8k", "n_member"], -1, "field subsets.gsm8k.n_member"),
        (["subsets", "gsm8k", "auc"], [], "field subsets.gsm8k.auc: expected 5 values"),
        (["subsets", "gsm8k", "std"], [0.1], "field subsets.gsm8k.std: expected 5 values"),
        (["subsets", "gsm8k", "auc", 1, 2], 1.5, r"field subsets.gsm8k.auc\[1\]\[2\]"),
        (["subsets", "gsm8k", "auc", 1, 2], None, r"field subsets.gsm8k.auc\[1\]\[2\]: expected a number from 0 to 1"),
        (["subsets", "dpo", "reason"], 3, "field subsets.dpo.reason: expected a string"),
        (["subsets", "gsm8k", "auc"], None, "field subsets.gsm8k.reason is missing"),
        (["domains", "gsm8k", "mean"], [0.5], "field domains.gsm8k.mean: expected 5 values"),
        (["domains", "gsm8k", "std", 0], None, "field domains.gsm8k: expected a mean wherever"),
        (["all", "std", 0], "x", r"field all.std\[0\]"),
        (["all"], None, "field all: expected an object"),
    ],
)
def test_a_file_that_is_no_such_one(tmp_path, place, value, message):
    write_budget(tmp_path, BUDGET)
    written = json.loads((tmp_path / "budget.json").read_text())
    inside = written
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = value
    (tmp_path / "budget.json").write_text(json.dumps(written))
    with pytest.raises(DataError, match=rf"budget\.json: field .*{message.removeprefix('field ')}"):
        read_budget(tmp_path)


# --- the command ------------------------------------------------------------------------------------------------------


MODEL = {**MANIFEST["model"], "size": "1b"}
CHANGED = {"sup_camia_classifier": "pca10", "max_tokens": 99}


class Model:
    """A model of a short context that answers from the ids alone."""

    def __init__(self, options, tokenizer):
        self.tokenizer, self.asked, self.options = tokenizer, [], options
        self.facts = {"model": {"weights_digest": "ab" * 32, "size": "1b"}}
        Model.last = self

    def capped(self, protocol):
        return dataclasses.replace(protocol, max_tokens=12)

    def engine(self, score_dtype):
        def answers(requests):
            self.asked += requests
            return {r.digest: answer(r) for r in requests}

        return answers


def sentences(name, count):
    letters = np.random.default_rng(zlib.crc32(name.encode())).choice(list("abcdef "), (count, 14))
    return [f"{i}x{''.join(row)}y" for i, row in enumerate(letters)]


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Makes a run of two subsets of the paper's tree, one with two sides: (its folder, records by subset)."""
    monkeypatch.setattr(command, "OpenModel", Model)
    monkeypatch.setattr(command, "open_tokenizer", lambda path: StubTokenizer())

    def make(repeated=()):
        records = {name: {} for name in ("dev", "test")}
        for subset in TREE.select(["gsm8k", "dpo"]):
            for name, found in records.items():
                for path, label, side in TREE.paths(tmp_path, subset, split=name, variant="matched", size="1b"):
                    texts = sentences(path.name, 3 if name == "dev" else 5)
                    texts += [texts[0], "", "z"] if name in repeated else []
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
                    found.setdefault(subset.id, []).extend(
                        Record(f"sample_{i}", text, label, subset.id, f"{path}, line {i + 1}", side)
                        for i, text in enumerate(texts)
                    )
        digests = {name: {s: records_digest(rs) for s, rs in found.items()} for name, found in records.items()}
        write_run(
            tmp_path / "run",
            random_scores(("sup_camia_lodo",)),
            benchmark={"path": str(tmp_path), "tree": "olmo2"},
            subsets=list(records["test"]),
            records=digests["test"],
            dev_records=digests["dev"],
            token_budget=None,
            protocol={"preset": "audited", "changed": CHANGED, "fields": load_protocol("audited", CHANGED).fields()},
            model=MODEL,
        )
        return tmp_path / "run", {s: [*records["dev"][s], *records["test"][s]] for s in digests["test"]}

    return make


def edited(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def table(texts):
    """Features under the run's protocol and in the model's context."""
    steps = read_texts(texts, StubTokenizer(), load_protocol("audited", {**CHANGED, "max_tokens": 12}))
    try:
        steps.send([answer(r) for r in next(steps)])
    except StopIteration as stop:
        return np.stack([stop.value[text].features for text in texts])


def test_a_run_is_gone_on_from(make_run, capsys):
    folder, records = make_run()
    found = command.budget(folder, mesh="data=1")
    assert read_budget(folder) == found and capsys.readouterr() == ("", "")
    assert Model.last.options.mesh == "data=1" and Model.last.options.attacks == "sup_camia_lodo"
    assert len(Model.last.asked) == 3 * 16  # of each text its copies
    assert found.classifier == "pca10"
    for subset, sides in (("gsm8k", [""]), ("dpo", ["posttraining_dpo_1b_chosen", "posttraining_dpo_1b_rejected"])):
        tables = [
            [table([r.text for r in records[subset] if (r.side, r.label) == (side, label)]) for label in (1, 0)]
            for side in sides
        ]
        assert all(len(x) == 8 for side in tables for x in side)
        expected = np.mean([by_definition(side, "pca10") for side in tables], axis=0)
        np.testing.assert_allclose(found.subsets[subset].auc, expected, atol=1e-12)
    assert list(found.domains) == ["gsm8k", "dpo"] and found.all.mean == (None,) * 5


def test_a_text_counts_once(make_run):
    """It would be learnt from and evaluated too; and what has no features does not count."""
    found = command.budget(make_run()[0])
    folder, records = make_run(repeated=("dev", "test"))
    assert len(records["gsm8k"]) == 2 * 14
    again = command.budget(folder)
    assert again == found and again.subsets["gsm8k"].n_member == 8


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"attacks": ["ppl", "camia"]}, UsageError, "a run without Sup-CAMIA.*--attacks sup_camia"),
        ({"split": "dev"}, UsageError, "a run of the dev split; this needs one of the test split"),
        ({"benchmark": None, "texts": "/t", "split": None, "variant": None}, UsageError, "a run of own texts"),
        ({"records": {"gsm8k": "0" * 64}}, DataError, "the texts of gsm8k are not those"),
        ({"dev_records": {"gsm8k": "0" * 64}}, DataError, "the texts of gsm8k are not those"),
        ({"model": {**MODEL, "weights_digest": "cd" * 32}}, DataError, "has other weights"),
    ],
)
def test_a_run_that_cannot_be_gone_on_from(make_run, changes, error, message):
    folder, _ = make_run()
    edited(folder, **changes)
    with pytest.raises(error, match=message):
        command.budget(folder)
    assert not (folder / "budget.json").exists()
