"""AUC and accuracy with the domain given and unknown, against the golden file."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from olmodetect_jax.evaluation import domain_unknown as du
from olmodetect_jax.evaluation.metrics import ClassScores
from olmodetect_jax.evaluation.runs import Score
from tests.golden_cases import assert_close, golden, kinds, plain

FILE = "evaluation_unknown"


def drawn(scores, places):
    sides = [np.asarray(scores[side])[places[side]] for side in ("member", "nonmember")]
    return du.Drawn(ClassScores(*sides), np.asarray(places.get("permutation", ())))


def test_every_kind_is_used():
    assert kinds(FILE) == {"unknown", "unknown_em_mia", "unknown_self_critique", "threshold", "draw_sizes"}


@pytest.mark.parametrize("case, expected", golden(FILE, "unknown"))
def test_unknown(case, expected):
    by_size = {}
    for size, scores in case["scores"].items():
        draws = [
            du.known({d: drawn(scores[d], places) for d, places in draw.items()}, case["rule"])
            for draw in case["draws"][size]
        ]
        for found, wanted in zip(draws, expected["sizes"][size]["draws"], strict=True):
            assert_close(FILE, asdict(found), {name: wanted[name] for name in asdict(found)})
        by_size[size] = du.mean_known(draws)
        assert_close(FILE, asdict(by_size[size]), expected["sizes"][size]["mean"])
    assert_close(FILE, asdict(du.mean_known(list(by_size.values()))), expected["mean_over_sizes"])


@pytest.mark.parametrize("case, expected", golden(FILE, "threshold"))
def test_threshold(case, expected):
    for rule in ("unsupervised", "supervised"):
        found = du.best_threshold(np.asarray(case["label"]), np.asarray(case["score"], float), rule)
        assert_close(FILE, {"threshold": found.value, "accuracy": found.accuracy}, plain(expected[rule]))


@pytest.mark.parametrize("case, expected", golden(FILE, "unknown_em_mia"))
def test_em_mia_has_the_best_base_for_each_question(case, expected):
    draws = []
    for draw in case["draws"]:
        bases = [
            [
                drawn({side: of[base] for side, of in case["scores"][d].items()}, places).scores
                for d, places in draw.items()
            ]
            for base in ("loss", "zlib", "mink", "minkpp")
        ]
        draws.append(du.best_of_bases(bases))
    for found, wanted in zip(draws, expected["draws"], strict=True):
        assert_close(FILE, {name: getattr(found, name) for name in wanted}, wanted)
    mean = du.mean_known(draws)
    assert_close(FILE, {name: getattr(mean, name) for name in expected["mean"]}, expected["mean"])
    assert mean.given_accuracy is mean.unknown_accuracy is None


def line(record_id, sha1, label, value):
    return Score(record_id, sha1, label, value, None if value is not None else "left out: …", False)


@pytest.mark.parametrize("case, expected", golden(FILE, "unknown_self_critique"))
def test_a_prompts_score_stands_for_both_texts(case, expected):
    lines = [
        line(f"p{i}", side, label, value if side == "chosen" else None)
        for label, name in ((1, "member"), (0, "nonmember"))
        for i, value in enumerate(case[f"dpo_pair_{name}"])
        for side in ("chosen", "rejected")
    ]
    values = {(s.label, s.text_sha1, s.record_id): s.value for s in du.with_pair_scores(lines)}
    sides = [
        [values[label, side, f"p{i}"] for side, i in case["dpo_drawn"][name]]
        for label, name in ((1, "member"), (0, "nonmember"))
    ]
    parts = {
        "dpo": du.Drawn(ClassScores(*sides), np.arange(9)),
        "rlvr": du.Drawn(ClassScores(case["rlvr_member"], case["rlvr_nonmember"]), np.arange(14)),
    }
    found = du.known(parts, "unsupervised")
    assert_close(FILE, {name: getattr(found, name) for name in expected}, expected)


@pytest.mark.parametrize("case, expected", golden(FILE, "draw_sizes"))
def test_draw_sizes(case, expected):
    for sizes, wanted in zip(case["n"], expected["drawn"], strict=True):
        sides = [[line(f"r{i}", "x", 1, 0.0) for i in range(n)] for n in sizes]
        assert [len(du._pick(side, case["cap"], [0])) for side in sides] == wanted


def test_draws_are_of_the_records_not_of_their_order():
    side = [line(f"r{i}", "x", 1, float(i)) for i in range(9)]
    one, again, other = du._pick(side, 4, [0, 1]), du._pick(side, 4, [0, 1]), du._pick(side, 4, [0, 2])
    assert one.tolist() == again.tolist() and len(set(one.tolist())) == 4
    assert one.tolist() != other.tolist()
