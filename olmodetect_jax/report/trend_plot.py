"""Lines of AUC over stages of training, and over model sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olmodetect_jax.benchmark import SIZES
from olmodetect_jax.evaluation.results import METHOD_AVG, RunMetrics
from olmodetect_jax.report.axis import AucAxis

WIDTH, HEIGHT = 240, 160
_MARGIN = 36  # left and right of the first and the last place, for its name


@dataclass(frozen=True)
class TrendLine:
    """One attack: its place among the attacks (colour), title, SVG points, and its dots as (x, y, tooltip)."""

    index: int
    title: str
    points: str
    dots: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class TrendPlot:
    """AUCs along something.

    Attributes:
        title: what the lines are of.
        places: (x, text) of what they run along.
        chance: y of 0.5.
        ticks: (y, text) of the AUC axis.
        lines: the attacks.
    """

    title: str
    places: tuple[tuple[float, str], ...]
    chance: float
    ticks: tuple[tuple[float, str], ...]
    lines: tuple[TrendLine, ...]


def stage_trend(result: RunMetrics) -> TrendPlot | None:
    """AUC of each attack by stage; None for fewer than two stages."""
    tree = result.run.tree
    if tree is None:
        return None
    rows = [row for row in result.rows if row.id != METHOD_AVG]
    stages = [s for s in tree.stage_titles if any(row.auc.stage[s] is not None for row in rows)]
    lines = [(row.title, [row.auc.stage[s] for s in stages]) for row in rows]
    return _plot("By stage", [tree.stage_titles[s] for s in stages], lines)


def size_trends(results: Sequence[RunMetrics]) -> tuple[TrendPlot, ...]:
    """AUC by model size over All and each stage, matched members; none for fewer than two sizes of one benchmark."""
    matched = [r for r in results if r.run.tree is not None and r.run.manifest["variant"] == "matched"]
    sized = [r for r in matched if r.run.manifest["model"].get("size") in SIZES]
    kinds = {(r.run.tree.name, r.run.manifest["split"]) for r in sized if r.run.tree}
    by_size = {r.run.manifest["model"]["size"]: r for r in sized}
    if len(kinds) != 1 or len(by_size) < 2 or len(by_size) != len(sized):
        return ()
    ordered = [by_size[size] for size in SIZES if size in by_size]
    tree = ordered[0].run.tree
    assert tree is not None
    titles = list(dict.fromkeys((row.id, row.title) for r in ordered for row in r.rows if row.id != METHOD_AVG))
    rows = {key: [next((w for w in r.rows if (w.id, w.title) == key), None) for r in ordered] for key in titles}
    places = [size.upper() for size in SIZES if size in by_size]
    plots = [
        _plot("All", places, [(key[1], [row and row.auc.all for row in of]) for key, of in rows.items()]),
        *(
            _plot(title, places, [(key[1], [row and row.auc.stage[s] for row in of]) for key, of in rows.items()])
            for s, title in tree.stage_titles.items()
        ),
    ]
    return tuple(plot for plot in plots if plot)


def _plot(title: str, places: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]]) -> TrendPlot | None:
    """Lines break where a value is missing."""
    known = [v for _, values in rows for v in values if v is not None]
    if len(places) < 2 or not known:
        return None
    axis = AucAxis.of(known, HEIGHT)
    xs = [round(_MARGIN + i * (WIDTH - 2 * _MARGIN) / (len(places) - 1), 1) for i in range(len(places))]
    lines = []
    for index, (name, values) in enumerate(rows):
        there = [(x, v, p) for x, v, p in zip(xs, values, places, strict=True) if v is not None]
        dots = [(x, axis.y(v), f"{name}, {p}: {v:.3f}") for x, v, p in there]
        path, fresh = [], True
        for x, v in zip(xs, values, strict=True):
            if v is None:
                fresh = True
                continue
            path.append(f"{'M' if fresh else 'L'}{x},{axis.y(v)}")
            fresh = False
        if dots:
            lines.append(TrendLine(index, name, " ".join(path), tuple(dots)))
    return TrendPlot(title, tuple(zip(xs, places, strict=True)), axis.y(0.5), axis.ticks(), tuple(lines))
