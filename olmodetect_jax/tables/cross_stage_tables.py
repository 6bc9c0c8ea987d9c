"""Table 6: the attacks' mean AUC across stages, and curated mathematics against the rest."""

from __future__ import annotations

from collections.abc import Mapping

from olmodetect_jax.evaluation.aggregate import OUTSIDE_METHOD_AVG
from olmodetect_jax.evaluation.cross_stage import CURATED, CrossStage, StageRow, cross_stage
from olmodetect_jax.evaluation.results import METHOD_AVG
from olmodetect_jax.tables import names
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import published
from olmodetect_jax.tables.study import Study

_CROSS_STAGE_SUPERVISED = ("sup_camia", "mia_tuner")


def cross_stage_tables(
    study: Study, *, against_paper: bool, copies: Mapping[str, float] | None = None
) -> list[PaperTable]:
    """Both parts of Table 6; none of another benchmark, or where no attack has every subset.

    Args:
        study: the runs.
        against_paper: whether cells carry published values.
        copies: subset id to how often its members stand in the training corpora, from a verification.
    """
    if not study.is_papers:
        return []
    unsupervised = [a for a in study.unsupervised(everything=True) if a not in (METHOD_AVG, "self_critique")]
    attacks = [*(a for a in unsupervised if a not in OUTSIDE_METHOD_AVG), *_CROSS_STAGE_SUPERVISED]
    values = {a: [s.rows[a].auc for s in study.models] for a in attacks if all(a in s.rows for s in study.models)}
    found = cross_stage(values, study.tree) if values else None
    if found is None:
        return []
    # The paper's means are over four sizes and all of these attacks: over fewer they are other means.
    left_out = [a for a in attacks if a not in found.everything.attacks]
    whole = not left_out and all(study.paper_name(a) for a in attacks)
    compared = against_paper and whole and study.mean.paper == names.MODEL_AVG
    notes = ()
    if left_out:
        words = ", ".join(study.title(a) for a in left_out)
        notes = (f"Left out, without a value on every subset for every model: {words}.",)
    return [
        _cross_stage_subsets(study, found, _copies(study, copies or {}, against_paper), compared, notes),
        _cross_stage_contrast(study, found, compared, notes),
    ]


_ROWS = (("auc_all_mias", "All attacks"), ("auc_effective_mias", "Effective attacks"))


def _stage_rows(found: CrossStage) -> list[tuple[str, str, StageRow | None]]:
    return [(*_ROWS[0], found.everything), (*_ROWS[1], found.effective)]


def _cross_stage_subsets(
    study: Study, found: CrossStage, copies: TableRow, against: bool, left_out: tuple[str, ...]
) -> PaperTable:
    rows = []
    for key, title, row in _stage_rows(found):
        cells = []
        for s in study.tree.subsets:
            where = {"row": key, "subset": names.SUBSETS[s.id]}
            there = published("table06_cross_stage_subsets", "value", **where) if against else None
            cells.append(number_cell(row.subset[s.id] if row else None, _no_effective(row), published=there))
        rows.append(TableRow((title,), tuple(cells)))
    rows.append(copies)
    heads = tuple((names.STAGES[s.stage], s.title) for s in study.tree.subsets)
    effective = ", ".join(study.title(a) for a in found.effective.attacks) if found.effective else "none"
    notes = (f"Effective, with a Model-Avg of 0.60 or more: {effective}.", "The paper's upper half is of older scores.")
    title = "Mean AUC of the attacks on each subset"
    return PaperTable(6, title, ("Mean over",), heads, tuple(rows), (*left_out, *notes))


def _copies(study: Study, copies: Mapping[str, float], against: bool) -> TableRow:
    counted = []
    for s in study.tree.subsets:
        where = {"row": "dup_count", "subset": names.SUBSETS[s.id]}
        there = published("table06_cross_stage_subsets", "value", **where) if against else None
        reason = "counted with an index of the training corpora: olmodetect verify --index, then --verification"
        counted.append(number_cell(copies.get(s.id), reason, published=there))
    return TableRow(("Copies in training",), tuple(counted))


def _no_effective(row: StageRow | None) -> str:
    return "a subset is missing" if row else "no attack reaches a Model-Avg of 0.60"


def _cross_stage_contrast(study: Study, found: CrossStage, against: bool, left_out: tuple[str, ...]) -> PaperTable:
    heads: list[tuple[str, ...]] = []
    rows = []
    for key, title, row in _stage_rows(found):
        values: dict[str, float | None] = {}
        for stage, short in names.STAGES.items():
            values[short.lower()] = row.stage[stage] if row else None
        for stage, short in names.STAGES.items():
            values[f"{short.lower()}_wo_curated_math"] = row.stage_without_curated[stage] if row else None
        values |= {
            "curated_math": row.curated if row else None,
            "others": row.others if row else None,
            "delta": row.contrast if row else None,
            "n_positive": row.n_positive if row else None,
            "n_mias": len(row.attacks) if row else None,
            "wilcoxon_p_one_sided": row.test.p if row else None,
        }
        cells = []
        for quantity, value in values.items():
            where = {"row": key, "quantity": quantity}
            there = published("table06_cross_stage_contrast", "value", **where) if against else None
            cell = number_cell(value, _no_effective(row), published=there, difference=quantity == "delta")
            if value is not None and quantity in ("n_positive", "n_mias", "wilcoxon_p_one_sided"):
                cell = TableCell(value, f"{value:.4f}" if isinstance(value, float) else str(value), there)
            cells.append(cell)
        heads = [(_CONTRAST_HEADS[quantity],) for quantity in values]
        rows.append(TableRow((title,), tuple(cells)))
    curated = ", ".join(names.SUBSETS[s] for s in CURATED)
    notes = (f"Curated mathematics: {curated}. p: exact one-sided signed-rank test of the attacks' contrasts.",)
    title = "Curated mathematics against the rest: mean AUC"
    return PaperTable(6, title, ("Mean over",), tuple(heads), tuple(rows), (*left_out, *notes), "contrast")


_CONTRAST_HEADS = {
    "pre": "Pre", "mid": "Mid", "post": "Post", "pre_wo_curated_math": "Pre without",
    "mid_wo_curated_math": "Mid without", "post_wo_curated_math": "Post without",
    "curated_math": "Curated", "others": "Others", "delta": "Difference",
    "n_positive": "Attacks above 0", "n_mias": "Attacks", "wilcoxon_p_one_sided": "p",
}  # fmt: skip
