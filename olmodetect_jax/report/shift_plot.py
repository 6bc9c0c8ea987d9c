"""Arrows from the AUC with matched members to that with shifted ones, a panel a domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olmodetect_jax.evaluation.comparisons import ShiftTable, shift_effects
from olmodetect_jax.evaluation.formatting import signed
from olmodetect_jax.evaluation.results import RunMetrics
from olmodetect_jax.report.axis import AucAxis

WIDTH, ROW = 200, 18


@dataclass(frozen=True)
class Arrow:
    """One attack: where it starts and ends, and which way (`up`, `down` or `none`, as far as is clear)."""

    title: str
    y: float
    start: float
    end: float
    kind: str
    text: str
    hint: str


@dataclass(frozen=True)
class ShiftPanel:
    """One domain, laid out as an interval plot."""

    title: str
    height: int
    chance: float
    ticks: tuple[tuple[float, str], ...]
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True)
class ShiftSection:
    """All domains, and what they are from."""

    note: str
    panels: tuple[ShiftPanel, ...]


def shift_section(results: Sequence[RunMetrics], n_resamples: int) -> ShiftSection | None:
    """The arrows; None without runs of one model on both variants."""
    matched = {_key(r): r for r in results if r.run.manifest["variant"] == "matched" and r.run.tree is not None}
    shifted = {_key(r): r for r in results if r.run.manifest["variant"] == "shifted"}
    pairs = [(r, shifted[key]) for key, r in matched.items() if key in shifted]
    if len({matched_run.run.tree.name for matched_run, _ in pairs if matched_run.run.tree}) > 1:
        return None
    table = shift_effects(pairs, n_resamples=n_resamples)
    if table is None:
        return None
    note = (
        f"From matched to shifted members, mean over {', '.join(table.models)}; † ‡: the 95% or 99% interval of "
        f"{table.n_resamples} paired resamples lies on one side of no change."
    )
    return ShiftSection(note, tuple(_panel(table, domain, title) for domain, title in table.domain_titles.items()))


def _key(result: RunMetrics) -> tuple[object, ...]:
    manifest = result.run.manifest
    return manifest["model"]["name"], manifest["model"].get("weights_digest"), manifest["split"]


def _panel(table: ShiftTable, domain: str, title: str) -> ShiftPanel:
    rows = [row for row in table.rows if domain in row.domain]
    axis = AucAxis.of([v for row in rows for v in (row.matched[domain], row.shifted[domain])], WIDTH)
    arrows = []
    for i, row in enumerate(rows):
        effect = row.domain[domain]
        start, end = axis.x(row.matched[domain]), axis.x(row.shifted[domain])
        kind = {1: "up", -1: "down", 0: "none"}[effect.interval.direction]
        text = f"{signed(effect.delta)}{effect.mark}"
        ends = effect.interval
        hint = (
            f"{row.title} on {title}: {row.matched[domain]:.3f} to {row.shifted[domain]:.3f}, "
            f"change 95% {ends.low:+.3f} to {ends.high:+.3f}"
        )
        arrows.append(Arrow(row.title, ROW * (i + 0.5), start, end, kind, text, hint))
    return ShiftPanel(title, ROW * len(rows), axis.x(0.5), axis.x_ticks(), tuple(arrows))
