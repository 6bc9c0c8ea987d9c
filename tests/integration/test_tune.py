"""Tuning, protocols compared, own texts under the attacks that learn: the commands as a user meets them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from olmodetect_jax import sample
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.supervised import SUPERVISED_TITLES
from olmodetect_jax.cli import main
from olmodetect_jax.evaluation.protocols import read_protocols
from olmodetect_jax.evaluation.tuning import read_tuning
from olmodetect_jax.protocol import attacks_of

ROOT = Path(__file__).parents[2]
MODEL, BENCHMARK = sample.model_directory(), sample.benchmark_directory()
DEV_ATTACKS = "ppl,min_k,dc_pdd,pac,recall,em_mia,em_mia_best_of_four,camia"
SCORE = ("score", "--model", MODEL, "--benchmark", BENCHMARK, "--limit", 3, "--subsets", "gsm8k,mbpp")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of every kind of attack, then tuned."""
    out = tmp_path_factory.mktemp("tune") / "run"
    for arguments in ([*SCORE, "--attacks", DEV_ATTACKS, "--out", out], ["tune", out]):
        assert main([str(a) for a in arguments]) == 0
    return out


def lines(run_folder, attack, subset):
    return [json.loads(s) for s in (run_folder / "scores" / attack / f"{subset}.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_tuning_writes_the_choice_the_grid_and_a_plot(finished, run):
    tuning = read_tuning(finished)
    assert {name: len(a.grid) for name, a in tuning.attacks.items()} == {
        "min_k": 11, "dc_pdd": 8, "pac": 12, "recall": 12, "em_mia": 4, "camia": 3,
    }  # fmt: skip
    assert (tuning.n_member, tuning.n_non_member) == (6, 6)
    file = yaml.safe_load((finished / "hyperparameters.yaml").read_text())
    assert "min_k" not in file["values"]  # fixed under this protocol
    assert set(file["values"]) == {
        "dc_pdd_alpha", "pac_far", "pac_near", "recall_shots", "em_mia_base", "camia_composition",
    }  # fmt: skip
    assert len(file["tuned_on"]["texts"]) == 12
    assert (finished / "tuning.svg").read_text().startswith("<svg")
    before = (finished / "hyperparameters.yaml").read_bytes(), (finished / "tuning.json").read_bytes()
    code, out, err = run("tune", finished)  # everything is in the store
    assert code == 0 and "ReCaLL" in out and "sequences" not in err
    assert before == ((finished / "hyperparameters.yaml").read_bytes(), (finished / "tuning.json").read_bytes())


@pytest.mark.slow
def test_tuned_values_are_used_on_other_texts_only(finished, run, tmp_path):
    tuned = finished / "hyperparameters.yaml"
    arguments = [*SCORE, "--attacks", "pac", "--hyperparameters", tuned]
    assert run(*arguments, "--out", tmp_path / "test")[0] == 0
    manifest = json.loads((tmp_path / "test" / "manifest.json").read_text())
    values = yaml.safe_load(tuned.read_text())["values"]
    assert manifest["tuned"]["path"] == str(tuned) and values.items() <= manifest["hyperparameters"].items()
    code, _, err = run(*arguments, "--split", "dev", "--out", tmp_path / "dev")
    assert code == 1 and "were tuned on this text" in err and "gsm8k_dev.jsonl, line 1" in err
    assert run(*arguments, "--set", "pac_far=0.2", "--out", tmp_path / "set")[0] == 0  # an own word counts more
    assert json.loads((tmp_path / "set" / "manifest.json").read_text())["hyperparameters"]["pac_far"] == 0.2
    tuned_on = "tuned_on: {model: w, protocol: {}, texts: [0123456789abcdef0123]}"
    for content, message in (
        ("values: 3", "not a file of"),
        ("[", "not a YAML"),
        ("values: {min_k: 0.2}", "tuned_on"),
        ("{values: {min_k: 2}, " + tuned_on + "}", "min_k: expected"),
        ("{values: {k: 2}, " + tuned_on + "}", "hyperparameter"),
        ("{values: {min_k: 0.2}, " + tuned_on + "}", "other weights"),
        ("{values: {}, tuned_on: {model: w, protocol: {}, texts: []}}", "hashes of the texts"),
    ):
        (tmp_path / "bad.yaml").write_text(content)
        code, _, err = run(*SCORE, "--hyperparameters", tmp_path / "bad.yaml", "--out", tmp_path / "bad")
        assert code == 2 and message in err, (content, err)


@pytest.mark.slow
def test_test_labels_and_texts_change_no_choice(finished, run, tmp_path):
    """Tuning reads the development split alone: another test split gives the same file."""
    benchmark = shutil.copytree(BENCHMARK, tmp_path / "benchmark")
    for file in benchmark.rglob("*_test.jsonl"):
        other = Path(str(file).replace("non-member", "member") if "non-member" in str(file) else
                     str(file).replace("member", "non-member"))  # fmt: skip
        if file < other:
            file.rename(tmp_path / "swap")
            other.rename(file)
            (tmp_path / "swap").rename(other)
    arguments = list(SCORE)
    arguments[arguments.index(BENCHMARK)] = benchmark
    assert run(*arguments, "--attacks", "dc_pdd,pac", "--out", tmp_path / "run")[0] == 0
    assert run("tune", tmp_path / "run")[0] == 0
    one, two = (json.loads((p / "tuning.json").read_text())["attacks"] for p in (finished, tmp_path / "run"))
    assert {name: one[name] for name in two} == two and set(two) == {"dc_pdd", "pac"}


@pytest.mark.slow
def test_scores_of_the_attacks_that_look_at_several_texts(finished):
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["window_used"] == 1024 and manifest["tuned"] is None
    for subset in ("gsm8k", "mbpp"):
        for attack in DEV_ATTACKS.split(","):
            found = lines(finished, attack, subset)
            assert len(found) == 6 and all(isinstance(line["score"], float) for line in found), attack
        assert "3 of 5 shots" in lines(finished, "recall", subset)[0]["note"]  # --limit 3 limits the shots too
        optimistic = lines(finished, "em_mia_best_of_four", subset)
        assert "the best of four on these very labels" in optimistic[0]["note"]


@pytest.mark.slow
def test_every_protocol_field_is_compared(finished, run, tmp_path):
    code, out, err = run("report", finished, "--compare-protocols", "--out", tmp_path / "report.html")
    assert code == 0 and "zlib" not in out and "left out: tuning_non_finite" in err
    comparison = read_protocols(finished)
    own = json.loads((finished / "manifest.json").read_text())["protocol"]["fields"]
    touched = {row.field for row in comparison.changes}
    without = {"zlib_numerator", "lower_form", "min_k_plus_plus_sigma", "tuning_non_finite", "min_k_choice",
               "dc_pdd_tuning_text", "camia_tuning"}  # fmt: skip
    elsewhere = {*GENERATIVE, *SUPERVISED_TITLES}  # no attack of this run
    without |= {field for field in own if attacks_of(field) and set(attacks_of(field)) <= elsewhere}
    assert touched == set(own) - without
    assert "What each protocol field does" in (tmp_path / "report.html").read_text()
    rows = {(row.field, row.value): row.auc for row in comparison.changes}
    assert set(rows["recall_span", "separate"]) == {"recall"}
    assert set(rows["score_dtype", "bfloat16"]) == set(DEV_ATTACKS.split(","))
    assert rows["special_ids", "error"] == {name: comparison.auc[name] for name in rows["special_ids", "error"]}


def test_a_run_is_repeated_with_its_own_texts_only(run, tmp_path):
    """What is repeated reads model and texts again: they must be those of the run."""
    benchmark = shutil.copytree(BENCHMARK, tmp_path / "benchmark")
    arguments = list(SCORE)
    arguments[arguments.index(BENCHMARK)] = benchmark
    assert run(*arguments, "--attacks", "ppl,min_k,dc_pdd", "--out", tmp_path / "run")[0] == 0
    assert run("tune", tmp_path / "run", "--attacks", "min_k")[0] == 0  # its frequency table is no matter here
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert Path(manifest["model"]["path"]).is_absolute() and Path(manifest["benchmark"]["path"]).is_absolute()
    for field, value in (("limit", "x"), ("hyperparameters", None), ("token_budget", 0), ("dtype", "float8")):
        (tmp_path / "run" / "manifest.json").write_text(json.dumps({**manifest, field: value}))
        for command in (["tune", tmp_path / "run"], ["report", tmp_path / "run", "--compare-protocols"]):
            code, _, err = run(*command)
            assert code == 1 and "manifest.json" in err and field.replace("_", "-") in err.replace("_", "-"), (
                field,
                err,
            )
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    for split, commands in (("test", 1), ("dev", 2)):
        for file in benchmark.rglob(f"member_*mbpp_{split}.jsonl"):
            file.write_text(file.read_text().replace("a", "e"))
        for command in (["report", tmp_path / "run", "--compare-protocols"], ["tune", tmp_path / "run"])[:commands]:
            code, _, err = run(*command)
            assert code == 1 and "texts of mbpp are not those" in err, err
    (tmp_path / "run" / "manifest.json").write_text(
        json.dumps({**manifest, "model": {**manifest["model"], "weights_digest": "0" * 64}})
    )
    code, _, err = run("tune", tmp_path / "run")
    assert code == 1 and "other weights" in err


@pytest.mark.slow
def test_an_impossible_alternative_leaves_its_row_empty(run, tmp_path):
    arguments = [*SCORE, "--attacks", "camia", "--set", "window=14", "--out", tmp_path / "run"]
    assert run(*arguments)[0] == 0
    code, _, err = run("report", tmp_path / "run", "--compare-protocols", "--out", tmp_path / "r.html")
    assert code == 0 and "camia_copies = 6: " in err
    rows = {(row.field, row.value): row.auc for row in read_protocols(tmp_path / "run").changes}
    assert rows["camia_copies", 6] == {"camia": None} and rows["camia_p_value", "rank"]["camia"] is not None


def test_tune_says_what_it_cannot_use(run, tmp_path):
    code, _, err = run("tune", tmp_path / "none")
    assert code == 1 and "not a run folder" in err
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"text": "Some text of mine."}\n')
    assert run("score", "--model", MODEL, "--texts", mine, "--attacks", "ppl", "--out", tmp_path / "run")[0] == 0
    code, _, err = run("tune", tmp_path / "run")
    assert code == 2 and "own texts" in err
    assert run(*SCORE, "--attacks", "ppl", "--out", tmp_path / "ppl")[0] == 0
    code, _, err = run("tune", tmp_path / "ppl")
    assert code == 2 and "no hyperparameter" in err


@pytest.mark.slow
def test_own_texts_with_development_texts(run, tmp_path):
    mine, dev = tmp_path / "mine.jsonl", tmp_path / "dev.jsonl"
    texts = [f"Text number {i} has some words in it, and {i * i} more." for i in range(8)]
    mine.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[:3]))
    dev.write_text("".join(json.dumps({"text": t, "label": i % 2}) + "\n" for i, t in enumerate(texts[3:])))
    reference = tmp_path / "reference.jsonl"
    reference.write_text("".join(json.dumps({"text": t + " Or not."}) + "\n" for t in texts[:3]))
    arguments = ["score", "--model", MODEL, "--texts", mine, "--reference", reference]
    quick = ("--generation-limit", 1, "--set", "guided_new_tokens=8", "--set", "cdd_length=8")
    code, out, err = run(*arguments, "--dev", dev, *quick, "--out", tmp_path / "run")
    assert code == 0 and "left out: EMMIA" in err and "left out: DCQ: needs a quiz" in err
    attacks = json.loads((tmp_path / "run" / "manifest.json").read_text())["attacks"]
    assert {"recall", "camia", "pac", "neighborhood", "guided", "cdd"} <= set(attacks) and "em_mia" not in attacks
    assert all(0 <= line["reference_share"] <= 1 for line in lines(tmp_path / "run", "recall", "texts"))
    assert run(*arguments, "--dev", dev, "--attacks", "em_mia", "--out", tmp_path / "pairs")[0] == 0
    assert (
        len(lines(tmp_path / "pairs", "em_mia", "texts")) == len(lines(tmp_path / "pairs", "em_mia", "reference")) == 3
    )
    code, _, err = run(*arguments, "--attacks", "em_mia_best_of_four", "--out", tmp_path / "best")
    assert code == 1 and "no label" in err
    dev.write_text('{"text": "no label"}\n')
    code, _, err = run(*arguments, "--dev", dev, "--out", tmp_path / "bad")
    assert code == 1 and "dev.jsonl, line 1" in err and "labelled" in err
    dev.write_text("".join(json.dumps({"text": t, "label": 1}) + "\n" for t in texts[3:]))
    code, _, err = run(*arguments, "--dev", dev, "--attacks", "camia", "--out", tmp_path / "bad")
    assert code == 2 and "--attacks camia: needs development texts of both classes" in err


@pytest.mark.slow
def test_a_benchmark_without_development_texts(run, tmp_path):
    benchmark = shutil.copytree(BENCHMARK, tmp_path / "benchmark")
    for file in benchmark.rglob("*_dev.jsonl"):
        file.unlink()
    arguments = list(SCORE)
    arguments[arguments.index(BENCHMARK)] = benchmark
    code, _, err = run(*arguments, "--attacks", "recall", "--out", tmp_path / "run")
    assert code == 2 and "--attacks recall" in err and "benchmark files are missing" in err
    code, _, err = run(*arguments, "--attacks", "ppl", "--out", tmp_path / "ppl")
    assert code == 0
    code, _, err = run("tune", tmp_path / "ppl", "--attacks", "min_k")
    assert code == 1 and "_dev.jsonl" in err


KILLED = """
import os, signal, sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
from olmodetect_jax.scoring.store import Store
add, count = Store.add_rows, [0]
def killed(self, *rows):
    add(self, *rows)
    count[0] += 1
    if count[0] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
Store.add_rows = killed
from olmodetect_jax.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_run_killed_among_its_pairs_ends_with_the_same_bytes(finished, run, tmp_path):
    arguments = [*SCORE, "--attacks", "em_mia,recall", "--out", tmp_path / "run"]
    command = [sys.executable, "-c", KILLED, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=False)
    assert done.returncode == -9, done.stderr[-2000:]
    assert len(list((tmp_path / "run").rglob("rows-*"))) == 3
    assert run(*arguments)[0] == 0
    for attack in ("em_mia", "recall"):
        for subset in ("gsm8k", "mbpp"):
            path = Path("scores") / attack / f"{subset}.jsonl"
            assert (tmp_path / "run" / path).read_bytes() == (finished / path).read_bytes()
