"""Loss curves and the label budget: reading the files, the plots in the page and in files of their own."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.training import read_training
from olmodetect_jax.report import write_report
from olmodetect_jax.report.budget_plot import HEIGHT as TALL
from olmodetect_jax.report.budget_plot import WIDTH as WIDE
from olmodetect_jax.report.budget_plot import budget_plot, read_budget, write_budget_plot
from olmodetect_jax.report.training_plot import HEIGHT, POINTS, WIDTH, training_plot, write_training_plot
from tests.report_files import adapter, budget, training, write
from tests.run_folders import random_scores, write_run
from tests.unit.test_report import EVIL, Page

SVG = "{http://www.w3.org/2000/svg}"
ONE = adapter("fsd", "lodo", "code", [3.0, 2.0])


def page_of(run: Path) -> Page:
    write_report([run], run / "r.html")
    return Page((run / "r.html").read_text(encoding="utf-8"))


def xy(piece: str) -> list[tuple[float, float]]:
    return [tuple(map(float, point.split(","))) for point in piece.split()]  # type: ignore[misc]


def checked(file: Path) -> ET.Element:
    """A plot file: the same bytes again, nothing from outside, everything inside its frame."""
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"href|url\(|@import|<script|://", text.replace("http://www.w3.org/2000/svg", "", 1))
    root = ET.fromstring(text)
    _, _, width, height = map(float, root.get("viewBox").split())
    for svg in root.findall(f"{SVG}svg"):
        assert 0 <= float(svg.get("x")) <= width - float(svg.get("width"))
        assert 0 <= float(svg.get("y")) <= height - float(svg.get("height"))
    assert max(float(text.get("y")) for text in root.iter(f"{SVG}text") if text in list(root)) < height
    return root


def test_adapters_are_read(tmp_path: Path) -> None:
    write(tmp_path, "training.json", training())
    novel, code, prompt, one = read_training(tmp_path)
    assert (novel.attack, novel.setting, novel.trained_for, novel.n_texts) == ("fsd", "in-domain", "novel", 8)
    assert (novel.steps, novel.batch, novel.losses) == (3, 8, (3.0, 2.5, 2.0))
    assert code.losses[1] is None and prompt.steps == 450 and one.name == "fsd-lodo-code"


def test_no_file_is_no_training(tmp_path: Path) -> None:
    assert read_training(tmp_path) is None and read_training(tmp_path / "nowhere") is None
    assert write_training_plot(tmp_path) is write_budget_plot(tmp_path) is None
    write(tmp_path, "training.json", {"format": 1, "adapters": []})
    assert write_training_plot(tmp_path) is None
    assert [p.name for p in tmp_path.iterdir()] == ["training.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"format": 2}, "field format: this version reads 1, got 2"),
        ({"format": 1}, "field adapters is missing"),
        ({"format": 1, "adapters": {}}, "field adapters: expected a list, got {}"),
        ({"format": 1, "adapters": [ONE, 3]}, r"field adapters\[1\]: expected an object, got 3"),
        ({"format": 1, "adapters": [{**ONE, "name": 1}]}, r"adapters\[0\].name: expected a string, got 1"),
        ({"format": 1, "adapters": [{**ONE, "trained_for": None}]}, "trained_for: expected a string, got null"),
        ({"format": 1, "adapters": [{**ONE, "attack": "sup_camia"}]}, "attack: expected one of fsd, mia_tuner"),
        ({"format": 1, "adapters": [{**ONE, "setting": ["lodo"]}]}, "setting: expected one of in-domain, lodo, pooled"),
        ({"format": 1, "adapters": [{**ONE, "n_texts": -1}]}, "n_texts: expected an integer of at least 0, got -1"),
        ({"format": 1, "adapters": [{**ONE, "batch": True}]}, "batch: expected an integer of at least 0, got true"),
        ({"format": 1, "adapters": [{**ONE, "steps": 3}]}, "steps: expected 2, the number of losses, got 3"),
        ({"format": 1, "adapters": [{**ONE, "losses": 3}]}, "losses: expected a list, got 3"),
        ({"format": 1, "adapters": [{**ONE, "losses": [1.0, "2"]}]}, r"losses\[1\]: expected a finite number or null"),
        ({"format": 1, "adapters": [{**ONE, "losses": [1.0, math.nan]}]}, "not a JSON file: NaN is not JSON"),
        ({"format": 1, "adapters": [{**ONE, "name": "\ud800"}]}, "lone surrogate"),
        ([1], r"expected a JSON object, got \[1\]"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: Any, message: str) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]))
    write(run, "training.json", content)
    with pytest.raises(DataError, match=rf"training\.json: .*{message}"):
        read_training(run)
    with pytest.raises(DataError, match=r"training\.json: "):
        write_report([run], tmp_path / "r.html")


def test_half_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "training.json"
    file.write_text(json.dumps(training())[:-40])
    with pytest.raises(DataError, match=r"training\.json: not a JSON file"):
        write_training_plot(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(DataError, match=r"training\.json: cannot be read"):
        read_training(tmp_path)


def test_a_panel_an_attack_and_setting_a_line_an_adapter(tmp_path: Path) -> None:
    write(tmp_path, "training.json", training())
    plot = training_plot(read_training(tmp_path))
    assert [(p.title, len(p.lines)) for p in plot.panels] == [
        ("FSD, In-domain", 2), ("FSD, LODO", 1), ("MIA-Tuner, LODO", 1),
    ]  # fmt: skip
    assert plot.legend == ("novel", "code")
    assert [[line.index for line in p.lines] for p in plot.panels] == [[0, 1], [1], [1]]  # a name has one colour
    novel, code = plot.panels[0].lines
    assert novel.hint == "novel: 8 texts, 3 steps of 8, loss 3 → 2"
    assert code.hint == "code: 8 texts, 5 steps of 8, loss 2 → –"
    assert [xy(p) for p in novel.pieces] == [[(0, 0), (WIDTH / 4, HEIGHT / 4), (WIDTH / 2, HEIGHT / 2)]]
    # A hole is no point, and what stands alone beside it is still to be seen.
    assert [xy(p) for p in code.pieces] == [[(0, 50.0)] * 2, [(100.0, HEIGHT), (150.0, 75.0)]]
    assert plot.panels[0].y_ticks == ((100.0, "1"), (0.0, "3")) and plot.panels[0].x_ticks[1] == (200.0, "5")


def test_many_steps_are_means_of_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "training.json", training())
    (line,) = training_plot(read_training(tmp_path)).panels[2].lines
    points = xy(line.pieces[0])
    assert len(points) == 450 / 3 <= POINTS and points[0] == (pytest.approx(WIDTH / 449, abs=0.06), 0)
    assert [round(b[1] - a[1], 1) >= 0 for a, b in zip(points, points[1:], strict=False)] == [True] * 149
    holes = adapter("fsd", "lodo", "x", [1.0] * 300 + [None] + [1.0] * 299)
    write(tmp_path, "training.json", {"format": 1, "adapters": [holes]})
    (line,) = training_plot(read_training(tmp_path)).panels[0].lines
    assert [len(xy(piece)) for piece in line.pieces] == [100, 99]  # a mean with a hole in it is one


@pytest.mark.parametrize("losses", [[], [None], [2.0], [1e308, -1e308], [1e308] * 500, [0.0, 0.0]])
def test_losses_at_the_ends(tmp_path: Path, losses: list[float | None]) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]))
    write(run, "training.json", {"format": 1, "adapters": [adapter("fsd", "pooled", "all", losses)]})
    (panel,) = training_plot(read_training(run)).panels
    points = [point for line in panel.lines for piece in line.pieces for point in xy(piece)]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert bool(points) == any(loss is not None for loss in losses)
    assert page_of(run).text.count("Training losses") == 1
    checked(write_training_plot(run))


def test_the_page_shows_the_losses(tmp_path: Path) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]))
    without = page_of(run)
    assert "Training losses" not in without.text and without.count("polyline", "loss") == 0
    write(run, "training.json", training())
    page = page_of(run)
    assert page.count("figure") == without.count("figure") + 3
    assert page.count("polyline", "loss") == 1 + 2 + 1 + 1
    assert "code: 72 texts, 450 steps of 8, loss 5 → 2.75" in page.text
    first = (run / "r.html").read_bytes()
    page_of(run)
    assert (run / "r.html").read_bytes() == first


def test_the_losses_are_one_self_contained_file(tmp_path: Path) -> None:
    write(tmp_path, "training.json", training())
    file = write_training_plot(tmp_path)
    first = file.read_bytes()
    assert file == tmp_path / "training.svg" and write_training_plot(tmp_path).read_bytes() == first
    root = checked(file)
    assert len(root.findall(f"{SVG}svg")) == 3
    assert {"novel", "code", "MIA-Tuner, LODO"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_markup_in_what_was_trained_for_is_text(tmp_path: Path) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]))
    bold = page_of(run).count("b")
    evil = [adapter("fsd", "lodo", f"{EVIL}\u202e\x00", [2.0, 1.0]), adapter("fsd", "lodo", "\"><b>'{{ 7*7 }}", [1.0])]
    write(run, "training.json", {"format": 1, "adapters": evil})
    page, html = page_of(run), (run / "r.html").read_text(encoding="utf-8")
    assert page.count("script") == 1 and page.count("b") == bold and EVIL in page.text and "7*7" in page.text
    text = write_training_plot(run).read_text(encoding="utf-8")
    assert not list(ET.fromstring(text).iter(f"{SVG}script")) and not list(ET.fromstring(text).iter(f"{SVG}b"))
    for shown in (html, text):
        assert "\u202e" not in shown and "\x00" not in shown and "<b>'" not in shown


def test_the_budget_s_lines_and_whiskers(tmp_path: Path) -> None:
    write(tmp_path, "budget.json", budget())
    plot = budget_plot(read_budget(tmp_path), {"speeches": "Speeches", "novel": "Novel"})
    assert [line.title for line in plot.lines] == ["Speeches", "Novel", "code", "All"]
    assert [line.style for line in plot.lines] == ["c0 d0", "c1 d0", "c2 d0", "c6 strong"]
    speeches, novel, code, everything = plot.lines
    assert speeches.cells == ("0.60 ± 0.10", "0.70 ± 0.10") and code.cells == everything.cells == ("–", "–")
    # The axis goes from 0.5 to 0.8, the end of the highest whisker.
    assert {text: y for y, text in plot.y_ticks} == {"0.80": 0.0, "0.50": TALL} and plot.chance == TALL
    (first, second), third = speeches.points, round(TALL / 3, 1)
    assert (first.y, first.top, first.bottom) == (round(2 * TALL / 3, 1), third, TALL)
    assert (second.y, second.top, second.bottom) == (third, 0.0, round(2 * TALL / 3, 1))
    assert second.hint == "Speeches, 50% of the labels: AUC 0.70 ± 0.10"
    assert [xy(piece) for piece in speeches.pieces] == [[(p.x, p.y) for p in speeches.points]]
    assert 0 < first.x < novel.points[0].x < WIDE / 2 < second.x < novel.points[1].x < WIDE
    assert plot.headings == ("10%", "50%") and "mean over 2 splits" in plot.explanation
    assert plot.notes == ("code: 1 members.",) and code.points == everything.points == code.pieces == ()


def test_a_hole_in_the_middle_and_one_share_alone(tmp_path: Path) -> None:
    curve = {"mean": [0.95, None, 0.4], "std": [0.2, None, 0.5]}
    found = {**budget(), "fractions": [0.1, 0.2, 0.5], "subsets": {}, "domains": {}, "all": curve}
    write(tmp_path, "budget.json", found)
    plot = budget_plot(read_budget(tmp_path), {})
    (line,) = plot.lines
    assert {text for _, text in plot.y_ticks} == {"0.00", "0.50", "1.00"}  # no whisker leaves 0 to 1
    assert len(line.pieces) == 2 and len(line.points) == 2 and line.cells[1] == "–"
    assert line.points[0].top == 0.0 and line.points[1].bottom == TALL
    alone = {"fractions": [0.3], "all": {"mean": [0.5], "std": [0.0]}}
    write(tmp_path, "budget.json", {**found, **alone})
    (line,) = budget_plot(read_budget(tmp_path), {}).lines
    assert [point.x for point in line.points] == [WIDE / 2]


def test_the_page_and_the_file_show_the_budget(tmp_path: Path) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]))
    without = page_of(run)
    assert "number of labels" not in without.text and write_budget_plot(run) is None
    write(run, "budget.json", budget())
    page = page_of(run)
    assert page.count("figure") == without.count("figure") + 1 and page.count("table", "budget") == 1
    for kind in (("line", "whisker"), ("circle", "dot")):
        assert page.count(*kind) == without.count(*kind) + 4
    assert "0.60 ± 0.10" in page.text and "code: 1 members." in page.text
    assert {"Speeches", "Novel", "Code"} <= set(re.findall(r"[A-Z][a-z]+", page.text))
    file = write_budget_plot(run)
    assert file == run / "budget.svg"
    first = file.read_bytes()
    assert write_budget_plot(run).read_bytes() == first
    root = checked(file)
    assert {"Speeches", "Code", "All"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_markup_in_the_budget_is_text(tmp_path: Path) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]))
    found = budget()
    found["domains"][f"{EVIL}\u202e"] = found["domains"].pop("novel")
    found["subsets"]["code"]["reason"] = EVIL
    write(run, "budget.json", found)
    page = page_of(run)
    assert page.count("script") == 1 and page.text.count(EVIL) >= 2
    text = write_budget_plot(run).read_text(encoding="utf-8")
    assert not list(ET.fromstring(text).iter(f"{SVG}script")) and "\u202e" not in text


def test_a_bad_budget_ends_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path, random_scores(["ppl"]))
    write(run, "budget.json", {"format": 2})
    with pytest.raises(DataError, match=r"budget\.json: field attack is missing"):
        write_report([run], run / "r.html")
    with pytest.raises(DataError, match=r"budget\.json"):
        write_budget_plot(run)
