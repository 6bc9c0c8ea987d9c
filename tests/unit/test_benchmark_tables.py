"""Tables of a benchmark's texts: from a verification, and the published ones from each other."""

from __future__ import annotations

import json
import math

import pytest

from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.aggregate import mean
from olmodetect_jax.tables import names
from olmodetect_jax.tables.benchmark_tables import benchmark_tables, member_copies
from olmodetect_jax.tables.leak_tables import BENCHMARK_DOMAINS
from olmodetect_jax.tables.published import listed, published

TREE = load_tree("olmo2")
SIZES = list(names.SIZES.values())


def test_published_table_3_is_the_averages_of_22_and_24():
    for domain in [*BENCHMARK_DOMAINS.values(), "Avg"]:
        overlap = [published("table22_overlap_domain", "overlap_pct_mean", model=m, domain=domain) for m in SIZES]
        blind = [published("table24_bow_domain", "bow_auc", model=m, domain=domain) for m in SIZES]
        there = {c: published("table03_verification", c, domain=domain) for c in ("overlap_pct", "bow_auc")}
        assert mean(overlap) == pytest.approx(there["overlap_pct"], abs=0.01), domain
        assert mean(blind) == pytest.approx(there["bow_auc"], abs=0.01), domain


def test_published_domains_are_means_and_root_mean_squares_of_their_subsets():
    for domain in ("StarCoder", "Stack Exchange", "SFT", "RLVR"):
        file = "table23_overlap_subset"
        where = {"domain": domain, "model": "1B"}
        known = {s: published(file, "overlap_pct_mean", subset=s, **where) for s in listed(file, "subset")}
        subsets = [s for s, value in known.items() if value is not None]
        for model in SIZES:
            where = {"domain": domain, "model": model}
            parts = [
                [published("table23_overlap_subset", c, subset=s, **where) for s in subsets]
                for c in ("overlap_pct_mean", "overlap_pct_std")
            ]
            there = [published("table22_overlap_domain", c, **where) for c in ("overlap_pct_mean", "overlap_pct_std")]
            assert mean(parts[0]) == pytest.approx(there[0], abs=0.01)
            assert math.sqrt(mean(v * v for v in parts[1])) == pytest.approx(there[1], abs=0.02)
            blind = [published("table25_bow_subset", "bow_auc", subset=s, **where) for s in subsets]
            assert mean(blind) == pytest.approx(published("table24_bow_domain", "bow_auc", **where), abs=0.011)


def spread(value):
    return {"mean": value, "std": 2.0, "n": 3}


def part(n, *, dated=True):
    quality = {"fastText": spread(0.018)} if dated else {}
    return {"records": n, "tokens": 10 * n, "length": spread(10.0), "quality": quality,
            "date": spread(736_712.5) if dated else None}  # fmt: skip


def side(n, *, dated=True, dev=True):
    own = part(n, dated=dated)
    splits = {"dev": part(2, dated=dated) if dev else None, "test": part(n - 2, dated=dated)}
    return own | splits | {"lengths": [], "dates": []}


def group(name, level="subset", variant="matched", **more):
    sides = {"members": side(8, **more), "non_members": side(9, **more)}
    return {"level": level, "id": name, "title": name, "variant": variant, **sides, "jsd": 0.07,
            "jsd_of_halves": 0.1, "jsd_floor": 0.1, "temporal": 0.0}  # fmt: skip


def overlap(**subsets):
    values = {name: value for name, value in subsets.items()}
    return {
        "subset_mean": values, "subset_std": dict.fromkeys(values, 0.05), "mean": mean(values.values()), "std": 0.05,
    }  # fmt: skip


@pytest.fixture
def file(tmp_path):
    value = {
        "title": TREE.title, "tree": "olmo2",
        "groups": [
            group("dclm"), group("sc_python", dated=False), group("sc_java", dated=False),
            group("starcoder", "domain", dated=False), group("dpo_1b", dated=False), group("dpo_7b", dated=False),
            group("sft_aya_1b-32b", dated=False, dev=False), group("dclm", variant="shifted"),
        ],
        "blind": {"dclm/matched": {"auc": 0.5}, "dclm/shifted": {"auc": 0.9}, "sc_python/matched": {"auc": 0.4},
                  "sc_java/matched": {"auc": 0.6}, "dpo_1b/matched": {"auc": 0.55}},
        "overlap": {
            size: {"dclm": overlap(dclm=0.0407), "starcoder": overlap(sc_python=0.07, sc_java=0.11),
                   f"dpo_{size}": {**overlap(chosen=0.02), "subset_mean": {f"dpo_{size} chosen": 0.02}}}
            for size in names.SIZES
        },
        "copies": {"dclm": 9.0, "sft_aya_1b-32b": 2.0, "sft_aya_7b-13b": 3.0},
        "measured": None, "leaks": [], "notes": [],
    }  # fmt: skip
    path = tmp_path / "verification.json"
    path.write_text(json.dumps(value))
    return path


def cells(table):
    return {
        (*row.labels, *column): cell
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
    }


def test_every_table_of_a_verification(file):
    tables = {t.number: t for t in benchmark_tables(file, against_paper=True)}
    assert sorted(tables) == [2, 3, 15, 17, 18, 20, 22, 23, 24, 25, 30, 31]
    two = cells(tables[2])
    assert two["DCLM", "non-member", "total", "Samples"].value == 9
    assert two["DCLM", "non-member", "total", "Samples"].published == 150
    assert two["DCLM", "non-member", "total", "Quality"].text == "fastText: 0.018 ± 2"
    assert two["DCLM", "member", "total", "Mean date"].text == "2018-01-18"
    assert two["DCLM", "non-member", "total", "JSD"].published == 0.07
    assert not any("7b" in labels[0] for labels in two)  # the paper shows 1B alone
    fifteen = cells(tables[15])
    assert fifteen["DCLM", "non-member", "dev", "Tokens"].value == 20
    assert fifteen["DCLM", "non-member", "dev", "Tokens"].published == 21_745
    assert fifteen["starcoder", "member", "test", "Mean date"].refused == "no record of the group is dated"
    assert cells(tables[17])["DPO 7b", "member", "test", "Samples"].published == 100
    assert cells(tables[18])["sc_java", "member", "test", "Samples"].published == 50
    twenty = cells(tables[20])
    assert twenty["sft_aya_1b-32b 1b-32b", "member", "test", "Samples"].published == 140
    assert twenty["sft_aya_1b-32b 1b-32b", "member", "dev", "Samples"].refused.endswith("has no dev members")
    assert "Quality" not in [c[0] for c in tables[20].columns]
    overlap_of = cells(tables[22])
    assert overlap_of["DCLM", "1b", "mean %"].value == pytest.approx(4.07)
    assert overlap_of["DCLM", "1b", "mean %"].published == 4.07
    assert overlap_of["DPO", "7b", "mean %"].published == 1.98
    assert overlap_of["Avg", "1b", "mean %"].value == pytest.approx((4.07 + 9 + 2) / 3)
    assert cells(tables[23])["StarCoder", "Java", "1b", "mean %"].value == pytest.approx(11)
    blind = cells(tables[24])
    assert blind["StarCoder", "7B"].value == pytest.approx(0.5) and blind["StarCoder", "7B"].published == 0.5
    assert blind["DPO", "1B"].value == 0.55 and blind["DPO", "7B"].refused
    assert cells(tables[25])["StarCoder", "Python", "1B"].value == 0.4
    assert cells(tables[3])["DCLM", "Overlap %"].published == 4.07
    assert cells(tables[30])["DCLM", "member", "total", "Mean date"].published == "2017-02-21"
    for table in tables.values():
        for cell in cells(table).values():
            assert (cell.value is None) == (cell.refused is not None)
    assert not any(t.against for t in benchmark_tables(file, against_paper=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("tree"), "field tree is missing"),
        (lambda v: v.update(tree="other"), "field tree: "),
        (lambda v: v["groups"][0].update(id="nothing"), r"field groups\[0\].id: expected the id of a subset"),
        (lambda v: v["groups"][0].update(variant="x"), r"field groups\[0\].variant: expected one of matched, shifted"),
        (lambda v: v["groups"][0]["members"].update(records=-1), r"field groups\[0\].members.records"),
        (lambda v: v["blind"]["dclm/matched"].update(auc=7), "field blind.dclm/matched.auc"),
    ],
)
def test_a_file_that_is_no_such_one(file, change, message):
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))
    with pytest.raises(DataError, match=message):
        benchmark_tables(file, against_paper=True)


def test_copies_of_members(file):
    assert member_copies(file) == {"dclm": 9.0, "sft_aya": 2.5}
    value = json.loads(file.read_text()) | {"copies": None}
    file.write_text(json.dumps(value))
    assert member_copies(file) == {}
    file.write_text(json.dumps(value | {"copies": {"dclm": "many"}}))
    with pytest.raises(DataError, match="field copies.dclm: expected a finite number"):
        member_copies(file)


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="verification.json: no such file"):
        benchmark_tables(tmp_path / "verification.json", against_paper=True)
