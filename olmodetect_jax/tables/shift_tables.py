"""Tables 7 and 85: what shifted members do to each attack's AUC."""

from __future__ import annotations

from olmodetect_jax.evaluation.comparisons import ShiftRow, ShiftTable, shift_counts, shift_effects
from olmodetect_jax.evaluation.formatting import ABSENT
from olmodetect_jax.evaluation.results import METHOD_AVG
from olmodetect_jax.tables import names
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import published
from olmodetect_jax.tables.study import Study

_NO_ROW = (METHOD_AVG, "self_critique")  # Self-Critique scores prompts, which have no shifted variant

Rows = list[tuple[str, str | None, ShiftRow | None]]  # (title, the paper's name or None, what was found)


def shift_tables(
    study: Study, *, against_paper: bool, n_resamples: int, seed: int = 0, together: bool = True
) -> list[PaperTable]:
    """Tables 7 and 85; none without runs of both variants.

    Args:
        study: the runs.
        against_paper: whether cells carry published values, and rows of the paper's attacks stand there all.
        n_resamples: of the bootstrap.
        seed: of its draws.
        together: whether the two texts of a DPO prompt are drawn together.
    """
    shift = shift_effects(study.pairs, n_resamples=n_resamples, seed=seed, together=together)
    if shift is None:
        return []
    # The paper's values are means over four sizes.
    compared = against_paper and len(study.pairs) == len(names.SIZES) and study.mean.paper == names.MODEL_AVG
    found = {row.attack: row for row in shift.rows}
    attacks = [a for a in study.unsupervised(everything=against_paper) if a not in _NO_ROW]
    rows = [(study.title(a), study.paper_name(a) if compared else None, found.get(a)) for a in attacks]
    return [_summary(shift, rows), _by_domain(shift, rows)]


def _summary(shift: ShiftTable, rows: Rows) -> PaperTable:
    lines = []
    for title, name, row in rows:
        columns = ("n_increase_95", "n_decrease_95", "largest_delta", "largest_domain")
        up, down, largest, domain = (published("table07_shift_summary", c, method=name or "") for c in columns)
        if row is None or not row.domain:
            reason = f"{title}: no domain was scored with both variants"
            cells = tuple(TableCell(None, ABSENT, there, None, reason) for there in (up, down, largest, domain))
        else:
            deltas = {d: e.delta for d, e in row.domain.items()}
            found = shift_counts(deltas, {d: e.interval.direction for d, e in row.domain.items()})
            where = names.SHORT_DOMAINS.get(found.largest_domain, shift.domain_titles[found.largest_domain])
            cells = (
                TableCell(found.n_increase, str(found.n_increase), up),
                TableCell(found.n_decrease, str(found.n_decrease), down),
                number_cell(found.largest_delta, "", published=largest, difference=True),
                TableCell(where, where, domain),
            )
        lines.append(TableRow((title,), cells))
    heads = (("Domains up",), ("Domains down",), ("Largest",), ("Domain of it",))
    return PaperTable(7, "What shifted members do to the AUC", ("Attack",), heads, tuple(lines), (_shift_note(shift),))


def _by_domain(shift: ShiftTable, rows: Rows) -> PaperTable:
    lines = []
    for title, name, row in rows:
        cells = []
        for domain in shift.domain_titles:
            effect, there = row.domain.get(domain) if row else None, None
            if name:
                where = {"method": name, "domain": names.SHORT_DOMAINS[domain]}
                there = published("table85_shift_per_domain", "delta", **where)
            if effect is None:
                cells.append(number_cell(None, f"{title}: a subset of {domain} lacks a variant", published=there))
            else:
                delta, ends, mark = effect.delta, effect.interval, effect.mark
                cells.append(number_cell(delta, "", published=there, interval=ends, difference=True, mark=mark))
        lines.append(TableRow((title,), tuple(cells)))
    heads = tuple((names.SHORT_DOMAINS.get(d, title),) for d, title in shift.domain_titles.items())
    notes = (_shift_note(shift), "† the 95% interval, ‡ the 99% interval lies on one side of 0.")
    return PaperTable(85, "Shifted minus matched AUC by domain", ("Attack",), heads, tuple(lines), notes)


def _shift_note(shift: ShiftTable) -> str:
    return f"Mean over {', '.join(shift.models)}; {shift.n_resamples} paired resamples."
