"""Reading released scores hides nothing: what is left out, joined to nothing or at odds is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from olmodetect_jax.commands.released import import_released
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.results import evaluate_run
from olmodetect_jax.evaluation.runs import read_run
from olmodetect_jax.released.aucs import read_aucs

ROOT = Path(__file__).parents[1] / "golden" / "released_layout"
MODEL, LEAF = "OLMo2-1B-Instruct", "rlvr_cot-math"
MEMBER, OTHER = "member_posttraining_rlvr_cot-math", "non-member_posttraining_rlvr_cot-math"
EMMIA = "results/emmia/posttraining_rlvr_cot-math_matched/emmia_1b.json"
BENCHMARK = "benchmark/posttraining/rlvr/member/test/member_posttraining_rlvr_cot-math_test.jsonl"
AUCS = "results_lodo/camia_lr/camia_lr_xdomain_1b.json"


@pytest.fixture
def tree(tmp_path):
    return Path(shutil.copytree(ROOT, tmp_path / "tree"))


def score_file(tree, folder, stem="pac"):
    return tree / "results" / folder / MODEL / f"{stem}.json"


def imported(tree, **options):
    (path,) = import_released(tree, tree.parent / "runs", benchmark=tree / "benchmark", **options)
    run = read_run(path)
    return run, "\n".join(run.manifest["notes"])


def test_a_golden_tree_has_its_notes_and_no_others(tree, capsys):
    run, notes = imported(tree)
    assert len(run.manifest["notes"]) == 5 and "left out" not in notes
    assert capsys.readouterr().err == "".join(f"note: {note}\n" for note in run.manifest["notes"])


def test_files_of_no_known_method_are_counted(tree):
    for folder in (MEMBER, OTHER):
        shutil.copy(score_file(tree, folder), score_file(tree, folder, "camia"))
    assert "results/**/camia.json: 2 files of no known method or place" in imported(tree)[1]


def test_a_class_without_a_file_leaves_the_subset_out_once(tree):
    score_file(tree, OTHER).unlink()
    run, notes = imported(tree)
    assert "pac" not in run.attacks
    assert notes.count("pac on rlvr_cot-math") == 1
    assert "pac on rlvr_cot-math, matched: no file of non-member; left out" in notes


@pytest.mark.parametrize("absent", ["member_{}_rejected_matched", "non-member_{}_chosen"])
def test_half_of_a_dpo_class_is_no_dpo(tree, absent):
    shutil.rmtree(tree / "benchmark" / "posttraining" / "dpo")
    for side in (
        "member_{}_chosen_matched",
        "member_{}_rejected_matched",
        "non-member_{}_chosen",
        "non-member_{}_rejected",
    ):
        file = score_file(tree, side.format("posttraining_dpo_1b"))
        file.parent.mkdir(parents=True)
        shutil.copy(score_file(tree, MEMBER), file)
    whole, _ = imported(tree)
    assert len(whole.scores["pac"]["dpo"]) == 8
    score_file(tree, absent.format("posttraining_dpo_1b")).unlink()
    shutil.rmtree(tree.parent / "runs")
    run, notes = imported(tree)
    assert "dpo" not in run.scores["pac"] and "dpo" in run.scores["self_critique"]
    assert "pac on dpo, matched: no file of " in notes


def test_a_benchmark_without_the_file_is_said(tree):
    (tree / BENCHMARK).unlink()
    assert "member_posttraining_rlvr_cot-math_test.jsonl: not in the benchmark, so scores of" in imported(tree)[1]


def test_repeated_texts_with_other_scores_are_counted(tree):
    file = tree / "results_lodo/mia_tuner/member_pretraining_starcoder_java_matched" / MODEL / "mia_tuner.json"
    value = json.loads(file.read_text())
    assert "differ" not in imported(tree)[1]
    shutil.rmtree(tree.parent / "runs")
    first, _, again = value["result"]["samples"]
    assert first["text_sha1"] == again["text_sha1"]
    again["mia_tuner_score"] = 0.001
    file.write_text(json.dumps(value))
    run, notes = imported(tree, reading="current")
    assert "1 records have scores that differ" in notes
    kept = [s.value for s in run.scores["mia_tuner_lodo"]["sc_java"] if s.label == 1]
    assert first["mia_tuner_score"] in kept and 0.001 not in kept


# EMMIA


@pytest.mark.parametrize("reading", ["as_stored", "current"])
def test_emmia_of_another_number_of_texts_is_not_joined(tree, reading):
    with (tree / BENCHMARK).open("a") as file:
        file.write(json.dumps({"text": "a text that came later"}) + "\n")
    run, notes = imported(tree, reading=reading)
    assert f"{EMMIA}: 2 texts, its benchmark file 3: places say nothing here" in notes
    assert ("em_mia" in run.attacks) == (reading == "as_stored")
    if reading == "as_stored":
        assert {s.text_sha1 for s in run.scores["em_mia"][LEAF] if s.label == 1} == {""}


def test_emmia_of_another_size_than_its_name(tree):
    (tree / EMMIA).rename((tree / EMMIA).with_name("emmia_7b.json"))
    with pytest.raises(DataError, match="emmia_7b.json: model_path is of OLMo2-1B-Instruct; expected a model of the"):
        imported(tree)


def test_two_files_of_one_side(tree):
    for tag in ("shifted", "shifted_sub300"):
        name = f"midtraining_stackexchange_stackoverflow_{tag}"
        shutil.copytree((tree / EMMIA).parent, tree / "results" / "emmia" / name)
    with pytest.raises(DataError, match="em_mia on se_stackoverflow stand there twice for one side"):
        imported(tree)


# AUCs without scores


def test_aucs_without_scores_are_kept_and_said(tree):
    run, notes = imported(tree)
    assert f"{AUCS}: holds AUCs without scores, so the run has no row of it" in notes
    kept = run.manifest["released"]["aucs_without_scores"]
    assert kept[AUCS]["per_domain.starcoder.lodo_lr"] == 0.515625 and kept[AUCS]["macro.in_lr"] == 0.625
    assert kept["results_lodo/camia_lr/xdomain_pooled_1b.json"]["pooled.C_lodo_unseen.Mid"] == 0.6875
    assert set(kept) <= set(run.manifest["released"]["files"])
    assert "sup_camia_lodo" not in run.attacks


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("camia_lr_xdomain_1b", "{", "not a JSON file"),
        ("camia_lr_xdomain_1b", "{}", "field pooled: expected an object of AUCs"),
        (
            "camia_lr_xdomain_1b",
            '{"size": "7b", "pooled": {}}',
            "field size: expected 1b, as in the file's name, got '7b'",
        ),
        (
            "xdomain_pooled_1b",
            '{"pooled": {"a": {"b": NaN}}}',
            r"field pooled\.a\.b: expected a finite number, got nan",
        ),
        ("others", '{"pooled": {}}', "expected camia_lr_xdomain_SIZE.json or xdomain_pooled_SIZE.json"),
    ],
)
def test_an_auc_file_that_is_no_such_one(tmp_path, name, text, message):
    file = tmp_path / f"{name}.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_aucs(file)


# Files that are none


def test_a_folder_in_place_of_a_file(tree):
    score_file(tree, MEMBER).unlink()
    score_file(tree, MEMBER).mkdir()
    with pytest.raises(DataError, match="pac.json: cannot be read: Is a directory"):
        imported(tree)


def test_a_link_is_read_and_one_to_nothing_is_said(tree):
    file = score_file(tree, MEMBER)
    file.rename(tree.parent / "elsewhere.json")
    file.symlink_to(tree.parent / "elsewhere.json")
    run, _ = imported(tree)
    assert evaluate_run(run).subsets["pac"][LEAF].auc == pytest.approx(11 / 12)
    shutil.rmtree(tree.parent / "runs")
    (tree.parent / "elsewhere.json").unlink()
    assert "results/**/pac.json: 1 files of no known method or place, or links to nothing" in imported(tree)[1]


def test_a_model_folder_that_is_no_name(tree):
    for folder in (MEMBER, OTHER):
        shutil.copytree(tree / "results" / folder / MODEL, tree / "results" / folder / "a\x1b[31m b")
    with pytest.raises(DataError, match="expected letters, digits"):
        imported(tree)


def test_names_of_files_are_printed_without_control_characters(tree, capsys):
    shutil.copytree((tree / "results" / MEMBER), tree / "results" / "member_\x1b[31m")
    imported(tree)
    said = capsys.readouterr().err
    assert "\x1b" not in said and "member_\\x1b[31m is no side" in said
