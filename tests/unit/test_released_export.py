"""Runs in the released layout: fields and places as the released files have them, and nothing shifted or invented."""

from __future__ import annotations

import json

import pytest

from olmodetect_jax.commands.released import export_released
from olmodetect_jax.released.layout import COLUMNS, INITS
from tests.run_folders import MANIFEST, random_scores, write_run
from tests.unit.test_released import MAIN, MODEL, ROOT

OURS = {**MANIFEST["model"], "name": MODEL, "size": "1b"}


def exported(tmp_path, scores, *, shape="A", **changes):
    changes = {"benchmark": {"path": "/b", "tree": "olmo2"}, "model": OURS} | changes
    export_released(write_run(tmp_path / "run", scores, **changes), tmp_path / "tree", shape=shape)
    return tmp_path / "tree" / "results"


def em_mia(row="em_mia", **options):
    scores = random_scores((row,), tree="olmo2", n=3, **options)
    for lines in scores[row].values():
        for line in lines:
            line |= {f"from_{base}": line["score"] + k for k, base in enumerate(INITS)}
    return scores


ROWS = {stem: tuple(rows) for stem, rows in COLUMNS.items()}


@pytest.mark.parametrize("stem", COLUMNS)
def test_fields_are_in_the_released_order(tmp_path, stem):
    scores = random_scores(ROWS[stem], tree="olmo2", n=2)
    for row in scores:
        for lines in scores[row].values():
            for line in lines:
                line["base_score"] = 0.5 if stem == "fsd" else None
    file = exported(tmp_path, scores) / "member_posttraining_rlvr_cot-math" / MODEL / f"{stem}.json"
    text = file.read_text()
    released = json.loads((ROOT / "results" / MAIN["member_dir"] / MODEL / f"{stem}.json").read_text())
    order = list(released["result"]["samples"][0])
    for sample in json.loads(text)["result"]["samples"]:
        assert list(sample) == [name for name in order if name in sample]
        assert {"record_index", "sample_id"} <= set(sample)
        assert ("text_sha1" in sample, "label" in sample) == ("text_sha1" in order, "label" in order)
        assert sample.get("label") is None
        assert set(COLUMNS[stem].values()) <= set(sample)
    assert "\n" not in text and ": " not in text and text.isascii()


def test_the_tokens_of_a_whole_text_are_no_count_of_scored_ones(tmp_path):
    results = exported(tmp_path, random_scores(("ppl", "dc_pdd"), tree="olmo2", n=2))
    assert not any("token_count" in file.read_text() for file in results.rglob("*.json"))


# EMMIA's files are joined by place


def test_emmia_with_a_missing_score_is_left_out_whole(tmp_path, capsys):
    scores = em_mia()
    line = scores["em_mia"]["gsm8k"][0]
    for base in INITS:
        del line[f"from_{base}"]
    line |= {"score": None, "missing": "no text"}
    results = exported(tmp_path, scores)
    assert not (results / "emmia" / "midtraining_gsm8k_matched").exists()
    assert (results / "emmia" / "pretraining_dclm_matched").exists()
    said = capsys.readouterr().err
    assert "em_mia: its files need all four scores of every text; left out: gsm8k\n" in said


@pytest.mark.parametrize("row", ["em_mia", "em_mia_best_of_four"])
def test_emmia_places(tmp_path, row, capsys):
    scores = em_mia(row)
    results = exported(tmp_path, scores)
    value = json.loads((results / "emmia" / "midtraining_gsm8k_matched" / "emmia_1b.json").read_text())
    assert (value["n_con"], value["n_uncon"], value["n_total"]) == (3, 3, 6)
    assert [(s["index"], s["label"]) for s in value["samples"]] == [(i, int(i < 3)) for i in range(6)]
    lines = scores[row]["gsm8k"]
    assert [s["final_scores"]["mink"] for s in value["samples"]] == [line["from_mink"] for line in lines]
    assert "no file for it" not in capsys.readouterr().err


def test_emmia_of_a_shifted_run_says_what_has_no_shifted_file(tmp_path, capsys):
    results = exported(tmp_path, em_mia(), variant="shifted")
    tags = {file.parent.name for file in results.rglob("emmia_1b.json")}
    assert "pretraining_dclm_shifted" in tags and not any("gsm8k" in tag for tag in tags)
    said = capsys.readouterr().err
    assert "em_mia: it has no shifted files of these subsets; left out: gsm8k, rlvr_" in said


def test_one_of_two_emmia_rows_has_a_place(tmp_path, capsys):
    exported(tmp_path, em_mia() | em_mia("em_mia_best_of_four"))
    assert "note: em_mia: the layout has no file for it\n" in capsys.readouterr().err
