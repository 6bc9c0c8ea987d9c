"""A user's own texts one by one: shares of the reference, their table, their CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation import evaluate, print_tables, write_tables
from olmodetect_jax.evaluation.formatting import share
from olmodetect_jax.evaluation.runs import read_run
from olmodetect_jax.evaluation.texts import TextTable
from tests.run_folders import OWN_TEXTS, random_scores, score_line, write_run

REFERENCE = [score_line(f"o{i}", 0, float(i)) for i in range(40)] + [score_line("gone", 0, None)]


def against(path: Path, lines: list[dict[str, Any]], **others: list[dict[str, Any]]) -> Path:
    """A run of texts against a reference under PPL and other attacks."""
    scores = {attack: {"texts": texts, "reference": REFERENCE} for attack, texts in {"ppl": lines, **others}.items()}
    return write_run(path, scores, **OWN_TEXTS)


def line(record_id: str, value: float | None, label: int | None = None) -> dict[str, Any]:
    """A score line with the share of `REFERENCE` that belongs to its score."""
    above = None if value is None else sum(value <= i for i in range(40)) / 40
    return score_line(record_id, label, value, reference_share=above)


def table(path: Path) -> TextTable:
    found = evaluate([path])[0].texts
    assert found is not None
    return found


def printed(path: Path, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_tables(evaluate([path]), None, console)
    return console.file.getvalue()


def csv_of(path: Path) -> list[dict[str, str]]:
    write_tables(evaluate([path])[0], path)
    with (path / "tables" / "texts.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("value", "n", "text"),
    [
        (0.0, 450, "<0.002"),
        (0.0, 20, "<0.05"),
        (0.0, 1, "<1"),
        (1 / 450, 450, "0.002"),
        (0.0249, 40, "0.02"),
        (1.0, 3, "1.00"),
        (None, 3, "–"),
    ],
)
def test_a_share_as_printed(value: float | None, n: int, text: str) -> None:
    assert share(value, n) == text


def test_likeliest_members_first_and_texts_without_a_score_last(tmp_path: Path) -> None:
    run = against(
        tmp_path,
        [line("low", 3.5), line("none", None), line("high", 99.0), line("half", 20.0)],
        zlib=[line("low", 0.0), line("none", None), line("high", None), line("half", 30.0)],
    )
    found = table(run)
    assert [row.record_id for row in found.rows] == ["high", "half", "low", "none"]
    assert [row.mean_share for row in found.rows] == [0.0, (0.5 + 0.25) / 2, (0.9 + 1.0) / 2, None]
    assert found.n_reference == (40, 40)
    assert [found.cells(row) for row in found.rows] == [("<0.03", "–"), ("0.50", "0.25"), ("0.90", "1.00"), ("–", "–")]


def test_terminal_shows_shares_with_a_reference(tmp_path: Path) -> None:
    text = printed(against(tmp_path, [line(f"r{i}", float(i)) for i in range(27)]))
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in text.splitlines() if row.startswith("│")]
    assert "Texts against the reference" in text
    assert rows[0] == ["r26", "9", "0.35"] and len(rows) == 20
    assert "… 7 more in tables/texts.csv" in text
    assert "Share of the 40 reference texts that score at least as high" in text


def test_terminal_shows_scores_without_a_reference(tmp_path: Path) -> None:
    lines = [score_line("b", None, -7.12345), score_line("a", None, None)]
    text = printed(write_run(tmp_path, {"ppl": {"texts": lines}}, **OWN_TEXTS))
    assert "reference" not in text.replace("--reference", "")
    assert "-7.12 " in text and "--reference" in text
    assert text.index("│ b") < text.index("│ a")  # the file's order


def test_the_reference_enters_no_metric(tmp_path: Path) -> None:
    run = against(tmp_path, [line("m", 5.0, 1), line("n", 1.0, 0)])
    result = evaluate([run])[0]
    assert list(result.subsets["ppl"]) == ["texts"]
    assert (result.subsets["ppl"]["texts"].n_non_member, result.subsets["ppl"]["texts"].auc) == (1, 1.0)
    assert len(read_run(run).reference["ppl"]) == 41


def test_csv_holds_all_texts(tmp_path: Path) -> None:
    scores = [line(f"r{i}", float(i), (None, 1, 0)[i % 3]) for i in range(30)]
    rows = csv_of(against(tmp_path, scores, zlib=[line(f"r{i}", None, (None, 1, 0)[i % 3]) for i in range(30)]))
    assert [row["record_id"] for row in rows] == [f"r{i}" for i in reversed(range(30))]
    assert list(rows[0]) == ["record_id", "label", "n_tokens", "ppl_score", "ppl_share", "zlib_score", "zlib_share"]
    assert list(rows[0].values()) == ["r29", "non-member", "9", "29.0", "0.275", "", ""]
    assert [row["label"] for row in rows[1:3]] == ["member", ""]


def test_csv_is_no_formula(tmp_path: Path) -> None:
    ids = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", 'plain = "x",\r\ny']
    rows = csv_of(against(tmp_path, [line(record_id, 1.0) for record_id in ids]))
    assert [row["record_id"] for row in rows] == [*(f"'{record_id}" for record_id in ids[:-1]), ids[-1]]


def test_a_record_id_cannot_command_the_terminal(tmp_path: Path) -> None:
    text = printed(against(tmp_path, [line("\x1b[2J[b]id[/b]", 1.0)]), 120)
    assert "\x1b" not in text and r"\x1b[2J[b]id[/b]" in text


def test_a_benchmark_has_no_such_table(tmp_path: Path) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]))
    assert evaluate([run])[0].texts is None
    write_tables(evaluate([run])[0], run)
    assert not (run / "tables" / "texts.csv").exists()


def test_score_files_of_different_records(tmp_path: Path) -> None:
    run = against(tmp_path, [line("a", 1.0), line("b", 1.0)], zlib=[line("b", 1.0), line("a", 1.0)])
    with pytest.raises(DataError, match="the score files of ppl and zlib hold different records"):
        evaluate([run])


def test_a_reference_under_some_attacks_only(tmp_path: Path) -> None:
    run = against(tmp_path, [line("a", 1.0)], zlib=[line("a", 1.0)])
    (run / "scores" / "zlib" / "reference.jsonl").unlink()
    with pytest.raises(DataError, match=r"zlib/reference\.jsonl: cannot be read"):
        read_run(run)
