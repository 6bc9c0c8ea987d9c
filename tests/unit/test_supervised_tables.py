"""The supervised attacks' tables: AUC by setting, FSD's gains, in the terminal, in files and in the page."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from olmodetect_jax.attacks.supervised import FSD_BASES, SETTINGS, row_id
from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation import RunMetrics, evaluate, print_tables, write_tables
from olmodetect_jax.evaluation.aggregate import Aggregate, Column, aggregate
from olmodetect_jax.evaluation.supervised import GainRow, SupervisedTable, mean_over_tables
from olmodetect_jax.report import write_report
from tests.run_folders import OWN_TEXTS, random_scores, score_line, write_run
from tests.unit.test_report import EVIL, Page

ALL = Column("all", "all", "All")
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "evaluation_aggregate.json").read_text())
Scores = dict[str, dict[str, list[dict[str, Any]]]]


def with_base(scores: Scores, seed: int = 3) -> Scores:
    """The same with a base score on every line of FSD's rows."""
    rng = np.random.default_rng(seed)
    for name, subsets in scores.items():
        for line in (line for lines in subsets.values() for line in lines if name.startswith("fsd_")):
            line["base_score"] = round(float(rng.normal(0.5 * line["label"])), 3)
    return scores


def one(path: Path) -> RunMetrics:
    return evaluate([path])[0]


def printed(results: list[RunMetrics], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_tables(results, None, console)
    return console.file.getvalue()


def lines_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


EVERY = [row_id(attack, s) for attack in ("mia_tuner", *(f"fsd_{b}" for b in FSD_BASES), "sup_camia") for s in SETTINGS]


def auc_of(lines: list[dict[str, Any]], field: str) -> float:
    sides = [[line[field] for line in lines if line["label"] == label] for label in (1, 0)]
    return float(np.mean([[(m > n) + (m == n) / 2 for n in sides[1]] for m in sides[0]]))


def test_rows_stand_by_attack_and_setting_whatever_the_run_s_order(tmp_path: Path) -> None:
    result = one(write_run(tmp_path, with_base(random_scores(["ppl", *reversed(EVERY)]))))
    table = result.supervised
    assert [(row.title, row.setting) for row in table.rows] == [
        (title, setting) for title in ("Sup-CAMIA", "MIA-Tuner") for setting in SETTINGS
    ]
    assert [(g.base, g.setting) for g in table.gains] == [(base, s) for base in FSD_BASES for s in SETTINGS]
    assert [g.title for g in table.gains[::3]] == ["PPL", "Zlib", "Lower", "MinK", "MinK++*"]
    own = {row.id: row.auc for row in result.rows}
    assert all(row.auc is own[row.id] for row in table.rows) and all(g.after is own[g.id] for g in table.gains)
    assert set(EVERY) < {row.id for row in result.rows}  # they stay in the ordinary tables too


def test_a_gain_is_a_difference_of_aggregates_over_the_very_records(tmp_path: Path) -> None:
    scores = with_base(random_scores(["fsd_zlib"]))
    for i in (0, 1, 13):  # records without a score are no part of the base's AUC either
        scores["fsd_zlib"]["code"][i].update(score=None, missing="too short", base_score=1e6 * (-1) ** i)
    (gain,) = one(write_run(tmp_path, scores)).supervised.gains
    tree, aucs = load_tree("sample"), {}
    for name, lines in scores["fsd_zlib"].items():
        kept = [line for line in lines if line["score"] is not None]
        aucs[name] = [auc_of(kept, field) for field in ("base_score", "score")]
        column = Column("subset", name, name)
        assert gain.gain(column) == pytest.approx(aucs[name][1] - aucs[name][0], abs=1e-15)
    before, after = (aggregate({name: pair[i] for name, pair in aucs.items()}, tree).all for i in (0, 1))
    assert gain.before.all == pytest.approx(before, abs=1e-15)
    assert gain.gain(ALL) == pytest.approx(after - before, abs=1e-15)


def test_gains_of_the_golden_runs() -> None:
    index = GOLDEN["case_names"].index("fsd_gain_same_run_base")
    case, expected = GOLDEN["inputs"][index], GOLDEN["expected"][index]
    tree = load_tree("olmo2")
    for name, run in case["runs"].items():
        tables = []
        for size in run["base"]:
            sides = [aggregate(run[side][size], tree) for side in ("base", "fsd")]
            tables.append(SupervisedTable((), (GainRow("fsd_ppl", "ppl", "in-domain", *sides, *sides),), ()))
            assert tables[-1].gains[0].gain(ALL) == pytest.approx(expected["runs"][name]["gain"][size], abs=1e-12)
        (mean,) = mean_over_tables(tables).gains
        assert mean.gain(ALL) == pytest.approx(expected["runs"][name]["model_avg_gain"], abs=1e-12)
        if name == "in_domain":
            assert mean.before.all == pytest.approx(expected["base_auc_column"], abs=1e-12)


@given(st.lists(st.tuples(*[st.none() | st.floats(0, 1)] * 2), min_size=5, max_size=5))
def test_a_hole_on_either_side_is_a_hole_all_the_way_up(pairs: list[tuple[float | None, float | None]]) -> None:
    tree = load_tree("sample")
    sides = [aggregate({s.id: p[i] for s, p in zip(tree.subsets, pairs, strict=True)}, tree) for i in (0, 1)]
    gain = GainRow("fsd_ppl", "ppl", "in-domain", *sides, *sides)
    for subset, pair in zip(tree.subsets, pairs, strict=True):
        assert (gain.gain(Column("subset", subset.id, "")) is None) == (None in pair)
    whole = not any(None in pair for pair in pairs)
    assert (gain.gain(ALL) is not None) == whole
    if whole:
        by_subset = {s.id: p[1] - p[0] for s, p in zip(tree.subsets, pairs, strict=True)}
        assert gain.gain(ALL) == pytest.approx(aggregate(by_subset, tree).all, abs=1e-12)


@pytest.mark.parametrize("hole", ["base", "class"])
def test_a_subset_without_a_base_is_a_hole_and_named(tmp_path: Path, hole: str) -> None:
    scores = with_base(random_scores(["fsd_ppl"]))
    lines = scores["fsd_ppl"]["gsm8k"]
    if hole == "base":
        del lines[0]["base_score"]
        lines[1]["base_score"] = None
    else:
        for line in lines[:12]:
            line.update(score=None, missing="too short")
    result = one(write_run(tmp_path, scores))
    (gain,) = result.supervised.gains
    for column in (Column("subset", "gsm8k", ""), Column("stage", "midtraining", ""), ALL):
        assert gain.gain(column) is column.of(gain.before) is None
    assert gain.gain(Column("stage", "pretraining", "")) is not None
    said = "fsd_ppl on gsm8k: 2 of 24 scores have no base_score, so there is no gain."
    assert (said in result.supervised.notes) == (hole == "base")
    line = next(line for line in printed([result]).splitlines() if "PPL, In-domain" in line and "–" in line)
    assert line.split("│")[-2].split() == ["–", "–"]
    write_tables(result, tmp_path)
    row = next(row for row in lines_of(tmp_path / "tables" / "fsd_gain.csv") if row["level"] == "all")
    assert row["gain"] == row["base_auc"] == "" and (row["fsd_auc"] != "") == (hole == "base")
    write_report([tmp_path], tmp_path / "r.html")
    Page((tmp_path / "r.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("bad", ["NaN", "Infinity", '"1"', "true", "[1]", "1e999"])
def test_a_base_score_is_a_finite_number_or_absent(tmp_path: Path, bad: str) -> None:
    line = json.dumps(score_line("r", 1, 0.5, base_score="BAD")).replace('"BAD"', bad)
    run = write_run(tmp_path, {"ppl": {"texts": [score_line("r", 1, 0.5)]}}, **OWN_TEXTS)
    (run / "scores" / "ppl" / "texts.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"line 1 \(record 'r'\): field base_score: expected a finite number or null"):
        one(run)


def test_base_scores_are_read(tmp_path: Path) -> None:
    lines = [score_line("a", 1, 0.5, base_score=-2), score_line("b", 0, 0.5)]
    scores = one(write_run(tmp_path, {"ppl": {"texts": lines}}, **OWN_TEXTS)).run.scores["ppl"]["texts"]
    assert [s.base_value for s in scores] == [-2.0, None] and type(scores[0].base_value) is float


def test_files(tmp_path: Path) -> None:
    result = one(write_run(tmp_path, with_base(random_scores(EVERY))))
    write_tables(result, tmp_path)
    first = [(tmp_path / "tables" / f"{name}.csv").read_bytes() for name in ("supervised", "fsd_gain")]
    write_tables(one(tmp_path), tmp_path)
    assert first == [(tmp_path / "tables" / f"{name}.csv").read_bytes() for name in ("supervised", "fsd_gain")]
    for line, row in zip(lines_of(tmp_path / "tables" / "supervised.csv"), result.supervised.rows, strict=True):
        assert (line["attack"], line["title"], line["setting"]) == (row.id, row.title, row.setting)
        assert float(line["all"]) == row.auc.all and float(line["subset:mbpp"]) == row.auc.subset["mbpp"]
    gains = lines_of(tmp_path / "tables" / "fsd_gain.csv")
    assert len(gains) == 15 * len(result.columns)
    for row in result.supervised.gains:
        (line,) = [g for g in gains if (g["attack"], g["level"], g["group"]) == (row.id, "domain", "code")]
        assert (line["base"], line["setting"]) == (row.base, row.setting)
        assert line["main_table"] == ("0" if row.base == "min_k_plus_plus" else "1")
        assert (
            float(line["gain"])
            == float(line["fsd_auc"]) - float(line["base_auc"])
            == row.gain(Column("domain", "code", ""))
        )


def test_the_terminal_shows_both_tables_in_80_columns(tmp_path: Path) -> None:
    result = one(write_run(tmp_path, with_base(random_scores(EVERY))))
    text = printed([result])
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    row, gain = result.supervised.rows[1], result.supervised.gains[2]
    stages = ("pretraining", "midtraining", "posttraining")
    line = next(ln for ln in text.splitlines() if "Sup-CAMIA, LODO" in ln and "  " not in ln.split("│")[2].strip())
    assert [c.strip() for c in line.split("│")[2:-1]] == [f"{row.auc.stage[s]:.2f}" for s in stages] + [
        f"{row.auc.all:.2f}"
    ]
    line = next(ln for ln in text.splitlines() if " PPL, Pooled" in ln)
    assert line.split("│")[-2].split() == [f"{gain.before.all:.2f}", f"{gain.gain(ALL):+.2f}"]
    assert "MinK++*, LODO" in text and "* MinK++ is left out of the paper's main table." in text


def test_a_run_without_supervised_attacks_is_unchanged(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_scores(("ppl", "zlib")))
    result = one(run)
    assert result.supervised is None
    write_tables(result, run)
    assert sorted(p.name for p in (run / "tables").iterdir()) == ["auc.csv", "tpr_at_5fpr.csv"]
    assert "Supervised" not in printed([result]) and "base score" not in printed([result])
    write_report([run], tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "Supervised attacks" not in page.text and page.count("table", "settings") == 0
    lines = [score_line(f"r{i}", i % 2, float(i)) for i in range(4)]
    assert one(write_run(tmp_path / "own", {"sup_camia": {"texts": lines}}, **OWN_TEXTS)).supervised is None


@pytest.mark.parametrize("only", ["mia_tuner_lodo", "fsd_lower_pooled"])
def test_a_table_without_rows_is_not_there(tmp_path: Path, only: str) -> None:
    run = write_run(tmp_path / "run", with_base(random_scores([only])))
    result = one(run)
    write_tables(result, run)
    name = "fsd_gain.csv" if only.startswith("fsd") else "supervised.csv"
    assert sorted(p.name for p in (run / "tables").iterdir()) == ["auc.csv", name, "tpr_at_5fpr.csv"]
    assert ("FSD against" in printed([result])) == only.startswith("fsd")
    write_report([run], tmp_path / "r.html")
    assert Page((tmp_path / "r.html").read_text(encoding="utf-8")).count("table", "settings") == 1


@pytest.mark.parametrize(
    ("rows", "fields", "said"),
    [
        (["sup_camia"], {}, True),
        (["fsd_ppl", "fsd_ppl_lodo"], {"in_domain_unit": "leaf"}, True),
        (["sup_camia"], {"in_domain_unit": "domain"}, False),
        (["mia_tuner_lodo", "fsd_ppl_pooled"], {"in_domain_unit": "leaf"}, False),
    ],
)
def test_two_sides_with_a_model_each_are_noted(
    tmp_path: Path, rows: list[str], fields: dict[str, str], said: bool
) -> None:
    scores = with_base(random_scores(rows, tree="olmo2", n=3))
    protocol = {"preset": "audited", "fields": fields, "changed": {}}
    changes = {"benchmark": {"path": "/b", "tree": "olmo2"}, "protocol": protocol}
    notes = one(write_run(tmp_path, scores, **changes)).supervised.notes
    found = [note for note in notes if note.startswith("DPO, in-domain: its 2 sides are pooled into one AUC")]
    assert len(found) == said and len(notes) == len(found)


def test_a_run_of_some_subsets_only(tmp_path: Path) -> None:
    scores = with_base(random_scores(["sup_camia", "fsd_ppl"]))
    scores = {name: {"code": subsets["code"]} for name, subsets in scores.items()}
    run = write_run(tmp_path / "run", scores)
    assert "Python library" in printed([one(run)], 120)
    write_report([run], tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.count("table", "settings") == 2 and "Base AUC" not in page.text


def test_mean_over_runs_holds_what_all_have(tmp_path: Path) -> None:
    both = [
        write_run(tmp_path / str(seed), with_base(random_scores(["sup_camia", "fsd_ppl"], seed=seed), seed))
        for seed in (1, 2)
    ]
    results = evaluate(both)
    mean = mean_over_tables([r.supervised for r in results])
    assert mean.rows[0].auc.all == pytest.approx(sum(r.supervised.rows[0].auc.all for r in results) / 2)
    gains = [r.supervised.gains[0].gain(ALL) for r in results]
    assert mean.gains[0].gain(ALL) == pytest.approx(sum(gains) / 2, abs=1e-15)
    assert printed(results).count("FSD against its base scores") == 3
    other = write_run(tmp_path / "other", random_scores(["sup_camia", "ppl"], seed=3))
    mean = mean_over_tables([results[0].supervised, one(other).supervised])
    assert [row.id for row in mean.rows] == ["sup_camia"] and mean.gains == ()
    assert mean_over_tables([results[0].supervised, None]) is mean_over_tables([]) is None


def test_the_page_shows_gains_with_their_sign_and_side(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", with_base(random_scores(["ppl", *EVERY])))
    write_report([run], tmp_path / "r.html")
    page = Page(html := (tmp_path / "r.html").read_text(encoding="utf-8"))
    write_report([run], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == html
    assert page.count("table", "settings") == 2 and page.count("table", "heat") == 5
    for row in one(run).supervised.gains:
        value = row.gain(ALL)
        side, heat = ("high" if value > 0 else "low"), min(100, round(1000 * abs(value)))
        title = f"{row.gain(ALL):+.2f}</td>"
        assert f'<td class="{side}" style="--heat:{heat}%"' in html
        assert f'data-value="{value}">{title}' in html and f">{row.before.all:.2f}</td>" in html
    assert "Base AUC" in page.text and "MinK++*" in page.text


def test_notes_of_hostile_runs_are_shown_as_text(tmp_path: Path) -> None:
    scores = with_base(random_scores(["fsd_ppl"]))
    run = write_run(tmp_path / "run", scores, model={"name": EVIL})
    write_report([run], tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.count("script") == 1 and EVIL in page.text


def test_exactly_no_gain_has_no_side() -> None:
    same = Aggregate({}, {}, {}, 0.6)
    assert GainRow("fsd_ppl", "ppl", "in-domain", *[same] * 4).gain(ALL) == 0.0
