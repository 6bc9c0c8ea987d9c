"""Tables 7 and 85: what shifted members do to each attack's AUC."""

from __future__ import annotations

from collections.abc import Mapping

from olmodetect_jax.evaluation.comparisons import ShiftTable, shift_counts, shift_effects
from olmodetect_jax.tables import names
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import published
from olmodetect_jax.tables.study import OPTIMISTIC, Study


def shift_tables(study: Study, *, against_paper: bool, n_resamples: int, seed: int = 0) -> list[PaperTable]:
    """Tables 7 and 85; none without runs of both variants.

    Args:
        study: the runs.
        against_paper: whether cells carry published values.
        n_resamples: of the bootstrap.
        seed: of its draws.
    """
    shift = shift_effects(study.pairs, n_resamples=n_resamples, seed=seed)
    if shift is None:
        return []
    # The paper's values are means over four sizes.
    compared = against_paper and len(study.pairs) == len(names.SIZES) and study.mean.paper == names.MODEL_AVG
    return [_summary(shift, study, compared), _by_domain(shift, study, compared)]


def _shift_title(study: Study, attack: str, title: str) -> str | None:
    """The paper's name of a row, or None."""
    return study.paper_name(attack) if attack in study.sources[0].rows else None if title == OPTIMISTIC else title


def _summary(shift: ShiftTable, study: Study, against: bool) -> PaperTable:
    rows = []
    for row in shift.rows:
        deltas = {d: e.delta for d, e in row.domain.items()}
        name = _shift_title(study, row.attack, row.title)
        there: Mapping[str, float | str | None] = {}
        if against and name:
            columns = ("n_increase_95", "n_decrease_95", "largest_delta", "largest_domain")
            there = {c: published("table07_shift_summary", c, method=name) for c in columns}
        if deltas:
            found = shift_counts(deltas, {d: e.interval.direction for d, e in row.domain.items()})
            where = names.SHORT_DOMAINS.get(found.largest_domain, shift.domain_titles[found.largest_domain])
            cells = (
                TableCell(found.n_increase, str(found.n_increase), there.get("n_increase_95")),
                TableCell(found.n_decrease, str(found.n_decrease), there.get("n_decrease_95")),
                number_cell(found.largest_delta, "", published=there.get("largest_delta"), difference=True),
                TableCell(where, where, there.get("largest_domain")),
            )
            rows.append(TableRow((row.title,), cells))
    heads = (("Domains up",), ("Domains down",), ("Largest",), ("Domain of it",))
    return PaperTable(7, "What shifted members do to the AUC", ("Attack",), heads, tuple(rows), (_shift_note(shift),))


def _by_domain(shift: ShiftTable, study: Study, against: bool) -> PaperTable:
    rows = []
    for row in shift.rows:
        name = _shift_title(study, row.attack, row.title)
        cells = []
        for domain in shift.domain_titles:
            effect, there = row.domain.get(domain), None
            if against and name:
                where = {"method": name, "domain": names.SHORT_DOMAINS[domain]}
                there = published("table85_shift_per_domain", "delta", **where)
            if effect is None:
                cells.append(number_cell(None, f"{row.title}: a subset of {domain} lacks a variant", published=there))
            else:
                delta, ends, mark = effect.delta, effect.interval, effect.mark
                cells.append(number_cell(delta, "", published=there, interval=ends, difference=True, mark=mark))
        rows.append(TableRow((row.title,), tuple(cells)))
    heads = tuple((names.SHORT_DOMAINS.get(d, title),) for d, title in shift.domain_titles.items())
    notes = (_shift_note(shift), "† the 95% interval, ‡ the 99% interval lies on one side of 0.")
    return PaperTable(85, "Shifted minus matched AUC by domain", ("Attack",), heads, tuple(rows), notes)


def _shift_note(shift: ShiftTable) -> str:
    return f"Mean over {', '.join(shift.models)}; {shift.n_resamples} paired resamples."
