"""What tuning tried and chose: reading `tuning.json`, the terminal table, the panels in the page and in a file."""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.tuning import Tuning, print_tuning, read_tuning, tuning_notes
from olmodetect_jax.report import write_report
from olmodetect_jax.report.tuning_plot import HEIGHT, WIDTH, tuning_plot, write_tuning_plot
from tests.report_files import tuned, tuning, write
from tests.run_folders import random_scores, write_run
from tests.unit.test_report import EVIL, Page

SVG = "{http://www.w3.org/2000/svg}"


def read(path: Path, **changes: Any) -> Tuning:
    write(path, "tuning.json", {**tuning(), **changes})
    return read_tuning(path)


def printed(found: Tuning, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_tuning(found, console)
    return console.file.getvalue()


def lines_of(text: str, title: str) -> list[str]:
    """The lines of a table's row: the one with the title, and those without one below it."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    start = next(i for i, row in enumerate(rows) if row[0] == title)
    end = next((i for i in range(start + 1, len(rows)) if rows[i][0]), len(rows))
    return [" ".join(row[1:]).strip() for row in rows[start:end]]


def test_the_terminal_shows_every_value_and_marks_the_chosen_one(tmp_path: Path) -> None:
    text = printed(read(tmp_path), 140)
    assert lines_of(text, "ReCaLL") == [
        "recall_shots 1→0.60 2→0.61 3→0.62 4→0.63 [5→0.64] 6→0.60 7→0.61 8→0.62 9→0.63 10→0.64 11→0.60 12→0.61 yes"
    ]
    assert lines_of(text, "PAC") == [
        "pac_far=0.05, pac_near 0.1→0.51 0.2→0.53 0.3→0.52 0.4→0.50 yes",
        "pac_far=0.1, pac_near 0.1→0.54 [0.2→0.57] 0.3→0.56 0.4→0.53",
        "pac_far=0.2, pac_near 0.1→0.49 0.2→0.50 0.3→0.51 0.4→0.48",
    ]
    assert lines_of(text, "EMMIA") == ["em_mia_base loss→0.47 [zlib→0.52] mink→0.51 minkpp→0.45 yes"]
    assert lines_of(text, "CAMIA") == ["camia_composition edgington→– fisher→– george→– no"]
    assert "[0.2→0.56]" in lines_of(text, "MinK")[0] and lines_of(text, "MinK")[0].endswith("no")
    assert "50 members and 50 non-members" in text


def test_a_narrow_terminal_breaks_between_values_only(tmp_path: Path) -> None:
    text = printed(read(tmp_path), 80)
    assert "…" not in text
    assert " ".join(lines_of(text, "ReCaLL")).count("→") == 12
    assert all(
        re.fullmatch(r"\[?[\w.]+→[\d.–]+\]?", word) for word in text.split() if "→" in word and "AUC" not in word
    )


def test_notes_say_what_stands_in_the_way(tmp_path: Path) -> None:
    notes = tuning_notes(read(tmp_path))
    error = math.sqrt(101 / (12 * 50 * 50))
    assert f"standard error of {error:.2f}, and smaller differences may be chance" in notes[1]
    assert notes[2:] == [
        "MinK: the choice is shown but not used: the protocol keeps the value fixed (min_k_choice=fixed).",
        "DCPDD: scores that were no finite numbers are left out: 100 at dc_pdd_alpha=0.01.",
        "CAMIA: no value has an AUC, so none is chosen.",
    ]
    assert len(tuning_notes(read(tmp_path, n_member=0, attacks={}))) == 1


@pytest.mark.parametrize(
    ("preset", "attack", "how"),
    [
        ("release", "min_k", "filled by 0 or a million"),
        ("audited", "min_k", "left out"),
        ("release", "pac", "left out"),
    ],
)
def test_non_finite_scores_are_filled_or_left_out_by_the_protocol(
    tmp_path: Path, preset: str, attack: str, how: str
) -> None:
    grid = tuned({"a": [1, 2]}, [0.5, 0.6])
    grid["grid"][1]["non_finite"] = 3
    found = read(tmp_path, protocol={"preset": preset, "changed": {}}, attacks={attack: grid})
    assert tuning_notes(found)[-1].endswith(f": scores that were no finite numbers are {how}: 3 at a=2.")


def test_text_of_the_file_cannot_command_the_terminal(tmp_path: Path) -> None:
    grid = tuned({"\x1b[2J[red]a[/red]": [1], "\u202eb": ["[bold]x[/bold]\x07"]}, [0.5])
    text = printed(read(tmp_path, attacks={"ppl": grid}), 200)
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert r"\x1b[2J[red]a[/red]=1, \u202eb" in text and r"[bold]x[/bold]\x07→0.50" in text


def test_what_was_chosen_before_the_run_is_marked(tmp_path: Path) -> None:
    counts = {"n_member": 40, "n_non_member": 41}
    found = tuning()
    for name in ("pac", "recall", "camia"):
        found["attacks"][name]["shipped"] = counts
    read_back = read(tmp_path, attacks=found["attacks"])
    assert [name for name, attack in read_back.attacks.items() if attack.shipped == (40, 41)] == [
        "pac", "recall", "camia",
    ]  # fmt: skip
    assert "PAC, ReCaLL, CAMIA: chosen when the sample was made, on 40 members and 41 non-members, and shipped." in (
        tuning_notes(read_back)
    )
    text = printed(read_back, 140)
    assert lines_of(text, "ReCaLL")[0].endswith("yes, shipped") and lines_of(text, "EMMIA")[0].endswith("yes")
    choices = {panel.title: panel.choice for panel in tuning_plot(read_back).panels}
    assert (choices["PAC"], choices["EMMIA"], choices["MinK"]) == ("0.1, 0.2, shipped", "zlib", "0.2, not used")
    found["attacks"]["pac"]["shipped"] = {"n_member": 40}
    with pytest.raises(DataError, match=r"field attacks\.pac\.shipped\.n_non_member is missing"):
        read(tmp_path, attacks=found["attacks"])


def test_no_file_is_no_tuning(tmp_path: Path) -> None:
    assert read_tuning(tmp_path) is None
    assert read_tuning(tmp_path / "nowhere") is None
    assert write_tuning_plot(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


ONE = {"values": {"min_k": 0.1}, "auc": 0.5, "non_finite": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "field format: this version reads 1, got 2"),
        ({"n_member": -1}, "field n_member: expected an integer of at least 0, got -1"),
        ({"n_non_member": True}, "field n_non_member: expected an integer of at least 0, got true"),
        ({"attacks": []}, r"field attacks: expected an object, got \[\]"),
        ({"attacks": {EVIL: tuned({"a": [1]}, [0.5])}}, "field attacks: unknown value '<script>.*allowed are: ppl"),
        ({"protocol": {}}, "field protocol.preset is missing"),
        ({"protocol": {"preset": "mine", "changed": {}}}, 'field protocol.preset: expected one of audited.*"mine"'),
        ({"protocol": {"preset": ["paper"], "changed": {}}}, "field protocol.preset: expected one of audited"),
        ({"protocol": {"preset": "paper", "changed": {"x": 1}}}, "field protocol.changed: protocol field: unknown"),
        (
            {"protocol": {"preset": "paper", "changed": {"window": [1]}}},
            "field protocol.changed.window: expected a num",
        ),
        ({"n_member": "\ud800"}, "lone surrogate"),
        ({"n_member": math.nan}, "not a JSON file: NaN is not JSON"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"tuning\.json: .*{message}"):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ({}, "min_k.grid is missing"),
        ({"grid": 7}, "min_k.grid: expected a list, got 7"),
        ({"grid": []}, r"min_k.grid: expected at least one candidate, got \[\]"),
        ({"grid": [ONE, 3]}, r"min_k.grid\[1\]: expected an object, got 3"),
        ({"grid": [ONE], "used": True}, "min_k.chosen is missing"),
        ({"grid": [ONE], "chosen": {"min_k": 0.1}, "used": 1}, "min_k.used: expected true or false, got 1"),
        ({"grid": [ONE], "chosen": None, "used": True}, "min_k.used: expected false where nothing is chosen, got true"),
        (
            {"grid": [ONE], "chosen": {"min_k": 0.2}, "used": True},
            "min_k.chosen: expected null, or the values of a cand",
        ),
        ({"grid": [{**ONE, "auc": None}], "chosen": ONE["values"], "used": True}, "min_k.chosen: expected null, or"),
        ({"grid": [{**ONE, "auc": 1.5}]}, r"min_k.grid\[0\].auc: expected a number from 0 to 1 or null, got 1.5"),
        ({"grid": [{**ONE, "auc": True}]}, r"min_k.grid\[0\].auc: expected a number from 0 to 1 or null, got true"),
        ({"grid": [{**ONE, "auc": "0.5"}]}, r'min_k.grid\[0\].auc: expected a number from 0 to 1 or null, got "0.5"'),
        ({"grid": [{**ONE, "non_finite": 0.5}]}, r"min_k.grid\[0\].non_finite: expected an integer"),
        (
            {"grid": [{**ONE, "values": {"min_k": None}}]},
            r"min_k.grid\[0\].values.min_k: expected a number or a string, got n",
        ),
        (
            {"grid": [{**ONE, "values": {"min_k": True}}]},
            r"min_k.grid\[0\].values.min_k: expected a number or a string, got t",
        ),
        ({"grid": [{**ONE, "values": {}}]}, r"min_k.grid\[0\].values: expected values of a hyperparameter, got {}"),
        (
            {"grid": [ONE, {**ONE, "values": {"x": 1}}]},
            r'min_k.grid\[1\].values: expected values of min_k, got {"x": 1}',
        ),
    ],
)
def test_a_bad_attack_is_named(tmp_path: Path, attack: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"tuning\.json: field attacks\.{message}"):
        read(tmp_path, attacks={"min_k": attack})


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    for content, message in (('{"format": 1,', "not a JSON file"), ("[1]", r"expected a JSON object, got \[1\]")):
        file.write_text(content)
        with pytest.raises(DataError, match=rf"tuning\.json: {message}"):
            read_tuning(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(DataError, match=r"tuning\.json: cannot be read"):
        read_tuning(tmp_path)


def test_panels_place_values_and_mark_the_chosen_one(tmp_path: Path) -> None:
    panels = {panel.title: panel for panel in tuning_plot(read(tmp_path)).panels}
    recall = panels["ReCaLL"]
    (curve,) = recall.curves
    assert len(curve.dots) == 12 and len(curve.pieces) == 1 and recall.others == ""
    assert [round(dot.x, 1) for dot in curve.dots] == [round((i + 0.5) * WIDTH / 12, 1) for i in range(12)]
    assert [i for i, dot in enumerate(curve.dots) if dot.chosen] == [4]
    assert curve.dots[4].hint == "recall_shots=5: AUC 0.640"
    assert [text for _, text in recall.x_ticks] == ["1", "3", "5", "7", "9", "11"]
    # One axis for all: from 0.45, the least AUC, to 0.65, the next step above the greatest.
    assert {text: y for y, text in recall.y_ticks} == {"0.45": HEIGHT, "0.65": 0.0, "0.50": 75.0}
    assert recall.chance == 75.0 and curve.dots[4].y == 5.0
    pac = panels["PAC"]
    assert (pac.axis, pac.others, [c.label for c in pac.curves]) == ("pac_near", "pac_far", ["0.05", "0.1", "0.2"])
    assert [[dot.chosen for dot in c.dots] for c in pac.curves] == [
        [False] * 4,
        [False, True, False, False],
        [False] * 4,
    ]
    assert panels["EMMIA"].curves[0].pieces == ()  # words have no order
    assert len(panels["EMMIA"].curves[0].dots) == 4
    assert [piece.count(",") for piece in panels["DCPDD"].curves[0].pieces] == [1, 1]  # a gap is not bridged
    assert panels["CAMIA"].curves[0].dots == ()
    choices = {title: panel.choice for title, panel in panels.items()}
    assert choices == {
        "MinK": "0.2, not used", "DCPDD": "0.001", "PAC": "0.1, 0.2", "ReCaLL": "5", "EMMIA": "zlib", "CAMIA": "–",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("aucs", "ticks"),
    [
        ([None], {"0.50": 100.0, "0.55": 0.0}),
        ([0.0, 1.0], {"0.00": 100.0, "0.50": 50.0, "1.00": 0.0}),
        ([0.55], {"0.50": 100.0, "0.55": 0.0}),
        ([0.3], {"0.30": 100.0, "0.50": 0.0}),  # 0.3 / 0.05 is a little below 6
        ([0.49, 0.98], {"0.50": 90.9, "1.00": 0.0}),  # 0.45 would overlap 0.50
    ],
)
def test_the_auc_axis_holds_every_value_and_a_half(tmp_path: Path, aucs: list[Any], ticks: dict[str, float]) -> None:
    found = read(tmp_path, attacks={"ppl": tuned({"a": range(len(aucs))}, aucs)})
    assert {text: y for y, text in tuning_plot(found).panels[0].y_ticks} == ticks


def test_the_plot_is_one_self_contained_file(tmp_path: Path) -> None:
    read(tmp_path)
    file = write_tuning_plot(tmp_path)
    assert file == tmp_path / "tuning.svg"
    first = file.read_bytes()
    assert write_tuning_plot(tmp_path).read_bytes() == first
    root = ET.fromstring(first)
    assert len(root.findall(f"{SVG}svg")) == 6
    chosen = [dot for dot in root.iter(f"{SVG}circle") if dot.get("class") == "dot chosen"]
    assert len(chosen) == 5
    assert chosen[2].find(f"{SVG}title").text == "pac_far=0.1, pac_near=0.2: AUC 0.570 (chosen)"
    assert "50 members and 50 non-members" in "".join(root.itertext())
    text = first.decode()
    assert not re.search(r"href|url\(|@import|<script|://", text.replace("http://www.w3.org/2000/svg", "", 1))
    _, _, width, height = map(float, root.get("viewBox").split())
    for svg in root.findall(f"{SVG}svg"):
        assert 0 <= float(svg.get("x")) <= width - float(svg.get("width"))
        assert 0 <= float(svg.get("y")) <= height - float(svg.get("height"))
    assert max(float(text.get("y")) for text in root.findall(f"{SVG}text")) < height


def evil_attack() -> dict[str, Any]:
    return tuned({EVIL: ["<b>&\"'\u202e", "y"], f"{EVIL} 2": [EVIL, "\x00"]}, [0.5, 0.6, 0.7, 0.8])


def test_the_plot_escapes_text_of_the_file(tmp_path: Path) -> None:
    read(tmp_path, attacks={"min_k": evil_attack()})
    text = write_tuning_plot(tmp_path).read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert not list(root.iter(f"{SVG}script")) and not list(root.iter(f"{SVG}b"))
    assert "\u202e" not in text and "\x00" not in text
    assert f"{EVIL} 2" in {element.text for element in root.iter(f"{SVG}text")}


def test_the_page_shows_the_panels(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_scores(("ppl", "zlib")))
    write_report([run], tmp_path / "r.html")
    without = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "Chosen on development texts" not in without.text
    read(run)
    write_report([run], tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.text.count("Chosen on development texts") == 1
    assert page.count("figure") == without.count("figure") + 6
    assert (
        page.count("circle", "dot") == without.count("circle", "dot") + 11 + 2 + 12 + 12 + 4
        and page.count("circle", "chosen") == 5
    )
    assert page.count("polyline", "curve") == 1 + 2 + 3 + 1
    assert "50 members and 50 non-members. On few texts the choice is noisy" in page.text
    assert "pac_far=0.1, pac_near=0.2: AUC 0.570 (chosen)" in page.text


def test_the_page_escapes_text_of_the_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_scores(("ppl",)))
    read(run, attacks={"min_k": evil_attack()})
    write_report([run], tmp_path / "r.html")
    page = Page(html := (tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.count("script") == 1 and "<b>&" not in html
    assert EVIL in page.text and "\u202e" not in html and "\x00" not in html


def test_a_bad_file_ends_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_scores(("ppl",)))
    read_tuning(run)
    write(run, "tuning.json", {"format": 1})
    with pytest.raises(DataError, match=r"tuning\.json: field attacks is missing"):
        write_report([run], tmp_path / "r.html")
