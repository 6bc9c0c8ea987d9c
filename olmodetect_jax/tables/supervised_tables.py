"""Tables of the supervised attacks: 5 and 64-72 by AUC, 73 and 74-82 by TPR; each with what tuning gains FSD."""

from __future__ import annotations

from collections.abc import Sequence

from olmodetect_jax.attacks.supervised import FSD_BASES, IN_DOMAIN, LODO
from olmodetect_jax.evaluation.aggregate import Column, mean
from olmodetect_jax.evaluation.supervised import OUTSIDE_MAIN_TABLE, GainRow, SupervisedRow
from olmodetect_jax.tables import names
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import published
from olmodetect_jax.tables.score_tables import METRICS, attack_cell
from olmodetect_jax.tables.study import ALL, Source, Study

_SETTINGS = {IN_DOMAIN: "In-domain", LODO: "LODO"}
_ATTACKS = {"sup_camia": "Sup-CAMIA", "mia_tuner": "MIA-Tuner"}
_REFERENCE = "zlib"  # the unsupervised row that the supervised ones are held against
_NUMBERS = {"auc": "64_72", "tpr": "73_82"}  # in the names of the published files


def supervised_tables(study: Study, *, against_paper: bool) -> list[PaperTable]:
    """All of them; none where no supervised attack was scored.

    Args:
        study: the runs.
        against_paper: whether cells carry published values.
    """
    if not any(source.supervised for source in study.sources):
        return []
    tables = []
    for metric, overall, first in (("auc", 5, 64), ("tpr", 73, 74)):
        stages = [Column("stage", s, names.STAGES.get(s, title)) for s, title in study.tree.stage_titles.items()]
        tables += _pair(study, metric, overall, "by stage", [*stages, ALL], against_paper)
        domains = [Column("domain", d, title) for d, title in study.tree.domain_titles.items()]
        if study.is_papers:
            by_id = {d.id: d for d in domains}
            for i, domain in enumerate(names.SUPERVISED_ORDER):
                tables += _pair(study, metric, first + i, f"on {names.DOMAINS[domain]}", [by_id[domain]], against_paper)
        else:
            tables += _pair(study, metric, first, "on each domain", domains, against_paper)
    return tables


def _pair(
    study: Study, metric: str, number: int, where: str, groups: Sequence[Column], against: bool
) -> list[PaperTable]:
    """The attacks' own values, and FSD's gains over the last of the groups alone if they are stages and All."""
    columns = [(source, group) for source in study.sources for group in groups]
    heads = tuple((s.title, g.title) for s, g in columns)
    rows = []
    if number != 5:  # the paper's main table has no reference row
        cells = [_reference(study, number, metric, s, g, against) for s, g in columns]
        rows.append(TableRow(("Zlib (unsup.)", "-"), tuple(cells)))
    for attack, title in _ATTACKS.items():
        for setting, word in _SETTINGS.items():
            if not against and not any(_row(source, attack, setting) for source in study.sources):
                continue
            cells = [_cell(metric, number, attack, setting, s, g, against) for s, g in columns]
            rows.append(TableRow((title, word), tuple(cells)))
    own = PaperTable(
        number, f"Supervised attacks {where}: {METRICS[metric]}", ("Attack", "Setting"), heads, tuple(rows)
    )
    gained = [ALL] if ALL in groups else list(groups)
    return [own, _gains(study, metric, number, where, gained, against)]


def _reference(study: Study, number: int, metric: str, source: Source, group: Column, against: bool) -> TableCell:
    def lookup(_: str, source: Source, group: Column) -> float | str | None:
        return _published(number, metric, "Zlib (unsup.)", "-", source, group)

    return attack_cell(study, _REFERENCE, metric, source, group, lookup if against else None)


def _published(
    number: int, metric: str, attack: str, setting: str, source: Source, group: Column
) -> float | str | None:
    name = "table05_supervised" if number == 5 else f"tables{_NUMBERS[metric]}_supervised_{metric}"
    stage = "" if group.level == "domain" else "All" if group.level == "all" else group.title
    return published(
        name, "value", table=str(number), method=attack, setting=setting, model=source.paper or "", stage=stage
    )


def _cell(
    metric: str, number: int, attack: str, setting: str, source: Source, group: Column, against: bool
) -> TableCell:
    row = _row(source, attack, setting)
    value = group.of(getattr(row, metric)) if row else None
    there = _published(number, metric, _ATTACKS[attack], _SETTINGS[setting], source, group) if against else None
    return number_cell(
        value,
        source.why_not(row.id, group) if row else f"{attack} was not scored with --setting {setting}",
        published=there if source.paper and (row is None or row.title == _ATTACKS[attack]) else None,
        interval=source.interval(metric, row.id, group) if row else None,
    )


def _row(source: Source, attack: str, setting: str) -> SupervisedRow | None:
    rows = source.supervised.rows if source.supervised else ()
    return next((r for r in rows if r.id.startswith(attack) and r.setting == setting), None)


def _gains(study: Study, metric: str, number: int, where: str, groups: Sequence[Column], against: bool) -> PaperTable:
    """FSD minus its base score, by base and setting; first the base score's own value, in-domain, mean over models."""
    file = "table05_fsd_gain" if number == 5 else f"tables{_NUMBERS[metric]}_fsd_gain_{metric}"
    rows = []
    for base, title in FSD_BASES.items():
        if number == 5 and base == OUTSIDE_MAIN_TABLE:
            continue
        for setting, word in _SETTINGS.items():
            if not against and not any(_gain(source, base, setting) for source in study.sources):
                continue
            where_published = {"table": str(number), "base": title, "setting": word}
            cells = []
            for group in groups:
                there = None
                if against and study.mean.paper == names.MODEL_AVG:
                    there = published(file, "base_value_model_avg", **where_published)
                cells.append(_base_cell(study, metric, base, group, there))
                for source in study.sources:
                    there = None
                    if against and source.paper:
                        there = published(file, "delta", model=source.paper, **where_published)
                    cells.append(_gain_cell(source, metric, base, setting, group, there))
            rows.append(TableRow((title, word), tuple(cells)))
    heads = tuple((g.title, name) for g in groups for name in ("Base", *(s.title for s in study.sources)))
    note = "FSD minus its base score on the same records; a base score's own value is that of the in-domain run."
    return PaperTable(
        number, f"What tuning gains FSD {where}: {METRICS[metric]}", ("Base score", "Setting"), heads, tuple(rows),
        (note,), "fsd",
    )  # fmt: skip


def _gain(source: Source, base: str, setting: str) -> GainRow | None:
    gains = source.supervised.gains if source.supervised else ()
    return next((g for g in gains if (g.base, g.setting) == (base, setting)), None)


def _base_cell(study: Study, metric: str, base: str, group: Column, there: float | str | None) -> TableCell:
    rows = [_gain(source, base, IN_DOMAIN) for source in study.models]
    value = mean(None if row is None else group.of(row.before if metric == "auc" else row.before_tpr) for row in rows)
    return number_cell(value, f"fsd_{base} was not scored in-domain for every model", published=there)


def _gain_cell(
    source: Source, metric: str, base: str, setting: str, group: Column, there: float | str | None
) -> TableCell:
    row = _gain(source, base, setting)
    value = (row.gain(group) if metric == "auc" else row.gain_tpr(group)) if row else None
    reason = f"fsd_{base} was not scored on every subset with --setting {setting}"
    return number_cell(value, reason, published=there, difference=True)
