"""From a manifest back to the options of its run, and from options to a command that can be copied."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from olmodetect_jax import sample
from olmodetect_jax.cli import main
from olmodetect_jax.commands.options import ScoreOptions, check_options, prompt_files
from olmodetect_jax.commands.rerun import (
    manifest_of,
    options_of,
    require_same_files,
    score_command,
    tuned_command,
)
from olmodetect_jax.errors import DataError, UsageError
from tests.run_folders import random_scores, write_run

EVERYTHING = {
    "limit": 3,
    "prompts": {
        "guided": {"path": "/p/guided file.txt", "sha256": "a"},
        "general": {"path": None, "sha256": "b"},
        "critique": {"path": "/p/critique.txt", "sha256": "c"},
        "sources": {"path": "/p/sources.yaml", "sha256": "d"},
    },
    "quiz": {"path": "/q.jsonl", "sha256": "e"},
    "neighbours": {"path": "/n.jsonl", "sha256": "f", "backend": "t5"},
}


def a_run(path, generation, **changes):
    counts = {"dev_records": {}, "token_budget": None, "generation": generation}
    return write_run(path, random_scores(("ppl",)), **counts, **changes)


@pytest.mark.parametrize(
    ("attacks", "prompts", "quiz", "neighbours"),
    [
        ("ppl,cdd", (), None, None),
        ("guided", ("guided=/p/guided file.txt", "sources=/p/sources.yaml"), None, None),
        ("dcq", ("sources=/p/sources.yaml",), "/q.jsonl", None),
        ("neighborhood,self_critique", ("critique=/p/critique.txt",), None, "/n.jsonl"),
    ],
)
def test_the_files_of_the_attacks_that_are_run_again_come_back(tmp_path, attacks, prompts, quiz, neighbours):
    run = a_run(tmp_path, EVERYTHING)
    options = options_of(run, manifest_of(run), attacks=attacks.split(","))
    assert (options.prompts, options.generation_limit) == (prompts, 3)
    assert (options.quiz and str(options.quiz), options.neighbours and str(options.neighbours)) == (quiz, neighbours)


def test_a_run_without_generative_attacks(tmp_path):
    run = a_run(tmp_path, {})
    options = options_of(run, manifest_of(run), attacks=["cdd", "dcq", "neighborhood"])
    assert (options.prompts, options.quiz, options.neighbours, options.generation_limit) == ((), None, None, None)
    by_model = a_run(tmp_path / "m", {"limit": None, "neighbours": {"backend": "the target model"}})
    assert options_of(by_model, manifest_of(by_model), attacks=["neighborhood"]).neighbours is None


@pytest.mark.parametrize("facts", [{"limit": "3"}, {"limit": True}, {"prompts": [1]}, [], None])
def test_facts_of_another_type_are_named(tmp_path, facts):
    with pytest.raises(DataError, match=r"manifest\.json: field generation"):
        manifest_of(a_run(tmp_path, facts))


def test_files_that_changed_are_named(tmp_path):
    moved = {**EVERYTHING, "quiz": {"path": "/elsewhere", "sha256": "e"}}
    require_same_files(tmp_path, EVERYTHING, moved)
    require_same_files(tmp_path, EVERYTHING, {})
    for part, value in (("quiz", {"path": "/q.jsonl", "sha256": "x"}), ("limit", 4), ("neighbours", {"backend": "t5"})):
        with pytest.raises(DataError, match=f"generation.{part} is not what the run was made with"):
            require_same_files(tmp_path, EVERYTHING, {part: value})
    with pytest.raises(DataError, match="generation.quiz"):
        require_same_files(tmp_path, {}, {"quiz": {"sha256": "e"}})


OPTIONS = ScoreOptions(
    model=Path("a model"),
    out=Path("o'ut"),
    benchmark=Path("b"),
    attacks="guided,dcq,neighborhood,dc_pdd,fsd",
    setting="lodo,pooled",
    protocol="paper",
    settings=("min_k=0.3", "guided_new_tokens=64"),
    hyperparameters=Path("h.yaml"),
    em_mia_limit=4,
    generation_limit=5,
    prompts=("guided=a b.txt", "sources=s"),
    quiz=Path("q"),
    neighbours=Path("n"),
    split="dev",
    variant="shifted",
    size="7b",
    subsets=["novel", "code"],
    limit=7,
    dtype="bfloat16",
    mesh="data=2",
    token_budget=9,
    frequencies=Path("f"),
)


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        ScoreOptions(model=Path("m"), out=Path("o"), benchmark=Path("b")),
        ScoreOptions(model=Path("m"), out=Path("o"), texts=Path("t"), reference=Path("r"), dev=Path("d")),
    ],
)
def test_the_command_gives_the_same_options(monkeypatch, options):
    taken = []
    monkeypatch.setattr("olmodetect_jax.commands.score.score", lambda given: taken.append(given) or {})
    words = shlex.split(score_command(options))
    assert words[0] == "olmodetect" and main(words[1:]) == 0
    assert taken == [options]
    assert {f.name for f in dataclasses.fields(options) if f.default not in (None, dataclasses.MISSING)} <= {
        "attacks", "setting", "protocol", "settings", "prompts", "split", "variant", "dtype",
    }  # fmt: skip


def test_the_command_after_tuning_scores_the_test_split_into_another_folder(tmp_path):
    benchmark = {"path": str(sample.benchmark_directory()), "tree": "sample"}
    run = a_run(tmp_path / "run", {}, benchmark=benchmark, split="dev")
    command = shlex.split(tuned_command(run))
    assert command[command.index("--out") + 1] == str(tmp_path / "run-tuned")
    assert command[command.index("--hyperparameters") + 1] == str(run / "hyperparameters.yaml")
    assert "--split" not in command and "--subsets" not in command and command.count("--set") == 1
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "subsets": ["code"]}))
    assert "--subsets code" in tuned_command(run)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["guided"], "--prompt: expected NAME=FILE, got 'guided'"),
        (["guided="], "--prompt: expected NAME=FILE"),
        (["story=f"], "--prompt: unknown value 'story'; allowed are: guided, general, sources, dcq_quiz, critique"),
        (["guided=a", "guided=b"], "--prompt guided: given twice"),
    ],
)
def test_prompts_that_are_none(given, message):
    with pytest.raises(UsageError) as error:
        prompt_files(given)
    assert message in str(error.value)
    assert prompt_files(["guided=a=b", "sources=s"]) == {"guided": Path("a=b"), "sources": Path("s")}


def test_a_file_goes_with_its_attack():
    check_options(OPTIONS, ("guided", "dcq", "neighborhood", "dc_pdd"))
    for left, message in (
        ("guided", "--prompt guided goes with the attack guided"),
        ("dcq", "--quiz goes with the attack dcq"),
        ("neighborhood", "--neighbours goes with the attack neighborhood"),
        ("dc_pdd", "--frequencies goes with the attack dc_pdd"),
    ):
        with pytest.raises(UsageError, match=message):
            check_options(OPTIONS, [a for a in ("guided", "dcq", "neighborhood", "dc_pdd") if a != left])
    only = dataclasses.replace(OPTIONS, prompts=("sources=s",), quiz=None, neighbours=None, frequencies=None)
    check_options(only, ["dcq"])
    with pytest.raises(UsageError, match="--prompt sources goes with the attack guided or dcq"):
        check_options(only, ["cdd"])
    with pytest.raises(UsageError, match="--generation-limit: expected a positive number of records, got 0"):
        check_options(dataclasses.replace(only, generation_limit=0), ["dcq"])
