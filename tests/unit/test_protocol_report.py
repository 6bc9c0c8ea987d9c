"""What each protocol field does: reading `protocols.json`, the terminal tables, the heat table in the page."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.protocols import ProtocolComparison, print_protocols, read_protocols
from olmodetect_jax.report import write_report
from tests.report_files import protocols, write
from tests.run_folders import random_scores, write_run
from tests.unit.test_report import EVIL, Page

ROW = protocols()["rows"][0]


def read(path: Path, **changes: Any) -> ProtocolComparison:
    write(path, "protocols.json", {**protocols(), **changes})
    return read_protocols(path)


def printed(comparison: ProtocolComparison, width: int = 120, **titles: str) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_protocols(comparison, console, {**TITLES, **titles})
    return console.file.getvalue()


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in text.splitlines() if line[0] in "│┃"]


def test_the_terminal_shows_signed_differences(tmp_path: Path) -> None:
    assert cells(printed(read(tmp_path))) == [
        ["Field", "PPL", "Zlib", "Lower"],
        ["this run (audited)", "0.72", "0.67", "0.60"],
        ["zlib_numerator = mean", "", "+0.03", ""],
        ["text_span = full", "", "0.00", "-0.03"],
        ["special_ids = error", "–", "0.00", "0.00"],
    ]


def test_a_difference_that_rounds_to_nothing_keeps_its_sign(tmp_path: Path) -> None:
    rows = [{**ROW, "auc": {"ppl": 0.721, "zlib": 0.669, "lower": 0.6}}]
    assert cells(printed(read(tmp_path, rows=rows)))[-1][1:] == ["+0.00", "-0.00", "0.00"]


def test_a_missing_auc_of_the_run_itself_is_no_difference(tmp_path: Path) -> None:
    found = cells(printed(read(tmp_path, auc={"ppl": 0.5, "zlib": None, "lower": 0.6})))
    assert found[1] == ["this run (audited)", "0.50", "–", "0.60"]
    assert found[2][2] == "–"


def test_a_narrow_terminal_gets_several_tables(tmp_path: Path) -> None:
    text = printed(read(tmp_path), 44, lower="Lower (20 a class)")
    assert max(map(len, text.splitlines())) <= 44 and "…" not in text
    first, second = text.split("┏")[1:]
    assert "Zlib" in first and "Lower" not in first and "text_span = full" in first
    assert "Lower" in second and "zlib_numerator" not in second  # a row without any cell is left out
    assert "-0.03" in second and "0.60" in second


def test_text_of_the_file_cannot_command_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2J[red]x[/red]\u202e"
    text = printed(read(tmp_path, fields={evil: 1}, rows=[{**ROW, "field": evil, "value": "\x07[b]y[/b]"}]))
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert r"\x1b[2J[red]x[/red]\u202e = \x07[b]y[/b]" in text


def test_no_file_is_no_comparison(tmp_path: Path) -> None:
    assert read_protocols(tmp_path) is None


def test_no_rows_are_no_error(tmp_path: Path) -> None:
    assert cells(printed(read(tmp_path, rows=[], fields={})))[1:] == [["this run (audited)", "0.72", "0.67", "0.60"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": None}, "field format: this version reads 1, got None"),
        ({"preset": "mine"}, 'field preset: expected one of audited, paper, release, got "mine"'),
        ({"fields": []}, r"field fields: expected an object, got \[\]"),
        ({"fields": {"a": None}}, "field fields.a: expected a number or a string, got null"),
        ({"attacks": "ppl"}, 'field attacks: expected a list, got "ppl"'),
        ({"attacks": ["ppl", "../x"]}, r'field attacks\[1\]: expected one of ppl, .*, got "\.\./x"'),
        ({"attacks": [["ppl"]]}, r'field attacks\[0\]: expected one of ppl, .*, got \["ppl"\]'),
        ({"auc": {"ppl": 0.7, "zlib": 0.6}}, "field auc.lower is missing"),
        ({"auc": {"ppl": -0.1, "zlib": 0.6, "lower": 0.6}}, "field auc.ppl: expected a number from 0 to 1 or null"),
        ({"rows": {}}, "field rows: expected a list, got {}"),
        ({"rows": [[]]}, r"field rows\[0\]: expected an object, got \[\]"),
        ({"rows": [ROW, {**ROW, "field": "x"}]}, r'field rows\[1\].field: expected one of zlib_numerator, .*, got "x"'),
        ({"rows": [ROW], "fields": {}}, r"field rows\[0\].field: expected one of"),
        ({"rows": [{**ROW, "value": True}]}, r"field rows\[0\].value: expected a number or a string, got true"),
        ({"rows": [{**ROW, "presets": "paper"}]}, r'field rows\[0\].presets: expected a list, got "paper"'),
        ({"rows": [{**ROW, "presets": ["x"]}]}, r"field rows\[0\].presets\[0\]: expected one of audited"),
        (
            {"rows": [{**ROW, "auc": {"min_k": 0.5}}]},
            r"field rows\[0\].auc: expected the AUCs of some of ppl, zlib, low",
        ),
        ({"rows": [{**ROW, "auc": {"zlib": 7}}]}, r"field rows\[0\].auc.zlib: expected a number from 0 to 1 or null"),
        ({"rows": [{"field": "text_span"}]}, r"field rows\[0\].auc is missing"),
        ({"rows": [{k: v for k, v in ROW.items() if k != "value"}]}, r"field rows\[0\].value is missing"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"protocols\.json: {message}"):
        read(tmp_path, **changes)


def report(tmp_path: Path, **changes: Any) -> str:
    scores = random_scores(("ppl", "zlib", "lower"))
    run = write_run(tmp_path / "run", scores)
    read(run, **changes)
    write_report([run], tmp_path / "r.html")
    return (tmp_path / "r.html").read_text(encoding="utf-8")


def rows(html: str) -> list[str]:
    table = html[html.index('<table class="heat differences">') :]
    return re.findall(r"<tr.*?</tr>", table[: table.index("</table>")], re.DOTALL)


def test_the_page_has_a_heat_table_of_differences(tmp_path: Path) -> None:
    html = report(tmp_path)
    page = Page(html)
    assert page.count("table", "heat") == 4 and page.count("table", "differences") == 1
    heading, own, mean, full, error = rows(html)
    assert re.findall(r">([^<>\n]+)</th>", heading) == ["Field", "Value", "This run", "Presets", "PPL", "Zlib", "Lower"]
    assert re.findall(r"<td.*?>([^<]*)</td>", own) == ["", "", "audited", "0.72", "0.67", "0.60"]
    assert re.findall(r"<t[dh].*?>([^<]*)</t[dh]>", mean) == [
        "zlib_numerator", "mean", "sum", "release", "", "+0.03", "",
    ]  # fmt: skip
    assert 'class="high" style="--heat:30%" title="Zlib with zlib_numerator = mean: AUC 0.700 instead of 0.670"' in mean
    assert 'class="low" style="--heat:30%"' in full and ">paper, release<" in full
    assert 'style="--heat:0%" title="Zlib with text_span = full: AUC 0.670 instead of 0.670">0.00<' in full
    assert 'title="PPL with special_ids = error: no AUC">–<' in error
    assert mean.count("title=") == 1  # a blank cell has nothing to say


def test_colour_is_full_from_a_tenth_on(tmp_path: Path) -> None:
    text = rows(report(tmp_path, rows=[{**ROW, "auc": {"ppl": 0.2, "zlib": 0.77, "lower": 0.65}}]))[2]
    assert re.findall(r'class="(\w+)" style="--heat:(\d+)%"', text) == [("low", "100"), ("high", "100"), ("high", "50")]


def test_a_run_without_a_comparison_has_no_section(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_scores(("ppl",)))
    write_report([run], tmp_path / "r.html")
    assert "What each protocol field does" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_page_names_the_limit_of_em_mia(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_scores(("em_mia",)), em_mia_limit=20)
    read(run, attacks=["em_mia"], auc={"em_mia": 0.5}, rows=[{**ROW, "auc": {"em_mia": 0.6}}])
    write_report([run], tmp_path / "r.html")
    heading, _, row = rows((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "EMMIA (20 a class)" in heading and "EMMIA (20 a class) with zlib_numerator" in row


def test_the_page_escapes_text_of_the_file(tmp_path: Path) -> None:
    html = report(
        tmp_path,
        fields={EVIL: f"{EVIL}\u202e"},
        rows=[{**ROW, "field": EVIL, "value": '"><img src=x onerror=alert(1)>\x00'}],
    )
    page = Page(html)
    assert page.count("script") == 1 and page.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert EVIL in page.text and "\u202e" not in html and "\x00" not in html
