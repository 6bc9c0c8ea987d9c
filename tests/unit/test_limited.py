"""A limit on any attack: which records are handed on, in which order scores come back, what the attack sees."""

import dataclasses
import hashlib
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.attacks.base import LEFT_OUT, Group, Score
from olmodetect_jax.attacks.em_mia import EmMia, EmMiaBestOfFour
from olmodetect_jax.attacks.limited import Limited
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.rounds import Job, run_jobs
from olmodetect_jax.protocol import load_protocol
from tests.stub_attacks import StubTokenizer, answer, records, run

AUDITED = load_protocol("audited")
REASON = "the limit takes some records of each class"


@dataclasses.dataclass
class Seen:
    """An attack that keeps what it is given; a text's score is its first letter's number."""

    groups: list
    id: ClassVar[str] = "ppl"
    needs_dev: ClassVar[bool] = True

    def requests(self, group, tokenizer, protocol):
        self.groups.append(group)
        yield []
        return group

    def score(self, group, answers, protocol):
        assert answers is group
        return [Score(float(ord(r.text[0])) if r.text else 0.0, len(r.text), 1, False) for r in group.records]


def by_hash(texts):
    return sorted(texts, key=lambda t: hashlib.sha256(t.encode()).hexdigest())


TEXTS = [f"{c} text" for c in "abcdefgh"]


@given(st.permutations(range(8)), st.lists(st.sampled_from([0, 1, None]), min_size=8, max_size=8), st.integers(1, 4))
def test_the_smallest_hashes_of_each_class_in_the_groups_order(order, labels, limit):
    texts = [TEXTS[i] for i in order]
    seen = Seen([])
    scores, _ = run(Limited(seen, limit, REASON), Group(records(*texts, labels=labels)), AUDITED)
    taken = {
        t
        for label in (0, 1, None)
        for t in by_hash(t for t, own in zip(texts, labels, strict=True) if own == label)[:limit]
    }
    assert [r.text for r in seen.groups[0].records] == [t for t in texts if t in taken]
    for text, score in zip(texts, scores, strict=True):
        if text in taken:
            assert score == Score(float(ord(text[0])), 6, 1, False)
        else:
            assert score.missing == LEFT_OUT + REASON and score.left_out and score.value != score.value
            assert (score.n_tokens, score.n_scored, score.truncated) == (6, 0, False)


def test_texts_of_fewer_than_two_tokens_use_up_no_place():
    seen = Seen([])
    scores, _ = run(Limited(seen, 1, REASON), Group(records("", "x", *TEXTS[:3])), AUDITED)
    first = by_hash(TEXTS[:3])[0]
    assert [r.text for r in seen.groups[0].records] == ["", "x", first]
    assert [s.left_out for s in scores] == [False, False, *(t != first for t in TEXTS[:3])]


def test_development_records_are_left_whole_and_stay_their_own():
    other = records(*TEXTS[4:], start=4)
    for dev, whole in ((other, True), (records(*TEXTS), False)):
        for tuning in (False, True):
            seen = Seen([])
            group = Group(records(*TEXTS), dev, "gsm8k", tuning)
            run(Limited(seen, 2, REASON), group, AUDITED)
            (given_group,) = seen.groups
            assert given_group.is_dev == group.is_dev != whole and (given_group.domain, given_group.tuning) == (
                "gsm8k",
                tuning,
            )
            assert len(given_group.records) == 2 and (list(given_group.dev) == dev) == whole


def test_each_side_has_its_own_limit():
    sides = [dataclasses.replace(r, side="ab"[i % 2]) for i, r in enumerate(records(*TEXTS, labels=[1] * 4 + [0] * 4))]
    for attack in (Ppl(), EmMia("loss"), EmMiaBestOfFour()):
        limited = Limited(attack, 1, REASON)
        assert limited.id == attack.id and limited.needs_dev == attack.needs_dev

        def engine(requests):
            return {r.digest: answer(r) for r in requests}

        def scores_of(made, given_records, engine=engine):
            return run_jobs({0: Job(made, Group(given_records), AUDITED)}, StubTokenizer(), engine)[0]

        scores = scores_of(limited, sides)
        kept = [r for r, s in zip(sides, scores, strict=True) if not s.left_out]
        assert sorted((r.side, r.label) for r in kept) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        assert [s for s in scores if not s.left_out] == scores_of(attack, kept)  # both sides at once, where it matters


def test_one_record_of_equal_texts_is_taken_by_its_id():
    twins = records("same text", "same text")
    for order in ([0, 1], [1, 0]):
        scores, _ = run(Limited(Ppl(), 1, REASON), Group([twins[i] for i in order]), AUDITED)
        assert [s.left_out for s in scores] == [twins[i].record_id != "r0" for i in order]


@pytest.mark.parametrize("limit", [8, 100])
def test_a_limit_that_leaves_out_none_changes_nothing(limit):
    group = Group(records(*TEXTS, "", "x"))
    limited, asked = run(Limited(Ppl(), limit, REASON), group, AUDITED)
    plain, same = run(Ppl(), group, AUDITED)
    assert str(limited) == str(plain) and [r.digest for r in asked[0]] == [r.digest for r in same[0]]
