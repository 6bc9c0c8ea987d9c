"""What attacks ask for and what they do with special cases; the numbers themselves are in test_likelihood_golden."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import TITLES, Group, score_texts
from olmodetect_jax.attacks.dc_pdd import DcPdd
from olmodetect_jax.attacks.frequencies import FILE_NAME, FrequencyTable, build_table
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.hyperparameters import load_hyperparameters, search_space
from olmodetect_jax.attacks.lower import Lower
from olmodetect_jax.attacks.min_k import MinK
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.reductions import mean_of_smallest, smallest_count
from olmodetect_jax.attacks.registry import ATTACKS, Settings, attack_ids, build_attacks
from olmodetect_jax.attacks.rounds import Job, run_jobs
from olmodetect_jax.attacks.zlib import Zlib, compressed_length
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import Record
from olmodetect_jax.requests import TokenStatistics
from olmodetect_jax.tokenization import Tokenizer

AUDITED = load_protocol("audited")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(sample.model_directory())


def records(*texts):
    return [Record(f"r{i}", text, 1, "s", f"file, line {i + 1}") for i, text in enumerate(texts)]


class Engine:
    """Answers with statistics made from the ids alone, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, requests):
        self.asked.append(requests)
        return {r.digest: self.statistics(r.ids) for r in requests}

    @staticmethod
    def statistics(ids):
        log_prob = -((ids[1:] % 97) / 10 + 0.1).astype(np.float32)
        return TokenStatistics(log_prob, log_prob - 1, np.full(len(ids) - 1, 0.5, np.float32))


def run(attacks, texts, tokenizer, protocol=AUDITED):
    engine = Engine()
    group = Group(records(*texts))
    return run_jobs({a.id: Job(a, group, protocol) for a in attacks}, tokenizer, engine), engine


def all_attacks():
    """The attacks that start from one pass over the texts."""
    settings = Settings(load_hyperparameters("any", {}), sample.model_directory() / FILE_NAME)
    return build_attacks(ATTACKS[:6], settings)


def test_six_attacks_need_one_pass_and_one_for_the_lower_case(tokenizer):
    texts = ["Call me Ishmael.", "already lower case", "CALL me ishmael.", "Call me Ishmael."]
    scores, engine = run(all_attacks(), texts, tokenizer)
    (asked,) = engine.asked
    # three distinct texts; two of them lower-case to "call me ishmael.", one to itself
    assert len(asked) == len({r.digest for r in asked}) == 4
    assert set(scores) == set(ATTACKS[:6]) and all(len(c) == 4 for c in scores.values())
    assert all(c[0] == c[3] for c in scores.values())
    assert scores["lower"][1].value == 0


def test_texts_without_a_score_say_why(tokenizer):
    scores, engine = run(all_attacks(), ["", "a", "A text."], tokenizer)
    for name, (empty, single, good) in scores.items():
        assert math.isnan(empty.value) and empty.missing == "the record has no text", name
        assert math.isnan(single.value) and "nothing to score" in single.missing, name
        assert math.isfinite(good.value) and good.missing is None, name
        assert (good.n_tokens, good.n_scored) == (len(tokenizer.encode("A text.", 99).ids), good.n_tokens - 1)
    assert len(engine.asked[0]) == 2


def test_truncation_counts_the_scored_tokens_only(tokenizer):
    """the mean of a text cut to 4 tokens is over 3 scores, and Zlib and Lower see the same span."""
    text = "Call me Ishmael. Some years ago, never mind how long precisely, I went to sea."
    cut = dataclasses.replace(AUDITED, max_tokens=4)
    scores, _ = run([Ppl(), Zlib(), Lower()], [text], tokenizer, cut)
    encoded = tokenizer.encode(text, 4)
    log_prob = Engine.statistics(encoded.ids).log_prob.astype(np.float64)
    (ppl,), (zlib,), (lower,) = (scores[n] for n in ("ppl", "zlib", "lower"))
    assert (ppl.n_scored, ppl.truncated) == (3, True) and ppl.n_tokens > 10
    assert ppl.value == pytest.approx(log_prob.mean())
    assert zlib.value == pytest.approx(log_prob.sum() / compressed_length(encoded.span))
    low = Engine.statistics(tokenizer.encode(encoded.span.lower(), 4).ids).log_prob.astype(np.float64)
    assert lower.value == pytest.approx(log_prob.mean() - low.mean())
    full = dataclasses.replace(cut, text_span="full")
    scores, _ = run([Zlib(), Lower()], [text], tokenizer, full)
    assert scores["zlib"][0].value == pytest.approx(log_prob.sum() / compressed_length(text))
    low = Engine.statistics(tokenizer.encode(text.lower(), 4).ids).log_prob.astype(np.float64)
    assert scores["lower"][0].value == pytest.approx(log_prob.mean() - low.mean())


def adding(tokenizer, tmp_path):
    """The same tokenizer, made to put an end-of-text token before every text."""
    content = json.loads(tokenizer.path.read_text(encoding="utf-8"))
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    found = Tokenizer(tmp_path)
    assert found.adds_tokens and not tokenizer.adds_tokens
    return found


def test_a_text_is_cut_without_the_tokenizers_own_tokens(tokenizer, tmp_path):
    text = "Call me <|endoftext|> Ishmael. Some years ago, never mind how long precisely."
    n = len(tokenizer.encode(text, 99).ids)
    for each in (tokenizer, adding(tokenizer, tmp_path)):
        assert each.cut(text, n) == each.cut(text, n + 1) == text and each.cut("", 3) == ""
        for most in range(1, n):
            assert each.cut(text, most) == tokenizer.encode(text, most).span
    assert "<|endoftext|>" in tokenizer.cut(text, 6)


def test_what_belongs_to_tuning_hangs_on_tuning(tokenizer):
    """DC-PDD's cut to 512 words; the sides of a group know whether it is tuned on."""
    protocol = load_protocol("audited", {"dc_pdd_tuning_text": "first_512_words"})
    table = FrequencyTable.load(sample.model_directory() / FILE_NAME)
    dev = [dataclasses.replace(r, side=s) for r, s in zip(records("a  b " * 300, "c " * 600), "xy", strict=True)]
    for tuning, counts in ((False, [len(r.text) for r in dev]), (True, [1023, 1023])):
        group = Group(dev, dev, tuning=tuning)
        steps = DcPdd(0.01, table).requests(group, tokenizer, protocol)
        with pytest.raises(StopIteration) as stop:
            steps.send([Engine.statistics(r.ids) for r in next(steps)])
        assert [len(t.text) for t in stop.value.value] == counts
    asked = []
    for tuning in (False, True):
        engine = Engine()
        run_jobs({"dc": Job(DcPdd(0.01, table), Group(dev, dev, tuning=tuning), protocol)}, tokenizer, engine)
        asked.append(sorted(len(r.ids) for r in engine.asked[0]))
    assert asked[0] != asked[1]


def test_a_final_end_of_text_is_dropped_except_by_dc_pdd(tokenizer):
    plain, _ = run(all_attacks(), ["A text of words."], tokenizer)
    ended, _ = run(all_attacks(), ["A text of words.<|endoftext|>"], tokenizer)
    for name in ("ppl", "lower", "min_k", "min_k_plus_plus"):
        assert ended[name][0].value == plain[name][0].value
        assert ended[name][0].n_scored == plain[name][0].n_scored and not ended[name][0].special_ids
    assert ended["dc_pdd"][0].n_scored == plain["dc_pdd"][0].n_scored + 1


def test_special_tokens_inside_are_flagged_or_refused(tokenizer):
    text = "A<|endoftext|> text."
    scores, _ = run(all_attacks(), [text], tokenizer)
    assert {name: c[0].special_ids for name, c in scores.items()} == {a: 2 if a == "lower" else 1 for a in ATTACKS[:6]}
    strict = load_protocol("audited", {"special_ids": "error"})
    for attack in (Ppl(), Zlib(), Lower(), MinK(0.2)):
        with pytest.raises(DataError, match="line 1.*r0.*special"):
            run([attack], [text], tokenizer, strict)
    run([a for a in all_attacks() if a.id == "dc_pdd"], [text], tokenizer, strict)  # it has no such rule
    hidden = "A <|ENDOFTEXT|> text."  # a special token only in lower case
    assert run([Lower()], [hidden], tokenizer)[0]["lower"][0].special_ids == 1
    with pytest.raises(DataError, match="special"):
        run([Lower()], [hidden], tokenizer, strict)


@given(st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=50), st.sampled_from([0.05, 0.2, 0.7, 1.0]))
def test_mean_of_smallest_is_the_head_of_the_sorted_list(values, k):
    count = smallest_count(k, len(values))
    expected = np.mean(np.sort(np.asarray(values, np.float32))[:count], dtype=np.float64)
    assert mean_of_smallest(np.asarray(values, np.float32), k, AUDITED) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert 1 <= count <= len(values)


def test_the_floor_of_k_n_is_taken_in_float64():
    assert smallest_count(0.7, 90) == 62 and smallest_count(0.7, 170) == 118 and smallest_count(0.2, 4) == 1


def test_a_table_of_another_tokenizer_is_refused(tokenizer, tmp_path):
    table = build_table(["one text"], tokenizer, max_tokens=99, source="test")
    table.save(tmp_path / "t.safetensors")
    loaded = FrequencyTable.load(tmp_path / "t.safetensors")
    assert (loaded.counts == table.counts).all() and loaded.tokenizer_digest == tokenizer.digest
    run([DcPdd(0.01, loaded)], ["a text"], tokenizer)
    other = FrequencyTable(table.counts, "another", 1, 99, "test")
    with pytest.raises(UsageError, match="another tokenizer.*olmodetect frequencies"):
        run([DcPdd(0.01, other)], ["a text"], tokenizer)
    with pytest.raises(UsageError, match="no token-frequency table.*--frequencies"):
        build_attacks(["dc_pdd"], Settings(load_hyperparameters("any", {}), tmp_path / "none"))
    (tmp_path / "bad").write_bytes(b"12345678901")
    with pytest.raises(DataError, match="bad: not a token-frequency table"):
        FrequencyTable.load(tmp_path / "bad")
    with pytest.raises(DataError, match="no text"):
        build_table([], tokenizer, max_tokens=9, source="empty")


def test_the_samples_table_counts_exactly_the_reference_texts(tokenizer):
    from olmodetect_jax.sample.data import build_data

    table = FrequencyTable.load(sample.model_directory() / FILE_NAME)
    table.check(tokenizer)
    data = build_data(sample.sources_directory())
    again = build_table(data.reference_texts, tokenizer, max_tokens=4096, source="again")
    assert (again.counts == table.counts).all() and again.documents == table.documents
    trained_on = {text for _, texts in data.stages for text in texts}
    in_a_class = {c.text for pools in data.pools.values() for c in (*pools.members, *pools.non_members)}
    assert not set(data.reference_texts) & (trained_on | in_a_class)


def test_a_text_with_statistics_that_are_not_numbers_has_no_score(tokenizer):
    class Broken(Engine):
        @staticmethod
        def statistics(ids):
            good = Engine.statistics(ids)
            return TokenStatistics(
                good.log_prob, np.where(np.arange(len(ids) - 1) == 1, np.nan, good.mean), good.variance
            )

    jobs = {a.id: Job(a, Group(records("Some text here.")), AUDITED) for a in all_attacks()}
    scores = run_jobs(jobs, tokenizer, Broken())
    assert all("not finite" in column[0].missing for column in scores.values())


def test_a_score_that_is_no_number_is_a_hole(tokenizer):
    (text,) = run([Plain()], ["Some text."], tokenizer)[0]["ppl"]
    for value in (math.inf, -math.inf, math.nan):
        score = text.result(value)
        assert math.isnan(score.value) and score.missing == f"the score is {value}"
    assert text.result(-1.0).missing is None


class Plain(Ppl):
    """Hands the scored texts out as they are."""

    def score(self, records, answers, protocol):
        return answers


def test_a_lower_cased_text_without_targets_is_named(tokenizer):
    assert len(tokenizer.encode("AB", 9).ids) == 2 and len(tokenizer.encode("ab", 9).ids) == 1
    scores, _ = run(all_attacks(), ["AB"], tokenizer)
    assert scores["lower"][0].missing.startswith("in lower case: there is nothing to score")
    assert scores["ppl"][0].missing is None


def test_tables_that_cannot_be_right_are_refused(tmp_path, tokenizer):
    from types import SimpleNamespace

    gaps = SimpleNamespace(path="tokenizer.json", vocabulary=5, largest_id=9)
    with pytest.raises(UsageError, match="ids up to 9.*without gaps"):
        build_table(["a"], gaps, max_tokens=9, source="test")
    with pytest.raises(UsageError, match="without gaps"):
        FrequencyTable(np.zeros(5, np.int64), "d", 1, 9, "test").check(gaps)
    for counts in (np.array([1, -1]), np.zeros((2, 2), np.int64), np.zeros(2, np.int32), np.zeros(0, np.int64)):
        FrequencyTable(counts, "d", 1, 9, "test").save(tmp_path / "t")
        with pytest.raises(DataError, match="expected non-negative counts"):
            FrequencyTable.load(tmp_path / "t")
    huge = FrequencyTable(np.array([2**62, 2**62, 2**63 - 1]), "d", 1, 9, "test").smoothed()
    assert (huge > 0).all() and huge.sum() == pytest.approx(1)


def test_attack_names_and_hyperparameters():
    assert attack_ids("unsupervised") == ATTACKS[:16]
    assert ATTACKS[:6] == ("ppl", "zlib", "lower", "min_k", "min_k_plus_plus", "dc_pdd")
    assert ATTACKS[6:11] == ("pac", "recall", "em_mia", "em_mia_best_of_four", "camia")
    assert ATTACKS[11:16] == ("neighborhood", "guided", "dcq", "cdd", "self_critique") == GENERATIVE
    assert attack_ids("dc_pdd, ppl") == ("ppl", "dc_pdd") and set(ATTACKS) < set(TITLES)
    for text in ("loss", ""):
        with pytest.raises(UsageError, match="ppl, zlib"):
            attack_ids(text)
    assert load_hyperparameters("OLMo2-13B-Instruct", {})["dc_pdd_alpha"] == 0.05
    assert load_hyperparameters("OLMo-2-0425-1B-Instruct", {})["dc_pdd_alpha"] == 0.001
    assert load_hyperparameters("OLMo-2-1124-7B", {})["dc_pdd_alpha"] == 0.01  # a base model
    assert load_hyperparameters("any", {"min_k": "0.5"})["min_k"] == 0.5
    for name, value in (
        ("min_k", "0"),
        ("min_k", "1.5"),
        ("dc_pdd_alpha", "x"),
        ("min_k", "nan"),
        ("dc_pdd_alpha", "inf"),
        ("recall_shots", "0"),
        ("recall_shots", "2.5"),
        ("recall_shots", True),
        ("pac_near", "1.5"),
        ("em_mia_base", "ppl"),
        ("camia_composition", "stouffer"),
        ("unknown", "1"),
    ):
        with pytest.raises(UsageError, match=name):
            load_hyperparameters("any", {name: value})


def test_published_values_and_search_spaces():
    """Table 27 of the paper, size by size."""
    published = {
        "OLMo2-1B-Instruct": (0.001, 10, "loss", "george"),
        "OLMo-2-1124-7B-Instruct": (0.2, 3, "loss", "fisher"),
        "OLMo2-13B-Instruct": (0.05, 7, "minkpp", "george"),
        "OLMo-2-0325-32B-Instruct": (0.2, 12, "zlib", "george"),
        "another": (0.01, 5, "loss", "edgington"),
    }
    for model, values in published.items():
        found = load_hyperparameters(model, {})
        names = ("dc_pdd_alpha", "recall_shots", "em_mia_base", "camia_composition")
        assert tuple(found[name] for name in names) == values
        assert (found["min_k"], found["min_k_plus_plus"], found["pac_far"], found["pac_near"]) == (0.2, 0.2, 0.05, 0.1)
    assert [len(search_space(a)) for a in ATTACKS[:16]] == [
        0, 0, 0, 11, 11, 8, 12, 12, 4, 0, 3, 2, 2, 4, 81, 0,
    ]  # fmt: skip
    assert search_space("pac")[:5] == [
        {"pac_far": far, "pac_near": near}
        for far, near in ((0.05, 0.1), (0.05, 0.2), (0.05, 0.3), (0.05, 0.4), (0.1, 0.1))
    ]
    assert [v["recall_shots"] for v in search_space("recall")] == list(range(1, 13))


def test_attacks_may_ask_again(tokenizer):
    """A second round sees the first one's answers; other attacks' requests of the same round are pooled."""

    class Twice:
        id = "ppl"

        def requests(self, group, tokenizer, protocol):
            first = yield from score_texts([r.text for r in group.records], tokenizer, protocol)
            second = yield from score_texts([r.text + " again" for r in group.records], tokenizer, protocol)
            return list(zip(first, second, strict=True))

        def score(self, group, answers, protocol):
            return [a.result(float(b.log_prob.sum() - a.log_prob.sum())) for a, b in answers]

    scores, engine = run([Twice(), MinK(0.2)], ["one text"], tokenizer)
    assert [len(asked) for asked in engine.asked] == [1, 1]
    assert scores["ppl"][0].value < 0 and scores["min_k"][0].missing is None


def test_a_tables_facts_tell_its_counts_apart():
    counts = np.array([3, 1, 2], np.int64)
    one, other = (FrequencyTable(c, "d", 1, 9, "test").facts() for c in (counts, counts[::-1].copy()))
    assert one["sha256"] != other["sha256"] and {**one, "sha256": ""} == {**other, "sha256": ""}
