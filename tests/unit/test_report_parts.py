"""The report's own drawings: verdict and map, intervals, trends, arrows, records and their tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from olmodetect_jax import sample
from olmodetect_jax.benchmark import SIZES, load_tree
from olmodetect_jax.commands.token_views import token_views
from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation.comparisons import attack_pairs, shift_effects
from olmodetect_jax.evaluation.intervals import bootstrap
from olmodetect_jax.evaluation.results import evaluate
from olmodetect_jax.evaluation.runs import read_run
from olmodetect_jax.records import read_records
from olmodetect_jax.report import interval_plot, shift_plot, trend_plot
from olmodetect_jax.report.axis import AucAxis
from olmodetect_jax.report.heat import summary_map
from olmodetect_jax.report.pair_table import pair_table
from olmodetect_jax.report.plots import LOG_FROM, SIDE, roc_line
from olmodetect_jax.report.records import embedded, records_json
from olmodetect_jax.report.token_view import TokenView, TokenViews, lowest
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.scoring.kept import Provenance
from olmodetect_jax.scoring.planning import Batch
from olmodetect_jax.scoring.store import Store
from olmodetect_jax.tokenization import Tokenizer
from tests.run_folders import MANIFEST, OWN_TEXTS, random_scores, score_line, write_run

PAPER = {"path": "/b", "tree": "olmo2"}
NONE = TokenViews((), "they were not asked for")


def papers_run(path, size, variant="matched", attacks=("ppl", "zlib"), seed=0):
    scores = random_scores(attacks, tree="olmo2", seed=seed)
    for subsets in scores.values():
        for s in load_tree("olmo2").subsets:
            if variant == "shifted" and not s.variants:
                del subsets[s.id]
                continue
            for line in subsets[s.id]:
                line["record_id"] += f"-{variant}" * line["label"]
    model = {**MANIFEST["model"], "name": f"OLMo2-{size}", "size": size, "weights_digest": size}
    return write_run(path / f"{size}-{variant}", scores, benchmark=PAPER, model=model, variant=variant)


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    (result,) = evaluate([papers_run(tmp_path_factory.mktemp("runs"), "1b", seed=3)])
    return result, bootstrap([result], n_resamples=100).runs[0]


def test_the_map_shows_domains_once_and_no_subset_of_several(paper):
    table = summary_map(*paper)
    assert len(table.headings) == 1 + 3 + 9  # All, the stages' means, the domains
    assert "StarCoder" in table.headings and "Python" not in table.headings and "GSM8K" in table.headings
    cell = table.rows[0][2][0]
    assert re.search(r"PPL on All: 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\]", cell.hint)


def test_of_single_subsets_the_map_would_be_the_table(tmp_path):
    (result,) = evaluate([write_run(tmp_path / "run", random_scores(("ppl",)))])
    assert summary_map(result, None) is None or len(summary_map(result, None).headings) < len(result.columns)


def test_the_verdict_names_the_best_and_how_many_are_clear(paper):
    result, intervals = paper
    best = max(result.rows[:2], key=lambda r: r.auc.all)
    text = interval_plot.verdict(result, intervals)
    ends = intervals.auc[best.id].all
    assert text.startswith(f"Best over All: {best.title}, AUC {best.auc.all:.2f} (95%: {ends.low:.2f}–{ends.high:.2f})")
    there = "Pre-training 2, Mid-training 2, Post-training 2"
    assert f"Of 2 attacks 2 are clearly better than guessing there ({there}). Strongest on one domain:" in text
    assert "95%" not in interval_plot.verdict(result, None)


def test_dots_are_where_the_auc_is_the_best_on_top(paper):
    result, intervals = paper
    first, *others = interval_plot.interval_plots(result, intervals)
    assert [first.title, *(p.title for p in others)] == ["All", "Pre-training", "Mid-training", "Post-training"]
    assert [d.title for d in first.dots] == [r.title for r in sorted(result.rows[:2], key=lambda r: -r.auc.all)]
    for dot in first.dots:
        assert dot.low < dot.x < dot.high and dot.clear and first.chance < dot.low
    assert interval_plot.interval_plots(result, None) == ()


def test_labels_of_an_axis_do_not_overlap():
    for aucs in ([0.46, 0.9], [0.44, 0.56], [0.1, 0.9], [0.6], [0.3]):
        axis = AucAxis.of(aucs, 220)
        for ticks, room in ((axis.ticks(), 12), (axis.x_ticks(), 30)):
            places = sorted(place for place, _ in ticks)
            assert min(b - a for a, b in zip(places, places[1:], strict=False)) >= room
            assert "0.50" in [text for _, text in ticks]
    assert (
        [AucAxis(0.25, 0.5, 220).x(auc) for auc in (0.25, 0.5)]
        == [0.0, 220.0]
        == [x for x, _ in sorted(AucAxis(0.25, 0.5, 220).x_ticks())]
    )


def test_lines_run_over_stages_and_sizes_and_break_where_a_value_is_missing(paper, tmp_path):
    result, _ = paper
    plot = trend_plot.stage_trend(result)
    assert [text for _, text in plot.places] == ["Pre-training", "Mid-training", "Post-training"]
    assert [line.title for line in plot.lines] == ["PPL", "Zlib"] and plot.lines[0].points.count("L") == 2
    runs = evaluate([papers_run(tmp_path, size, seed=i) for i, size in enumerate(reversed(SIZES))])
    plots = trend_plot.size_trends(runs)
    assert [p.title for p in plots] == ["All", "Pre-training", "Mid-training", "Post-training"]
    assert [text for _, text in plots[0].places] == ["1B", "7B", "13B", "32B"]
    xs = [x for x, _, _ in plots[0].lines[0].dots]
    assert xs == sorted(xs) == [x for x, _ in plots[0].places]
    shifted = evaluate([papers_run(tmp_path, "1b", "shifted")])
    assert trend_plot.size_trends([*runs, *shifted]) == plots
    assert trend_plot.size_trends(runs[:1]) == trend_plot.size_trends([runs[0], runs[0]]) == ()
    broken = trend_plot._plot("x", ["a", "b", "c"], [("PPL", [0.6, None, 0.7])])
    assert broken.lines[0].points.count("M") == 2 and len(broken.lines[0].dots) == 2
    assert trend_plot._plot("x", ["a", "b"], [("PPL", [None, None])]) is None


def test_arrows_go_from_matched_to_shifted(tmp_path):
    runs = evaluate([papers_run(tmp_path, "1b", v, seed=i) for i, v in enumerate(("shifted", "matched"))])
    section = shift_plot.shift_section(runs, 60)
    table = shift_effects([(runs[1], runs[0])], n_resamples=60)
    assert [p.title for p in section.panels] == list(table.domain_titles.values())
    for panel, domain in zip(section.panels, table.domain_titles, strict=True):
        for arrow, row in zip(panel.arrows, table.rows, strict=True):
            assert (arrow.end > arrow.start) == (row.shifted[domain] > row.matched[domain])
            assert arrow.kind == {1: "up", 0: "none", -1: "down"}[row.domain[domain].interval.direction]
    assert shift_plot.shift_section(runs[:1], 60) is shift_plot.shift_section([], 60) is None


def test_differences_are_both_ways_and_marked_where_holm_leaves_them(paper):
    result, _ = paper
    found = bootstrap([result], n_resamples=100)
    table = pair_table(result.rows, found.draws[0])
    assert table.headings == ("PPL", "Zlib") and [row[0] for row in table.rows] == ["PPL", "Zlib"]
    (_, _, (own, there)), (_, _, (back, _)) = table.rows
    assert own.value is None and there.value == -back.value
    assert there.value == pytest.approx(result.rows[0].auc.all - result.rows[1].auc.all)
    (pair,) = attack_pairs(result.rows, found.draws[0])
    assert there.text.endswith("*") == back.text.endswith("*") == (pair.p_holm < 0.05)
    assert pair_table(result.rows[:1], found.draws[0]) is None


def test_the_logarithmic_curve_has_the_same_values():
    from olmodetect_jax.evaluation.metrics import ClassScores, roc_curve

    curve = roc_curve(ClassScores([3.0, 2.0, 1.0, 5.0], [0.0, 2.5, 4.0, 0.5]))
    points = [tuple(map(float, p.split(","))) for p in roc_line(0, "x", 0.5, curve).log_points.split()]
    assert points[0][0] == 0 and points[-1] == (SIDE, 0)
    for x, y in points:
        fpr = LOG_FROM ** (1 - x / SIDE)
        near = np.interp([fpr * 0.99, min(1.0, fpr * 1.01)], curve.fpr, curve.tpr)
        assert near[0] - 0.01 <= 1 - y / SIDE <= near[1] + 0.01


# Records


def test_records_are_lined_up_by_their_own_key(tmp_path):
    scores = {a: {"code": [score_line("a", 1, 1.25), score_line("a", 0, 0.5)]} for a in ("ppl", "zlib")}
    scores["zlib"]["code"] = scores["zlib"]["code"][::-1]
    scores["zlib"]["code"][0] |= {"score": None, "missing": "x"}
    (result,) = evaluate([write_run(tmp_path / "run", scores)])
    data = json.loads(records_json(result, NONE))
    assert data["attacks"] == ["PPL", "Zlib"] and len(data["subsets"]) == 1
    assert data["records"] == [["a", 0, 1, 9, 1.25, 1.25], ["a", 0, 0, 9, 0.5, None]]
    assert data["tokens"] == {} and data["noTokens"] == "they were not asked for"


def test_embedded_data_cannot_end_its_element():
    text = str(embedded(["</script><script>alert(1)</script>", "<!--", "]]>", "&amp;", "\u2028"]))
    assert not set("<>&\u2028") & set(text) and json.loads(text)[3] == "&amp;"


def test_the_lowest_share():
    values = np.array([-1.0, -5.0, -3.0, -5.0, -0.1, -9.0, 0, 0, 0, 0])
    assert lowest(values, 0.2) == [1, 5] and lowest(values, 0.3) == [1, 3, 5] and lowest(values, 1) == [*range(10)]
    assert lowest(values[:3], 0.2) == [1] and lowest(values[:0], 0.2) == []


def test_the_lowest_share_is_what_the_run_took(tmp_path):
    scores = {"min_k": {"code": [score_line("a", 1, 1.0), score_line("b", 0, 0.5)]}}
    view = TokenView("code", 1, "a", scores["min_k"]["code"][0]["text_sha1"], ("x",) * 11, *np.ones((3, 10)))

    def data(**hyperparameters):
        run = write_run(tmp_path / "run", scores, hyperparameters=hyperparameters)
        return json.loads(records_json(evaluate([run])[0], TokenViews([view])))

    found = data(min_k=0.5, min_k_plus_plus=0.1)
    assert found["shares"] == [0.5, 0.1]
    assert (len(found["tokens"]["0"]["lowLogProb"]), len(found["tokens"]["0"]["lowTerm"])) == (5, 1)
    for wrong in (7, True, "0.5", None):
        assert data(min_k=wrong)["shares"] == [None, None]


def test_a_view_has_the_terms_of_min_k_plus_plus():
    values = (np.array(v, np.float32) for v in ([-4, -1], [-2, -2], [4, 1]))
    view = TokenView("s", 1, "r", "h", ("a", "b", "c"), *values)
    assert view.as_json((0.2, 0.2)) == {
        "pieces": ["a", "b", "c"], "logProb": [-4.0, -1.0], "term": [-1.0, 1.0], "lowLogProb": [0], "lowTerm": [0],
    }  # fmt: skip


# What a run has kept


@pytest.fixture
def scored(tmp_path):
    """A run of own texts with the statistics it would have left; and the texts' ids."""
    file = tmp_path / "mine.jsonl"
    texts = [{"id": f"r{i}", "text": f"The number {i} is é {'good ' * i}", "label": i % 2} for i in range(8)]
    file.write_text("".join(json.dumps(text) + "\n" for text in texts))
    records = read_records(file, subset="texts")
    directory = sample.model_directory()
    tokenizer = Tokenizer(directory)
    model = {
        **MANIFEST["model"], "path": str(directory), "weights_digest": "w", "tokenizer_digest": tokenizer.digest,
    }  # fmt: skip
    lines = [{**score_line(r.record_id, r.label, float(i)), "text_sha1": r.text_sha1} for i, r in enumerate(records)]
    run = write_run(tmp_path / "run", {"ppl": {"texts": lines}}, **OWN_TEXTS | {"texts": str(file)}, model=model)
    requests = {r.digest: r for record in records for r in [ScoreTokens(tokenizer.encode(record.text, 1024).ids)]}
    answers = [
        TokenStatistics(*(np.full(len(r.ids) - 1, v, np.float32) for v in (-i - 1, -2, 1)))
        for i, r in enumerate(requests.values())
    ]
    store = Store(run / "statistics", Provenance("w", tokenizer.digest, "{}", "float32", "float32"))
    store.add(Batch(64, len(requests), tuple(requests)), requests, answers)
    return run, file, requests


def test_lowest_middle_and_highest_of_each_class_are_shown(scored):
    run, _, requests = scored
    found = token_views(read_run(run))
    assert found.reason is None
    assert [(v.label, v.record_id) for v in found.views] == [
        (1, "r1"), (1, "r5"), (1, "r7"), (0, "r0"), (0, "r4"), (0, "r6"),
    ]  # fmt: skip
    for view in found.views:
        request = list(requests.values())[int(view.record_id[1:])]
        assert len(view.pieces) == len(request.ids) == len(view.log_prob) + 1
        assert view.log_prob[0] == -int(view.record_id[1:]) - 1
        text = f"The number {view.record_id[1:]} is é {'good ' * int(view.record_id[1:])}".strip()
        assert "".join(view.pieces) == text


def test_no_view_of_another_text_than_was_scored(scored):
    run, _, _ = scored
    file = run / "scores" / "ppl" / "texts.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["text_sha1"] = "0" * len(lines[1]["text_sha1"])  # of the same id, whose text still has its statistics
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [v.record_id for v in token_views(read_run(run)).views] == ["r5", "r7", "r0", "r4", "r6"]


def test_no_view_of_statistics_that_are_not_finite(scored):
    run, _, requests = scored
    for file in (run / "statistics").rglob("*"):
        file.unlink() if file.is_file() else None
    answers = [
        TokenStatistics(*(np.full(len(r.ids) - 1, np.nan, np.float32) for _ in range(3))) for r in requests.values()
    ]
    model = json.loads((run / "manifest.json").read_text())["model"]
    store = Store(run / "statistics", Provenance("w", model["tokenizer_digest"], "{}", "float32", "float32"))
    store.add(Batch(64, len(requests), tuple(requests)), requests, answers)
    assert token_views(read_run(run)).views == []


def test_no_view_of_another_text_tokenizer_or_model(scored, tmp_path):
    run, file, _ = scored
    manifest = json.loads((run / "manifest.json").read_text())

    def reason(**model):
        changed = {**manifest, "model": {**manifest["model"], **model}}
        (run / "manifest.json").write_text(json.dumps(changed))
        return token_views(read_run(run)).reason

    assert "holds no statistics of this model's texts" in reason(weights_digest="other")
    assert "another tokenizer than the run's" in reason(tokenizer_digest="other")
    assert "tokenizer.json: not found" in reason(path=str(tmp_path))
    assert "does not say where the model lies" in reason(path=None)
    assert reason() is None
    file.write_text(file.read_text().replace("number", "numeral"))
    assert "none of the chosen texts is as it was scored" in reason()
    file.unlink()
    assert str(file) in reason()


def test_the_pieces_of_a_text_are_the_text():
    tokenizer = Tokenizer(sample.model_directory())
    for text in ("plain words", "é ü 漢字 🙂 mixed", "a\n\n  b\t"):
        pieces = tokenizer.pieces(text, 1024)
        assert "".join(pieces) == text and len(pieces) == len(tokenizer.encode(text, 1024).ids)
        assert tokenizer.pieces(text, 2) == pieces[:2]


def test_a_page_says_why_it_has_no_tokens(tmp_path):
    from olmodetect_jax.commands.report import report_runs

    run = write_run(tmp_path / "run", random_scores(("ppl",)))
    report_runs([run], tmp_path / "r.html")
    html = Path(tmp_path / "r.html").read_text(encoding="utf-8")
    assert re.search(r'"noTokens":"[^"]*(no such|not found)', html)


def test_a_page_against_the_paper(tmp_path):
    from olmodetect_jax.commands.report import report_runs

    report_runs([papers_run(tmp_path, "1b", attacks=("ppl",))], tmp_path / "r.html", against="paper")
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    cells = re.findall(r'<td class="(inside|outside)">(0\.\d\d) \((0\.\d\d) [+-]?0\.\d\d [✓✗]\)</td>', html)
    assert [published for _, _, published in cells] == ["0.54", "0.64", "0.61", "0.60", *[c[2] for c in cells[4:]]]
    assert len(cells) == 8  # AUC and TPR by stage and All
    other = write_run(tmp_path / "other", random_scores(("ppl",)))
    with pytest.raises(UsageError, match="--against paper: these runs are of"):
        report_runs([other], tmp_path / "r.html", against="paper")
    with pytest.raises(UsageError, match="--against"):
        report_runs([other], tmp_path / "r.html", against="others")
