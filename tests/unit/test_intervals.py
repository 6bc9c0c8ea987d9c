"""Bootstrap of the whole aggregate against the golden draws; sharing of draws; order does not matter."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation import comparisons as c
from olmodetect_jax.evaluation import intervals
from olmodetect_jax.evaluation.intervals import Interval, bootstrap
from olmodetect_jax.evaluation.metrics import ClassScores, auc
from olmodetect_jax.evaluation.resampling import counts_of, resampled
from olmodetect_jax.evaluation.results import evaluate_run
from olmodetect_jax.evaluation.runs import Run, Score
from tests.golden_cases import assert_close, golden, kinds
from tests.run_folders import MANIFEST

FILE = "evaluation_bootstrap"
TREE = load_tree("olmo2")
STAGES = {"pre": "pretraining", "mid": "midtraining", "post": "posttraining", "all": None}
LABELS = {"member": 1, "nonmember": 0}


def line(name, label, value, sha1="", **more):
    return Score(name, sha1 or f"{name} {label}", label, value, None, False, **more)


def run_of(scores, *, model="m", tree=TREE, variant="matched"):
    """A run in memory: attack to subset to lines."""
    manifest = copy.deepcopy(MANIFEST) | {"variant": variant}
    manifest["model"] = {**manifest["model"], "name": model, "weights_digest": model}
    subsets = tuple(s.id for s in tree.subsets if any(s.id in of for of in scores.values()))
    return evaluate_run(Run(Path(model), manifest, tree, tuple(scores), subsets, scores, {}))


def test_every_kind_is_used():
    assert kinds(FILE) == {
        "leaf", "em_mia_leaf", "model_avg", "shift", "em_mia_shift", "marks", "shift_counts", "size_pair",
    }  # fmt: skip


def sides_of(scores, name, key):
    """The lines of a class; a record is known by the index set it belongs to and its place there."""
    if name in scores:
        return [line(f"{key}/{name}/{i:03}", LABELS[name], v) for i, v in enumerate(scores[name])]
    return [
        line(f"{key}/{name}/{i:03}", LABELS[name], v, side)
        for side in ("chosen", "rejected")
        for i, v in enumerate(scores[f"{name}_{side}"])
    ]


def given_draws(indices, together):
    """Draws that take the golden indices for the records they are asked of."""

    class Given(intervals.Draws):
        def of(self, population, purpose):
            key, name, _ = population.keys[0][0].split("/")
            if together or key.split("@")[0] != "dpo":
                return counts_of(indices[key][name], max(population.clusters) + 1)[:, population.clusters]
            n = len(population.keys) // 2  # places in chosen followed by rejected; ours are sorted by id, then side
            return counts_of(indices[key][name], 2 * n)[:, [place % 2 * n + place // 2 for place in range(2 * n)]]

    return Given


@pytest.mark.parametrize("case, expected", golden(FILE, "model_avg"))
def test_model_average(case, expected, monkeypatch):
    together = case["dpo_resampling"] == "pairs"
    monkeypatch.setattr(intervals, "Draws", given_draws(case["indices"], together))
    results = []
    for size in case["sizes"]:
        lines = {
            subset: sum((sides_of(scores, name, case["index_key"][size][subset]) for name in LABELS), [])
            for subset, scores in case["scores"][size].items()
        }
        results.append(run_of({"ppl": {s: tuple(of) for s, of in lines.items()}}, model=size))
    found = bootstrap(results, n_resamples=len(case["indices"]["dclm"]["member"]), together=together)
    (row,) = found.mean_draws
    draws = {short: row.auc.stage[stage] if stage else row.auc.all for short, stage in STAGES.items()}
    assert_close(FILE, draws, expected["draws"])
    auc = found.mean.auc["ppl"]
    ends = {short: auc.stage[stage] if stage else auc.all for short, stage in STAGES.items()}
    got = {name: {"low95": interval.low, "high95": interval.high} for name, interval in ends.items()}
    assert_close(FILE, got, expected["intervals"])


@pytest.fixture
def small():
    """Two models and two attacks on the sample's tree."""
    rng = np.random.default_rng(3)
    tree = load_tree("sample")

    def scores(attack):
        return {
            s.id: tuple(line(f"{s.id}-{i}", label, float(rng.normal(label))) for label in (1, 0) for i in range(15))
            for s in tree.subsets
        }

    return [run_of({a: scores(a) for a in ("ppl", "zlib")}, model=model, tree=tree) for model in ("one", "two")]


def test_neither_order_of_records_nor_of_runs_changes_an_interval(small):
    found = bootstrap(small, n_resamples=50)
    turned = []
    for result in reversed(small):
        scores = {a: {s: lines[::-1] for s, lines in of.items()} for a, of in result.run.scores.items()}
        turned.append(run_of(scores, model=result.run.model, tree=result.run.tree))
    again = bootstrap(turned, n_resamples=50)
    assert again.runs == found.runs[::-1]
    assert again.mean == found.mean
    assert bootstrap(small, n_resamples=50, seed=1).runs != found.runs


def test_draws_are_shared_by_attacks_and_models_of_the_same_records(small):
    """Equal scores then have equal draws; with another record list they differ."""
    lines = small[0].run.scores["ppl"]
    fewer = {s: of[1:] for s, of in lines.items()}
    results = [run_of({"ppl": lines, "zlib": lines, "lower": fewer}, model=n, tree=small[0].run.tree) for n in "ab"]
    draws = bootstrap(results, n_resamples=40).draws
    ppl, zlib, lower, _ = draws[0]
    assert np.array_equal(ppl.auc.all, zlib.auc.all)
    assert np.array_equal(ppl.auc.all, draws[1][0].auc.all)
    assert not np.array_equal(ppl.auc.all, lower.auc.all)


def test_method_avg_and_missing_groups(small):
    found = bootstrap(small, n_resamples=40)
    rows = {row.id: row for row in found.draws[0]}
    assert rows["method_avg"].auc.all == pytest.approx((rows["ppl"].auc.all + rows["zlib"].auc.all) / 2)
    first = small[0].run.tree.subsets[0]
    part = {a: {s: of for s, of in lines.items() if s != first.id} for a, lines in small[0].run.scores.items()}
    found = bootstrap([run_of(part, tree=small[0].run.tree)], n_resamples=40).runs[0].auc["ppl"]
    assert found.subset[first.id] is found.domain[first.domain] is found.stage[first.stage] is found.all is None


def test_an_interval_covers_its_value_and_too_few_resamples_are_refused(small):
    found = bootstrap(small, n_resamples=400)
    for row in small[0].rows:
        interval = found.runs[0].auc[row.id].all
        assert interval.low < row.auc.all < interval.high
    with pytest.raises(UsageError, match="--bootstrap 39: a 95% interval needs at least 40"):
        intervals.check_resamples(39)


# Comparisons


@pytest.mark.parametrize("case, expected", golden(FILE, "marks"))
def test_marks(case, expected):
    for name, draws in case["draws"].items():
        effect = c.Effect(0.0, np.asarray(draws))
        got = {
            "low95": effect.interval.low, "high95": effect.interval.high, "low99": effect.interval_99.low,
            "high99": effect.interval_99.high, "direction_95": effect.interval.direction,
            "direction_99": effect.interval_99.direction, "mark": effect.mark,
        }  # fmt: skip
        assert_close(FILE, got, expected["marks"][name])


def effect_json(effect):
    return {
        "delta": effect.delta, "draws": effect.draws, "low95": effect.interval.low, "high95": effect.interval.high,
        "low99": effect.interval_99.low, "high99": effect.interval_99.high,
        "direction_95": effect.interval.direction, "direction_99": effect.interval_99.direction, "mark": effect.mark,
    }  # fmt: skip


@pytest.mark.parametrize("case, expected", golden(FILE, "shift"))
def test_shift(case, expected, monkeypatch):

    class Given(intervals.Draws):
        """Takes the golden indices of a subset, a model and a group of records."""

        def of(self, population, purpose):
            subset, size, name, _ = population.keys[0][0].split("/")
            return counts_of(case["indices"][subset][size][name], len(population.keys))

    monkeypatch.setattr(c, "Draws", Given)
    pairs = []
    for size in case["sizes"]:
        variants = []
        for variant in ("matched", "shifted"):
            lines = {
                subset: tuple(
                    line(f"{subset}/{size}/{name}/{i:03}", label, v)
                    for name, label in ((variant, 1), ("nonmember", 0))
                    for i, v in enumerate(of[size][name])
                )
                for subset, of in case["scores"].items()
            }
            variants.append(run_of({"ppl": lines}, model=size, variant=variant))
        pairs.append(tuple(variants))
    n = len(next(iter(next(iter(case["indices"].values())).values()))["matched"])
    table = c.shift_effects(pairs, n_resamples=n)
    (row,) = table.rows
    assert_close(FILE, {s: effect_json(e) for s, e in row.subset.items()}, expected["leaf"])
    assert_close(FILE, {d: effect_json(e) for d, e in row.domain.items()}, expected["domain"])
    for domain, effect in row.domain.items():
        assert effect.delta == pytest.approx(row.shifted[domain] - row.matched[domain])


@pytest.mark.parametrize("case, expected", golden(FILE, "em_mia_shift"))
def test_em_mia_has_four_draws_and_the_best_base_on_each_side(case, expected):
    aucs = {}
    for variant in ("matched", "shifted"):
        names = variant, f"{variant}_nonmember"
        sides = [case["scores"][name] for name in names]
        counts = [counts_of(case["indices"][name], len(case["indices"][name][0])) for name in names]
        aucs[variant] = [resampled(ClassScores(*(s[b] for s in sides)), *counts) for b in sides[0]]
    draws = intervals.best(aucs["shifted"])[0] - intervals.best(aucs["matched"])[0]
    points = {
        v: max(auc(ClassScores(case["scores"][v][b], others[b])) for b in others)
        for v in ("matched", "shifted")
        for others in [case["scores"][f"{v}_nonmember"]]
    }
    effect = c.Effect(points["shifted"] - points["matched"], draws)
    assert_close(FILE, effect_json(effect), expected)


@pytest.mark.parametrize("case, expected", golden(FILE, "shift_counts"))
def test_counts_and_largest(case, expected):
    directions = {d: int(np.sign(case["delta"][d])) if mark else 0 for d, mark in case["mark"].items()}
    found = c.shift_counts(case["delta"], directions)
    got = {
        "n_increase": found.n_increase, "n_decrease": found.n_decrease, "largest_domain": found.largest_domain,
        "largest_delta": found.largest_delta,
    }  # fmt: skip
    assert_close(FILE, got, expected)


@pytest.mark.parametrize("case, expected", golden(FILE, "size_pair"))
def test_size_pair(case, expected):
    first, second = (np.asarray(case[f"draws_{name}"]) for name in ("first", "second"))
    pair = c._pair(("a", 0.0, first), ("b", 0.0, second), float(np.mean(second - first <= 0)))
    assert_close(FILE, second - first, expected["draws"])
    got = {
        "p_not_positive": pair.p, "low95": pair.interval.low, "high95": pair.interval.high,
        "low99": pair.interval_99.low, "high99": pair.interval_99.high,
    }  # fmt: skip
    assert_close(FILE, got, {name: expected[name] for name in got})


def test_size_pairs_and_attack_pairs_of_runs(small):
    found = bootstrap(small, n_resamples=200)
    (pair,) = c.size_pairs(small, found.draws)
    grand = [next(row for row in result.rows if row.id == "method_avg").auc.all for result in small]
    assert (pair.first, pair.second) == ("one", "two")
    assert pair.difference == pytest.approx(grand[1] - grand[0])
    (attacks,) = c.attack_pairs(small[0].rows, found.draws[0])
    assert attacks.difference == pytest.approx(small[0].rows[1].auc.all - small[0].rows[0].auc.all)
    assert attacks.interval.low < attacks.difference < attacks.interval.high
    assert attacks.p_holm == attacks.p


def test_models_are_compared_by_the_attacks_that_all_of_them_have(small):
    """An attack of one model alone, or one of two domains, is no part of the difference."""
    tree = small[0].run.tree
    one, two = ({a: dict(of) for a, of in result.run.scores.items()} for result in small)
    one["lower"] = {s: tuple(line(x.record_id, x.label, -x.label) for x in of) for s, of in one["ppl"].items()}
    for scores in (one, two):
        scores["self_critique"] = scores["zlib"]
    more = [run_of(scores, model=r.run.model, tree=tree) for scores, r in zip((one, two), small, strict=True)]
    pairs = [c.size_pairs(runs, bootstrap(runs, n_resamples=60).draws) for runs in (small, more)]
    assert pairs[0] == pairs[1] and len(pairs[0]) == 1
    alone = [run_of({"ppl": r.run.scores["ppl"]}, model=r.run.model, tree=tree) for r in small]
    assert c.size_pairs(alone, bootstrap(alone, n_resamples=60).draws) == ()


def test_holm_and_two_sided():
    assert c.holm([0.04, 0.01, 0.03, 0.5]) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert c.holm([]) == [] and c.holm([0.9, 0.8]) == [1.0, 1.0]
    assert c.two_sided(np.array([1.0] * 99)) == pytest.approx(2 / 100)
    assert c.two_sided(np.zeros(99)) == 1.0


def test_a_shift_of_one_direction_is_found_and_supervised_rows_are_left_out(small):
    def of(shift, variant):
        lines = {
            s.id: tuple(
                line(f"{s.id}-{variant if label else ''}-{i}", label, i + label * shift)
                for label in (1, 0)
                for i in range(30)
            )
            for s in TREE.subsets
            if s.variants
        }
        return run_of({"ppl": lines, "sup_camia": lines}, variant=variant)

    table = c.shift_effects([(of(0, "matched"), of(40, "shifted"))], n_resamples=60)
    assert [row.attack for row in table.rows] == ["ppl"]
    assert set(table.domain_titles) == {s.domain for s in TREE.subsets if s.variants}
    assert all(e.mark == "‡" and e.delta == 0.5 for e in table.rows[0].domain.values())
    assert c.shift_effects([], n_resamples=60) is None


def shifted_pair(model, *, digest):
    """Both variants of a model whose scores every model has."""
    rng = np.random.default_rng(5)
    values = {name: rng.normal(size=20).tolist() for name in ("matched", "shifted", "other")}

    def of(variant):
        sides = ((variant, 1), ("other", 0))
        lines = tuple(line(f"{name}-{i}", label, v) for name, label in sides for i, v in enumerate(values[name]))
        result = run_of({"ppl": {"dclm": lines}}, model=model, variant=variant)
        result.run.manifest["model"]["weights_digest"] = digest
        return result

    return of("matched"), of("shifted")


@pytest.mark.parametrize("digest", [None, "one"])
def test_each_size_draws_for_itself(digest):
    """Released scores are of models without a digest; models of the same weights still are two."""
    one, two = (
        c.shift_effects([shifted_pair(name, digest=digest)], n_resamples=60).rows[0].subset["dclm"] for name in "ab"
    )
    assert one.delta == two.delta and not np.array_equal(one.draws, two.draws)


def test_interval_is_interpolated():
    interval = Interval.of(np.arange(41.0))
    assert (interval.low, interval.high) == pytest.approx((1, 39))


def test_delong_of_two_attacks_takes_the_records_they_share(small):
    (name,) = {s.id for s in small[0].run.tree.subsets[:1]}
    found = c.delong_pairs(small[0], name)
    assert found["ppl", "zlib"].difference == pytest.approx(
        small[0].subsets["ppl"][name].auc - small[0].subsets["zlib"][name].auc
    )
