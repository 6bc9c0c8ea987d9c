"""Hyperparameters that the sample brings: the file, and the guards that keep them to their model and protocol."""

import json

import pytest

from conversion import load_model_directory
from olmodetect_jax import sample
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.hyperparameters import search_space
from olmodetect_jax.commands.shipped import CDD_LENGTH, FILE_NAME, NEW_TOKENS, read_shipped
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.tuning import read_tuning
from olmodetect_jax.protocol import load_protocol
from tests.report_files import tuned

TUNED = tuple(name for name in GENERATIVE if search_space(name))
PROTOCOL = {"preset": "audited", "changed": {"guided_new_tokens": 64}}


def content(**changes):
    attacks = {
        "dcq": tuned({"dcq_score": ["mean", "min"]}, [0.5, 0.6]),
        "cdd": tuned({"cdd_ratio": [0.5], "cdd_length": [50], "cdd_alpha": [0.1]}, [None]),
    }
    file = {"format": 1, "weights_digest": "w", "protocol": PROTOCOL, "n_member": 7, "n_non_member": 8}
    return {**file, "attacks": attacks, **changes}


def test_the_grids_come_with_the_texts_they_were_chosen_on(tmp_path):
    (tmp_path / FILE_NAME).write_text(json.dumps(content()))
    shipped = read_shipped(tmp_path)
    assert shipped.attacks["dcq"]["shipped"] == {"n_member": 7, "n_non_member": 8}
    assert shipped.values(["dcq"]) == {"dcq_score": "min"}
    assert shipped.values(["dcq", "cdd"]) == {  # nothing was chosen for CDD: the released tuner's fallback
        "dcq_score": "min", "cdd_ratio": 0.5, "cdd_length": 100, "cdd_alpha": 0.05,
    }  # fmt: skip
    (tmp_path / "tuning.json").write_text(json.dumps({**content(), "attacks": shipped.attacks}))
    assert read_tuning(tmp_path).attacks["dcq"].shipped == (7, 8)


def test_values_are_kept_to_their_model_and_protocol(tmp_path):
    (tmp_path / FILE_NAME).write_text(json.dumps(content()))
    shipped = read_shipped(tmp_path)
    shipped.require("w", PROTOCOL)
    for weights, protocol in (("x", PROTOCOL), ("w", {**PROTOCOL, "changed": {}}), ("w", {**PROTOCOL, "preset": "p"})):
        with pytest.raises(DataError, match=f"{FILE_NAME}: chosen for other weights or under another protocol"):
            shipped.require(weights, protocol)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"n_member": 1, "n_non_member": 1, "attacks": []}'])
def test_a_file_that_is_none_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(DataError, match=f"{FILE_NAME}: cannot be used"):
        read_shipped(tmp_path)


def test_the_samples_own_file_is_of_its_model_and_of_the_quickstarts_protocol():
    shipped = read_shipped(sample.directory())
    changed = {name: int(value) for name, value in (setting.split("=") for setting in NEW_TOKENS)}
    digest = load_model_directory(sample.model_directory(), "float32").weights_digest
    shipped.require(digest, {"preset": "audited", "changed": load_protocol("audited", changed).changed()})
    assert set(shipped.attacks) == set(TUNED)
    for name, attack in shipped.attacks.items():
        space = [values for values in search_space(name) if values.get("cdd_length", CDD_LENGTH) == CDD_LENGTH]
        assert [candidate["values"] for candidate in attack["grid"]] == space
        aucs = [candidate["auc"] for candidate in attack["grid"]]
        assert attack["used"] and attack["chosen"] == space[aucs.index(max(aucs))]
    built = json.loads((sample.benchmark_directory() / "construction.json").read_text())["subsets"].values()
    assert shipped.attacks["cdd"]["shipped"]["n_member"] == sum(s["members_matched"]["dev_records"] for s in built)
