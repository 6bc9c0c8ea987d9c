"""Every command of the README runs as it stands there, with real paths for its capital words."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from olmodetect_jax import sample
from olmodetect_jax.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands():
    """The table's commands, in order."""
    return re.findall(r"^\|.*\| `(olmodetect .*?)` \|$", README, re.M)


@pytest.mark.slow
def test_the_tables_commands_run_in_order(tmp_path, capsys):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "some text of mine"}\n')
    words = {
        "HF_DIR": sample.model_directory(),
        "OUT": tmp_path / "checkpoint",
        "BENCHMARK": sample.benchmark_directory(),
        "RUN": tmp_path / "run",
        "TEXTS": texts,
        "OTHERS": texts,
    }
    ran = []
    for command in commands():
        arguments = shlex.split(command)[1:]
        for i, argument in enumerate(arguments):
            if argument in ("RUN", "OUT") and arguments[i - 1 : i] == ["--out"]:
                words[argument] = tmp_path / f"{argument.lower()}{len(ran)}"
            if argument == "MODEL":
                words["MODEL"] = sample.model_directory() if "score" in arguments else tmp_path / "checkpoint"
            if argument == "BACK":
                words["BACK"] = tmp_path / "back"
            arguments[i] = str(words.get(argument, argument))
        if "report.html" in arguments:
            arguments[arguments.index("report.html")] = str(tmp_path / "report.html")
        assert main(arguments) == 0, command
        ran.append(arguments[0])
    assert set(ran) == {"convert", "score", "evaluate", "report", "frequencies", "export"}
    assert (tmp_path / "report.html").is_file()


def test_the_two_commands_of_a_fresh_clone():
    assert "pip install -e . && olmodetect quickstart" in README
    assert "pip install -e '.[test]' && pytest" in README
    assert "pip install -e '\\.\\[test\\]' && pytest" in (ROOT / ".ci" / "run").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"gpu", "tpu", "parity", "test"} <= set(project["optional-dependencies"])


def test_every_file_the_readme_names_is_there():
    for name in re.findall(r"`((?:olmodetect_jax|scripts|configs|tests)/[\w./]+)", README):
        assert (ROOT / name).exists(), name


def test_no_number_in_the_readme_is_a_result():
    """Figures come from commands; the README states only what the sample's own record states."""
    counts = json.loads((sample.sources_directory().parent / "data.json").read_text())["settings"]
    assert f"{counts['records_of_each_class']} members" in README
