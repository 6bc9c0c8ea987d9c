"""The command line as a user meets it: every command, every bad input, kills and interrupts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from olmodetect_jax import sample
from olmodetect_jax.attacks.supervised import row_id
from olmodetect_jax.cli import main
from olmodetect_jax.commands.open_model import OpenModel
from tests.stub_attacks import answer

ROOT = Path(__file__).parents[2]
MODEL, BENCHMARK = sample.model_directory(), sample.benchmark_directory()


ONE_PASS = "ppl,zlib,lower,min_k,min_k_plus_plus,dc_pdd"


def score_arguments(out, **options):
    """A small run; of the attacks, those that start from one pass over the texts."""
    options = {
        "model": MODEL,
        "benchmark": BENCHMARK,
        "limit": 2,
        "subsets": "novel,mbpp",
        "attacks": ONE_PASS,
        **options,
    }
    given = [a for name, value in options.items() if value is not None for a in (f"--{name}", value)]
    return ["score", "--out", out, *given]


def texts(path, *lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


def score_files(run_folder):
    return {str(p.relative_to(run_folder)): p.read_bytes() for p in sorted((run_folder / "scores").rglob("*.jsonl"))}


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("small") / "run"
    assert main([str(a) for a in score_arguments(out)]) == 0
    return out


def test_help_has_an_example_for_every_command(run):
    _, out, _ = run("--help")
    commands = ["quickstart", "convert", "export", "score", "tune", "evaluate", "report", "frequencies", "attacks"]
    for name in [*commands, "neighbours", "quiz", "budget", "protocols"]:
        assert name in out
        code, text, _ = run(name, "--help")
        assert code == 0 and f"Example: olmodetect {name}" in text
    assert run("--version")[0] == 0


def test_usage_errors_end_with_2(run, tmp_path):
    for arguments in (["nothing"], ["score"], ["score", "--out"], ["quickstart", "--limit", "x"]):
        assert run(*arguments)[0] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attacks": "ppl,loss"}, "--attacks: unknown value 'loss'.*ppl, zlib"),
        ({"protocol": "mine"}, "protocol: unknown value 'mine'.*audited, paper, release"),
        ({"set": "k=1"}, "--set: unknown value 'k'.*max_tokens"),
        ({"set": "min_k"}, "NAME=VALUE"),
        ({"set": "min_k=2"}, "min_k: expected a number above 0 and at most 1"),
        ({"dtype": "float16"}, "--dtype.*float32, bfloat16"),
        ({"mesh": "data=3"}, "--mesh.*8 devices"),
        ({"mesh": "rows=8"}, "--mesh"),
        ({"size": "3b"}, "--size.*1b, 7b"),
        ({"split": "train"}, "split.*dev, test"),
        ({"variant": "old"}, "variant.*matched, shifted"),
        ({"subsets": "novel,poems"}, "subset.*'poems'.*speeches"),
        ({"limit": 0}, "--limit"),
        ({"token-budget": 0}, "--token-budget"),
        ({"generation-limit": 0}, "--generation-limit"),
        ({"quiz": "q"}, "--quiz goes with the attack dcq"),
        ({"neighbours": "n"}, "--neighbours goes with the attack neighborhood"),
        ({"prompt": "guided=f"}, "--prompt guided goes with the attack guided"),
        ({"prompt": "guided"}, "--prompt: expected NAME=FILE"),
        ({"benchmark": "nowhere"}, "nowhere: no such benchmark folder"),
        ({"model": "nowhere"}, "nowhere.*tokenizer.json: not found"),
        ({"benchmark": None}, "either --benchmark DIR or --texts FILE"),
        ({"frequencies": "nowhere"}, "dc_pdd: no token-frequency table at nowhere"),
        ({"reference": "file"}, "--reference goes with --texts"),
        ({"variant": "shifted"}, "shifted: novel, mbpp have no such variant"),
        ({"subsets": ""}, "--subsets: none named"),
        ({"attacks": "ppl", "frequencies": "t"}, "--frequencies goes with the attack dc_pdd"),
        ({"set": "dc_pdd_alpha=inf"}, "dc_pdd_alpha"),
        ({"attacks": "fsd", "setting": "ours"}, "--setting: unknown value 'ours'.*in-domain, lodo, pooled"),
        ({"setting": "lodo"}, "--setting goes with the attacks sup_camia"),
    ],
)
def test_wrong_options_name_the_field_and_what_is_allowed(run, tmp_path, options, message):
    import re

    code, out, err = run(*score_arguments(tmp_path / "run", **options))
    assert code == 2 and re.search(f"^error: .*{message}", err, re.S) and not out


def test_scores_and_manifest(small_run):
    manifest = json.loads((small_run / "manifest.json").read_text())
    assert manifest["attacks"] == ["ppl", "zlib", "lower", "min_k", "min_k_plus_plus", "dc_pdd"]
    assert manifest["subsets"] == ["novel", "mbpp"] and manifest["max_tokens_used"] == 1024
    assert manifest["protocol"]["preset"] == "audited" and manifest["protocol"]["changed"] == {}
    assert len(manifest["model"]["weights_digest"]) == 64 and "zlib" in manifest["zlib"]
    files = score_files(small_run)
    assert len(files) == 12
    for content in files.values():
        lines = [json.loads(line) for line in content.decode().splitlines()]
        assert [line["label"] for line in lines] == [1, 1, 0, 0]
        assert all({"record_id", "text_sha1", "label", "score", "n_tokens", "truncated"} <= set(line) for line in lines)


def test_attacks_can_be_added_and_nothing_else_can_change(run, small_run, tmp_path):
    out = tmp_path / "run"
    assert run(*score_arguments(out, attacks="ppl"))[0] == 0
    assert run(*score_arguments(out, attacks="zlib,dc_pdd"))[0] == 0
    assert json.loads((out / "manifest.json").read_text())["attacks"] == ["ppl", "zlib", "dc_pdd"]
    assert score_files(out).items() <= score_files(small_run).items()
    for options, field in [({"limit": 1}, "limit"), ({"set": "min_k=0.5"}, "hyperparameters"),
                           ({"protocol": "paper"}, "protocol"), ({"split": "dev"}, "split")]:  # fmt: skip
        code, _, err = run(*score_arguments(out, **options))
        assert code == 2 and f"{field}" in err and "--out" in err


def test_supervised_rows_record_and_say_what_they_learn_from(run, tmp_path, monkeypatch):
    """The attack itself is another's matter: here it scores like PPL."""
    from olmodetect_jax.attacks import registry
    from olmodetect_jax.attacks.ppl import Ppl

    class Learner(Ppl):
        family, needs_dev = "fsd", True

        def __init__(self, row, setting):
            self.id, self.setting = row_id(row, setting), setting

    monkeypatch.setitem(registry._SUPERVISED_MAKERS, "fsd", lambda row, setting, settings: Learner(row, setting))
    monkeypatch.setattr(OpenModel, "engine", lambda self, dtype: lambda asked: {r.digest: answer(r) for r in asked})
    benchmark = shutil.copytree(BENCHMARK, tmp_path / "benchmark")
    scored, learnt = (next(benchmark.rglob(f"non-member_pretraining_{n}.jsonl")) for n in ("novel_test", "code_dev"))
    same = scored.read_text(encoding="utf-8").splitlines()[0]
    learnt.write_text("\n".join([same, *learnt.read_text(encoding="utf-8").splitlines()[1:]]), encoding="utf-8")
    arguments = {"benchmark": benchmark, "subsets": "novel", "limit": 4, "attacks": "fsd", "setting": "lodo,in-domain"}
    code, _, err = run(*score_arguments(tmp_path / "run", **arguments))
    assert code == 0 and "note: lodo, novel held out: training texts left out because they are scored too: 1\n" in err
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    bases = ["ppl", "zlib", "lower", "min_k", "min_k_plus_plus"]
    rows = [*bases, *(f"fsd_{b}{s}" for s in ("", "_lodo") for b in bases)]
    assert manifest["attacks"] == rows and set(score_files(tmp_path / "run")) == {
        f"scores/{row}/novel.jsonl" for row in rows
    }
    assert {name: list(found) for name, found in manifest["training_records"].items()} == {
        "fsd": ["novel"], "fsd_lodo": ["novel"],
    }  # fmt: skip
    arguments |= {"attacks": "fsd_ppl_pooled", "setting": None}
    assert run(*score_arguments(tmp_path / "run", **arguments))[0] == 0
    learnt.write_text(learnt.read_text(encoding="utf-8").replace("return", "yield"), encoding="utf-8")
    code, _, err = run(*score_arguments(tmp_path / "run", **arguments))
    assert code == 2 and "holds a run with other texts" in err


def test_evaluate_and_report(run, small_run, tmp_path):
    code, out, _ = run("evaluate", small_run)
    assert code == 0 and "MinK++" in out
    assert (small_run / "metrics.json").is_file() and (small_run / "tables" / "auc.csv").is_file()
    code, out, _ = run("report", small_run, "--out", tmp_path / "r.html")
    assert code == 0 and "<html" in (tmp_path / "r.html").read_text()
    code, _, err = run("evaluate", tmp_path)
    assert code == 1 and "manifest.json" in err


@pytest.mark.slow
def test_quickstart_shows_fifteen_attacks_over_three_stages(run, tmp_path, monkeypatch):
    """Answers are invented here: the real ones take minutes, and are tested elsewhere."""
    monkeypatch.setattr(OpenModel, "engine", lambda self, dtype: lambda asked: {r.digest: answer(r) for r in asked})
    code, out, _ = run("quickstart", "--out", tmp_path / "q", "--limit", 2)
    assert code == 0 and (tmp_path / "q" / "report.html").is_file()
    rows = (tmp_path / "q" / "tables" / "auc.csv").read_text().splitlines()
    for stage in ("pretraining", "midtraining", "posttraining"):
        assert f"stage:{stage}" in rows[0]
    for title in ("PPL", "Zlib", "Lower", "MinK", "MinK++", "DCPDD", "PAC", "ReCaLL", "EMMIA", "CAMIA", "Neigh.",
                  "Guided", "DCQ", "CDD", "SelfCrit", "20 a class", "10 a class"):  # fmt: skip
        assert title in out
    manifest = json.loads((tmp_path / "q" / "manifest.json").read_text())
    tuned = yaml.safe_load((tmp_path / "q" / "hyperparameters.yaml").read_text())["values"]
    assert manifest["tuned"] and tuned.items() <= manifest["hyperparameters"].items()
    assert {"dc_pdd_alpha", "pac_far", "recall_shots", "em_mia_base", "camia_composition"} <= set(tuned)
    assert {"neighborhood_score", "guided_score", "dcq_score", "cdd_alpha"} <= set(tuned)  # shipped with the sample


@pytest.mark.slow
def test_a_converted_checkpoint_scores_the_same_and_exports_back(run, tmp_path, small_run):
    code, out, _ = run("convert", MODEL, tmp_path / "checkpoint", "--mesh", "data=4,fsdp=2")
    assert code == 0 and "weights" in out
    run_folder = tmp_path / "run"
    assert run(*score_arguments(run_folder, model=tmp_path / "checkpoint"))[0] == 0
    assert score_files(run_folder) == score_files(small_run)
    assert run("export", tmp_path / "checkpoint", tmp_path / "back", "--dtype", "bfloat16")[0] == 0
    assert (tmp_path / "back/model.safetensors").read_bytes() == (MODEL / "model.safetensors").read_bytes()
    assert run("convert", MODEL, tmp_path / "checkpoint")[0] == 2


def test_own_texts_against_the_samples_non_members(run, tmp_path):
    odd = ["a", "😀 emoji 😀", "line\u2028separator", "", "The sea. " * 40_000]
    file = texts(tmp_path / "mine.jsonl", *(json.dumps({"text": t}, ensure_ascii=False) for t in odd))
    code, _, err = run("score", "--model", MODEL, "--texts", file, "--out", tmp_path / "run", "--attacks", "ppl,zlib")
    assert code == 0
    assert "line 1" in err and "nothing to score" in err and "line 4" in err and "no text" in err
    lines = [
        json.loads(s) for s in (tmp_path / "run/scores/ppl/texts.jsonl").read_text(encoding="utf-8").split("\n") if s
    ]
    assert [line["score"] is None for line in lines] == [True, False, False, True, False]
    assert [line.get("missing") is None for line in lines] == [False, True, True, False, True]
    assert lines[4]["truncated"] and lines[4]["n_tokens"] > 100_000 and lines[4]["n_scored"] == 1023
    assert all(line["label"] is None for line in lines)
    reference = [json.loads(s)["score"] for s in (tmp_path / "run/scores/ppl/reference.jsonl").read_text().splitlines()]
    built = json.loads((sample.benchmark_directory() / "construction.json").read_text())["subsets"].values()
    test = (s["non_members"]["records"] - s["non_members"]["dev_records"] for s in built)
    assert len(reference) == sum(test)
    for line in lines:
        expected = None if line["score"] is None else sum(r >= line["score"] for r in reference) / len(reference)
        assert line["reference_share"] == expected
    assert run("evaluate", tmp_path / "run")[0] == 0


def test_own_texts_with_labels_and_a_reference(run, tmp_path):
    mine = texts(
        tmp_path / "mine.jsonl",
        *(json.dumps({"id": f"r{i}", "text": f"text number {i}", "label": i % 2}) for i in range(6)),
    )
    reference = texts(tmp_path / "ref.jsonl", '{"text": "some other text"}', '{"text": "one more", "label": 0}')
    arguments = ["score", "--model", MODEL, "--texts", mine, "--reference", reference, "--out", tmp_path / "run"]
    assert run(*arguments, "--attacks", "ppl")[0] == 0
    line = json.loads((tmp_path / "run/scores/ppl/texts.jsonl").read_text().splitlines()[0])
    assert line["record_id"] == "r0" and line["label"] == 0 and line["reference_share"] in (0, 0.5, 1)
    code, out, _ = run("evaluate", tmp_path / "run")
    assert code == 0 and "PPL" in out
    texts(reference, '{"text": "a member", "label": "member"}')
    code, _, err = run(*arguments[:-1], tmp_path / "other")
    assert code == 1 and "ref.jsonl, line 1" in err and "non-members only" in err


def test_a_tie_with_the_reference_counts_and_a_hole_does_not(run, tmp_path):
    mine = texts(tmp_path / "mine.jsonl", '{"text": "Call me Ishmael."}')
    reference = texts(
        tmp_path / "ref.jsonl", '{"text": "Call me Ishmael."}', '{"text": "a"}', '{"text": "zq xj vw kp"}'
    )
    arguments = ["score", "--model", MODEL, "--texts", mine, "--reference", reference, "--out", tmp_path / "run"]
    assert run(*arguments, "--attacks", "ppl")[0] == 0
    (line,) = (tmp_path / "run/scores/ppl/texts.jsonl").read_text().splitlines()
    assert json.loads(line)["reference_share"] == 1.0  # of one, for the other has no score


def test_a_run_without_any_score_fails(run, tmp_path):
    mine = texts(tmp_path / "mine.jsonl", '{"text": "a"}')
    code, _, err = run("score", "--model", MODEL, "--texts", mine, "--out", tmp_path / "run", "--attacks", "ppl")
    assert code == 1 and "no record has a score" in err


def test_release_scores_lie_on_the_bfloat16_grid(run, tmp_path):
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import load_file

    assert run(*score_arguments(tmp_path, attacks="ppl"))[0] == 0
    assert run(*score_arguments(tmp_path / "r", attacks="ppl", protocol="release"))[0] == 0
    for folder, on_grid in ((tmp_path, False), (tmp_path / "r", True)):
        lines = (folder / "scores/ppl/novel.jsonl").read_text().splitlines()
        scores = np.array([json.loads(line)["score"] for line in lines])
        assert (scores == scores.astype(ml_dtypes.bfloat16).astype(np.float64)).all() == on_grid
        batches = [load_file(file)["log_prob"].view(np.uint32) for file in (folder / "statistics").rglob("batch-*")]
        assert all(not (bits & 0xFFFF).any() for bits in batches) == on_grid  # the engine rounds, not the attack alone
        (provenance,) = (folder / "statistics").glob("*/provenance.json")
        assert json.loads(provenance.read_text())["logits_dtype"] == ("bfloat16" if on_grid else "float32")


def test_another_model_has_no_reference_of_its_own(run, tmp_path):
    copy = shutil.copytree(MODEL, tmp_path / "copy")
    mine = texts(tmp_path / "mine.jsonl", '{"text": "some text"}')
    assert run("score", "--model", copy, "--texts", mine, "--out", tmp_path / "run", "--attacks", "ppl")[0] == 0
    assert not (tmp_path / "run/scores/ppl/reference.jsonl").exists()
    assert "reference_share" not in (tmp_path / "run/scores/ppl/texts.jsonl").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no record"),
        (b'{"text": "a b"}\nnot json\n', "line 2: not a JSON value"),
        (b'{"id": "x", "text": "a \\ud83d b"}\n', "line 1.*'x'.*lone surrogate"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_bad_texts_end_with_1_and_name_file_and_line(run, tmp_path, content, message):
    import re

    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    code, _, err = run("score", "--model", MODEL, "--texts", file, "--out", tmp_path / "run")
    assert code == 1 and "bad.jsonl" in err and re.search(message, err) and "Traceback" not in err
    assert not (tmp_path / "run" / "scores").exists()


def broken_model(tmp_path, **config):
    copy = shutil.copytree(MODEL, tmp_path / "model")
    path = copy / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return copy


def test_bad_models(run, tmp_path):
    copy = broken_model(tmp_path, model_type="bert")
    code, _, err = run(*score_arguments(tmp_path / "run", model=copy))
    assert code == 2 and "model_type" in err and "'bert'" in err and "olmo2" in err
    shutil.rmtree(copy)
    copy = broken_model(tmp_path)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    code, _, err = run(*score_arguments(tmp_path / "run", model=copy))
    assert code == 1 and "model.safetensors" in err and "Traceback" not in err
    shutil.rmtree(copy)
    copy = broken_model(tmp_path, num_hidden_layers=5)
    code, _, err = run(*score_arguments(tmp_path / "run", model=copy))
    assert code == 1 and "model.layers.4.self_attn.q_proj.weight" in err


def test_another_models_tokenizer(run, tmp_path):
    from tokenizers import AddedToken, Tokenizer

    copy = broken_model(tmp_path)
    larger = Tokenizer.from_file(str(copy / "tokenizer.json"))
    larger.add_tokens([AddedToken("extra")])
    larger.save(str(copy / "tokenizer.json"))
    code, _, err = run(*score_arguments(tmp_path / "run", model=copy, attacks="ppl"))
    assert code == 2 and "4096 embedding rows" in err and "another model's tokenizer" in err
    same_size = json.loads((MODEL / "tokenizer.json").read_text())
    same_size["model"]["merges"] = same_size["model"]["merges"][:-1]
    (copy / "tokenizer.json").write_text(json.dumps(same_size))
    code, _, err = run(*score_arguments(tmp_path / "run2", model=copy))
    assert code == 2 and "another tokenizer" in err


@pytest.mark.parametrize("content", ["[]", "{}", "not json", '{"attacks": 1, "created_at": "x"}'])
def test_a_manifest_that_is_none(run, tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    code, _, err = run(*score_arguments(tmp_path, attacks="ppl"))
    assert code == 1 and "not a run's manifest" in err


def test_the_manifest_names_only_attacks_whose_scores_are_there(run, tmp_path, monkeypatch):
    assert run(*score_arguments(tmp_path, attacks="ppl"))[0] == 0
    from olmodetect_jax.commands import score as command

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_jobs", killed)
    assert run(*score_arguments(tmp_path, attacks="zlib"))[0] == 1
    assert json.loads((tmp_path / "manifest.json").read_text())["attacks"] == ["ppl"]
    assert run("evaluate", tmp_path)[0] == 0


def test_another_config_of_the_same_weights_is_another_model(run, tmp_path):
    copy = broken_model(tmp_path)
    arguments = score_arguments(tmp_path / "run", model=copy, attacks="ppl")
    assert run(*arguments)[0] == 0
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rope_theta": 500_000}))
    code, _, err = run(*arguments)
    assert code == 2 and "another model" in err
    (tmp_path / "run" / "manifest.json").unlink()
    assert run(*arguments)[0] == 0
    assert len(list((tmp_path / "run" / "statistics").iterdir())) == 2  # and no answer was shared


def test_another_frequency_table_is_another_run(run, tmp_path):
    file = texts(tmp_path / "web.jsonl", '{"text": "one two three"}')
    assert run("frequencies", file, "--model", "sample", "--out", tmp_path / "t.safetensors")[0] == 0
    arguments = score_arguments(tmp_path / "run", attacks="ppl")
    assert run(*arguments)[0] == 0
    assert run(*score_arguments(tmp_path / "run", attacks="dc_pdd"))[0] == 0
    assert run(*arguments)[0] == 0  # ppl alone has nothing to do with the table
    code, _, err = run(*score_arguments(tmp_path / "run", attacks="dc_pdd", frequencies=tmp_path / "t.safetensors"))
    assert code == 2 and "another frequencies" in err
    assert json.loads((tmp_path / "run/manifest.json").read_text())["frequencies"]["documents"] > 1


def test_a_tokenizer_that_adds_tokens_is_named_and_one_that_makes_other_ids_refused(run, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    copy = broken_model(tmp_path)
    for number, code in ((0, 0), (99_999, 2)):
        tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", number)])
        tokenizer.save(str(copy / "tokenizer.json"))
        got, _, err = run(*score_arguments(tmp_path / f"run{number}", model=copy, attacks="ppl"))
        assert got == code and "puts tokens of its own around every text" in err
    assert "99999" in err and "4096 embedding rows" in err


def test_two_runs_at_once_into_one_folder(run, tmp_path):
    from olmodetect_jax.commands.run_folder import run_lock

    with run_lock(tmp_path):
        code, _, err = run(*score_arguments(tmp_path, attacks="ppl"))
    assert code == 1 and "another `olmodetect score` is writing there" in err


def test_temporary_files_of_a_killed_run_are_removed(run, tmp_path):
    left = tmp_path / "scores" / "ppl" / ".novel.jsonl.abc.tmp"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    assert run(*score_arguments(tmp_path, attacks="ppl"))[0] == 0
    assert not left.exists()


def test_outputs_that_are_no_files_are_left_alone(run, small_run, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        code, _, err = run("report", small_run, "--out", tmp_path / name)
        assert code == 2 and f"{tmp_path / name}: is " in err
    (tmp_path / "target.html").write_text("old")
    (tmp_path / "link.html").symlink_to("target.html")
    assert run("report", small_run, "--out", tmp_path / "link.html")[0] == 0
    assert (tmp_path / "link.html").is_symlink() and "<html" in (tmp_path / "target.html").read_text()


def test_score_files_with_lost_lines_are_refused(run, small_run, tmp_path):
    copy = shutil.copytree(small_run, tmp_path / "run")
    file = copy / "scores" / "ppl" / "novel.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    code, _, err = run("evaluate", copy)
    assert code == 1 and "novel.jsonl: 3 lines" in err and "4 records" in err


def test_control_characters_do_not_reach_the_terminal(run, tmp_path):
    code, _, err = run("evaluate", f"{tmp_path}/\x1b[31mred")
    assert code == 1 and "\x1b" not in err and "\\x1b[31mred" in err


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path):
    """A file size limit makes the operating system itself refuse the write, whatever library does it."""
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); "
        "from olmodetect_jax.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    for arguments in (("export", "sample", tmp_path / "export"), ("convert", "sample", tmp_path / "checkpoint")):
        command = [sys.executable, "-c", limited, *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        # Orbax's own threads may print in the middle of a line.
        assert done.returncode == 1 and f"error: {tmp_path}" in done.stderr, done.stderr[-4000:]
        assert not arguments[2].exists()


def test_frequencies(run, tmp_path):
    file = texts(tmp_path / "web.jsonl", '{"text": "one two"}', '{"text": "two three"}')
    code, out, _ = run("frequencies", file, "--model", MODEL, "--out", tmp_path / "t.safetensors")
    assert code == 0 and "2 documents, 5 tokens" in out
    texts(file, '{"value": "  one two"}', '{"text": "two three"}')
    code, out, _ = run("frequencies", file, "--model", MODEL, "--out", tmp_path / "u", "--max-tokens", 1)
    assert code == 0 and "2 documents, 2 tokens" in out
    assert run(*score_arguments(tmp_path / "run", attacks="dc_pdd", frequencies=tmp_path / "t.safetensors"))[0] == 0
    assert run("frequencies", file, "--model", MODEL, "--out", tmp_path / "t", "--max-tokens", "0")[0] == 2


def test_lists(run):
    assert [a["id"] for a in json.loads(run("attacks", "--json")[1])][0] == "ppl" and "DCPDD" in run("attacks")[1]
    assert set(json.loads(run("protocols", "--json")[1])) == {"audited", "paper", "release"}
    assert "text_span" in run("protocols")[1]


CUT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background has it ignored
import jax
jax.config.update("jax_num_cpu_devices", 8)
from olmodetect_jax.scoring.store import Store
add, count = Store.add, [0]
def cut(self, *batch):
    add(self, *batch)
    count[0] += 1
    if count[0] == 3:
        {action}
Store.add = cut
from olmodetect_jax.cli import entry
entry()
"""


def cut_short(action, arguments):
    code = CUT.format(action=action)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "code", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("os.kill(os.getpid(), signal.SIGINT)", 1, "interrupted; finished work is kept"),
        ("raise OSError(28, 'No space left on device', str(self.folder))", 1, "free some space, finished work is kept"),
    ],
    ids=["kill", "interrupt", "full-disk"],
)
def test_a_run_cut_short_goes_on_and_ends_with_the_same_bytes(run, tmp_path, action, code, message):
    options = {"limit": 4, "token-budget": 64}
    assert run(*score_arguments(tmp_path / "whole", **options))[0] == 0
    cut = cut_short(action, score_arguments(tmp_path / "cut", **options))
    assert cut.returncode == code and message in cut.stderr and "Traceback" not in cut.stderr
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cut").rglob("batch-*")}
    assert len(kept) == 3 and not (tmp_path / "cut" / "scores").exists()
    assert run(*score_arguments(tmp_path / "cut", **options))[0] == 0
    assert score_files(tmp_path / "cut") == score_files(tmp_path / "whole")
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cut").rglob("batch-*")}
    assert kept.items() <= after.items() and after.keys() == {p.name for p in (tmp_path / "whole").rglob("batch-*")}


def test_a_folder_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run(*score_arguments(tmp_path / "file" / "run"))
    assert code == 1 and str(tmp_path / "file") in err and "Traceback" not in err
    assert os.path.isfile(tmp_path / "file")
