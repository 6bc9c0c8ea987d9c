"""Verification on made benchmarks: facts against brute force, a blind baseline, and every planted leak is found."""

import dataclasses
import json
import math
import random
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import yaml

from olmodetect_jax.benchmark import tree_of
from olmodetect_jax.construction.jsd import divergence_of_texts
from olmodetect_jax.construction.verification import bag_of_words
from olmodetect_jax.construction.verification.bag_of_words import blind, in_order
from olmodetect_jax.construction.verification.copies import copies
from olmodetect_jax.construction.verification.data import read_lines
from olmodetect_jax.construction.verification.leaks import leaks
from olmodetect_jax.construction.verification.statistics import Spread, group_facts
from olmodetect_jax.construction.verification.verify import verify
from olmodetect_jax.errors import DataError, MissingFilesError
from olmodetect_jax.files import write_json
from olmodetect_jax.report.verification_page import tables, write_page

WORDS = [f"w{i}" for i in range(400)]
KEYS = {word: i for i, word in enumerate(WORDS)}


def encode(texts):
    return [np.array([KEYS.get(w, 999) for w in text.split()], np.uint32) for text in texts]


def text_of(rng, n=60):
    return " ".join(rng.choices(WORDS, [1 / (i + 1) for i in range(len(WORDS))], k=n)).capitalize() + "."


def lines_of(seed, n=60, **more):
    rng = random.Random(seed)
    return [{"id": f"r{seed}{i:04d}", "text": text_of(rng, rng.randint(30, 90)), **more} for i in range(n)]


def write(root, members, others, subset="one", variant=None, dev=6):
    """One subset's files; the first `dev` records are for development."""
    for side, lines in (("member", members), ("non-member", others)):
        for split, part in (("dev", lines[:dev]), ("test", lines[dev:])):
            below = f"{variant}/" if variant and side == "member" else ""
            suffix = f"_{variant}" if variant and side == "member" else ""
            path = root / f"corpus/{subset}/{side}/{below}{split}/{side}_corpus_{subset}{suffix}_{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(line) + "\n" for line in part))


def benchmark(root, *subsets, variants=False, domain=None):
    entries = [
        {"id": s, "title": s.title(), "folder": f"corpus/{s}", "files": [f"corpus_{s}"], "variants": variants}
        for s in subsets
    ]
    domains = (
        [{"id": domain, "title": domain.title(), "subsets": entries}] if domain
        else [{"id": e["id"], "title": e["title"], "subsets": [e]} for e in entries]
    )  # fmt: skip
    stages = [{"id": "corpus", "title": "Corpus", "domains": domains}]
    tree = {"name": "made", "title": "Made <b>", "size_pairs": {}, "stages": stages}
    root.mkdir(exist_ok=True)
    (root / "benchmark.yaml").write_text(yaml.safe_dump({"tree": tree}))
    return root


def one_subset(tmp_path, members, others, **options):
    root = benchmark(tmp_path / "b", "one")
    write(root, members, others, **options)
    (subset,) = read_lines(root, tree_of(root))
    return subset


def found(tmp_path, members, others, **options):
    return {(leak.kind, leak.message) for leak in leaks(one_subset(tmp_path, members, others, **options))}


def test_facts_are_those_of_brute_force(tmp_path):
    members = [
        line | {"created": f"2020-01-{1 + i % 28:02d}T12:00:00Z", "question_score": i}
        for i, line in enumerate(lines_of(1))
    ]
    others = [line | {"created": "2020-02-01T00:00:00Z"} for line in lines_of(2)]
    subset = one_subset(tmp_path, members, others)
    facts = group_facts("subset", "one", "One", "matched", subset.members, subset.non_members, encode, seed=0)
    lengths = [len(line["text"].split()) for line in members]
    own = facts.members
    assert (own.records, own.dev.records, own.test.records) == (60, 6, 54)
    assert (own.tokens, own.dev.tokens, own.test.tokens) == (sum(lengths), sum(lengths[:6]), sum(lengths[6:]))
    assert own.dev.quality == {"Question votes": Spread(2.5, float(np.std(np.arange(6))), 6)}
    assert own.test.mean_date == "2020-01-15" and own.dev.date.mean == date(2020, 1, 4).toordinal()
    assert facts.members.length == Spread(np.mean(lengths), np.std(lengths), 60)
    assert facts.members.quality == {"Question votes": Spread(29.5, float(np.std(np.arange(60))), 60)}
    assert facts.non_members.mean_date == "2020-02-01" and facts.non_members.date.std == 0
    both = [encode([line["text"] for line in side]) for side in (members, others)]
    assert facts.jsd == pytest.approx(divergence_of_texts(*both))
    assert facts.jsd < min(facts.jsd_floor, facts.jsd_of_halves)  # halves have fewer tokens
    days = [date(2020, 1, 1 + i % 28).toordinal() + 0.5 for i in range(60)]
    assert facts.temporal == pytest.approx(abs(np.mean(days) - date(2020, 2, 1).toordinal()) + np.std(days))


def test_columns_of_the_papers_tables(tmp_path):
    golden = json.loads((Path(__file__).parents[1] / "golden/construction_wordfreq.json").read_text())
    ((given, expected),) = [
        (i, e) for i, e in zip(golden["inputs"], golden["expected"], strict=True) if i["kind"] == "table_columns"
    ]
    fields = ("top1_word_freq", "top2_word_freq", "max_stars_count")
    rows = [dict(zip(fields, values, strict=True)) for values in zip(*(given[f] for f in fields), strict=True)]
    lines = [line | row for line, row in zip(lines_of(1, len(rows)), rows, strict=True)]
    subset = one_subset(tmp_path, lines, lines_of(2), dev=2)
    quality = group_facts(
        "subset", "one", "One", "matched", subset.members, subset.non_members, encode, seed=0
    ).members.quality
    near = {"rel": golden["tolerance"]["rel"], "abs": golden["tolerance"]["abs"]}
    for title, name in (("Top-1 share", "top1"), ("Top-2 share", "top2_column"), ("Stars", "stars")):
        assert quality[title].mean == pytest.approx(expected[f"{name}_mean"], **near)
        assert quality[title].std == pytest.approx(expected[f"{name}_std"], **near)


def test_domains_pool_their_subsets_and_variants_stay_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(bag_of_words, "SEEDS", 1)
    root = benchmark(tmp_path / "b", "one", "two", domain="both", variants=True)
    for i, subset in enumerate(("one", "two")):
        others = lines_of(10 + i, 20)
        for variant in ("matched", "shifted"):
            write(root, lines_of(20 + i + 5 * (variant == "shifted"), 20), others, subset, variant)
    result = verify(root, encode=encode)
    assert [(g.level, g.id, g.variant) for g in result.groups] == [
        ("subset", "one", "matched"), ("subset", "one", "shifted"), ("subset", "two", "matched"),
        ("subset", "two", "shifted"), ("domain", "both", "matched"), ("domain", "both", "shifted"),
    ]  # fmt: skip
    pooled = [encode([line["text"] for i in (0, 1) for line in lines_of(first + i, 20)]) for first in (20, 10)]
    assert result.groups[4].jsd == pytest.approx(divergence_of_texts(*pooled))
    assert json.loads(json.dumps(result.as_json()))["blind"]["one/shifted"]["n"] == 20
    one, two, both = (result.blind[name, "matched"] for name in ("one", "two", "both (domain)"))
    assert both.auc == pytest.approx((one.auc + two.auc) / 2) and both.n == 40
    assert both.standard_error == pytest.approx(one.standard_error / math.sqrt(2))
    (root / "corpus/two/member/shifted/dev/member_corpus_two_shifted_dev.jsonl").unlink()
    with pytest.raises(MissingFilesError, match="member_corpus_two_shifted_dev"):
        verify(root, encode=encode)


def test_words_that_differ_are_found_and_words_that_do_not_are_not(tmp_path):
    same = blind(one_subset(tmp_path, lines_of(1), lines_of(2)), seed=0)
    assert abs(same.auc - 0.5) < 3.5 * same.standard_error
    told = [line | {"text": line["text"] + (" secret" if i % 4 else "")} for i, line in enumerate(lines_of(1))]
    apart = blind(one_subset(tmp_path, told, lines_of(2)), seed=0)
    assert apart.auc > 0.75 and apart.n == 60
    longer = [line | {"text": line["text"] * 3} for line in lines_of(1)]
    assert blind(one_subset(tmp_path, longer, lines_of(2)), seed=0).length_auc > 0.9


def test_two_samples_of_one_source_are_told_apart_no_better_than_chance(tmp_path):
    blinds = [blind(one_subset(tmp_path, lines_of(s, 20), lines_of(1000 + s, 20)), seed=0) for s in range(12)]
    far = [b for b in blinds if abs(b.auc - 0.5) > 1.96 * b.standard_error]
    assert len(far) <= 2  # less than one expected
    assert np.mean([b.auc for b in blinds]) == pytest.approx(0.5, abs=0.1)  # three standard errors of the mean


def pairs_of(root, prompts, seed, **scores):
    """A subset of pairs for one size: chosen texts of members hold a word that theirs alone hold."""
    entry = {"id": "dpo", "title": "DPO", "folder": "dpo", "files": ["{size}_chosen", "{size}_rejected"]}
    domain = {"id": "dpo", "title": "DPO", "subsets": [entry | {"variants": False}]}
    stages = [{"id": "post", "title": "Post", "domains": [domain]}]
    tree = {"name": "made", "title": "Made", "size_pairs": {"1b": "1b-32b"}, "stages": stages}
    root.mkdir()
    (root / "benchmark.yaml").write_text(yaml.safe_dump({"tree": tree}))
    rng = random.Random(seed)
    for side in ("member", "non-member"):
        for kind in ("chosen", "rejected"):
            for split, asked in (("dev", prompts[:3]), ("test", prompts[3:])):
                path = root / f"dpo/{side}/{split}/{side}_1b_{kind}_{split}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [{"prompt": f"{side} {p}", "text": f"{p} {text_of(rng)}", **scores} for p in asked]
                if (side, kind) == ("member", "chosen"):
                    lines = [line | {"text": line["text"] + " secret" * 5} for line in lines]
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def test_chosen_and_rejected_are_judged_apart_and_their_scores_count_like_subsets(tmp_path):
    score = "1b_{}_13-gram_overlap_score"
    scores = {score.format("prompt"): 0.0, score.format("chosen"): 0.1, score.format("rejected"): 0.05}
    root = pairs_of(tmp_path / "b", [f"q{i}" for i in range(30)], 1, **scores)
    result = verify(root, encode=encode)
    (found,) = result.blind.values()
    chosen, rejected = (
        blind(
            dataclasses.replace(s, members=side_of(s.members, kind), non_members=side_of(s.non_members, kind)), seed=0
        )
        for s in read_lines(root, tree_of(root))
        for kind in ("1b_chosen", "1b_rejected")
    )
    assert chosen.auc > 0.9 and abs(rejected.auc - 0.5) < 0.3
    assert found.auc == pytest.approx((chosen.auc + rejected.auc) / 2) and found.n == 30
    summary = result.overlap["1b"]["dpo_1b"]
    assert summary.mean == pytest.approx(0.05) and len(summary.subset_mean) == 3


def side_of(lines, kind):
    return tuple(line for line in lines if line.side == kind)


def test_both_texts_of_a_pair_are_in_the_same_fold(tmp_path, monkeypatch):
    root = pairs_of(tmp_path / "b", [f"q{i}" for i in range(30)], 1)
    (subset,) = read_lines(root, tree_of(root))
    seen = []

    def judged(counts, labels, seed):
        seen.append(labels.tolist())
        return labels.astype(float)

    monkeypatch.setattr("olmodetect_jax.construction.verification.bag_of_words._out_of_fold", judged)
    blind(subset, seed=0)
    assert seen[0] == seen[-1] and len(seen) == 10  # the same classes in the same order, so the same folds
    orders = [
        [line.value["prompt"] for line in in_order([*side_of(subset.members, k), *side_of(subset.non_members, k)], 0)]
        for k in ("1b_chosen", "1b_rejected")
    ]
    assert orders[0] == orders[1]


def test_prompts_that_are_asked_twice_change_nothing_either(tmp_path):
    one = pairs_of(tmp_path / "b", ["q"] * 12, 1)
    (subset,) = read_lines(one, tree_of(one))
    reverse = dataclasses.replace(subset, members=subset.members[::-1], non_members=subset.non_members[::-1])
    assert blind(subset, seed=0).aucs == pytest.approx(blind(reverse, seed=0).aucs)


def test_the_order_of_records_changes_nothing(tmp_path):
    members, others = lines_of(1), lines_of(2)
    one = blind(one_subset(tmp_path, members, others), seed=3)
    two = blind(one_subset(tmp_path, members[:6][::-1] + members[6:][::-1], others), seed=3)
    assert one == two
    assert blind(one_subset(tmp_path, members, others), seed=4) != one


def test_too_few_texts_are_said_not_computed(tmp_path):
    with pytest.raises(DataError, match="one: 3 texts of a class; the blind baseline needs at least 5"):
        blind(one_subset(tmp_path, lines_of(1, 3), lines_of(2), dev=1), seed=0)
    root = benchmark(tmp_path / "b", "one")
    write(root, lines_of(1, 4), lines_of(2, 4), dev=1)
    result = verify(root, encode=encode)
    assert not result.blind and result.notes == ("one (matched): too few texts for the blind baseline",)
    lonely = [{"text": f"alone{i}"} for i in range(8)]
    with pytest.raises(DataError, match="no word stands in 2 texts"):
        blind(one_subset(tmp_path, lonely[:5], [{"text": f"x{i}"} for i in range(5)], dev=1), seed=0)


def test_a_clean_benchmark_has_no_warnings(tmp_path):
    dated = {"created": "2020-01-01T00:00:00Z", "metadata": {"n": 1}}
    warned = [found(tmp_path, lines_of(s, **dated), lines_of(1000 + s, **dated)) for s in range(40)]
    assert sum(map(bool, warned)) <= 2  # one in a hundred by chance


def test_a_field_that_a_few_records_have_is_no_warning(tmp_path):
    members = [m | ({"truncated": "length"} if i < 4 else {}) for i, m in enumerate(lines_of(1))]
    assert found(tmp_path, members, lines_of(2)) == set()


def test_a_form_that_most_have_warns_where_chance_does_not_explain_it(tmp_path):
    members = [m | ({"site": "x"} if i % 20 else {}) for i, m in enumerate(lines_of(1))]
    others = [m | ({} if i % 20 else {"site": "x"}) for i, m in enumerate(lines_of(2))]
    warned = ("fields", "the field site (str): 57 of 60 members, 3 of 60 non-members")
    assert found(tmp_path, members, others) == {warned}


def test_a_small_difference_of_many_texts_is_no_warning(tmp_path):
    members, others = (
        [m | ({"site": "x"} if i % 10 < k else {}) for i, m in enumerate(lines_of(k, 300))] for k in (3, 1)
    )
    assert found(tmp_path, members, others, dev=30) == set()


PLANTED = {
    "first word": ("format", "the first word of the text is 'Answer:': 60 of 60 members, 0 of 60 non-members"),
    "a key of messages": ("fields", "the field messages[].turn (number): 0 of 60 members, 60 of 60 non-members"),
    "title before the question": ("format", "two blank lines make 3 parts of the text"),
    "trailing Z in dates": ("format", "created is written like '0000-00-00T00:00:00Z'"),
    "line ends": ("format", "lines end with CR LF"),
    "leading space": ("format", "the text begins with a space"),
    "a field": ("fields", "the field extra (number): 60 of 60 members, 0 of 60 non-members"),
    "a field within another": ("fields", "the field metadata.site (str): 0 of 60 members, 60 of 60 non-members"),
    "a type": ("fields", "the field score (str): 60 of 60 members, 0 of 60 non-members"),
    "ids": ("format", "id is written like 'r0'"),
    "in both classes": ("both classes", "2 texts stand in both classes"),
    "in dev and test": ("dev and test", "1 texts stand in dev and in test"),
    "nearly in dev and test": ("near-duplicates", "1 pairs of texts of dev and test are nearly the same"),
}


def planted(name):
    """A clean pair of classes with one leak."""
    members, others = lines_of(1), lines_of(2)
    question = "What is it?\n\n\n{}"
    if name == "first word":
        members, others = (
            [m | {"text": f"{w}: {m['text']}"} for m in ms] for w, ms in (("Answer", members), ("A", others))
        )
    elif name == "a key of messages":
        turn = {"role": "user", "content": "x"}
        members = [m | {"messages": [turn]} for m in members]
        others = [m | {"messages": [turn | {"turn": 1}]} for m in others]
    elif name == "title before the question":
        members = [m | {"text": f"A title\n\n\n{question.format(m['text'])}"} for m in members]
        others = [m | {"text": question.format(m["text"])} for m in others]
    elif name == "trailing Z in dates":
        members = [m | {"created": "2020-01-01T00:00:00.000"} for m in members]
        others = [m | {"created": "2020-01-01T00:00:00Z"} for m in others]
    elif name == "line ends":
        members = [m | {"text": m["text"].replace(" w1 ", "\r\n")} for m in members]
    elif name == "leading space":
        others = [m | {"text": " " + m["text"]} for m in others]
    elif name == "a field":
        members = [m | {"extra": 1} for m in members]
    elif name == "a field within another":
        members, others = [m | {"metadata": {}} for m in members], [m | {"metadata": {"site": "x"}} for m in others]
    elif name == "a type":
        members, others = [m | {"score": "3"} for m in members], [m | {"score": 3} for m in others]
    elif name == "ids":
        others = [m | {"id": m["id"].replace("r", "test_")} for m in others]
    elif name == "in both classes":
        others[10:12] = [m | {"id": "x"} for m in members[20:22]]
    elif name == "in dev and test":
        others[20] = others[20] | {"text": members[0]["text"]}
        others[20]["text"], members[0] = others[0]["text"], members[0]
    elif name == "nearly in dev and test":
        others[20] = others[20] | {"text": members[0]["text"].replace("w0", "w399", 1)}
    return members, others


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_leak_is_found(tmp_path, name):
    kind, message = PLANTED[name]
    warned = found(tmp_path, *planted(name))
    assert any(k == kind and m.startswith(message) for k, m in warned), warned
    assert {k for k, _ in warned} <= {kind, "format"}


def test_few_texts_warn_only_where_a_form_is_always_there(tmp_path):
    members = [m | {"created": "2020-01-01T00:00:00.000"} for m in lines_of(1, 6)]
    others = [m | {"created": "2020-01-01T00:00:00Z"} for m in lines_of(2, 6)]
    assert len([k for k, _ in found(tmp_path, members, others, dev=2) if k == "format"]) == 2
    others[0]["created"] = members[0]["created"]
    warned = found(tmp_path, members, others, dev=2)
    assert not [m for k, m in warned if k == "format" and "Z'" in m]


def test_what_texts_share_by_design_is_no_near_duplicate(tmp_path):
    shots = " ".join(f"exemplar {i} of many words" for i in range(60))
    members, others = (
        [m | {"text": f"{shots} {m['text']}", "text_no_cot": m["text"]} for m in lines_of(s)] for s in (1, 2)
    )
    assert found(tmp_path, members, others) == set()
    words = members[0]["text_no_cot"].replace("w0", "w399", 1)  # of a text for development
    others[20] = others[20] | {"text": f"{shots} {words}", "text_no_cot": words}
    (warned,) = found(tmp_path, members, others)
    assert warned[0] == "near-duplicates"


def test_examples_name_the_records(tmp_path):
    members, others = planted("a field")
    (warning,) = [w for w in leaks(one_subset(tmp_path, members, others)) if w.kind == "fields"]
    assert warning.examples == tuple(m["id"] for m in members[:5])


def test_stored_and_measured_overlap(tmp_path):
    score = "1b_13-gram_overlap_score"
    others = [line | {score: i / 1000} for i, line in enumerate(lines_of(2))]
    root = benchmark(tmp_path / "b", "one")
    write(root, lines_of(1), others)
    result = verify(root, encode=encode, measure=lambda texts: [float(len(t) > 0) for t in texts])
    assert result.overlap["1b"]["one"].mean == pytest.approx(np.mean(np.arange(60) / 1000))
    assert result.measured["one"]["members"].mean == 1.0
    assert not [leak for leak in result.leaks if leak.kind == "fields"]  # scores are the non-members' by design
    others[3][score] = "much"
    write(root, lines_of(1), others)
    with pytest.raises(DataError, match=r"line 4: 1b_13-gram_overlap_score is 'much'; expected a number"):
        verify(root, encode=encode)


def test_the_page_escapes_what_records_say(tmp_path):
    members = [
        m | {"id": f"<script>{i}</script>", "created": "2020-01-01T00:00:00Z"} for i, m in enumerate(lines_of(1))
    ]
    others = [m | {"created": "2021-01-01"} for m in lines_of(2)]
    root = benchmark(tmp_path / "b", "one")
    write(root, members, others)
    result = verify(root, encode=encode)
    write_page(result, tmp_path / "page.html", settings=[("tokenizer", "<i>")])
    page = (tmp_path / "page.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "Made &lt;b&gt;" in page and "<i>" not in page
    assert "warnings: something else" in page and page.count("<svg") >= 4
    assert {t.id for t in tables(result)} == {"classes", "likeness", "quality", "blind", "warnings"}
    for table in tables(result):
        assert all(len(row) == len(table.headings) for row in table.rows)
        assert not any(isinstance(cell, float) and math.isnan(cell) for row in table.rows for cell in row)


def test_undated_members_of_dated_non_members(tmp_path):
    root = benchmark(tmp_path / "b", "one")
    write(root, lines_of(1), lines_of(2, created="2020-01-01"))
    result = verify(root, encode=encode)
    assert result.groups[0].temporal == math.inf and result.groups[0].members.date is None
    write_json(tmp_path / "facts.json", result.as_json())
    assert json.loads((tmp_path / "facts.json").read_text())["groups"][0]["temporal"] == "infinite"
    (dates,) = [t.rows for t in tables(result) if t.id == "quality"]
    assert dates[0] == ("one, matched", "Date", "members", "–", "–", "–")


@pytest.mark.parametrize(
    "line, message",
    [
        ({"id": "x"}, "line 1: the record has no text"),
        ({"text": " "}, "line 1: the record has no text"),
        ({"text": "a \ud800 b"}, r"line 1: the record holds a lone surrogate U\+D800"),
        ({"text": "a", "metadata": {"url\udfff": 1}}, r"line 1: the record holds a lone surrogate U\+DFFF"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(tmp_path, line, message):
    with pytest.raises(DataError, match=message):
        one_subset(tmp_path, [line, *lines_of(1)], lines_of(2))


def test_an_empty_folder_and_an_empty_class(tmp_path):
    root = benchmark(tmp_path / "b", "one")
    with pytest.raises(MissingFilesError, match="holds no file of any subset of Made"):
        verify(root, encode=encode)
    write(root, lines_of(1), [])
    with pytest.raises(DataError, match="one: has no non-members"):
        verify(root, encode=encode)


class Counted:
    """An index of one corpus."""

    asked_with, block, description = "ids", None, {}

    def __init__(self, documents):
        self.documents = documents

    def count(self, queries):
        n = queries.shape[1]
        found = [tuple(d[i : i + n]) for d in self.documents for i in range(len(d) - n + 1)]
        return np.array([found.count(tuple(q)) for q in queries.tolist()], np.int64)


def test_a_text_stands_as_often_as_its_rarest_window():
    text, short = np.arange(6, dtype=np.uint32), np.arange(2, dtype=np.uint32)
    indices = [Counted([[0, 1, 2, 3, 4, 5], [9, 0, 1, 2, 3]]), Counted([[0, 1, 2, 3, 4, 5], [7, 8]])]
    assert copies([text, short, text[:4], np.array([4, 5, 6, 7], np.uint32)], indices, 3) == [2, None, 3, 0]
    assert copies([short], indices, 3) == [None]
