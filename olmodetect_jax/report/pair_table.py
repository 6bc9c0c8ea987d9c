"""Which attacks differ: their AUCs over All against each other, on the same resamples."""

from __future__ import annotations

from collections.abc import Sequence

from olmodetect_jax.evaluation.comparisons import Pair, attack_pairs
from olmodetect_jax.evaluation.formatting import ABSENT, signed
from olmodetect_jax.evaluation.results import METHOD_AVG, Row
from olmodetect_jax.report.cells import Cell
from olmodetect_jax.report.heat import HeatTable

CLEAR = 0.05  # largest p, after Holm's correction, of a marked difference
_FULL = 0.3  # difference of full colour


def pair_table(rows: Sequence[Row], draws: Sequence[Row]) -> HeatTable | None:
    """Row minus column; a star where Holm's correction over all pairs leaves p below 0.05. None for one attack.

    Args:
        rows: of a run.
        draws: the same rows resampled.
    """
    pairs = attack_pairs(rows, draws)
    if not pairs:
        return None
    known = {(p.first, p.second): p for p in pairs}
    titles = [row.title for row in rows if row.id != METHOD_AVG and any(row.title in key for key in known)]
    lines = tuple((a, False, tuple(_cell(known, a, b) for b in titles)) for a in titles)
    return HeatTable("Differences of AUC over All", "", (("row minus column", len(titles)),), tuple(titles), lines)


def _cell(known: dict[tuple[str, str], Pair], row: str, column: str) -> Cell:
    if row == column:
        return Cell(ABSENT, None, "itself", 0, "low")
    pair, sign = (known[column, row], 1) if (column, row) in known else (known[row, column], -1)
    difference = sign * pair.difference
    p = 1.0 if pair.p_holm is None else pair.p_holm
    low, high = sorted((sign * pair.interval.low, sign * pair.interval.high))
    hint = f"{row} minus {column}: {difference:+.3f} [{low:+.3f}, {high:+.3f}], p {p:.3f} after Holm"
    heat = round(100 * min(1.0, abs(difference) / _FULL)) if p < CLEAR else 0
    text = f"{signed(difference)}{'*' if p < CLEAR else ''}"
    return Cell(text, difference, hint, heat, "high" if difference > 0 else "low")
