"""Tables of the smaller studies: 8 other models, 27 hyperparameters, 83 label budget, 84 domain unknown."""

from __future__ import annotations

from collections.abc import Sequence

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.attacks.supervised import SUPERVISED_TITLES
from olmodetect_jax.evaluation.aggregate import OUTSIDE_METHOD_AVG, mean, mean_of_present
from olmodetect_jax.evaluation.budget import Budget, read_budget
from olmodetect_jax.evaluation.domain_unknown import Known, domain_unknown, mean_known
from olmodetect_jax.evaluation.formatting import ABSENT
from olmodetect_jax.evaluation.generalisation import ATTACKS, PAIRINGS, Pairing, auc_without
from olmodetect_jax.evaluation.results import RunMetrics
from olmodetect_jax.tables import names
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import published
from olmodetect_jax.tables.study import Study


def study_tables(study: Study, *, against_paper: bool, seed: int = 0) -> list[PaperTable]:
    """All that the runs support.

    Args:
        study: the runs.
        against_paper: whether cells carry published values.
        seed: of draws.
    """
    tables = [*_generalisation(study, against_paper), _tuned(study, against_paper), *_budget(study, against_paper)]
    return [*tables, _unknown(study, against_paper, seed)]


def _generalisation(study: Study, against: bool) -> list[PaperTable]:
    if not study.is_papers:
        return []
    by_size = {r.run.manifest["model"].get("size"): r for r in study.results}
    rows = []
    for pairing in PAIRINGS:
        ours = by_size.get(pairing.olmo2)
        theirs = next((r for r in study.others if r.run.model.lower() in map(str.lower, pairing.other)), None)
        if ours is None or theirs is None or pairing.subset not in (*ours.run.subsets, *theirs.run.subsets):
            continue
        values = {a: [auc_without(r.run, a, pairing.subset, pairing.left_out) for r in (ours, theirs)] for a in ATTACKS}
        means = [mean(pair[i] for pair in values.values()) for i in range(2)]
        for title, pair in [*((TITLES[a], pair) for a, pair in values.items()), ("Avg", means)]:
            rows.append(_pairing_row(pairing, title, pair, against))
    if not rows:
        return []
    notes = ("A row with excluded records leaves them out for both models: the other model may have seen them.",)
    heads = (("OLMo 2",), ("Other",))
    labels = ("Domain", "Models", "Attack")
    return [PaperTable(8, "AUC of other models on shared data", labels, heads, tuple(rows), notes)]


def _pairing_row(pairing: Pairing, title: str, pair: Sequence[float | None], against: bool) -> TableRow:
    where = {
        "domain": names.SUBSETS[pairing.subset], "olmo2_model": pairing.titles[0], "other_model": pairing.titles[1],
        "method": title,
    }  # fmt: skip
    cells = []
    for value, column, name in zip(pair, ("auc_olmo2", "auc_other"), pairing.titles, strict=True):
        there = published("table08_generalization", column, **where) if against else None
        cells.append(number_cell(value, f"{name}: {title} was not scored on {pairing.subset}", published=there))
    return TableRow((names.SUBSETS[pairing.subset], " / ".join(pairing.titles), title), tuple(cells))


_TUNED = {
    "MinK": ("min_k",), "MinK++": ("min_k_plus_plus",), "DCPDD": ("dc_pdd_alpha",), "ReCaLL": ("recall_shots",),
    "CAMIA": ("camia_composition",), "PAC": ("pac_near", "pac_far"), "DCQ": ("dcq_score",),
    "Neigh.": ("neighborhood_score",), "CDD": ("cdd_alpha", "cdd_length", "cdd_ratio"), "Guided": ("guided_score",),
}  # fmt: skip


def _tuned(study: Study, against: bool) -> PaperTable:
    rows = []
    scored = {TITLES[a] for result in study.results for a in result.run.attacks}
    for title, fields in _TUNED.items():
        if title not in scored and not against:
            continue
        cells = []
        for source in study.models:
            assert source.result is not None
            values = source.result.run.manifest.get("hyperparameters") or {}
            there = None
            if against and source.paper:
                there = published("table27_hyperparameters", source.paper, method=title)
            if all(f in values for f in fields):
                chosen = ", ".join(str(values[f]) for f in fields)
                cells.append(TableCell(chosen, chosen, None if there is None else str(there)))
            else:
                reason = f"the run's manifest has no {', '.join(fields)}"
                cells.append(TableCell(None, ABSENT, there, None, reason))
        rows.append(TableRow((title, ", ".join(fields)), tuple(cells)))
    words = {True: "tuned on the development split", False: "not tuned"}
    how = [f"{s.title}: {words[_is_tuned(s.result)]}" for s in study.models]
    heads = tuple((s.title,) for s in study.models)
    return PaperTable(27, "Hyperparameters", ("Attack", "Field"), heads, tuple(rows), ("; ".join(how) + ".",))


def _is_tuned(result: RunMetrics | None) -> bool:
    return result is not None and bool(result.run.manifest.get("tuned"))


def _budget(study: Study, against: bool) -> list[PaperTable]:
    budgets = {s.title: (s, read_budget(s.result.run.path)) for s in study.models if s.result is not None}
    known: dict[str, tuple[str | None, Budget]] = {t: (s.paper, b) for t, (s, b) in budgets.items() if b is not None}
    if not known:
        return []
    rows = []
    for domain, title in [*study.tree.domain_titles.items(), ("", "Macro-Avg")]:
        # The paper's table calls GSM8K by the mixture it is taken from.
        name = {"": "Macro-Avg", "gsm8k": "Math Mix"}.get(domain, names.DOMAINS.get(domain, title))
        cells = []
        for model, (paper, found) in known.items():
            curve = found.domains.get(domain) if domain else found.all
            for i, fraction in enumerate(found.fractions):
                there = None
                if against and paper:
                    where = {"domain": name, "model": paper, "budget_pct": f"{100 * fraction:.0f}"}
                    there = published("table83_label_budget", "auc", **where)
                value = curve.mean[i] if curve else None
                cells.append(number_cell(value, f"{model}: a subset of {title} has no curve", published=there))
        rows.append(TableRow((title,), tuple(cells)))
    heads = tuple((model, f"{100 * f:.0f}%") for model, (_, found) in known.items() for f in found.fractions)
    notes = ("Mean over splits; Macro-Avg is the mean of the domains, not of the stages.",)
    return [PaperTable(83, "Sup-CAMIA by label budget: AUC", ("Domain",), heads, tuple(rows), notes)]


def _unknown(study: Study, against: bool, seed: int) -> PaperTable:
    found = [domain_unknown(result, seed=seed) for result in study.results]
    compared = against and study.mean.paper == names.MODEL_AVG
    columns = ("given_auc_macro", "given_acc", "unknown_auc_pooled", "unknown_acc")
    attacks = list(dict.fromkeys(a for of in found for a in of))
    means = {a: mean_known([of[a] for of in found]) for a in attacks if all(a in of for of in found)}
    rows: list[tuple[str, str | None, Known]] = [
        (study.title(a), TITLES[a] if a in SUPERVISED_TITLES else study.paper_name(a), v) for a, v in means.items()
    ]
    unsupervised = [value for a, value in means.items() if a not in OUTSIDE_METHOD_AVG]
    if len(unsupervised) > 1:
        average = Known(*(mean_of_present(getattr(v, f) for v in unsupervised) for f in Known.__dataclass_fields__))
        name = "Method-Avg (unsup.)"
        rows.append((name, name if study.paper_name("method_avg") else None, average))
    lines = []
    for title, name, value in rows:
        numbers = (value.given_auc, value.given_accuracy, value.unknown_auc, value.unknown_accuracy)
        cells = []
        for column, number in zip(columns, numbers, strict=True):
            there = published("table84_domain_unknown", column, method=name) if compared and name else None
            cells.append(number_cell(number, f"{title}: no accuracy is defined", published=there))
        lines.append(TableRow((title,), tuple(cells)))
    heads = tuple((domain, metric) for domain in ("Domain given", "Domain unknown") for metric in ("AUC", "Accuracy"))
    notes = ("20 draws of at most 100 records of each class and domain, the same for every attack; mean over models.",)
    return PaperTable(84, "With the domain given and unknown", ("Attack",), heads, tuple(lines), notes)
