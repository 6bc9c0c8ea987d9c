"""Tables of a benchmark's texts, from the `verification.json` of `olmodetect verify`: 2, 15-21 and 30-36 here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from olmodetect_jax.benchmark import Tree, tree_from
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation.formatting import ABSENT
from olmodetect_jax.evaluation.json_fields import Field, read_plain
from olmodetect_jax.tables import names
from olmodetect_jax.tables.leak_tables import BENCHMARK_DOMAINS, leak_tables
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import find

_CLASSES = (("non_members", "non-member"), ("members", "member"))  # in the paper's order
_PARTS = ("dev", "test", "total")
_COLUMNS = ("Samples", "Tokens", "Quality", "Mean date", "Days around it", "JSD")
_PUBLISHED = ("samples", "tokens", "quality", "date_mean", "date_std_days", "lexical_jsd_first_row")
_BY_STAGE = {"matched": (15, "statistics_detailed"), "shifted": (31, "statistics_detailed")}
_SUBSET_TABLES = {
    "matched": {"starcoder": 18, "stackexchange": 19, "sft": 20, "rlvr": 21},
    "shifted": {"starcoder": 34, "stackexchange": 35, "sft": 36},
}


@dataclass(frozen=True)
class Group:
    """One group of a verification: a subset, or a domain, for one size where its texts depend on it.

    Attributes:
        id: subset or domain id.
        level: subset or domain.
        size: the part of the id that names a size or a pair of sizes; empty where there is none.
        title: with the size.
        variant: matched or shifted.
        domain: domain id.
        field: where its facts are.
    """

    id: str
    level: str
    size: str
    title: str
    variant: str
    domain: str
    field: Field


def benchmark_tables(path: Path, *, against_paper: bool) -> list[PaperTable]:
    """All that the file supports.

    Args:
        path: the `verification.json`.
        against_paper: whether cells carry published values; of the paper's own benchmark only.

    Raises:
        DataError: the file is no such one; names field.
    """
    file = read_plain(path)
    try:
        tree = tree_from(file["tree"].value, path)
    except UsageError as error:
        raise DataError(f"{path}: field tree: {error}") from None
    against = against_paper and tree.name == names.PAPER_TREE
    groups = _groups(file, tree)
    tables = []
    for variant, number in (("matched", 2), ("shifted", 30)):
        own = [g for g in groups if g.variant == variant]
        if own:
            tables += _statistics(own, tree, variant, number, against)
    return [*tables, *leak_tables(file, tree, against)]


def member_copies(path: Path) -> dict[str, float]:
    """Subset id to how often its members stand in the indices that a verification was given; empty without one.

    A subset with texts for each size has the mean over them.

    Raises:
        DataError: the file is no such one; names field.
    """
    file = read_plain(path)
    tree = tree_from(file["tree"].value, path)
    found: dict[str, list[float]] = {}
    fields = file["copies"].fields() if file["copies"].value is not None else {}
    for name, field in fields.items():
        own, _ = _split(name, {s.id: s.domain for s in tree.subsets}, field)
        value = field.number()
        if value is None:
            raise field.error("a number")
        found.setdefault(own, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


def _groups(file: Field, tree: Tree) -> list[Group]:
    """Every group, and a domain of one subset by that subset."""
    found = []
    for field in file["groups"].elements():
        name, level = field["id"].string(), field["level"].text(("subset", "domain"))
        known = {s.id: s.domain for s in tree.subsets} if level == "subset" else {d: d for d in tree.domain_titles}
        own, size = _split(name, known, field["id"])
        title, variant = field["title"].string(), field["variant"].text(("matched", "shifted"))
        title = f"{title} {size}".strip()
        found.append(Group(own, level, size, title, variant, known[own], field))
    for group in [g for g in found if g.level == "subset"]:
        if sum(s.domain == group.domain for s in tree.subsets) == 1:
            title = f"{tree.domain_titles[group.domain]} {group.size}".strip()
            found.append(Group(group.domain, "domain", group.size, title, group.variant, group.domain, group.field))
    order = list(tree.domain_titles)
    return sorted(found, key=lambda g: order.index(g.domain))


def _split(name: str, known: Mapping[str, str], field: Field) -> tuple[str, str]:
    """(id, size) of a group's name: `sft_aya_1b-32b` is `sft_aya` of the sizes 1b and 32b."""
    if name in known:
        return name, ""
    own, _, size = name.rpartition("_")
    if own not in known:
        raise field.error(f"the id of a {'subset' if known else 'domain'} of the tree, maybe with a size")
    return own, size


def _statistics(groups: Sequence[Group], tree: Tree, variant: str, number: int, against: bool) -> list[PaperTable]:
    what = f"{variant} members" if variant == "shifted" else "the benchmark"
    domains = [g for g in groups if g.level == "domain"]
    file = "table02_statistics" if variant == "matched" else "table30_statistics_shifted"
    totals = [g for g in domains if g.size in ("", "1b", "1b-32b")]  # the paper shows 1B alone
    tables = [_table(number, f"Statistics of {what}", totals, ("total",), file, against, with_model=False)]
    first, file = _BY_STAGE[variant]
    for i, (stage, title) in enumerate(tree.stage_titles.items()):
        own = [g for g in domains if _stage(tree, g.domain) == stage]
        if own:
            tables.append(_table(first + i, f"Statistics of {what}: {title}", own, _PARTS, file, against))
    if tree.name == names.PAPER_TREE:
        for domain, place in _SUBSET_TABLES[variant].items():
            own = [g for g in groups if g.level == "subset" and g.domain == domain]
            if own:
                title = f"Statistics of {what}: subsets of {names.DOMAINS[domain]}"
                tables.append(_table(place, title, own, _PARTS, file, against))
    return tables


def _stage(tree: Tree, domain: str) -> str:
    return next(s.stage for s in tree.subsets if s.domain == domain)


def _table(
    number: int, title: str, groups: Sequence[Group], parts: Sequence[str], file: str, against: bool,
    *, with_model: bool = True,
) -> PaperTable:  # fmt: skip
    rows = []
    for group in groups:
        for field_name, word in _CLASSES:
            for part in parts:
                own = group.field[field_name] if part == "total" else group.field[field_name][part]
                there: dict[str, Any] = {}
                if against:
                    there = _published(number, group, word, part, file, with_model)
                cells = _cells(own, group, there, f"{group.title} has no {part} {word}s")
                rows.append(TableRow((group.title, word, part), cells))
    notes = ("Tokens of the tokenizer that the verification was run with. JSD: of both classes' tokens, in bits.",)
    # What no group has, such as dates of undated texts, is no column.
    kept = [i for i in range(len(_COLUMNS)) if any(r.cells[i].refused is None or r.cells[i].published for r in rows)]
    rows = [TableRow(row.labels, tuple(row.cells[i] for i in kept)) for row in rows]
    heads = tuple((_COLUMNS[i],) for i in kept)
    return PaperTable(number, title, ("Group", "Class", "Part"), heads, tuple(rows), notes)


def _published(number: int, group: Group, word: str, part: str, file: str, with_model: bool) -> dict[str, Any]:
    def same(row: Mapping[str, str]) -> bool:
        subset = group.level != "subset" or row["subset"].lower() == names.SUBSETS[group.id].lower()
        models = [m.strip().lower() for m in row["model"].split(",") if m.strip()]
        sized = not with_model or not group.size or any(size in models for size in group.size.split("-"))
        return (
            row["table"] == str(number)
            and row["domain"] == BENCHMARK_DOMAINS[group.domain]
            and (row["split"], row["partition"]) == (word, part)
            and subset
            and sized
        )

    return {column: find(file, column, same) for column in _PUBLISHED}


def _cells(field: Field, group: Group, there: Mapping[str, Any], reason: str) -> tuple[TableCell, ...]:
    published = [there.get(column) for column in _PUBLISHED]
    if field.value is None:
        return tuple(TableCell(None, ABSENT, p, None, reason) for p in published)
    records, tokens = field["records"].count(), field["tokens"].count()
    quality = _quality(field["quality"])
    dates, days = field["date"].value, None
    if dates is not None:
        days = field["date"]["mean"].number(), field["date"]["std"].number()
    jsd = group.field["jsd"].number()
    undated = "no record of the group is dated"
    return (
        TableCell(records, f"{records}", published[0]),
        TableCell(tokens, f"{tokens}", published[1]),
        _words(quality, published[2], "the group has no measure of quality"),
        _words(days and days[0] and date.fromordinal(int(days[0])).isoformat(), published[3], undated),
        TableCell(None, ABSENT, published[4], None, undated)
        if not days or days[1] is None
        else TableCell(days[1], f"{days[1]:.0f}", published[4]),
        number_cell(jsd, "no divergence is defined", published=published[5]),
    )


def _words(words: str | None, published: Any, reason: str) -> TableCell:
    return TableCell(words, words, published) if words else TableCell(None, ABSENT, published, None, reason)


def _quality(field: Field) -> str:
    parts = []
    for title, spread in field.fields().items():
        parts.append(f"{title}: {spread['mean'].number():.5g} ± {spread['std'].number():.5g}")
    return "; ".join(parts)
