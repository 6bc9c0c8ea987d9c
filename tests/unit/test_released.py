"""The released layout: a miniature tree is read as its expectation says, imported, and written back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from olmodetect_jax.benchmark import SIZES, load_tree
from olmodetect_jax.commands.released import export_released, import_released
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation import metrics as m
from olmodetect_jax.evaluation.metrics import ClassScores
from olmodetect_jax.evaluation.results import evaluate_run
from olmodetect_jax.evaluation.runs import read_run
from olmodetect_jax.released.emmia import read_emmia
from olmodetect_jax.released.files import compact, join, read_lines, read_scores, unscored
from olmodetect_jax.released.layout import INITS, side_of, sides
from olmodetect_jax.released.tree import read_released
from tests.golden_cases import golden
from tests.run_folders import MANIFEST, random_scores, write_run

ROOT = Path(__file__).parents[1] / "golden" / "released_layout"
EXPECTED = json.loads((ROOT / "expected.json").read_text())
MODEL, TREE = EXPECTED["model"], load_tree("olmo2")
MAIN, JAVA, PAIR = EXPECTED["main"], EXPECTED["quirks_starcoder_java"], EXPECTED["quirks_dpo_pair"]
SCORE_FILES = sorted(
    p for p in ROOT.rglob("*.json")
    if MODEL in p.parts and not p.name.startswith("run_manifest")
)  # fmt: skip


def rows():
    """(member folder, non-member folder, root below the tree, expected row)."""
    main = MAIN["member_dir"], MAIN["nonmember_dir"]
    java = JAVA["member_dir"], JAVA["nonmember_dir"]
    pair = "member_posttraining_dpo_1b_pair_matched", "non-member_posttraining_dpo_1b_pair"
    for folders, listed in ((main, MAIN["in_results"]), (java, JAVA["in_results"]), (pair, PAIR["in_results"])):
        for row in listed:
            yield pytest.param(*folders, "results", row, id=f"{folders[0]} {row['row']}")
    for row in MAIN["in_results_lodo"]:
        yield pytest.param(*main, "results_lodo", row, id=f"lodo {row['row']}")
    yield pytest.param(*java, "results_lodo", JAVA["lodo_older_test_files"]["as_stored"], id="lodo, older files")


def scores_of(root, folder, row):
    base = ROOT / root if root == "results" else ROOT / root / Path(row["file"]).stem
    samples = read_scores(base / folder / MODEL / row["file"]).samples
    return samples, [value for s in samples if (value := s.score(row["column"])) is not None]


@pytest.mark.parametrize(("member", "other", "root", "row"), list(rows()))
def test_every_row(member, other, root, row):
    sides = [scores_of(root, folder, row) for folder in (member, other)]
    assert [len(samples) for samples, _ in sides] == row["n_samples_in_files"]
    assert [len(values) for _, values in sides] == [row["n_member"], row["n_nonmember"]]
    scores = ClassScores(*(values for _, values in sides))
    assert m.auc(scores) == pytest.approx(row["auc"], abs=1e-12)
    assert m.tpr_at_fpr(m.roc_curve(scores)) == pytest.approx(row["tpr_at_5fpr"], abs=1e-12)


def test_every_key_and_id():
    by_file = {}
    for record in EXPECTED["benchmark_keys"]:
        by_file.setdefault(record["file"], []).append(record)
    assert sum(map(len, by_file.values())) == 15
    for file, records in by_file.items():
        lines = read_lines(ROOT / file)
        assert [(line.record_id, line.key) for line in lines] == [(r["sample_id"], r["key"]) for r in records]


@pytest.mark.parametrize("expected", EXPECTED["joins"], ids=lambda e: e["file"])
def test_every_join(expected):
    samples, lines = read_scores(ROOT / expected["file"]).samples, read_lines(ROOT / expected["benchmark"])
    joined = join(samples, lines)
    assert [{"by": j.by, "line": j.line} for j in joined] == expected["samples"]
    assert unscored(joined, len(lines)) == expected["lines_without_score"]


def test_joins_are_of_every_file():
    assert {ROOT / e["file"] for e in EXPECTED["joins"]} == set(SCORE_FILES)


@pytest.mark.parametrize("marker", MAIN["fill_markers"], ids=lambda e: e["file"])
def test_fill_markers(marker):
    for folder, lines in (("member_dir", "member_lines"), ("nonmember_dir", "nonmember_lines")):
        samples = read_scores(ROOT / "results" / MAIN[folder] / MODEL / marker["file"]).samples
        bench = read_lines(ROOT / MAIN["benchmark_member" if folder == "member_dir" else "benchmark_nonmember"])
        joined = join(samples, bench)
        assert [j.line for s, j in zip(samples, joined, strict=True) if s.fill] == marker[lines]
        assert {s.fill for s in samples if s.fill} <= {marker["marker"]}


def test_emmia():
    expected = MAIN["emmia"]
    file = read_emmia(ROOT / expected["file"])
    assert (len(file.member), len(file.non_member)) == (expected["n_member"], expected["n_nonmember"])
    tprs = []
    for i, init in enumerate(INITS):
        scores = ClassScores([s[i] for s in file.member], [s[i] for s in file.non_member])
        tprs.append(m.tpr_at_fpr(m.roc_curve(scores)))
        assert m.auc(scores) == pytest.approx(expected["per_init"][init]["auc"], abs=1e-12)
        assert tprs[-1] == pytest.approx(expected["per_init"][init]["tpr_at_5fpr"], abs=1e-12)
    assert max(tprs) == expected["max_tpr_on_test"]


def test_float64_is_kept():
    samples = [
        s
        for folder in (MAIN["member_dir"], MAIN["nonmember_dir"])
        for s in read_scores(ROOT / "results" / folder / MODEL / "camia_faithful.json").samples
    ]
    values = [s.score("camia_faithful_score") for s in samples]
    assert -4.3e-258 in values and -2.6e-180 in values and len(set(values)) > 2


@pytest.mark.parametrize("path", SCORE_FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_what_is_read_is_written_back_byte_for_byte(path):
    assert compact(read_scores(path).value) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("case", "expected"), golden("evaluation_aggregate", "folders"))
def test_folders_that_a_size_reads(case, expected):
    for size in case["sizes"]:
        found = {}
        for (folder, own), side in sides(TREE).items():
            if own in (None, size) and side.variant in (None, case["variant"]):
                name = "member" if side.label else "nonmember"
                leaf = "dpo:self_critique" if side.side == "pair" else side.subset
                found.setdefault(leaf, {"member": [], "nonmember": []})[name].append(folder)
        assert found == expected["folders"][size]


def test_a_folder_of_another_size_is_no_side():
    assert side_of(TREE, "member_posttraining_dpo_7b_chosen_matched", "7b").side == "posttraining_dpo_7b_chosen"
    assert side_of(TREE, "member_posttraining_dpo_7b_chosen_matched", "1b") is None
    assert side_of(TREE, "member_midtraining_gsm8k", None).subset == "gsm8k"
    assert side_of(TREE, "member_midtraining_gsm8k_qonly", "1b") is None


# Import


@pytest.fixture
def imported(tmp_path):
    (run,) = import_released(ROOT, tmp_path / "runs", benchmark=ROOT / "benchmark")
    return evaluate_run(read_run(run))


TITLES = {
    "PPL": "ppl", "Zlib": "zlib", "Lower": "lower", "MinK": "min_k", "MinK++": "min_k_plus_plus", "DCPDD": "dc_pdd",
    "ReCaLL": "recall", "CAMIA": "camia", "PAC": "pac", "Neigh.": "neighborhood", "DCQ": "dcq", "CDD": "cdd",
    "Guided": "guided", "SelfCrit": "self_critique", "Sup-CAMIA in-domain": "sup_camia",
    "MIA-Tuner in-domain": "mia_tuner", "MIA-Tuner LODO": "mia_tuner_lodo", "FSD in-domain loss": "fsd_ppl",
    "FSD in-domain zlib": "fsd_zlib", "FSD in-domain lowercase": "fsd_lower", "FSD in-domain mink": "fsd_min_k",
    "FSD in-domain minkpp": "fsd_min_k_plus_plus", "FSD LODO loss": "fsd_ppl_lodo", "FSD LODO zlib": "fsd_zlib_lodo",
    "FSD LODO lowercase": "fsd_lower_lodo", "FSD LODO mink": "fsd_min_k_lodo",
    "FSD LODO minkpp": "fsd_min_k_plus_plus_lodo",
}  # fmt: skip


def test_an_imported_run_has_the_expected_values(imported):
    leaves = (
        ("rlvr_cot-math", MAIN["in_results"] + MAIN["in_results_lodo"]),
        ("sc_java", [*JAVA["in_results"], JAVA["lodo_older_test_files"]["as_stored"]]),
        ("dpo", PAIR["in_results"]),
    )
    seen = set()
    for subset, listed in leaves:
        for row in listed:
            if row["row"] in TITLES:
                found = imported.subsets[TITLES[row["row"]]][subset]
                seen.add(TITLES[row["row"]])
                assert (found.n_member, found.n_non_member) == (row["n_member"], row["n_nonmember"]), row
                assert found.auc == pytest.approx(row["auc"], abs=1e-12), row
                assert found.tpr_at_5fpr == pytest.approx(row["tpr_at_5fpr"], abs=1e-12), row
    assert seen | {"em_mia"} == set(imported.run.attacks)
    em_mia = imported.subsets["em_mia"]["rlvr_cot-math"]
    assert em_mia.auc == MAIN["emmia"]["max_auc_on_test"]["auc"]
    assert next(row.title for row in imported.rows if row.id == "em_mia") == "EMMIA optimistic"
    gains = {g.id: g.before.subset["rlvr_cot-math"] for g in imported.supervised.gains}
    bases = {r["row"]: r["auc"] for r in MAIN["in_results"] + MAIN["in_results_lodo"] if " base " in r["row"]}
    assert gains["fsd_ppl"] == pytest.approx(bases["FSD in-domain base loss"])
    assert gains["fsd_ppl_lodo"] == pytest.approx(bases["FSD LODO base loss"])


def test_the_current_reading_has_one_score_a_text(tmp_path, capsys):
    expected = JAVA["lodo_older_test_files"]["joined_to_current_benchmark_one_score_per_text"]
    (run,) = import_released(ROOT, tmp_path / "runs", benchmark=ROOT / "benchmark", reading="current")
    found = evaluate_run(read_run(run)).subsets["mia_tuner_lodo"]["sc_java"]
    assert (found.n_member, found.n_non_member) == (expected["n_member"], expected["n_nonmember"])
    assert found.auc == pytest.approx(expected["auc"]) and found.tpr_at_5fpr == pytest.approx(expected["tpr_at_5fpr"])
    said = capsys.readouterr().err
    assert "of 3 samples 1 are of no record of the benchmark, 1 repeat one; 1 of its 2 records have none" in said


def test_records_are_known_by_the_benchmark_where_it_is_there(tmp_path, imported):
    java = imported.run.scores
    assert {s.record_id for s in java["ppl"]["sc_java"]} == {s.record_id for s in java["recall"]["sc_java"]}
    (run,) = import_released(ROOT, tmp_path / "bare")
    bare = read_run(run)
    assert {s.text_sha1 for s in bare.scores["dcq"]["rlvr_cot-math"]} == {""}
    assert evaluate_run(bare).subsets["dcq"]["rlvr_cot-math"].auc == imported.subsets["dcq"]["rlvr_cot-math"].auc


def test_emmia_by_the_development_choice(tmp_path):
    tree, _ = copy(tmp_path)
    with pytest.raises(UsageError, match="emmia_dev_select.json, which says what was chosen"):
        import_released(tree, tmp_path / "runs", em_mia="dev")
    file = tree / "analysis" / "logs" / "emmia_dev_select.json"
    file.parent.mkdir(parents=True)
    picks = {"1b": {"matched_dev_pick": "minkpp"}, "7b": {"matched_dev_pick": "loss"}}
    file.write_text(json.dumps({"selection": picks}))
    (run,) = import_released(tree, tmp_path / "runs", em_mia="dev")
    result = evaluate_run(read_run(run))
    expected = MAIN["emmia"]["per_init"]["minkpp"]
    assert result.subsets["em_mia"]["rlvr_cot-math"].auc == pytest.approx(expected["auc"])
    assert next(row.title for row in result.rows if row.id == "em_mia") == "EMMIA"
    assert not any(s.choices for s in result.run.scores["em_mia"]["rlvr_cot-math"])
    file.write_text(json.dumps({"selection": {"7b": {"matched_dev_pick": "loss"}}}))
    with pytest.raises(DataError, match="nothing was chosen on development texts for OLMo2-1B-Instruct"):
        import_released(tree, tmp_path / "others", em_mia="dev")
    file.write_text(json.dumps({"selection": {"1b": {"matched_dev_pick": "best"}}}))
    with pytest.raises(DataError, match="selection.1b.matched_dev_pick: expected one of loss"):
        import_released(tree, tmp_path / "others", em_mia="dev")


def copy(tmp_path):
    shutil.copytree(ROOT, tmp_path / "tree")
    return tmp_path / "tree", tmp_path / "tree" / "results" / MAIN["member_dir"] / MODEL


def test_mark_pretty_print_nan_and_unknown_keys_are_read(tmp_path):
    tree, folder = copy(tmp_path)
    file = folder / "pac.json"
    value = json.loads(file.read_text())
    value["result"]["samples"][0] |= {"new": [1], "pac_score": float("nan")}
    file.write_text("\ufeff" + json.dumps(value, indent=2), encoding="utf-8")
    (run,) = import_released(tree, tmp_path / "runs", benchmark=tree / "benchmark")
    found = evaluate_run(read_run(run)).subsets["pac"]["rlvr_cot-math"]
    assert found.n_member == 1 and "the released score is nan" in found.missing[0].reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "pac.json: not a JSON file"),
        ("[]", "pac.json: expected a JSON object, got list"),
        ('{"result": {}}', "pac.json: expected result.samples, a list"),
        ('{"result": {"samples": [3]}}', r"pac.json: result.samples\[0\]: expected an object, got int"),
        ("[" * 9999, "pac.json: not a JSON file"),
    ],
)
def test_a_file_that_is_no_such_one(tmp_path, text, message):
    tree, folder = copy(tmp_path)
    (folder / "pac.json").write_text(text)
    with pytest.raises(DataError, match=message):
        import_released(tree, tmp_path / "runs")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("n_con"), "expected samples"),
        (lambda v: v["samples"][0].update(label=2), r"samples\[0\]: expected label 1 or 0"),
        (lambda v: v["samples"][0].update(index=4), r"samples\[0\].index: 4 is no place of its own among 2\+3"),
        (lambda v: v["samples"][0]["final_scores"].pop("mink"), r"samples\[0\].final_scores: expected a finite number"),
        (lambda v: v["samples"].pop(), "2 samples with label 0, 3 are announced"),
    ],
)
def test_an_emmia_file_that_is_no_such_one(tmp_path, change, message):
    tree, _ = copy(tmp_path)
    file = tree / MAIN["emmia"]["file"]
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))
    with pytest.raises(DataError, match=message):
        import_released(tree, tmp_path / "runs")


def test_unknown_folders_are_said_and_left_out(tmp_path, capsys):
    tree, folder = copy(tmp_path)
    shutil.copytree(folder.parent, tree / "results" / "member_midtraining_gsm8k_qonly")
    import_released(tree, tmp_path / "runs")
    assert "member_midtraining_gsm8k_qonly is no side of a subset of this model; left out" in capsys.readouterr().err


def test_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="holds no folder `results`"):
        import_released(tmp_path, tmp_path / "runs")
    with pytest.raises(UsageError, match="--reading"):
        import_released(ROOT, tmp_path / "runs", reading="newest")
    with pytest.raises(UsageError, match="give the benchmark"):
        import_released(ROOT, tmp_path / "runs", reading="current")
    import_released(ROOT, tmp_path / "runs")
    with pytest.raises(DataError, match="is there already"):
        import_released(ROOT, tmp_path / "runs")
    with pytest.raises(DataError, match="no such file, so the scores of"):
        (tmp_path / "empty").mkdir()
        import_released(ROOT, tmp_path / "others", benchmark=tmp_path / "empty", reading="current")


# Export


@pytest.mark.parametrize("shape", ["A", "B"])
def test_an_exported_run_is_read_back_the_same(tmp_path, shape):
    attacks = ("ppl", "zlib", "lower", "min_k", "camia", "dcq", "self_critique", "mia_tuner_lodo", "fsd_ppl", "em_mia")
    scores = random_scores(attacks, tree="olmo2", n=5)
    for attack, subsets in scores.items():
        for name, lines in list(subsets.items()):
            domain = next(s.domain for s in TREE.subsets if s.id == name)
            if attack == "self_critique" and domain not in ("dpo", "rlvr"):
                del subsets[name]
                continue
            for i, line in enumerate(lines):
                line["base_score"] = line["score"] / 2 if attack == "fsd_ppl" else None
                if attack == "em_mia":
                    line |= {f"from_{base}": line["score"] * (k + 1) for k, base in enumerate(INITS)}
                if name == "dpo":
                    line["side"] = f"posttraining_dpo_7b_{('chosen', 'rejected')[i % 2]}"
                    if attack == "self_critique" and i % 2:
                        line |= {"score": None, "missing": "left out: …"}
    scores["ppl"]["gsm8k"][0] |= {"score": None, "missing": "no text"}
    model = {**MANIFEST["model"], "name": "OLMo2-7B-Instruct", "size": "7b"}
    ours = write_run(tmp_path / "run", scores, benchmark={"path": "/b", "tree": "olmo2"}, model=model)
    files = export_released(ours, tmp_path / "tree", shape=shape)
    (back,) = import_released(tmp_path / "tree", tmp_path / "runs")
    before, after = (evaluate_run(read_run(path)) for path in (ours, back))
    for attack in attacks:
        for subset, found in before.subsets[attack].items():
            if attack == "em_mia":
                continue  # the best of four
            again = after.subsets[attack][subset]
            assert (again.n_member, again.n_non_member, again.auc) == (found.n_member, found.n_non_member, found.auc)
    assert after.supervised.gains[0].before.all == pytest.approx(before.supervised.gains[0].before.all)
    assert after.subsets["em_mia"]["dpo"].n_member == 5
    folder = tmp_path / "tree" / "results" / "member_midtraining_gsm8k" / "OLMo2-7B-Instruct"
    value = json.loads((folder / "loss_zlib_lowercase.json").read_text())
    if shape == "B":
        result = value["result"]
        assert value["dataset_path"] == "benchmark/midtraining/gsm8k/member/test/member_midtraining_gsm8k_test.jsonl"
        assert result["num_total_records"] == result["num_scored_records"] == 5
        assert result["olmodetect_jax"]["protocol"] == "audited"
        assert "loss_score" not in result["samples"][0] and "zlib_score" in result["samples"][0]
    assert not any("text" in sample for sample in value["result"]["samples"])
    with pytest.raises(DataError, match="is there already"):
        export_released(ours, tmp_path / "tree", shape=shape)
    assert all(tmp_path / "tree" in path.parents for path in files)


def test_what_has_no_place_is_said(tmp_path, capsys):
    scores = random_scores(("ppl", "em_mia"), tree="olmo2")
    run = write_run(tmp_path / "run", scores, benchmark={"path": "/b", "tree": "olmo2"})
    export_released(run, tmp_path / "tree")
    said = capsys.readouterr().err
    assert "em_mia: the layout has no file for it" in said and "the run's model has no size" in said
    with pytest.raises(UsageError, match="--shape"):
        export_released(run, tmp_path / "other", shape="C")


def test_every_size_has_its_sides():
    for size in SIZES:
        known = {side.subset for (_, own), side in sides(TREE).items() if own in (None, size)}
        assert known == {s.id for s in TREE.subsets}


def test_models_are_apart(tmp_path):
    tree, folder = copy(tmp_path)
    for side in (MAIN["member_dir"], MAIN["nonmember_dir"]):
        shutil.copytree(tree / "results" / side / MODEL, tree / "results" / side / "Llama-3.1-Tulu-3-8B")
    found = read_released(tree, TREE)
    assert set(found) == {MODEL, "Llama-3.1-Tulu-3-8B"} and found["Llama-3.1-Tulu-3-8B"].size is None
    assert len(import_released(tree, tmp_path / "runs")) == 2


def test_names_that_lead_out_of_their_folder_are_refused(tmp_path):
    tree, _ = copy(tmp_path)
    file = tree / MAIN["emmia"]["file"]
    value = json.loads(file.read_text())
    for name in ("../..", "x/..", "a\x00b", ".hidden", "a b"):
        file.write_text(json.dumps(value | {"model_path": name}))
        with pytest.raises(DataError, match="expected letters, digits"):
            import_released(tree, tmp_path / "runs")
    run = write_run(tmp_path / "run", random_scores(("ppl",)), model={"name": "../../out"})
    with pytest.raises(DataError, match="expected letters, digits"):
        export_released(run, tmp_path / "tree2")


def test_what_is_no_unicode_is_refused_before_anything_is_written(tmp_path):
    tree, folder = copy(tmp_path)
    (folder / "pac.json").write_text((folder / "pac.json").read_text().replace("sample_0", "\\ud800"))
    with pytest.raises(DataError, match=r"pac\.json: a string holds a lone surrogate"):
        import_released(tree, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_file_is_no_folder_to_write_to(tmp_path):
    (tmp_path / "file").touch()
    run = write_run(tmp_path / "run", random_scores(("ppl",)))
    for call in (lambda: import_released(ROOT, tmp_path / "file"), lambda: export_released(run, tmp_path / "file")):
        with pytest.raises(UsageError, match="is not a folder"):
            call()
