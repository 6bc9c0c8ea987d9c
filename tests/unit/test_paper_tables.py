"""The paper's tables: published cells reproduced from finer ones, what a cell carries, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from olmodetect_jax.benchmark import SIZES, load_tree
from olmodetect_jax.commands.tables import make_tables
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation.aggregate import aggregate, attack_domains, mean, method_avg, model_avg
from olmodetect_jax.evaluation.cross_stage import cross_stage
from olmodetect_jax.evaluation.intervals import Interval
from olmodetect_jax.evaluation.results import evaluate
from olmodetect_jax.tables import names
from olmodetect_jax.tables.catalogue import NUMBERS
from olmodetect_jax.tables.cross_stage_tables import cross_stage_tables
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import listed, published
from olmodetect_jax.tables.study import study_of
from olmodetect_jax.tables.write import as_csv, as_json, as_latex, as_markdown, shown
from tests.run_folders import MANIFEST, random_scores, score_line, write_run

TREE = load_tree("olmo2")
IDS = {
    "PPL": "ppl", "Zlib": "zlib", "Lower": "lower", "MinK": "min_k", "MinK++": "min_k_plus_plus", "DCPDD": "dc_pdd",
    "PAC": "pac", "ReCaLL": "recall", "EMMIA": "em_mia", "CAMIA": "camia", "Neigh.": "neighborhood",
    "Guided": "guided", "DCQ": "dcq", "CDD": "cdd", "SelfCrit": "self_critique",
}  # fmt: skip
ROUNDING = 0.01


def leaves(metric, method, model):
    """The finest published values of a method and a model."""
    file, column = (f"{metric}_per_domain", "auc" if metric == "auc" else "tpr_at_5fpr")
    found = {}
    for s in TREE.subsets:
        where = {"level": "subset", "subset": names.SUBSETS[s.id]}
        if sum(other.domain == s.domain for other in TREE.subsets) == 1:
            where = {"level": "domain", "domain": names.DOMAINS[s.domain]}
        found[s.id] = published(file, column, method=method, model=model, **where)
    return found


# Published cells follow from finer published cells


@pytest.mark.parametrize("metric, file", [("auc", "table04_auc_overall"), ("tpr", "table50_tpr_overall")])
def test_published_subsets_give_the_published_stages(metric, file):
    column = "auc" if metric == "auc" else "tpr_at_5fpr"
    by_attack = {}
    for method in IDS:
        rows = []
        for model in names.SIZES.values():
            row = aggregate(leaves(metric, method, model), TREE, domains=attack_domains(IDS[method], TREE))
            rows.append(row)
            assert_cells(row, file, column, method, model)
        by_attack[method] = rows
        assert_cells(model_avg(rows), file, column, method, names.MODEL_AVG)
    for i, model in enumerate(names.SIZES.values()):
        average = method_avg([rows[i] for rows in by_attack.values()])
        assert_cells(average, file, column, "Method-Avg", model)


def assert_cells(row, file, column, method, model):
    stages = {short: row.stage[stage] for stage, short in names.STAGES.items()} | {"All": row.all}
    for stage, value in stages.items():
        there = published(file, column, method=method, model=model, stage=stage)
        if there is None:
            assert value is None, (method, model, stage)
        else:
            assert value == pytest.approx(there, abs=ROUNDING), (method, model, stage)


def test_published_subsets_give_the_published_contrast():
    """The lower half of Table 6; its upper half is of older scores."""
    values = {
        IDS[m]: [aggregate(leaves("auc", m, size), TREE) for size in names.SIZES.values()]
        for m in IDS
        if m != "SelfCrit"
    }
    for attack in ("Sup-CAMIA", "MIA-Tuner"):
        rows = []
        for size in names.SIZES.values():
            where = {"method": attack, "setting": "In-domain", "model": size}
            by_domain = {
                d: published("tables64_72_supervised_auc", "value", domain=name, **where)
                for d, name in names.DOMAINS.items()
            }
            rows.append(aggregate({s.id: by_domain[s.domain] for s in TREE.subsets}, TREE))
        values[attack] = rows
    found = cross_stage(values, TREE)
    assert len(found.effective.attacks) == 8 and found.effective.n_positive == 8
    assert found.effective.test.p == pytest.approx(1 / 256)
    assert round(found.effective.test.p, 3) == published(
        "table06_cross_stage_contrast", "value", row="auc_effective_mias", quantity="wilcoxon_p_one_sided"
    )
    assert found.everything.n_positive == 13
    assert found.everything.contrast == pytest.approx(0.12, abs=ROUNDING)
    assert found.effective.contrast == pytest.approx(0.27, abs=ROUNDING)
    assert found.effective.curated == pytest.approx(0.86, abs=ROUNDING)


def test_published_domains_give_the_published_shift_counts():
    for method in listed("table07_shift_summary", "method"):
        deltas, up, down = {}, 0, 0
        for domain, short in names.SHORT_DOMAINS.items():
            where = {"method": method, "domain": short}
            deltas[domain] = published("table85_shift_per_domain", "delta", **where)
            significant = published("table85_shift_per_domain", "significance", **where) in (95, 99)
            up += significant and deltas[domain] > 0
            down += significant and deltas[domain] < 0
        largest = max(deltas, key=lambda d: abs(deltas[d]))
        got = {"n_increase_95": up, "n_decrease_95": down, "largest_delta": deltas[largest]}
        assert got == {c: published("table07_shift_summary", c, method=method) for c in got}, method


def test_published_gains_have_their_means():
    for base, setting in product(("PPL", "Zlib", "Lower", "MinK"), ("In-domain", "LODO")):
        where = {"base": base, "setting": setting}
        gains = [published("table05_fsd_gain", "delta", model=m, **where) for m in names.SIZES.values()]
        there = published("table05_fsd_gain", "delta", model=names.MODEL_AVG, **where)
        assert mean(gains) == pytest.approx(there, abs=ROUNDING)


def test_every_name_is_in_the_published_files():
    assert set(listed("auc_per_domain", "domain")) == set(names.DOMAINS.values())
    assert set(listed("table06_cross_stage_subsets", "subset")) == set(names.SUBSETS.values())
    assert set(listed("table85_shift_per_domain", "domain")) == set(names.SHORT_DOMAINS.values())
    assert [*names.SIZES.values(), names.MODEL_AVG] == list(listed("table04_auc_overall", "model"))
    assert set(names.SIZES) == set(SIZES)
    for first, file, order in ((37, "auc_per_domain", names.DOMAIN_ORDER), (51, "tpr_per_domain", names.DOMAIN_ORDER)):
        for i, domain in enumerate(order):
            assert published(file, "table", domain=names.DOMAINS[domain], level="domain") == first + i
        for i, domain in enumerate(names.SUBSET_ORDER):
            assert published(file, "table", domain=names.DOMAINS[domain], level="subset") == first + 9 + i
    for i, domain in enumerate(names.SUPERVISED_ORDER):
        assert published("tables64_72_supervised_auc", "table", domain=names.DOMAINS[domain]) == 64 + i
        assert published("tables73_82_supervised_tpr", "table", domain=names.DOMAINS[domain]) == 74 + i


# Tables of runs


def papers_run(path, size, attacks, variant="matched", **changes):
    """A run of invented scores on the paper's benchmark, of an OLMo 2 model."""
    scores = random_scores(attacks, tree="olmo2", n=8, seed=SIZES.index(size) + 10 * (variant == "shifted"))
    for attack, subsets in scores.items():
        for s in TREE.subsets:
            if variant == "shifted" and not s.variants:
                del subsets[s.id]
                continue
            for i, line in enumerate(subsets[s.id]):
                if s.id == "dpo":  # two texts a prompt
                    line["record_id"] = f"dpo-{i // 2}"
                line["record_id"] += f"-{variant}" * line["label"]
                if attack.startswith("fsd"):
                    line["base_score"] = -line["score"]
    model = {**MANIFEST["model"], "name": f"OLMo2-{size.upper()}-Instruct", "size": size, "weights_digest": size}
    benchmark = {"path": "/b", "tree": "olmo2"}
    return write_run(path / f"{size}-{variant}", scores, benchmark=benchmark, model=model, variant=variant, **changes)


ATTACKS = ("ppl", "zlib", "em_mia", "sup_camia", "sup_camia_lodo", "mia_tuner", "mia_tuner_lodo", "fsd_ppl")


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    runs = [papers_run(path, size, ATTACKS) for size in reversed(SIZES)]
    return runs + [papers_run(path, size, ATTACKS[:2], "shifted") for size in SIZES]


def cells_of(table):
    return {
        (*row.labels, *column): cell
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
    }


def test_all_tables_that_runs_support(four, tmp_path, capsys):
    made = {t.name: t for t in make_tables(four, tmp_path, against="paper", n_resamples=60)}
    numbers = {t.number for t in made.values()}
    assert set(NUMBERS) - numbers == {2, 3, *range(15, 26), *range(30, 37), 8, 83}
    said = capsys.readouterr().err
    assert "not made: Tables 2-3, 15-25, 30-36: needs what `olmodetect verify`" in said and "not made: Table 83" in said
    four_cells = cells_of(made["table_04"])
    assert [c[0] for c in made["table_04"].columns[::4]] == ["1B", "7B", "13B", "32B", "Model-Avg"]  # by size
    cell = four_cells["PPL", "1B", "Pre"]
    assert cell.published == 0.54 and cell.interval.low < cell.value < cell.interval.high
    assert cell.difference == pytest.approx(cell.value - 0.54)
    refused = four_cells["DCQ", "7B", "All"]
    assert refused.value is None and refused.refused == "dcq was not scored" and refused.published is not None
    assert four_cells["EMMIA", "1B", "All"].published is None  # not the paper's rule
    assert four_cells["Method-Avg", "1B", "All"].published is None  # of other attacks than the paper's
    assert cells_of(made["table_28"])["PPL", "unsupervised", "low"].published == 0.64
    assert cells_of(made["table_29"])["Sup-CAMIA", "LODO", "AUC"].published == 0.61
    assert cells_of(made["table_05"])["Sup-CAMIA", "In-domain", "1B", "Pre"].published == 0.56
    gain = cells_of(made["table_05_fsd"])["PPL", "In-domain", "All", "1B"]
    assert gain.published == 0.0 and gain.text.startswith(("+", "-")) and gain.value > 0
    assert cells_of(made["table_64"])["Zlib (unsup.)", "-", "1B", "DCLM"].published == 0.59
    assert cells_of(made["table_37"])["PPL", "DCLM", "1B"].published == 0.60
    assert cells_of(made["table_85"])["PPL", "OWM"].published == 0.29
    assert cells_of(made["table_07"])["PPL", "Domain of it"].published == "OWM"
    not_scored = cells_of(made["table_85"])["CDD", "OWM"], cells_of(made["table_07"])["CDD", "Largest"]
    assert all(cell.refused and cell.published == 0.12 for cell in not_scored)
    assert not any(labels[0] in ("SelfCrit", "Method-Avg") for labels in cells_of(made["table_85"]))
    assert cells_of(made["table_27"])["MinK", "min_k", "1B"].published == "0.2"
    assert cells_of(made["table_84"])["PPL", "Domain unknown", "Accuracy"].published == 0.56
    for table in made.values():
        for cell in cells_of(table).values():
            assert (cell.value is None) == (cell.refused is not None) and cell.text
    assert len(list(tmp_path.glob("table_*.csv"))) == len(made)


def test_means_over_attacks_are_compared_where_all_of_the_papers_attacks_are_there(tmp_path, four):
    """Table 6: a mean over fewer attacks, or over EMMIA by another rule, is another mean."""
    few = cells_of(cross_stage_tables(study_of(evaluate(four), n_resamples=None), against_paper=True)[0])
    assert few["All attacks", "Pre", "DCLM"].published is None
    assert few["Copies in training", "Pre", "DCLM"].published is not None  # no matter of attacks
    attacks = [a for a in IDS.values() if a != "self_critique"] + ["sup_camia", "mia_tuner"]
    protocol = {**MANIFEST["protocol"], "fields": {"em_mia_choice": "best_of_four"}}
    study = study_of(evaluate([papers_run(tmp_path, s, attacks, protocol=protocol) for s in SIZES]), n_resamples=None)
    other_rule = replace(study.sources[0].rows["em_mia"], title="EMMIA")
    other = replace(study.sources[0], rows={**study.sources[0].rows, "em_mia": other_rule})
    others = replace(study, sources=(other, *study.sources[1:]))
    for whole, compared in ((study, True), (others, False)):
        tables = cross_stage_tables(whole, against_paper=True)
        by_subset, contrast = map(cells_of, tables)
        assert (by_subset["All attacks", "Pre", "DCLM"].published == 0.56) is compared
        assert (contrast["All attacks", "Attacks"].published == 16) is compared
        assert contrast["All attacks", "Attacks"].value == 16
        assert not any(note.startswith("Left out") for note in tables[0].notes)
    short = evaluate([papers_run(tmp_path / "short", "1b", attacks[1:])])
    (one, _) = cross_stage_tables(study_of(short, n_resamples=None), against_paper=False)
    assert one.notes[0] == "Left out, without a value on every subset for every model: PPL."


def test_what_is_drawn_for_intervals_is_drawn_for_the_shift(four, tmp_path):
    """The two texts of a prompt move together unless they are asked to move apart; other domains do not care."""
    ways = [
        make_tables([four[0], four[-1]], tmp_path, only=["85"], n_resamples=40, resample=way)
        for way in ("prompts", "texts")
    ]
    dclm, dpo = ([cells_of(table)["PPL", domain].interval for (table,) in ways] for domain in ("DCLM", "DPO"))
    assert dclm[0] == dclm[1] and dpo[0] != dpo[1]


def test_of_another_benchmark_nothing_is_published(tmp_path, capsys):
    run = write_run(tmp_path / "run", random_scores(("ppl", "zlib")))
    made = make_tables([run], tmp_path / "out", n_resamples=60)
    assert [t.number for t in made] == [4, 28, 37, 50, 51, 84]
    assert "these runs are of" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--against paper: these runs are of"):
        make_tables([run], tmp_path / "out", against="paper", n_resamples=60)


def test_a_limited_run_is_not_held_against_the_paper(tmp_path):
    run = papers_run(tmp_path, "1b", ("ppl",), limit=8)
    (table,) = make_tables([run], tmp_path / "out", against="paper", only=["4"], n_resamples=0)
    assert all(cell.published is None for cell in cells_of(table).values())


def test_a_subset_of_the_benchmark_has_its_cells_and_refuses_the_rest(tmp_path):
    scores = {a: {"sc_java": lines["sc_java"]} for a, lines in random_scores(("ppl",), tree="olmo2").items()}
    model = {**MANIFEST["model"], "name": "OLMo2-1B-Instruct", "size": "1b"}
    run = write_run(tmp_path / "run", scores, benchmark={"path": "/b", "tree": "olmo2"}, model=model)
    made = {t.number: t for t in make_tables([run], tmp_path / "out", n_resamples=60)}
    cells = cells_of(made[46])
    assert cells["PPL", "Java", "1B"].interval is not None
    assert cells["PPL", "Python", "1B"].refused == "a subset of Python has no value of ppl"
    assert 4 not in made
    with pytest.raises(DataError, match=r"cannot be made:\n  Table 4: a subset of Pre has no value of ppl"):
        make_tables([run], tmp_path / "out", only=["4"], n_resamples=60)


@pytest.mark.parametrize(
    "changes, options, words",
    [
        ({}, {"only": ["14"]}, "--only 14: no such table; there are 2, 3, 4"),
        ({}, {"only": ["x"]}, "--only x: no such table"),
        ({}, {"against": "papers"}, "--against: unknown value 'papers'|--against"),
        ({}, {"resample": "pairs"}, "--resample"),
        ({}, {"n_resamples": 7}, "--bootstrap 7"),
        ({}, {"n_resamples": 10**9}, "--bootstrap 1000000000: at most 100000"),
        ({}, {"only": []}, "--only names no table"),
        ({"split": "dev"}, {}, "on the test split, not on dev"),
        ({"variant": "shifted"}, {}, "no run on matched members"),
    ],
)
def test_wrong_usage(tmp_path, changes, options, words):
    run = write_run(tmp_path / "run", random_scores(("ppl",)), **changes)
    with pytest.raises(UsageError, match=words):
        make_tables([run], tmp_path / "out", **{"n_resamples": 0} | options)


def test_a_file_is_no_folder_to_write_to(tmp_path):
    run = write_run(tmp_path / "run", random_scores(("ppl",)))
    with pytest.raises(UsageError, match="manifest.json: is not a folder"):
        make_tables([run], run / "manifest.json", n_resamples=0)


def test_runs_that_do_not_go_together(tmp_path):
    one = write_run(tmp_path / "one", random_scores(("ppl",)))
    same = write_run(tmp_path / "same", random_scores(("zlib",)))
    other = papers_run(tmp_path, "1b", ("ppl",))
    with pytest.raises(UsageError, match="both are runs of sample on matched members"):
        make_tables([one, same], tmp_path / "out", n_resamples=0)
    with pytest.raises(UsageError, match="need runs on one benchmark"):
        make_tables([one, other], tmp_path / "out", n_resamples=0)


# Other models


def test_other_models_without_the_records_they_may_have_seen(tmp_path):
    rng = np.random.default_rng(0)

    def dclm(name, size, hidden):
        lines = [score_line(f"m{i}", 1, float(rng.normal(1))) for i in range(134)]
        lines += [
            score_line(f"n{i}", 0, hidden if i in (10, 11, 18, 25, 66, 106, 112, 118) else -9.0) for i in range(134)
        ]
        scores = {a: {"dclm": lines} for a in ("ppl", "zlib", "min_k", "dc_pdd", "pac")}
        model = {**MANIFEST["model"], "name": name, "size": size}
        return write_run(tmp_path / name, scores, benchmark={"path": "/b", "tree": "olmo2"}, model=model)

    runs = [dclm("OLMo2-1B-Instruct", "1b", 99.0), dclm("SmolLM2-1.7B", None, 99.0), dclm("DCLM-1B", None, 99.0)]
    (table,) = make_tables(runs, tmp_path / "out", against="paper", only=["8"], n_resamples=0)
    cells = cells_of(table)
    smol = ("DCLM-Baseline", "OLMo 2-1B / SmolLM2-1.7B")
    assert cells[*smol, "PPL", "OLMo 2"].value == cells[*smol, "Avg", "Other"].value == 1.0
    assert cells[*smol, "Zlib", "Other"].published == 0.62
    dcb = cells["DCLM-Baseline", "OLMo 2-1B / DCB-1B", "PPL", "Other"]
    assert dcb.value == pytest.approx(126 / 134)  # all records count there
    short = tmp_path / "SmolLM2-1.7B" / "scores"
    for file in short.rglob("*.jsonl"):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:200]))
    manifest = json.loads((tmp_path / "SmolLM2-1.7B" / "manifest.json").read_text())
    manifest["record_counts"] = {"dclm": 200}
    (tmp_path / "SmolLM2-1.7B" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="record 118 of the non-members is to be left out, but there are 66"):
        make_tables(runs[:2], tmp_path / "out", only=["8"], n_resamples=0)


# Files


TABLE = PaperTable(
    4,
    "Of <b>x</b> & y_z",
    ("Attack",),
    (("1B", "Pre"), ("1B", "All")),
    (
        TableRow(
            ("a|b*",),
            (number_cell(0.615, "", published=0.62, interval=Interval(0.5, 0.7)), number_cell(None, "no_run")),
        ),
        TableRow(("c",), (number_cell(0.9, "", published=0.62, interval=Interval(0.8, 0.95)), TableCell("low", "low"))),
    ),
    ("100%",),
)  # fmt: skip


def test_files_hold_every_cell_and_escape_what_is_text():
    rows = list(csv.DictReader(io.StringIO(as_csv(TABLE))))
    assert len(rows) == 4
    assert rows[0] == {
        "attack": "a|b*", "group": "1B", "column": "Pre", "value": "0.615", "mark": "", "low": "0.5", "high": "0.7",
        "published": "0.62", "difference": str(0.615 - 0.62), "inside": "yes", "refused": "",
    }  # fmt: skip
    assert rows[1]["refused"] == "no_run" and rows[2]["inside"] == "no"
    assert json.loads(json.dumps(as_json(TABLE)))["rows"][1]["cells"][1]["text"] == "low"
    markdown = as_markdown(TABLE)
    assert r"a\|b\*" in markdown and r"\<b\>" in markdown and r"\[1\] no\_run" in markdown
    latex = as_latex(TABLE)
    assert r"\textless{}b\textgreater{}" in latex and r"\& y\_z" in latex and r"100\%" in latex
    assert r"\multicolumn{2}{c}{1B}" in latex and latex.count(r"\\") == 4


def test_a_cell_says_what_was_published():
    cells = [shown(TABLE, cell) for row in TABLE.rows for cell in row.cells]
    assert cells == ["0.61 (0.62 -0.01 ✓)", "refused [1]", "0.90 (0.62 +0.28 ✗)", "low"]
    assert shown(TABLE, number_cell(0.5, "", published=0.5)) == "0.50 (0.50 0.00)"


def test_an_interval_is_widened_by_what_rounding_hides():
    assert number_cell(0.65, "", published=0.70, interval=Interval(0.6, 0.696)).inside
    assert not number_cell(0.65, "", published=0.71, interval=Interval(0.6, 0.696)).inside
    assert number_cell(0.65, "", published=0.7).inside is None


def test_a_wide_table_is_printed_in_parts():
    from rich.console import Console

    from olmodetect_jax.tables.write import print_table

    console = Console(file=io.StringIO(), width=60)
    columns = tuple((f"model {i}", "All") for i in range(12))
    row = TableRow(("PPL",), tuple(number_cell(i / 100, "") for i in range(12)))
    print_table(PaperTable(4, "x", ("Attack",), columns, (row,)), console)
    text = console.file.getvalue()
    assert text.count("PPL") > 1 and all(f"0.{i:02}" in text and f"model {i}" in text for i in range(12))
