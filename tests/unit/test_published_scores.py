"""Per-record scores that were published give the published cells: `OLMODETECT_PUBLISHED_SCORES` names their folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from olmodetect_jax.commands.tables import make_tables
from tests.run_folders import MANIFEST, score_line, write_run

FOLDER = os.environ.get("OLMODETECT_PUBLISHED_SCORES")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="OLMODETECT_PUBLISHED_SCORES names no folder")
IDS = {"PPL": "ppl", "Zlib": "zlib", "Lower": "lower", "MinK": "min_k", "MinK++": "min_k_plus_plus", "DCPDD": "dc_pdd"}


def read(name):
    return json.loads((Path(FOLDER) / f"published_scores_{name}.json").read_text())


def run_of(path, subset, lines, size):
    """A run of one subset."""
    model = {**MANIFEST["model"], "name": f"OLMo2-{size.upper()}-Instruct", "size": size}
    scores = {IDS[title]: {subset: found} for title, found in lines.items()}
    return write_run(path / "run", scores, benchmark={"path": "/b", "tree": "olmo2"}, model=model)


def cell(table, attack, *column):
    row = next(row for row in table.rows if row.labels == (attack,))
    return row.cells[table.columns.index(column)]


def test_java_at_1b(tmp_path):
    file = read("java_1b")
    lines = {
        title: [
            score_line(name, label, value)
            for side, label in (("member", 1), ("nonmember", 0))
            for name, value in zip(file["sample_ids"][side], scores[side], strict=True)
        ]
        for title, scores in file["scores"].items()
    }
    run = run_of(tmp_path, "sc_java", lines, "1b")
    auc, tpr = make_tables([run], tmp_path / "out", against="paper", only=["46", "60"], n_resamples=200)
    for title, published in file["published"].items():
        for table, metric in ((auc, "auc"), (tpr, "tpr_at_5fpr")):
            found = cell(table, title, "Java", "1B")
            assert found.value == pytest.approx(file["derived"][title][metric], abs=1e-9)
            assert found.text == f"{published[metric]:.2f}" and found.published == published[metric]
            assert found.inside


def test_dpo_pools_chosen_and_rejected(tmp_path):
    file = read("dpo_7b_pooling")
    lines = {
        title: [
            score_line(f"{name}{i}", label, value, text_sha1=f"{name}{i}{side}")
            for name, label in (("member", 1), ("nonmember", 0))
            for side in ("chosen", "rejected")
            for i, value in enumerate(scores[f"{name}_{side}"])
        ]
        for title, scores in file["scores"].items()
    }
    run = run_of(tmp_path, "dpo", lines, "7b")
    auc, tpr = make_tables([run], tmp_path / "out", against="paper", only=["44", "58"], n_resamples=200)
    for title, derived in file["derived"].items():
        for table, metric in ((auc, "auc"), (tpr, "tpr_at_5fpr")):
            found = cell(table, title, "DPO", "7B")
            assert found.value == pytest.approx(derived["pooled"][metric], abs=1e-9)
            assert found.published == derived["published_table44_58"][metric]
            assert f"{found.value + 1e-9:.2f}" == f"{found.published:.2f}"
