"""The report: valid, self-contained, escaped, the same bytes for the same run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olmodetect_jax.attacks.registry import ATTACKS
from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation import evaluate
from olmodetect_jax.evaluation.metrics import roc_curve
from olmodetect_jax.protocol import PRESETS
from olmodetect_jax.report import wording, write_report
from olmodetect_jax.report.page import SHOWN_MISSING, SHOWN_TEXTS
from olmodetect_jax.report.plots import BINS, HEIGHT, WIDTH, histogram, mean_curve
from tests.run_folders import OWN_TEXTS, random_scores, score_line, write_run

SIX = ("ppl", "zlib", "lower", "min_k", "min_k_plus_plus", "dc_pdd")
EVIL = "<script>alert(1)</script>"
EVIL_NAME = "\"><img src=x onerror=alert(1)> 'm' {{ 7*7 }}"
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, and keeps every element with its attributes and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if ("type", "application/json") not in attrs:  # data for the script: no element that does anything
            self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["script"]:
            self.text += data

    def count(self, tag: str, css: str = "") -> int:
        return sum(t == tag and (not css or css in (a.get("class") or "").split()) for t, a in self.elements)


def report(out: Path, *runs: Path) -> str:
    write_report(runs, out)
    return out.read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", random_scores(SIX))


def test_every_number_and_plot_is_there(tmp_path: Path, run: Path) -> None:
    html = report(tmp_path / "r.html", run)
    page = Page(html)
    assert page.count("table", "heat") == 3  # AUC, TPR, differences
    assert page.count("figure", "plot") == 4 + 5 + 6 * 5 + 4 + 1  # ROC, histograms, intervals, by stage
    assert page.count("polyline", "roc") == 2 * (4 + 5) * 6  # on either axis
    assert page.count("path", "member") == page.count("path", "non-member") == 6 * 5
    for row in evaluate([run])[0].rows:
        assert f'data-value="{row.auc.all}">{row.auc.all:.2f}</td>' in html
        assert f'data-value="{row.tpr.stage["posttraining"]}">' in html
    assert "changed from the preset" in page.text
    assert "(standard error), 12 members, 12 non-members" in html


def test_it_needs_nothing_from_outside(tmp_path: Path, run: Path) -> None:
    html = report(tmp_path / "r.html", run)
    page = Page(html)
    assert page.count("link") == page.count("img") == page.count("iframe") == 0
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", html)


def test_same_run_same_bytes(tmp_path: Path, run: Path) -> None:
    first = report(tmp_path / "a.html", run)
    assert report(tmp_path / "b.html", run) == first
    assert str(tmp_path) not in first


def hostile(path: Path) -> Path:
    scores = random_scores(("ppl", "zlib"))
    for subsets in scores.values():
        subsets["gsm8k"].append(score_line(EVIL, 1, None, missing=f"{EVIL} & 'so'"))
        subsets["gsm8k"].append(score_line("\u202ereversed\x00", 0, None, missing="x"))
    changes: dict[str, Any] = {
        "model": {"name": EVIL_NAME, "path": f"/models/{EVIL}"},
        "command": EVIL,
        "created_at": "</style></title></script><script>alert(2)</script>",
        "protocol": {"preset": EVIL, "fields": {EVIL: EVIL}, "changed": {EVIL: EVIL}},
        "libraries": {EVIL: [EVIL]},
    }
    return write_run(path, scores, **changes)


def test_text_from_a_run_is_escaped_everywhere(tmp_path: Path) -> None:
    page = Page(html := report(tmp_path / "r.html", hostile(tmp_path / "run")))
    assert page.count("script") == 1 and page.count("style") == 1
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert EVIL in page.text and EVIL_NAME in page.text  # a reader sees the very text
    assert "7*7" in page.text
    assert "\u202e" not in html and "\x00" not in html
    assert r"\u202ereversed\x00" in page.text


def test_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(seed), random_scores(SIX, seed=seed), model={"name": f"model-{seed}"})
        for seed in (1, 2)
    ]
    page = Page(html := report(tmp_path / "r.html", *runs))
    assert [a["id"] for t, a in page.elements if t == "article"] == ["run-1", "run-2"]
    one, two = (result.rows[0].auc.all for result in evaluate(runs))
    assert f"<td>{one:.2f}</td><td>{two:.2f}</td><td>{(one + two) / 2:.2f}</td>" in html
    assert "model-1" in page.text and "model-2" in page.text


def test_texts_without_labels(tmp_path: Path) -> None:
    lines = [score_line(f"r{i}", None, float(i)) for i in range(9)]
    run = write_run(tmp_path / "run", {"ppl": {"texts": lines}}, **OWN_TEXTS)
    page = Page(report(tmp_path / "r.html", run))
    assert "no record has a label, so there is no AUC" in page.text
    assert page.count("table", "heat") == page.count("polyline") == 0
    assert page.count("path", "unlabelled") == 1
    assert page.count("path", "reference") == 0
    assert page.count("table", "texts") == 1 and "--reference" in page.text
    assert "How to read the numbers" not in page.text  # it explains the AUC


def test_texts_against_a_reference(tmp_path: Path) -> None:
    reference = [score_line(f"o{i}", 0, float(i)) for i in range(500)]
    lines = [
        score_line("plain", None, 250.0, reference_share=0.5),
        score_line(EVIL, None, 999.0, reference_share=0.0),
        score_line("gone", None, None, reference_share=None),
    ]
    run = write_run(tmp_path / "run", {"ppl": {"texts": lines, "reference": reference}}, **OWN_TEXTS)
    page = Page(html := report(tmp_path / "r.html", run))
    body = html[html.index('<table class="texts') :]
    assert body.index("&lt;script&gt;") < body.index(">plain<") < body.index(">gone<")
    assert "Share of the 500 reference texts" in page.text
    assert 'title="score 999" data-value="0.0">&lt;0.002</td>' in body
    assert page.count("script") == 1
    kinds = [(a.get("class") or "").split()[-1] for t, a in page.elements if t == "path"]
    assert kinds == ["reference", "unlabelled"]  # the reference is drawn first, behind the texts
    assert "reference, non-members" in page.text
    assert "member" not in {a.get("class") for t, a in page.elements if t == "i"}


def test_labelled_texts_against_a_reference(tmp_path: Path) -> None:
    reference = [score_line(f"o{i}", 0, float(i)) for i in range(30)]
    lines = [score_line(f"r{i}", i % 2, float(i), reference_share=0.1) for i in range(4)]
    run = write_run(tmp_path / "run", {"ppl": {"texts": lines, "reference": reference}}, **OWN_TEXTS)
    page = Page(report(tmp_path / "r.html", run))
    assert page.count("path", "reference") == page.count("path", "member") == page.count("path", "non-member") == 1
    assert page.count("table", "heat") == 2 and page.count("table", "texts") == 1
    assert "How to read the numbers" in page.text and "A domain is" not in page.text


def test_a_thousand_texts_are_listed(tmp_path: Path) -> None:
    lines = [score_line(f"r{i}", None, float(i)) for i in range(SHOWN_TEXTS + 3)]
    page = Page(report(tmp_path / "r.html", write_run(tmp_path / "run", {"ppl": {"texts": lines}}, **OWN_TEXTS)))
    assert f"r{SHOWN_TEXTS - 1}" in page.text
    assert f"r{SHOWN_TEXTS}" not in page.text
    assert "3 more are in the run's tables/texts.csv" in page.text


def test_attacks_and_protocol_are_explained(tmp_path: Path, run: Path) -> None:
    page = Page(report(tmp_path / "r.html", run))
    assert set(wording.ATTACKS) == set(ATTACKS)
    assert set(wording.PRESETS) == set(PRESETS)
    assert page.count("dt") == page.count("dd") == 6
    assert "a share of 0.2 of them" in page.text and "clipped at 0.01" in page.text
    assert "protocol: audited" in page.text and "careful practice, this project's default" in page.text
    assert "2048 (used: 1024, the model’s context)" in page.text
    assert "null" not in page.text


def test_the_attacks_that_read_other_texts_are_explained(tmp_path: Path) -> None:
    attacks = ("pac", "recall", "em_mia", "em_mia_best_of_four", "camia")
    values = {"pac_far": 0.07, "pac_near": 0.13, "recall_shots": 11, "em_mia_base": "minkpp"}
    changes: dict[str, Any] = {"hyperparameters": {**values, "camia_composition": "george"}}
    fields = {"em_mia_choice": "dev", "camia_copies": 6}
    for base in ("dev", "best_of_four"):
        protocol = {"preset": "audited", "fields": {**fields, "em_mia_choice": base}, "changed": {}}
        run = write_run(tmp_path / base, random_scores(attacks), protocol=protocol, em_mia_limit=9, **changes)
        page = Page(report(tmp_path / "r.html", run))
        assert page.count("dt") == 5
        for words in ("a share of 0.07", "a share of 0.13", "a prefix of 11 dev", "the george rule", "6 copies of it"):
            assert words in page.text
        assert ("the base score minkpp." in page.text) == (base == "dev")
        assert page.text.count("on the very labels it is judged by") == 1 + (base == "best_of_four")
        assert ("EMMIA (9 a class)" in page.text) == (base == "dev") and "EMMIA optimistic (9 a class)" in page.text


GENERATION = {
    "limit": 10,
    "prompts": {
        "guided": {"path": None, "sha256": "0" * 64, "known_as": None},
        "general": {"path": "/home/me/<b>mine.txt", "sha256": "1" * 64, "known_as": None},
        "dcq_quiz": {"path": "/home/me/quiz.txt", "sha256": "2" * 64, "known_as": "the wording of <i>somebody</i>"},
        "critique": {"path": None, "sha256": "3" * 64, "known_as": None},
        "sources": {"path": "/home/me/sources.yaml", "sha256": "4" * 64, "known_as": None},
    },
    "quiz": {"path": "/data/quiz.jsonl", "sha256": "5" * 64, "generator": f"synonyms {EVIL}"},
    "neighbours": {"backend": "the target model {prompts}"},
}


def test_the_generative_attacks_are_explained_with_what_they_were_made_from(tmp_path: Path) -> None:
    attacks = ("neighborhood", "guided", "dcq", "cdd", "self_critique")
    values = {
        "neighborhood_score": "z",
        "guided_score": "rouge_delta",
        "dcq_score": "min",
        "cdd_ratio": 0.25,
        "cdd_length": 50,
        "cdd_alpha": 0.075,
    }
    fields = {"guided_new_tokens": 64, "self_critique_new_tokens": 32}
    protocol = {"preset": "audited", "fields": fields, "changed": fields}
    changes = {"protocol": protocol, "hyperparameters": values, "generation": GENERATION}
    page = Page(html := report(tmp_path / "r.html", write_run(tmp_path / "run", random_scores(attacks), **changes)))
    assert page.count("dt") == 5 and page.count("script") == 1
    assert "&lt;i&gt;somebody" in html and "<i>somebody" not in html and "<b>mine" not in html
    for words in (
        "as a difference in standard deviations of the copies: ",
        "Gaps filled by the target model {prompts}.",
        "at most 64 tokens, once told",
        "how much more of it when it was told. Prompts: this project's own wording, the file <b>mine.txt.",
        "three rewordings of it, in each of four places, where it is least. Rewordings by synonyms <script>",
        "Prompts: the wording of <i>somebody</i>.",
        "a share of 0.25, for at most 50 tokens",
        "at most 0.075 of the longest",
        "of at most 32 tokens each. Prompts: this project's own wording.",
    ):
        assert words in page.text, words
    assert "sources.yaml" not in page.text[: page.text.index("Provenance")]
    for unknown in ({}, {"prompts": [1], "quiz": 1, "neighbours": {"backend": ""}}, [2]):
        changes = {"generation": unknown, "hyperparameters": {"dcq_score": ["x"]}}
        page = Page(report(tmp_path / "r.html", write_run(tmp_path / "run", random_scores(attacks), **changes)))
        assert "Rewordings by –." in page.text and "Gaps filled by –." in page.text and "in each of four" in page.text


def test_a_run_of_unknown_choices_is_shown_all_the_same(tmp_path: Path) -> None:
    protocol = {"preset": "mine", "fields": {"zlib_numerator": ["x"]}, "changed": {}}
    scores = random_scores(("zlib", "min_k", "fsd_ppl"))
    run = write_run(tmp_path / "run", scores, protocol=protocol, hyperparameters=None)
    page = Page(report(tmp_path / "r.html", run))
    assert "a share of – of them" in page.text
    assert page.count("dt") == 3


def test_labelled_texts_and_scores_that_are_all_missing(tmp_path: Path) -> None:
    scored = [score_line(f"r{i}", i % 2, float(i)) for i in range(9)]
    gone = [score_line(f"r{i}", i % 2, None, missing="too short") for i in range(9)]
    scores = {"ppl": {"texts": scored}, "zlib": {"texts": gone}}
    page = Page(report(tmp_path / "r.html", write_run(tmp_path / "run", scores, **OWN_TEXTS)))
    assert page.count("polyline", "roc") == 2
    assert page.text.count("too short") == 9
    assert "9 scores are missing" in page.text


def test_many_missing_scores_are_counted_not_all_listed(tmp_path: Path) -> None:
    gone = [score_line(f"r{i}", i % 2, None, missing="too short") for i in range(SHOWN_MISSING + 7)]
    run = write_run(tmp_path / "run", {"ppl": {"texts": gone}}, **OWN_TEXTS)
    page = Page(report(tmp_path / "r.html", run))
    assert page.text.count("too short") == SHOWN_MISSING
    assert "7 more are listed" in page.text


def test_records_left_out_by_choice_are_a_note_and_no_missing_scores(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "em_mia"), n=4)
    for lines in scores["em_mia"].values():
        lines[3].update(score=None, missing=f"left out: {EVIL} by choice")
    run = write_run(tmp_path / "run", scores)
    page = Page(report(tmp_path / "r.html", run))
    assert page.text.count("by choice") == 2 and page.count("script") == 1
    assert f"em_mia: 5 of 40 records left out: {EVIL} by choice" in page.text
    assert "every record has a score from every attack, but for the 5 that were left out by choice." in page.text
    scores["em_mia"]["code"][0].update(score=None, missing="too short", note=EVIL)
    page = Page(report(tmp_path / "r.html", write_run(tmp_path / "run", scores)))
    assert "1 score is missing" in page.text and page.text.count("too short") == 1
    assert f"em_mia on code: {EVIL}" in page.text and page.count("script") == 1


def test_runs_that_were_limited_differently_are_compared_line_by_line(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "em_mia"))
    runs = [write_run(tmp_path / str(limit), scores, em_mia_limit=limit) for limit in (None, 20)]
    html = report(tmp_path / "r.html", *runs)
    assert re.search(r">EMMIA</th><td>0\.\d\d</td><td>–</td>", html)
    assert re.search(r">EMMIA \(20 a class\)</th><td>–</td><td>0\.\d\d</td>", html)


def test_some_subsets_only(tmp_path: Path) -> None:
    scores = {"ppl": {"code": random_scores(["ppl"])["ppl"]["code"]}}
    page = Page(report(tmp_path / "r.html", write_run(tmp_path / "run", scores)))
    headings = [a.get("colspan") for t, a in page.elements if t == "th" and a.get("class") == "group"]
    assert headings == ["1", "1"]  # one subset column in either table: stages and All have no value
    assert page.count("polyline", "roc") == 2


def test_out_is_a_folder(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UsageError, match="--out .*: is a folder"):
        write_report([run], tmp_path)


def test_a_stage_curve_has_the_area_of_the_table(tmp_path: Path) -> None:
    """Also where one subset stands for its domain, as in the released Sup-CAMIA with a domain left out."""
    attacks = ("ppl", "self_critique", "sup_camia", "sup_camia_lodo")
    fields = {"preset": "release", "fields": {"lodo_subsets": "representative"}, "changed": {}}
    path = write_run(
        tmp_path, random_scores(attacks, tree="olmo2", n=40), benchmark={"path": "/b", "tree": "olmo2"}, protocol=fields
    )
    result = evaluate([path])[0]
    tree = load_tree("olmo2")
    alone = next(row.auc for row in result.rows if row.id == "sup_camia_lodo")
    assert (
        alone.domain["starcoder"] == alone.subset["sc_java"] and alone.domain["rlvr"] == alone.subset["rlvr_cot-gsm8k"]
    )
    whole = next(row.auc for row in result.rows if row.id == "sup_camia")
    assert whole.domain["starcoder"] == pytest.approx((whole.subset["sc_java"] + whole.subset["sc_python"]) / 2)
    for row in (row for row in result.rows if row.id in attacks):
        curves = {s.id: roc_curve(result.run.class_scores(row.id, s.id)) for s in tree.subsets}
        for column in (c for c in result.columns if c.level in ("stage", "all") and c.of(row.auc) is not None):
            curve = mean_curve(curves, column, row.id, result.run)
            assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(column.of(row.auc), abs=0.01)
            assert (curve.fpr[0], curve.tpr[0], curve.tpr[-1]) == (0.0, 0.0, pytest.approx(1.0))


def heights(path: str) -> list[float]:
    tops = re.findall(r"V([\d.]+)H", path)
    assert len(tops) == BINS
    return [1 - float(top) / HEIGHT for top in tops]


def test_histogram_bars_are_shares_of_their_class() -> None:
    plot = histogram("t", {"member": [0.0, 1.0], "non-member": [0.0, 0.0, 0.0, 1.0]}, None)
    member, non_member = (heights(path) for _, path in plot.areas)
    assert (plot.low, plot.high) == ("0", "1")
    assert (member[0], member[-1]) == pytest.approx((2 / 3, 2 / 3), abs=0.01)
    assert (non_member[0], non_member[-1]) == pytest.approx((1.0, 1 / 3), abs=0.01)
    assert max(float(x) for x in re.findall(r"H([\d.]+)", plot.areas[0][1])) == WIDTH


def test_histogram_of_outliers_equal_scores_and_the_ends_of_the_float_range() -> None:
    values = [-4128.0, *np.linspace(0, 1, 98), 3.5e37]
    plot = histogram("t", {"member": values}, None)
    assert float(plot.low) >= 0 and float(plot.high) <= 1
    assert sum(h > 0 for h in heights(plot.areas[0][1])) == BINS
    assert sum(h > 0 for h in heights(histogram("t", {"member": [2.0] * 5}, None).areas[0][1])) == 1
    assert len(histogram("t", {"member": [1.7e308], "non-member": [-1.7e308]}, None).areas) == 2
    assert histogram("t", {"member": [], "non-member": []}, None) is None
