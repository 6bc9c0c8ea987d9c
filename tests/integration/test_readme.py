"""Every command of the README runs as it stands there, with real paths for its capital words."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from olmodetect_jax import sample
from olmodetect_jax.cli import main
from olmodetect_jax.files import config_path
from olmodetect_jax.generation.generator import Generator
from olmodetect_jax.sample.sources import read_documents, source_path
from tests.stub_attacks import answer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands():
    """The table's commands, in order."""
    return re.findall(r"^\|.*\| `(olmodetect .*?)` \|$", README, re.M)


def two_folders(root):
    """The shipped example with two folders beside it, as the README has it copied."""
    lines = [
        json.dumps({"text": d.fields["text"]}) for d in read_documents(source_path(sample.sources_directory(), "code"))
    ]
    for folder, part in (("trained_on", lines[:200]), ("not_trained_on", lines[200:400])):
        (root / folder).mkdir()
        (root / folder / "texts.jsonl").write_text("\n".join(part))
    text = config_path("construction", "two_folders.yaml").read_text()
    config = root / "two_folders.yaml"
    config.write_text(text.replace("tokenizer: model", f"tokenizer: {sample.model_directory()}"))
    return config


@pytest.mark.slow
def test_the_tables_commands_run_in_order(tmp_path, monkeypatch):
    def invented(self, requests, rounding):  # writing takes long, and is tested elsewhere
        return {r.digest: answer(r) for r in requests}

    class Filler:
        def provenance(self):
            return {"filler": "invented"}

        def fill_chunk(self, chunk, window):
            return [f"{text} or so" for text in chunk.rows]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Generator, "answer", invented)
    monkeypatch.setattr("olmodetect_jax.commands.neighbours.load_filler", lambda directory: Filler())
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "some text of mine"}\n')
    words = {
        "HF_DIR": sample.model_directory(),
        "OUT": tmp_path / "checkpoint",
        "MODEL": tmp_path / "checkpoint",
        "TABLE": tmp_path / "table.safetensors",
        "BENCHMARK": "sample",
        "TEXTS": texts,
        "OTHERS": texts,
        "BACK": tmp_path / "back",
        "T5": tmp_path / "t5",
        "NEIGHBOURS": tmp_path / "neighbours.jsonl",
        "QUIZ": tmp_path / "quiz.jsonl",
        "report.html": tmp_path / "report.html",
        "CONFIG": two_folders(tmp_path),
        "BUILT": tmp_path / "built",
        "CORPUS": tmp_path / "trained_on",
        "INDEX": tmp_path / "index",
        "TABLES": tmp_path / "tables",
        "TREE": tmp_path / "tree",
        "RELEASED": ROOT / "tests" / "golden" / "released_layout",
        "RUNS": tmp_path / "released",
    }
    ran = []
    for command in commands():
        arguments = shlex.split(command)[1:]
        if arguments[0] == "score":
            words[arguments[-1]] = tmp_path / f"run{len(ran)}"
            if "BENCHMARK" in arguments:
                arguments += ["--limit", "2"]
            if "supervised" in arguments:
                arguments += ["--set", "fsd_epochs=1", "--set", "mia_tuner_epochs=1"]
        given = [str(words.get(a, a)).replace("RUN/", f"{words.get('RUN')}/") for a in arguments]
        assert main(given) == 0, command
        ran.append(arguments[0])
    assert set(ran) == {
        "convert",
        "score",
        "tune",
        "evaluate",
        "report",
        "frequencies",
        "export",
        "neighbours",
        "quiz",
        "budget",
        "build",
        "verify",
        "index",
        "tables",
        "export-released",
        "import-released",
    }
    assert (tmp_path / "report.html").is_file()


def test_the_two_commands_of_a_fresh_clone():
    assert "pip install -e . && olmodetect quickstart" in README
    assert "pip install -e '.[test]' && pytest" in README
    assert "from_readme" in (ROOT / ".ci" / "run").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"gpu", "tpu", "parity", "test"} <= set(project["optional-dependencies"])


def test_every_file_the_readme_names_is_there():
    for name in re.findall(r"`((?:olmodetect_jax|scripts|configs|tests)/[\w./]+)", README):
        assert (ROOT / name).exists(), name


def test_no_number_in_the_readme_is_a_result():
    """Figures come from commands; the README states only what the sample's own record states."""
    facts = json.loads((sample.benchmark_directory() / "construction.json").read_text())
    assert f"about {facts['config']['budget']:,} tokens of members" in README
    for subset in facts["subsets"].values():
        assert abs(subset["non_members"]["tokens"] - facts["config"]["budget"]) < 100
        assert abs(subset["non_members"]["dev_records"] / subset["non_members"]["records"] - 0.1) < 0.02
