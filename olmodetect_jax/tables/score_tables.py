"""Tables of every attack's AUC and TPR: 4, 28, 29, 37-49 and their TPR twins 50-63."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from olmodetect_jax.attacks.supervised import IN_DOMAIN, LODO
from olmodetect_jax.evaluation.aggregate import Column
from olmodetect_jax.tables import names
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import published
from olmodetect_jax.tables.study import ALL, Source, Study

METRICS = {"auc": "AUC", "tpr": "TPR at 5% FPR"}
_COLUMN = {"auc": "auc", "tpr": "tpr_at_5fpr"}  # of the published files

Lookup = Callable[[str, Source, Column], float | str | None]  # (paper's name of the attack, source, group)


def score_tables(study: Study, *, against_paper: bool) -> list[PaperTable]:
    """All of them.

    Args:
        study: the runs.
        against_paper: whether cells carry published values, and rows of the paper's attacks stand there all.
    """
    tables = []
    for metric, first in (("auc", 37), ("tpr", 51)):
        tables.append(_overall(study, metric, 4 if metric == "auc" else 50, against_paper))
        tables += _by_domain(study, metric, first, against_paper)
    tables += _intervals(study, against_paper)
    return sorted(tables, key=lambda table: table.number)


def _overall(study: Study, metric: str, number: int, against: bool) -> PaperTable:
    stages = [Column("stage", s, names.STAGES.get(s, title)) for s, title in study.tree.stage_titles.items()]
    file = {"auc": "table04_auc_overall", "tpr": "table50_tpr_overall"}[metric]

    def lookup(attack: str, source: Source, group: Column) -> float | str | None:
        stage = "All" if group.level == "all" else group.title
        return published(file, _COLUMN[metric], method=attack, model=source.paper or "", stage=stage)

    columns = [(source, group) for source in study.sources for group in (*stages, ALL)]
    title = f"{METRICS[metric]} by stage and model"
    return attack_table(study, number, title, metric, columns, lookup if against else None)


def _by_domain(study: Study, metric: str, first: int, against: bool) -> list[PaperTable]:
    """A table a domain, then one a domain with several subsets; of another benchmark one for all of each."""
    file = {"auc": "auc_per_domain", "tpr": "tpr_per_domain"}[metric]

    def lookup(attack: str, source: Source, group: Column) -> float | str | None:
        if group.level == "domain":
            where = {"domain": names.DOMAINS[group.id], "level": "domain"}
        else:
            where = {"subset": names.SUBSETS[group.id], "level": "subset"}
        return published(file, _COLUMN[metric], method=attack, model=source.paper or "", **where)

    domains = [Column("domain", d, title) for d, title in study.tree.domain_titles.items()]
    inside = {d.id: [Column("subset", s.id, s.title) for s in study.tree.subsets if s.domain == d.id] for d in domains}
    given = lookup if against else None

    def table(number: int, what: str, groups: Sequence[Column]) -> PaperTable:
        columns = [(source, group) for group in groups for source in study.sources]
        return attack_table(study, number, f"{METRICS[metric]} on {what}", metric, columns, given, by_group=True)

    if not study.is_papers:
        several = [s for of in inside.values() if len(of) > 1 for s in of]
        return [table(first, "each domain", domains)] + ([table(first + 9, "each subset", several)] if several else [])
    by_id = {d.id: d for d in domains}
    tables = [table(first + i, names.DOMAINS[d], [by_id[d]]) for i, d in enumerate(names.DOMAIN_ORDER)]
    for i, domain in enumerate(names.SUBSET_ORDER):
        tables.append(table(first + 9 + i, f"the subsets of {names.DOMAINS[domain]}", inside[domain]))
    return tables


def attack_table(
    study: Study,
    number: int,
    title: str,
    metric: str,
    columns: Sequence[tuple[Source, Column]],
    lookup: Lookup | None,
    *,
    by_group: bool = False,
) -> PaperTable:
    """A row an unsupervised attack, then Method-Avg.

    Args:
        study: the runs.
        number: of the table.
        title: of the table.
        metric: auc or tpr.
        columns: whose value of which group.
        lookup: of published values; None to show none.
        by_group: whether the groups, not the models, head the columns.
    """
    rows = []
    for attack in study.unsupervised(everything=lookup is not None):
        cells = [attack_cell(study, attack, metric, source, group, lookup) for source, group in columns]
        rows.append(TableRow((study.title(attack),), tuple(cells)))
    heads = tuple((g.title, s.title) if by_group else (s.title, g.title) for s, g in columns)
    notes = [f"No run has scored {study.title(a)}." for a in _unscored(study, lookup is not None)]
    return PaperTable(number, title, ("Attack",), heads, tuple(rows), tuple(notes))


def _unscored(study: Study, everything: bool) -> list[str]:
    return [a for a in study.unsupervised(everything=everything) if not any(a in s.rows for s in study.sources)]


def attack_cell(
    study: Study, attack: str, metric: str, source: Source, group: Column, lookup: Lookup | None
) -> TableCell:
    """One attack's value for a model and a group, with its interval and what was published."""
    row = source.rows.get(attack)
    value = group.of(getattr(row, metric)) if row else None
    name = study.paper_name(attack)
    there = lookup(name, source, group) if lookup and name and source.paper else None
    interval = source.interval(metric, attack, group)
    return number_cell(value, source.why_not(attack, group), published=there, interval=interval)


def _intervals(study: Study, against: bool) -> list[PaperTable]:
    """AUC over All, mean over the models, with the ends of its interval."""
    source = study.mean
    unsupervised = [
        TableRow(
            (study.title(a), "unsupervised"), _interval_cells(study, a, study.paper_name(a), "unsupervised", against)
        )
        for a in study.unsupervised(everything=against)
    ]
    settings = {IN_DOMAIN: "In-domain", LODO: "LODO"}
    supervised = [
        TableRow((row.title, name), _interval_cells(study, row.id, row.title, name, against))
        for row in (source.supervised.rows if source.supervised else ())
        if (name := settings.get(row.setting))
    ]
    n = study.bootstrap.n_resamples if study.bootstrap else 0
    notes = (f"Percentiles of {n} resamples of every subset's members and non-members, {source.title}.",) if n else ()
    what = "AUC over All with 95% intervals"
    return [
        PaperTable(number, title, ("Attack", "Setting"), (("AUC",), ("low",), ("high",)), tuple(rows), notes)
        for number, title, rows in ((28, what, unsupervised), (29, f"{what}, supervised attacks", supervised))
    ]


def _interval_cells(study: Study, row_id: str, name: str | None, setting: str, against: bool) -> tuple[TableCell, ...]:
    source = study.mean
    row, interval = source.rows.get(row_id), source.interval("auc", row_id, ALL)
    low, high = (interval.low, interval.high) if interval else (None, None)
    values = {"auc": row.auc.all if row else None, "ci95_lo": low, "ci95_hi": high}
    compared = against and name and source.paper == names.MODEL_AVG
    no_ends = source.why_not(row_id, ALL) if study.bootstrap else "no intervals were wanted: --bootstrap N makes them"
    return tuple(
        number_cell(
            value,
            source.why_not(row_id, ALL) if column == "auc" else no_ends,
            published=published("tables28_29_bootstrap_ci", column, method=name or "", setting=setting)
            if compared
            else None,
            interval=interval if column == "auc" else None,
        )
        for column, value in values.items()
    )
