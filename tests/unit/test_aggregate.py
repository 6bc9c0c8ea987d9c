"""Means over the benchmark's tree against the golden answers."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from olmodetect_jax.benchmark import Tree, load_tree
from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.aggregate import (
    OUTSIDE_METHOD_AVG,
    Aggregate,
    aggregate,
    attack_domains,
    is_defined_on,
    mean,
    method_avg,
    model_avg,
)
from olmodetect_jax.evaluation.formatting import two_decimals

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "evaluation_aggregate.json").read_text())
CASES = {
    name: (case, expected)
    for name, case, expected in zip(GOLDEN["case_names"], GOLDEN["inputs"], GOLDEN["expected"], strict=True)
}
TREE = load_tree("olmo2")
STAGES = {"pre": "pretraining", "mid": "midtraining", "post": "posttraining"}


def row(attack: str, values: dict[str, float | None], tree: Tree = TREE) -> Aggregate:
    return aggregate(values, tree, domains=attack_domains(attack, tree))


def assert_number(got: float | None, expected: float | None) -> None:
    tolerance = GOLDEN["tolerance"]
    if expected is None or got is None:
        assert got is expected
    else:
        assert math.isclose(got, expected, rel_tol=tolerance["rel"], abs_tol=tolerance["abs"])


def assert_cells(got: Aggregate, expected: dict[str, Any]) -> None:
    assert expected["domain"].keys() <= got.domain.keys()
    for domain, value in got.domain.items():
        assert_number(value, expected["domain"].get(domain))
    for short, stage in STAGES.items():
        assert_number(got.stage[stage], expected["stage"][short])
    assert_number(got.all, expected["all"])


@pytest.mark.parametrize("name", [name for name, (case, _) in CASES.items() if case["kind"] == "cells"])
def test_every_cell(name: str) -> None:
    case, expected = CASES[name]
    rows = {
        attack: {size: row(attack, values) for size, values in sizes.items()}
        for attack, sizes in case["values"].items()
    }
    averages = {attack: model_avg(list(sizes.values())) for attack, sizes in rows.items()}
    for attack, golden in expected["methods"].items():
        for size, cells in golden["sizes"].items():
            assert_cells(rows[attack][size], cells)
        assert_cells(averages[attack], golden["model_avg"])
    unsupervised = [attack for attack in rows if attack not in OUTSIDE_METHOD_AVG]
    assert unsupervised == case["unsupervised"]
    for size, cells in expected["method_avg"].items():
        parts = [averages[a] if size == "model_avg" else rows[a][size] for a in unsupervised]
        assert_cells(method_avg(parts), cells)


def test_em_mia_two_rules() -> None:
    case, expected = CASES["em_mia_two_rules"]
    best, selected = [], []
    for size, leaves in case["leaf_values"].items():
        best.append(row("em_mia", {leaf: max(bases.values()) for leaf, bases in leaves.items()}))
        pick = expected["dev_pick"][size]
        selected.append(row("em_mia", {leaf: bases[pick] for leaf, bases in leaves.items()}))
        assert_cells(best[-1], expected["best_on_test"]["sizes"][size])
        assert_cells(selected[-1], expected["dev_selected"]["sizes"][size])
    assert_cells(model_avg(best), expected["best_on_test"]["model_avg"])
    assert_cells(model_avg(selected), expected["dev_selected"]["model_avg"])


def test_representative_leaves_are_a_smaller_tree() -> None:
    case, expected = CASES["sup_camia_lodo_representative_leaves"]
    for size, values in case["values"].items():
        named = {("dpo" if leaf == "dpo_chosen" else leaf): value for leaf, value in values.items()}
        smaller = dataclasses.replace(TREE, subsets=TREE.select(list(named)))
        assert_cells(row("sup_camia", named, smaller), expected["sizes"][size])
        others = {s.id: 0.123 for s in TREE.subsets if s.id not in named}
        whole = aggregate({**others, **named}, TREE, representative=True)
        assert_cells(dataclasses.replace(whole, subset=named), expected["sizes"][size])


def test_fsd_gain_is_a_difference_of_aggregates() -> None:
    case, expected = CASES["fsd_gain_same_run_base"]
    for name, run in case["runs"].items():
        golden = expected["runs"][name]
        base = {size: row("fsd", values) for size, values in run["base"].items()}
        tuned = {size: row("fsd", values) for size, values in run["fsd"].items()}
        for size in base:
            assert_number(base[size].all, golden["base_all"][size])
            assert_number(tuned[size].all - base[size].all, golden["gain"][size])
        gain = model_avg(list(tuned.values())).all - model_avg(list(base.values())).all
        assert_number(gain, golden["model_avg_gain"])
        if name == "in_domain":
            assert_number(model_avg(list(base.values())).all, expected["base_auc_column"])


def test_dpo_leaf_pools_chosen_and_rejected() -> None:
    case, expected = CASES["dpo_leaf_from_scores"]
    member, non_member = (case[f"{side}_chosen"] + case[f"{side}_rejected"] for side in ("member", "nonmember"))
    pooled, pairs = m.ClassScores(member, non_member), m.ClassScores(case["pair_member"], case["pair_nonmember"])
    halves = [m.ClassScores(case[f"member_{h}"], case[f"nonmember_{h}"]) for h in ("chosen", "rejected")]
    got = {
        "auc": m.auc(pooled),
        "tpr_at_5fpr": m.tpr_at_fpr(m.roc_curve(pooled)),
        "self_critique_auc": m.auc(pairs),
        "self_critique_tpr_at_5fpr": m.tpr_at_fpr(m.roc_curve(pairs)),
        "label_budget_auc": mean(m.auc(half) for half in halves),
    }
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert_number(value, expected[name])


def test_excluded_lines_leave_by_position() -> None:
    case, expected = CASES["excluded_lines_are_dropped_by_position"]
    left = [v for i, v in enumerate(case["nonmember"]) if i not in case["exclude_nonmember_lines"]]
    assert len(left) == expected["n_left"]
    assert_number(m.auc(m.ClassScores(case["member"], left)), expected["auc"])
    assert_number(m.auc(m.ClassScores(case["member"], case["nonmember"])), expected["auc_without_exclusion"])


def test_dev_auc_pools_domains() -> None:
    case, expected = CASES["dev_tuning_pools_domains_first_tie"]
    pooled = {}
    for value in map(str, case["grid"]):
        sides = [
            [s for domain in case["dev_scores"].values() for s in domain[side][value]]
            for side in ("member", "nonmember")
        ]
        pooled[value] = m.auc(m.ClassScores(*sides))
        assert_number(pooled[value], expected["pooled_auc"][value])
    assert max(pooled, key=pooled.__getitem__) == str(expected["chosen"])  # max keeps the first of equals


def test_the_tree_reads_the_folders_of_the_paper() -> None:
    case, expected = CASES["folders_a_size_reads"]
    for size in case["sizes"]:
        for subset in TREE.subsets:
            paths = TREE.paths(Path("r"), subset, split="test", variant=case["variant"], size=size)
            sides = {
                side: [path.stem.removesuffix("_test") for path, label, _ in paths if label == wanted]
                for side, wanted in (("member", 1), ("nonmember", 0))
            }
            assert sides == expected["folders"][size][subset.id]


def test_printed_as_the_paper_does() -> None:
    case, expected = CASES["two_decimals_binary_rounding"]
    assert [two_decimals(value) for value in case["values"]] == expected["text"]
    case, expected = CASES["average_before_rounding"]
    means = [mean(values) for values in case["lists"]]
    for got, golden, text in zip(means, expected["mean"], expected["text"], strict=True):
        assert_number(got, golden)
        assert two_decimals(got) == text


def test_every_golden_case_has_a_test() -> None:
    kinds = {"cells", "folders", "dpo_leaf", "em_mia", "representative", "fsd_gain", "print", "mean_and_print"}
    assert {case["kind"] for case, _ in CASES.values()} == kinds | {"exclude", "tune"}


def test_a_restricted_attack_has_its_domains_only() -> None:
    sample = load_tree("sample")
    assert attack_domains("self_critique", sample) == ("mbpp",)
    assert attack_domains("self_critique", TREE) == ("dpo", "rlvr")
    without = dataclasses.replace(sample, subsets=sample.subsets[:4], domain_titles={"novel": "Novel"})
    assert attack_domains("self_critique", without) == ()
    assert aggregate({"novel": 0.7}, without, domains=()).all is None
    assert attack_domains("cdd", sample) == tuple(sample.domain_titles)
    assert is_defined_on("self_critique", None) and not is_defined_on("self_critique", "novel")


def test_a_restricted_attack_still_needs_all_of_its_own_subsets() -> None:
    got = row("self_critique", {"dpo": 0.5, "rlvr_cot-gsm8k": 0.5})
    assert got.domain["dpo"] == 0.5
    assert got.domain["rlvr"] is got.stage["posttraining"] is got.all is None


def test_unknown_subset() -> None:
    with pytest.raises(UsageError, match="'gsm8k-2'"):
        aggregate({"gsm8k-2": 0.5}, TREE)


def test_no_value_has_no_mean() -> None:
    assert mean([]) is None
    assert mean([0.4, None]) is None
