"""From run folders to tables: values, files, the terminal, and every way a folder can be wrong."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.commands.evaluate import evaluate_runs
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation import RunMetrics, evaluate, print_tables, write_tables
from olmodetect_jax.evaluation.formatting import printable
from olmodetect_jax.evaluation.results import mean_over_runs
from olmodetect_jax.evaluation.runs import read_run
from olmodetect_jax.evaluation.tables import notes, summary_columns
from tests.run_folders import MANIFEST, OWN_TEXTS, random_scores, score_line, write_run

SIX = ("ppl", "zlib", "lower", "min_k", "min_k_plus_plus", "dc_pdd")
LABELLED = [score_line("a", 1, 0.9), score_line("b", 1, 0.2), score_line("a", 0, 0.4), score_line("b", 0, 0.1)]


def one(path: Path) -> RunMetrics:
    return evaluate([path])[0]


def own_texts(path: Path, lines: list[dict[str, Any]], **changes: Any) -> Path:
    return write_run(path, {"ppl": {"texts": lines}}, **OWN_TEXTS, **changes)


def printed(results: list[RunMetrics], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_tables(results, None, console)
    return console.file.getvalue()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", random_scores(SIX))


def test_values_go_up_the_tree(run: Path) -> None:
    result = one(run)
    ppl = result.rows[0]
    aucs = {name: value.auc for name, value in result.subsets["ppl"].items()}
    assert ppl.auc.subset == aucs
    pre = (aucs["speeches"] + aucs["novel"] + aucs["code"]) / 3
    assert ppl.auc.stage["pretraining"] == pytest.approx(pre, abs=1e-15)
    assert ppl.auc.all == pytest.approx((pre + aucs["gsm8k"] + aucs["mbpp"]) / 3, abs=1e-15)
    assert [row.id for row in result.rows] == [*SIX, "method_avg"]
    of_six = [row.tpr.all for row in result.rows[:-1]]
    assert result.rows[-1].tpr.all == pytest.approx(sum(of_six) / 6, abs=1e-15)


def test_supervised_attacks_are_no_part_of_method_avg(tmp_path: Path) -> None:
    rows = one(write_run(tmp_path, random_scores(("ppl", "zlib", "mia_tuner", "bag_of_words")))).rows
    assert rows[-1].auc.all == pytest.approx((rows[0].auc.all + rows[1].auc.all) / 2, abs=1e-15)
    assert [row.id for row in one(write_run(tmp_path, random_scores(("ppl", "fsd_ppl")))).rows] == ["ppl", "fsd_ppl"]


def test_an_attack_chosen_on_test_labels_is_no_part_of_method_avg(tmp_path: Path) -> None:
    rows = one(write_run(tmp_path, random_scores(("ppl", "em_mia", "em_mia_best_of_four")))).rows
    assert [row.id for row in rows] == ["ppl", "em_mia", "em_mia_best_of_four", "method_avg"]
    assert rows[-1].auc.all == pytest.approx((rows[0].auc.all + rows[1].auc.all) / 2, abs=1e-15)


def test_titles_say_to_how_many_records_em_mia_was_limited(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "em_mia", "em_mia_best_of_four"))
    result = one(write_run(tmp_path / "a", scores, em_mia_limit=20))
    assert [row.title for row in result.rows[:3]] == [
        "PPL", f"{TITLES['em_mia']} (20 a class)", f"{TITLES['em_mia_best_of_four']} (20 a class)",
    ]  # fmt: skip
    assert "EMMIA (20 a class)" in printed([result], 120)
    write_tables(result, tmp_path / "a")
    assert "em_mia,EMMIA (20 a class)," in (tmp_path / "a" / "tables" / "auc.csv").read_text()
    mine = write_run(tmp_path / "c", {"em_mia": {"texts": LABELLED}}, **OWN_TEXTS, em_mia_limit=7)
    assert printed([one(mine)], 120).count("EMMIA (7 a class)") == 2  # in the table of AUCs and that of the texts
    for limit in (None, True, "20"):
        plain = one(write_run(tmp_path / "b", scores, em_mia_limit=limit))
        assert [row.title for row in plain.rows[1:3]] == [TITLES["em_mia"], TITLES["em_mia_best_of_four"]]


GENERATIVE = ("neighborhood", "guided", "dcq", "cdd", "self_critique")


def titles(path: Path, **changes: Any) -> list[str]:
    scores = random_scores(GENERATIVE)
    scores["self_critique"] = {"mbpp": scores["self_critique"]["mbpp"]}
    return [row.title for row in one(write_run(path, scores, **changes)).rows[:5]]


def test_titles_say_what_the_generative_attacks_were_limited_to(tmp_path: Path) -> None:
    fields = {"guided_new_tokens": 256, "self_critique_new_tokens": 1024}
    whole: dict[str, Any] = {"preset": "audited", "fields": fields, "changed": {}}
    short = {**whole, "changed": {"guided_new_tokens": 64, "self_critique_new_tokens": 32, "cdd_top_k": 0}}
    cdd = {"cdd_length": 50}
    plain = [TITLES[name] for name in GENERATIVE]
    for number, (changes, expected) in enumerate(
        [
            ({}, plain),
            ({"protocol": whole, "generation": {"limit": None}, "hyperparameters": cdd}, plain),
            (
                {"protocol": short, "generation": {"limit": 10}, "hyperparameters": cdd},
                [
                    "Neigh. (10 a class)",
                    "Guided (10 a class, 64 tokens)",
                    "DCQ (10 a class)",
                    "CDD (10 a class, 50 tokens)",
                    "SelfCrit (10 a class, 32 tokens)",
                ],
            ),
            (
                {"protocol": short, "generation": {}},
                ["Neigh.", "Guided (64 tokens)", "DCQ", "CDD", "SelfCrit (32 tokens)"],
            ),
            ({"generation": {"limit": True}, "hyperparameters": {"cdd_length": "50"}}, plain),
            ({"generation": [], "hyperparameters": None, "protocol": whole}, plain),
        ]
    ):
        assert titles(tmp_path / str(number), **changes) == expected


def test_self_critique_is_one_subset_of_the_sample(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "self_critique"))
    scores["self_critique"] = {"mbpp": scores["self_critique"]["mbpp"]}
    ppl, critique, average = one(write_run(tmp_path, scores)).rows
    assert critique.auc.all == critique.auc.stage["posttraining"] == critique.auc.subset["mbpp"] is not None
    assert critique.auc.stage["pretraining"] is critique.auc.stage["midtraining"] is None
    assert average.auc.stage["midtraining"] == ppl.auc.stage["midtraining"]
    assert average.auc.all == pytest.approx((ppl.auc.all + critique.auc.all) / 2)


def test_no_mean_over_runs_that_were_limited_differently(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "zlib", "em_mia"))
    runs = [write_run(tmp_path / str(limit), scores, em_mia_limit=limit) for limit in (20, 30)]
    assert [row.id for row in mean_over_runs(evaluate(runs))] == ["ppl", "zlib", "method_avg"]
    alike = [write_run(tmp_path / f"{name}", scores, em_mia_limit=20) for name in "ab"]
    assert [row.title for row in mean_over_runs(evaluate(alike))] == ["PPL", "Zlib", "EMMIA (20 a class)", "Method-Avg"]


def test_files(run: Path) -> None:
    result = one(run)
    write_tables(result, run)
    first = (run / "metrics.json").read_bytes()
    write_tables(one(run), run)
    assert (run / "metrics.json").read_bytes() == first

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    values = json.loads(first, parse_constant=refuse)
    assert values["auc"]["ppl"]["all"] == result.rows[0].auc.all
    assert values["subsets"]["zlib"]["gsm8k"]["tpr_at_5fpr"] == result.subsets["zlib"]["gsm8k"].tpr_at_5fpr
    assert values["protocol"]["changed"] == {"max_tokens": 2048}
    for name, metric in (("auc", "auc"), ("tpr_at_5fpr", "tpr")):
        lines = list(csv.DictReader((run / "tables" / f"{name}.csv").read_text().splitlines()))
        assert [line["attack"] for line in lines] == [*SIX, "method_avg"]
        for line, row in zip(lines, result.rows, strict=True):
            aggregate = getattr(row, metric)
            assert float(line["all"]) == aggregate.all
            assert float(line["stage:midtraining"]) == aggregate.stage["midtraining"]
            assert float(line["domain:code"]) == aggregate.domain["code"]
            assert float(line["subset:mbpp"]) == aggregate.subset["mbpp"]


def test_terminal_shows_stages_and_all(run: Path) -> None:
    result = one(run)
    text = printed([result])
    assert "protocol: audited, max_tokens=2048" in text
    for title in ("Pre-training", "Mid-training", "Post-training", "All", "MinK++", "Method-Avg"):
        assert title in text
    line = next(line for line in text.splitlines() if "DCPDD" in line)
    row = result.rows[5]
    pairs = [(row.auc.stage[s], row.tpr.stage[s]) for s in ("pretraining", "midtraining", "posttraining")]
    expected = [f"{auc:.2f}  {tpr:.2f}" for auc, tpr in [*pairs, (row.auc.all, row.tpr.all)]]
    assert [cell.strip() for cell in line.split("│")[2:-1]] == expected


def test_a_run_of_some_subsets_shows_what_it_has(tmp_path: Path) -> None:
    scores = {attack: {"gsm8k": random_scores([attack])[attack]["gsm8k"]} for attack in SIX}
    result = one(write_run(tmp_path, scores))
    assert result.rows[0].auc.stage["midtraining"] is not None
    assert result.rows[0].auc.stage["pretraining"] is result.rows[0].auc.all is None
    assert [(c.level, c.id) for c in summary_columns(result)] == [("subset", "gsm8k"), ("stage", "midtraining")]
    write_tables(result, tmp_path)
    line = next(csv.DictReader((tmp_path / "tables" / "auc.csv").read_text().splitlines()))
    assert line["all"] == line["subset:code"] == ""
    assert json.loads((tmp_path / "metrics.json").read_text())["auc"]["ppl"]["all"] is None


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('null, "missing": "the text is empty"', "the text is empty"),
        ("null", "no score, no reason given"),
        ("NaN", "not a finite number: NaN"),
        ("-Infinity", "not a finite number: -Infinity"),
        ("1e999", "not a finite number: Infinity"),
        ("true", "not a finite number: true"),
        ('"0.7"', 'not a finite number: "0.7"'),
    ],
)
def test_a_score_that_is_none_is_left_out_counted_and_named(tmp_path: Path, bad: str, reason: str) -> None:
    run = own_texts(tmp_path, [*LABELLED, score_line("gone", 1, "BAD")])
    file = run / "scores" / "ppl" / "texts.jsonl"
    file.write_text(file.read_text().replace('"BAD"', bad))
    result = one(run)
    found = result.subsets["ppl"]["texts"]
    assert (found.n_records, found.n_member, found.n_non_member, found.auc) == (5, 2, 2, 0.75)
    assert [(gone.record_id, gone.label, gone.reason) for gone in found.missing] == [("gone", 1, reason)]
    assert not found.complete
    assert "ppl: 1 of 5 records have no score and are left out: texts/gone" in notes(result)
    write_tables(result, run)
    assert json.loads((run / "metrics.json").read_text())["subsets"]["ppl"]["texts"]["missing"][0]["reason"] == reason


def test_records_left_out_by_choice_are_one_note_a_reason(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "em_mia"), n=30)
    limit = "left out: --em-mia-limit takes the first 20 records of each class"
    for lines in scores["em_mia"].values():
        for line in (*lines[20:30], *lines[50:]):
            line.update(score=None, missing=limit)
    scores["em_mia"]["code"][0].update(score=None, missing="left out: \x1b[2J[red]too odd[/red]")
    scores["em_mia"]["code"][1].update(score=None, missing="the record has no text: left out: not by choice")
    run = write_run(tmp_path, scores)
    result = one(run)
    assert notes(result) == [
        f"em_mia: 100 of 300 records {limit}",
        r"em_mia: 1 of 300 records left out: \x1b[2J[red]too odd[/red]",
        "em_mia: 1 of 300 records have no score and are left out: code/code-1",
    ]
    assert "--em-mia-limit takes the first 20" in printed([result], 200)
    write_tables(result, run)  # the file lists them all, with the reason
    assert len(json.loads((run / "metrics.json").read_text())["subsets"]["em_mia"]["code"]["missing"]) == 22


def test_notes_of_scores_are_shown_once(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "recall"), n=20)
    few = "3 of 5 shots: the development split has no more non-members"
    for subset in ("code", "novel"):
        for line in scores["recall"][subset]:
            line["note"] = few
    scores["recall"]["gsm8k"][4]["note"] = "\x1b]0;x\x07 odd"
    scores["recall"]["gsm8k"][5]["note"] = None
    result = one(write_run(tmp_path, scores))
    assert notes(result) == [f"recall on novel, code: {few}", r"recall on gsm8k: \x1b]0;x\x07 odd"]
    assert result.run.scores["recall"]["code"][0].note == few
    assert result.run.scores["recall"]["gsm8k"][5].note is result.run.scores["ppl"]["code"][0].note is None


def test_texts_without_labels_have_no_auc_and_say_so(tmp_path: Path) -> None:
    lines = [score_line("a", None, 0.5), score_line("b", None, 0.1)]
    result = one(write_run(tmp_path, {"ppl": {"texts": lines}, "zlib": {"texts": lines}}, **OWN_TEXTS))
    assert result.subsets["ppl"]["texts"].auc is None
    assert result.subsets["ppl"]["texts"].n_unlabelled == 2
    assert printed([result]).count("texts: no record has a label, so there is no AUC") == 1
    write_tables(result, tmp_path)


def test_texts_with_some_labels(tmp_path: Path) -> None:
    result = one(own_texts(tmp_path, [*LABELLED, score_line("c", None, 5.0)]))
    assert result.subsets["ppl"]["texts"].auc == 0.75
    assert "texts: 1 records have no label and enter no metric" in notes(result)


def test_one_class_is_missing_up_the_tree_and_an_error_to_who_asks(tmp_path: Path) -> None:
    scores = random_scores(SIX)
    scores["min_k"]["novel"] = [
        {**ln, "score": ln["score"] if ln["label"] else None} for ln in scores["min_k"]["novel"]
    ]
    path = write_run(tmp_path, scores)
    with pytest.raises(DataError, match="min_k on novel: 12 members and 0 non-members"):
        read_run(path).class_scores("min_k", "novel")
    result = one(path)
    min_k = result.rows[3].auc
    assert min_k.subset["novel"] is min_k.stage["pretraining"] is min_k.all is None
    assert min_k.stage["midtraining"] is not None
    assert any("min_k on novel: 12 members and 0 non-members" in note for note in notes(result))
    others = [row.auc.all for row in result.rows[:-1] if row.id != "min_k"]
    assert result.rows[-1].auc.all == pytest.approx(sum(others) / 5, abs=1e-15)


def test_all_scores_null(tmp_path: Path) -> None:
    lines = [score_line(f"r{i}", i % 2, None, missing="too short") for i in range(8)]
    result = one(own_texts(tmp_path, lines))
    assert result.subsets["ppl"]["texts"].undefined == (
        "ppl on texts: 0 members and 0 non-members have a score; an AUC needs at least one of each"
    )
    assert "texts/r0, texts/r1, texts/r2, texts/r3, texts/r4, …" in " ".join(printed([result]).split())


def test_few_non_members_are_named(tmp_path: Path) -> None:
    few = [note for note in notes(one(write_run(tmp_path / "few", random_scores(SIX)))) if "resolved" in note]
    assert few == [
        "speeches, novel, code, gsm8k, mbpp: 12 non-members: TPR at 5% FPR cannot be resolved (needs 20 or more)"
    ]
    assert notes(one(write_run(tmp_path / "enough", random_scores(SIX, n=20)))) == []
    mine = own_texts(tmp_path / "mine", LABELLED)
    assert "texts: 2 non-members: TPR at 5% FPR cannot be resolved (needs 20 or more)" in printed([one(mine)], 200)
    nobody = own_texts(tmp_path / "nobody", [score_line("a", None, 0.5)])
    assert "resolved" not in printed([one(nobody)])


def test_duplicate_texts_are_reported(tmp_path: Path) -> None:
    result = one(own_texts(tmp_path, [*LABELLED, LABELLED[0]]))
    assert "texts: 5 records hold 4 distinct texts" in notes(result)
    assert not result.subsets["ppl"]["texts"].complete
    assert one(own_texts(tmp_path, LABELLED)).subsets["ppl"]["texts"].complete


def test_mean_over_comparable_runs_only(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), random_scores(SIX, seed=seed)) for seed in (1, 2)]
    results = evaluate(runs)
    averages = mean_over_runs(results)
    assert [row.id for row in averages] == [*SIX, "method_avg"]
    assert averages[0].auc.all == pytest.approx((results[0].rows[0].auc.all + results[1].rows[0].auc.all) / 2)
    assert "Mean over the 2 runs" in printed(results)
    fewer = write_run(tmp_path / "fewer", random_scores(("zlib", "lower")))
    assert [row.id for row in mean_over_runs(evaluate([runs[0], fewer]))] == ["zlib", "lower", "method_avg"]
    other = evaluate([runs[0], write_run(tmp_path / "dev", random_scores(SIX), split="dev")])
    assert mean_over_runs(other) == ()
    assert mean_over_runs(results[:1]) == ()


def test_an_attack_of_two_domains_may_lack_the_other_subsets(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "self_critique"), tree="olmo2", n=3)
    tree = {"path": "/b", "tree": "olmo2"}
    own = ("dpo", "rlvr_cot-gsm8k", "rlvr_cot-math")
    scores["self_critique"] = {s: lines for s, lines in scores["self_critique"].items() if s in own}
    critique = one(write_run(tmp_path / "a", scores, benchmark=tree)).rows[1].auc
    assert critique.all == critique.stage["posttraining"] is not None
    del scores["self_critique"]["dpo"]
    with pytest.raises(DataError, match=r"self_critique/dpo\.jsonl: no such file"):
        read_run(write_run(tmp_path / "b", scores, benchmark=tree))


def test_text_of_a_run_cannot_command_the_terminal(tmp_path: Path) -> None:
    name = "\x1b[2J[red]evil[/red]\u202e"
    run = own_texts(tmp_path, [*LABELLED, score_line("\x1b]0;x\x07[b]id[/b]", 1, None)], model={"name": name})
    text = printed([one(run)], width=300)
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert r"\x1b[2J[red]evil[/red]\u202e" in text and r"\x1b]0;x\x07[b]id[/b]" in text
    assert printable("ü \ud800\n") == "ü \\ud800\\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"record_id": "r", "text_sha1": "x", "label": 1, "sco', "line 5: not a JSON value"),
        ("[]", "line 5: field record_id: expected a string, got None"),
        ('{"record_id": 7}', "line 5: field record_id: expected a string, got 7"),
        ('{"record_id": "r", "text_sha1": "x", "label": 1}', "line 5 .record 'r'.: field score is missing"),
        ('{"record_id": "r", "text_sha1": "x", "score": 1}', "line 5 .record 'r'.: field label is missing"),
        ('{"record_id": "r", "label": 1, "score": 1}', "field text_sha1: expected a string, got None"),
        ('{"record_id": "r", "text_sha1": "x", "label": 2, "score": 1}', "field label: expected 1, 0 or null, got 2"),
        ('{"record_id": "r", "text_sha1": "x", "label": true, "score": 1}', "expected 1, 0 or null, got True"),
        ('{"record_id": "r", "text_sha1": "x", "label": [1], "score": 1}', r"expected 1, 0 or null, got \[1\]"),
        (
            '{"record_id": "r", "text_sha1": "x", "label": 1, "score": 1, "n_tokens": "9"}',
            'field n_tokens: expected an integer, got "9"',
        ),
        (
            '{"record_id": "r", "text_sha1": "x", "label": 1, "score": 1, "reference_share": 1.5}',
            "field reference_share: expected a number from 0 to 1 or null, got 1.5",
        ),
        (
            '{"record_id": "r", "text_sha1": "x", "label": 1, "score": 1, "note": 7}',
            "field note: expected a string, got 7",
        ),
        (
            '{"record_id": "r", "text_sha1": "x", "label": 1, "score": 1, "note": ["a"]}',
            r'field note: expected a string, got \["a"\]',
        ),
        (r'{"record_id": "r", "text_sha1": "x", "label": 1, "score": 1, "note": "\ud800"}', "line 5 .* lone surrogate"),
        (r'{"record_id": "\ud800", "text_sha1": "x", "label": 1, "score": 1}', "line 5 .* lone surrogate"),
    ],
)
def test_a_bad_score_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    run = own_texts(tmp_path, LABELLED)
    with (run / "scores" / "ppl" / "texts.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=rf"texts\.jsonl, {message}" if message.startswith("line") else message):
        read_run(run)


def test_missing_and_empty_score_files(tmp_path: Path) -> None:
    run = own_texts(tmp_path, LABELLED)
    file = run / "scores" / "ppl" / "texts.jsonl"
    file.write_text("")
    with pytest.raises(DataError, match=r"texts\.jsonl: holds no score"):
        read_run(run)
    file.unlink()
    with pytest.raises(DataError, match=r"texts\.jsonl: no such file.*olmodetect score"):
        read_run(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "field format: this version reads 1, got 2"),
        ({"benchmark": {"tree": "pile"}}, "field benchmark.tree: .*'pile'; allowed are: olmo2, sample"),
        ({"benchmark": {}}, "field benchmark.tree: .*None"),
        ({"benchmark": "sample"}, 'field benchmark: expected dict or null, got "sample"'),
        ({"attacks": ["ppl", "../../etc"]}, r"field attacks: unknown value '\.\./\.\./etc'"),
        ({"attacks": [["ppl"]]}, r"field attacks: unknown value \['ppl'\]"),
        ({"attacks": []}, "no attack has finished in this run; run the same olmodetect score command again"),
        ({"subsets": []}, "field subsets: the list is empty"),
        ({"attacks": ["ppl", "ppl"]}, "field attacks: an id stands there twice"),
        ({"subsets": ["dclm"]}, "field subsets: unknown value 'dclm'; allowed are: speeches"),
        ({"model": {}}, "field model.name is missing"),
        ({"model": {"name": None}}, "field model.name: expected str, got null"),
        ({"protocol": {"preset": "audited", "fields": {}, "changed": []}}, "field protocol.changed: expected dict"),
        ({"version": "\ud800"}, "lone surrogate"),
        ({"mesh": float("nan")}, "not a JSON file: NaN is not JSON"),
    ],
)
def test_a_bad_manifest_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]), **changes)
    with pytest.raises(DataError, match=rf"manifest\.json: .*{message}"):
        read_run(run)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.json: no such file, so .* is not a run folder"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="is not a run folder"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file is not a run folder; `olmodetect score --out RUN` makes one"):
        read_run(tmp_path / "file")
    (tmp_path / "manifest.json").write_text('{"format": 1,')
    with pytest.raises(DataError, match=r"manifest\.json: not a JSON file"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("[1]")
    with pytest.raises(DataError, match=r"expected a JSON object, got \[1\]"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b'{"format": "\xff"}')
    with pytest.raises(DataError, match=r"manifest\.json: not a JSON file"):
        read_run(tmp_path)


def test_sup_camia_is_judged_by_the_representative_file_where_the_protocol_says_so(tmp_path: Path) -> None:
    """Of DPO the chosen answers, as the released table is; under another protocol both."""
    scores = random_scores(("sup_camia", "sup_camia_lodo"), tree="olmo2", n=6)
    for subsets in scores.values():
        for i, line in enumerate(subsets["dpo"]):
            line["side"] = f"posttraining_dpo_1b_{('chosen', 'rejected')[i % 2]}"
            line["score"] = float(line["label"] if i % 2 == 0 else 1 - line["label"])
    benchmark = {"path": "/b", "tree": "olmo2"}
    for choice, auc in (("representative", 1.0), ("all", 0.5)):
        fields = {**MANIFEST["protocol"]["fields"], "lodo_subsets": choice}
        protocol = {**MANIFEST["protocol"], "fields": fields}
        result = one(write_run(tmp_path / choice, scores, benchmark=benchmark, protocol=protocol))
        assert result.subsets["sup_camia"]["dpo"].auc == 0.5
        assert result.subsets["sup_camia_lodo"]["dpo"].auc == auc
        assert result.subsets["sup_camia_lodo"]["dpo"].n_member == (3 if choice == "representative" else 6)


def test_evaluate_leaves_intervals_and_pairs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_scores(("ppl", "zlib", "lower")))
    results, found = evaluate_runs([run], 60)
    lines = list(csv.DictReader((run / "tables" / "attack_pairs.csv").read_text().splitlines()))
    assert [(x["first"], x["second"]) for x in lines] == [("PPL", "Zlib"), ("PPL", "Lower"), ("Zlib", "Lower")]
    for x in lines:
        assert float(x["low_99"]) <= float(x["low_95"]) <= float(x["high_95"]) <= float(x["high_99"])
        assert float(x["p"]) <= float(x["p_holm"]) <= 1
    rows = {
        (x["attack"], x["group"]): x
        for x in csv.DictReader((run / "tables" / "intervals.csv").read_text().splitlines())
    }
    ppl = rows["ppl", "all"]
    assert float(ppl["auc_low"]) < float(ppl["auc"]) < float(ppl["auc_high"])
    written = json.loads((run / "metrics.json").read_text())["intervals"]
    assert written["auc"]["ppl"]["all"]["low"] == float(ppl["auc_low"]) == found.runs[0].auc["ppl"].all.low
    assert evaluate_runs([run], 0)[1] is None
    assert json.loads((run / "metrics.json").read_text())["intervals"] is None
    assert results[0].rows[0].auc.all == float(ppl["auc"])


def test_models_are_compared_where_they_have_a_mean(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, random_scores(("ppl", "zlib"), seed=i), model={"name": name})
        for i, name in enumerate("ab")
    ]
    console = Console(file=io.StringIO(), width=80)
    print_tables(*evaluate_runs(runs, 60), console)
    assert re.search(r"b against a: mean AUC over attacks [+-]0\.\d\d", console.file.getvalue())
