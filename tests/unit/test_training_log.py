"""A run's `training.json`: what is written is what the report reads, and attacks are added to it."""

import json

import numpy as np
import pytest

from olmodetect_jax.commands.training_log import write_training
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.training import read_training
from olmodetect_jax.training import Origin, Trained


def trained(name, attack="fsd", setting="in-domain", trained_for="novel", losses=(2.5, 1.25), texts=3):
    sources = tuple(bytes([i]) for i in range(texts))
    return Trained(name, Origin(attack, setting, trained_for, sources), np.array(losses, np.float32), 8)


def names(run):
    return [adapter.name for adapter in read_training(run)]


def test_every_field(tmp_path):
    write_training(tmp_path, [trained("a", "mia_tuner", "lodo", "code", [1 / 3], 4)])
    assert json.loads((tmp_path / "training.json").read_text()) == {
        "format": 1,
        "adapters": [
            {
                "name": "a", "attack": "mia_tuner", "setting": "lodo", "trained_for": "code", "n_texts": 4, "steps": 1,
                "losses": [float(np.float32(1 / 3))], "batch": 8,
            }
        ],
    }  # fmt: skip
    (adapter,) = read_training(tmp_path)
    assert (adapter.steps, adapter.n_texts, adapter.trained_for) == (1, 4, "code")


def test_nothing_trained_leaves_no_file_and_reads_none(tmp_path):
    write_training(tmp_path, [])
    assert not list(tmp_path.iterdir())
    (tmp_path / "training.json").write_text("{")
    write_training(tmp_path, iter(()))


def test_attacks_are_added_in_one_order(tmp_path):
    first = [trained("c", trained_for="novel"), trained("b", "mia_tuner"), trained("d", setting="lodo")]
    write_training(tmp_path / "one", first)
    write_training(tmp_path / "one", [trained("a", trained_for="code"), trained("b", "mia_tuner", losses=[9.0])])
    assert names(tmp_path / "one") == ["a", "c", "d", "b"]
    assert read_training(tmp_path / "one")[3].losses == (9.0,)
    write_training(tmp_path / "two", [trained("b", "mia_tuner", losses=[9.0]), trained("a", trained_for="code")])
    write_training(tmp_path / "two", [first[2], first[0]])
    files = [(tmp_path / run / "training.json").read_bytes() for run in ("one", "two")]
    assert files[0] == files[1]
    write_training(tmp_path / "two", [first[0]])
    assert (tmp_path / "two" / "training.json").read_bytes() == files[1]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "not a JSON file"),
        (b"\xff", "not a JSON file"),
        (b"[]", "expected a JSON object"),
        (b'{"format": 2, "adapters": []}', "field format"),
        (b'{"format": 1}', "field adapters is missing"),
        (b'{"format": 1, "adapters": [{"name": "x"}]}', r"field adapters\[0\].losses is missing"),
        (b'{"format": 1, "adapters": ["x"]}', r"field adapters\[0\]: expected an object"),
    ],
)
def test_a_damaged_log_is_named(content, problem, tmp_path):
    (tmp_path / "training.json").write_bytes(content)
    with pytest.raises(DataError, match=f"training.json: .*{problem}.*delete the file"):
        write_training(tmp_path, [trained("a")])
    assert (tmp_path / "training.json").read_bytes() == content
