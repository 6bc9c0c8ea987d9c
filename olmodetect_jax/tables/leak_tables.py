"""Tables 22 to 25 and 3: overlap of the non-members with the training corpora, and the blind baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from olmodetect_jax.benchmark import SIZES, Tree
from olmodetect_jax.evaluation.aggregate import mean
from olmodetect_jax.evaluation.formatting import ABSENT
from olmodetect_jax.evaluation.json_fields import Field
from olmodetect_jax.tables import names
from olmodetect_jax.tables.paper_table import PaperTable, TableCell, TableRow, number_cell
from olmodetect_jax.tables.published import find

BENCHMARK_DOMAINS = names.DOMAINS | {"gsm8k": "Math Mix"}  # the paper calls GSM8K by its mixture in tables of texts


def leak_tables(file: Field, tree: Tree, against: bool) -> list[PaperTable]:
    """All of them that a verification supports.

    Args:
        file: the `verification.json`.
        tree: the benchmark's.
        against: whether cells carry published values.
    """
    return [*_overlap(file, tree, against), *_blind(file, tree, against), *_both(file, tree, against)]


def _overlap(file: Field, tree: Tree, against: bool) -> list[PaperTable]:
    sizes = file["overlap"].fields()
    if not sizes:
        return []
    overlaps = {size: _by_id(field, tree, size) for size, field in sizes.items()}
    domains = [d for d in tree.domain_titles if any(d in of for of in overlaps.values())]
    rows = []
    for domain in domains:
        cells = []
        for size, of in overlaps.items():
            where = {"model": names.SIZES.get(size, ""), "domain": BENCHMARK_DOMAINS.get(domain, "")}
            for key, column in (("mean", "overlap_pct_mean"), ("std", "overlap_pct_std")):
                value = of[domain][key].number() if domain in of else None
                there = find("table22_overlap_domain", column, _equal(where)) if against else None
                cells.append(_per_cent(value, f"{domain} has no overlap for {size}", there))
        rows.append(TableRow((tree.domain_titles[domain],), tuple(cells)))
    average = []
    for size, of in overlaps.items():
        there = None
        if against:
            where = {"model": names.SIZES.get(size, ""), "domain": "Avg"}
            there = find("table22_overlap_domain", "overlap_pct_mean", _equal(where))
        average.append(_per_cent(mean(f["mean"].number() for f in of.values()), "no overlap is stored", there))
        average.append(TableCell(None, ABSENT, None, None, "a mean of domains has no spread of its own"))
    rows.append(TableRow(("Avg",), tuple(average)))
    heads = tuple((size, end) for size in overlaps for end in ("mean %", "std %"))
    note = "Share of a non-member's 13-grams that are in the training corpora; a domain is the mean of its subsets."
    by_domain = PaperTable(22, "Overlap of the non-members by domain", ("Domain",), heads, tuple(rows), (note,))
    return [by_domain, *_overlap_of_subsets(overlaps, tree, against)]


def _overlap_of_subsets(overlaps: Mapping[str, Mapping[str, Field]], tree: Tree, against: bool) -> list[PaperTable]:
    several = [s for s in tree.subsets if sum(o.domain == s.domain for o in tree.subsets) > 1]
    rows = []
    for s in several:
        cells = []
        for size, of in overlaps.items():
            where = {"model": names.SIZES.get(size, ""), "subset": names.SUBSETS.get(s.id, "")}
            parts = of[s.domain]["subset_mean"].fields() if s.domain in of else {}
            name = next((n for n in parts if n == s.id or n.startswith(f"{s.id}_")), None)
            for key, column in (("subset_mean", "overlap_pct_mean"), ("subset_std", "overlap_pct_std")):
                value = of[s.domain][key][name].number() if name else None
                there = find("table23_overlap_subset", column, _equal(where)) if against else None
                cells.append(_per_cent(value, f"{s.id} has no overlap for {size}", there))
        rows.append(TableRow((tree.domain_titles[s.domain], s.title), tuple(cells)))
    heads = tuple((size, end) for size in overlaps for end in ("mean %", "std %"))
    title = "Overlap of the non-members by subset"
    return [PaperTable(23, title, ("Domain", "Subset"), heads, tuple(rows))] if rows else []


def _by_id(field: Field, tree: Tree, size: str) -> dict[str, Field]:
    """Domain id to its overlap; of a domain whose texts depend on the size, that of this size."""
    found = {}
    for name, own in field.fields().items():
        domain = name if name in tree.domain_titles else name.rpartition("_")[0]
        sized = name.rpartition("_")[2] if domain != name else ""
        if domain in tree.domain_titles and (not sized or size in sized.split("-") or size not in SIZES):
            found[domain] = own
    return found


def _per_cent(value: float | None, reason: str, there: Any) -> TableCell:
    return number_cell(None if value is None else 100 * value, reason, published=there)


def _blind(file: Field, tree: Tree, against: bool) -> list[PaperTable]:
    """A column a size, where texts depend on it; a column for all where none do."""
    blind = _matched(file)
    if not blind:
        return []
    sizes = list(SIZES) if any(s.sized for s in tree.subsets) else ["all"]
    rows = []
    for domain, title in tree.domain_titles.items():
        cells = []
        for size in sizes:
            there = None
            if against:
                where = {"model": names.SIZES[size], "domain": BENCHMARK_DOMAINS[domain]}
                there = find("table24_bow_domain", "bow_auc", _equal(where))
            cells.append(number_cell(_domain_auc(blind, tree, domain, size), _NO_BLIND, published=there))
        rows.append(TableRow((title,), tuple(cells)))
    several = [s for s in tree.subsets if sum(o.domain == s.domain for o in tree.subsets) > 1]
    subset_rows = []
    for s in several:
        cells = []
        for size in sizes:
            there = None
            if against:
                where = {"model": names.SIZES[size], "subset": names.SUBSETS[s.id]}
                there = find("table25_bow_subset", "bow_auc", _equal(where))
            cells.append(number_cell(_subset_auc(blind, tree, s.id, size), _NO_BLIND, published=there))
        subset_rows.append(TableRow((tree.domain_titles[s.domain], s.title), tuple(cells)))
    heads = tuple((names.SIZES.get(size, size),) for size in sizes)
    note = "AUC of a classifier that sees words only; far below 0.50 the classes were matched too well."
    tables = [PaperTable(24, "Blind baseline by domain", ("Domain",), heads, tuple(rows), (note,))]
    if subset_rows:
        tables.append(
            PaperTable(25, "Blind baseline by subset", ("Domain", "Subset"), heads, tuple(subset_rows), (note,))
        )
    return tables


def _matched(file: Field) -> dict[str, Field]:
    fields = file["blind"].fields()
    return {name.removesuffix("/matched"): field for name, field in fields.items() if name.endswith("/matched")}


_NO_BLIND = "too few texts for the blind baseline"


def _subset_auc(blind: Mapping[str, Field], tree: Tree, subset: str, size: str) -> float | None:
    for name in (subset, f"{subset}_{size}", f"{subset}_{tree.size_pairs.get(size)}"):
        if name in blind:
            return blind[name]["auc"].auc()
    return None


def _domain_auc(blind: Mapping[str, Field], tree: Tree, domain: str, size: str) -> float | None:
    return mean(_subset_auc(blind, tree, s.id, size) for s in tree.subsets if s.domain == domain)


def _both(file: Field, tree: Tree, against: bool) -> list[PaperTable]:
    """Table 3: means over the sizes of Tables 22 and 24."""
    overlaps = [_by_id(field, tree, size) for size, field in file["overlap"].fields().items()]
    blind = _matched(file)
    if not overlaps and not blind:
        return []
    sizes = list(SIZES) if any(s.sized for s in tree.subsets) else ["all"]
    rows, columns = [], ([], [])  # type: ignore[var-annotated]
    for domain, title in tree.domain_titles.items():
        known = mean(of[domain]["mean"].number() if domain in of else None for of in overlaps)
        auc = mean(_domain_auc(blind, tree, domain, size) for size in sizes)
        columns[0].append(known)
        columns[1].append(auc)
        rows.append(TableRow((title,), _both_cells(known, auc, BENCHMARK_DOMAINS.get(domain, ""), against)))
    rows.append(TableRow(("Avg",), _both_cells(mean(columns[0]), mean(columns[1]), "Avg", against)))
    heads = (("Overlap %",), ("Blind AUC",))
    return [PaperTable(3, "Verification", ("Domain",), heads, tuple(rows))]


def _both_cells(overlap: float | None, auc: float | None, name: str, against: bool) -> tuple[TableCell, ...]:
    there = {
        column: find("table03_verification", column, _equal({"domain": name})) if against else None
        for column in ("overlap_pct", "bow_auc")
    }
    return (
        _per_cent(overlap, "the records hold no overlap", there["overlap_pct"]),
        number_cell(auc, _NO_BLIND, published=there["bow_auc"]),
    )


def _equal(where: Mapping[str, str]) -> Any:
    return lambda row: all(row[key] == value for key, value in where.items())
