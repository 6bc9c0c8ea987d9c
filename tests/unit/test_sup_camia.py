"""Sup-CAMIA against the golden files `camia_signals_*.json` and `camia_sup.json`, and the attack end to end."""

import dataclasses
import json
import math
import random
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.camia import Camia
from olmodetect_jax.attacks.sup_camia import SupCamia, read_texts
from olmodetect_jax.attacks.sup_camia_classifier import CLASSIFIERS, Scaling, prepared, probabilities
from olmodetect_jax.attacks.sup_camia_features import FEATURES, GROUPS, text_features
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.records import Record, text_hash
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.tokenization import TokenizedText
from tests.stub_attacks import answer, run

# As the golden files state.
SIGNALS = {"rtol": 1e-9, "atol": 1e-9}
LIBLINEAR = {"rtol": 0, "atol": 2e-3}  # it stops early
EXACT = {"rtol": 0, "atol": 1e-6}

GOLDEN = Path(__file__).parents[1] / "golden"
AUDITED = load_protocol("audited")


def load(name):
    """camia_signals_short.json, camia_signals_long.json and camia_sup.json by what stands after `camia_`."""
    return json.loads((GOLDEN / f"camia_{name}.json").read_text())


def array(values):
    return np.array(values, np.float64)  # null becomes NaN


# --- features ---------------------------------------------------------------------------------------------------------


def signal_cases():
    for name in ("signals_short", "signals_long"):
        data = load(name)
        for case in data["inputs"]["cases"]:
            yield pytest.param(case, data["expected"][case["name"]], id=case["name"])


def passes(case):
    """The passes over two and over three copies, as the golden file says they are."""
    n, digit, repeated = case["n_tokens"], case["repeat"] == "digit", array(case["rep_lp"])
    return repeated[: 2 * n - 1 + digit], repeated[: 3 * n - 1 + 2 * digit]


@pytest.mark.parametrize("slices", ["paper", "aligned"])
@pytest.mark.parametrize(("case", "expected"), list(signal_cases()))
def test_features(case, expected, slices):
    lp = array(case["lp"])
    starts = expected[f"sup_starts_{slices}"]
    copies = [values[start : start + len(lp)] for values, start in zip(passes(case), starts, strict=True)]
    assert list(map(len, copies)) == expected[f"sup_{slices}_lens"]
    wanted = expected[f"sup_{slices}"]
    assert set(wanted) <= set(FEATURES)
    got = text_features(lp, np.array(case["ids_full"]), copies)
    assert got.shape == (71,) and got.dtype == np.float64
    np.testing.assert_allclose(got, array([wanted.get(name) for name in FEATURES]), **SIGNALS)


def test_every_signal_case_is_there():
    assert len(list(signal_cases())) == 26


def test_names_and_groups():
    inputs = load("sup")["inputs"]
    assert list(FEATURES) == inputs["features"]
    assert list(GROUPS) == [inputs["group_names"][i] for i in inputs["group_index"]]


def test_diversity_sees_the_first_1024_tokens():
    lp = -np.linspace(1, 2, 1999)
    ids = np.concatenate([np.arange(1024), np.zeros(976, np.int64)])
    got = dict(zip(FEATURES, text_features(lp, ids, [lp[:0], lp[:0]]), strict=True))
    assert got["cal_loss_full"] == got["loss_full"] == pytest.approx(-1.5)


def test_what_is_beyond_float64_is_missing():
    lp = np.full(30, -1e4)
    got = dict(zip(FEATURES, text_features(lp, np.arange(31), [lp, lp[:9]]), strict=True))
    assert {name for name, value in got.items() if math.isnan(value)} == {name for name in FEATURES if "ppl" in name}


@pytest.mark.parametrize(("length", "missing"), [(5, {"lz", "apen"}), (6, {"apen"}), (20, {"apen"}), (21, set())])
def test_shortest_texts(length, missing):
    lp = -np.linspace(1, 2, length)
    got = text_features(lp, np.arange(length + 1), [lp, lp])
    assert {GROUPS[i] for i in np.flatnonzero(np.isnan(got))} == missing


def test_no_tokens_no_features():
    empty = np.zeros(0, np.float32)
    assert np.isnan(text_features(empty, np.array([5]), [empty, empty])).all()


# --- classifier -------------------------------------------------------------------------------------------------------


def sup():
    data = load("sup")
    return [array(data["inputs"][name]) for name in ("member_train", "nonmember_train", "target")], data["expected"]


def expected_of(expected, classifier, which):
    groups = {"group_pca": "group_pca1_minmax_scaled", "group_pca_unscaled": "group_pca1_unscaled_as_original"}
    if classifier in groups:
        return expected[groups[classifier]][which]
    return expected[f"lr_{classifier}_{which}"]


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_probabilities(classifier):
    (members, others, targets), expected = sup()
    got = probabilities(members, others, targets, classifier)
    np.testing.assert_allclose(got, expected_of(expected, classifier, "liblinear"), **LIBLINEAR)
    assert got.dtype == np.float64


def optimum(x, y):
    """Minimiser of (|w|^2 + b^2) / 2 + sum log(1 + exp(-y f)), by Newton's method: weights, then the intercept."""
    x = np.column_stack([x, np.ones(len(x))])
    w = np.zeros(x.shape[1])

    def loss(w):
        return w @ w / 2 + np.logaddexp(0, -y * (x @ w)).sum()

    for _ in range(200):
        p = np.exp(-np.logaddexp(0, y * (x @ w)))
        gradient = w - x.T @ (y * p)
        step = np.linalg.solve(np.eye(len(w)) + (x.T * (p * (1 - p))) @ x, gradient)
        size = 1.0
        while size > 1e-12 and loss(w - size * step) > loss(w):
            size /= 2
        w = w - size * step
    return w


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_what_the_regression_sees(classifier):
    """With an exact solver: the golden probabilities to 1e-6, where liblinear's own stop would hide a difference."""
    (members, others, targets), expected = sup()
    train, seen = prepared(members, others, targets, classifier)
    assert train.shape[1] == seen.shape[1] == (71 if classifier == "plain" else 10)
    w = optimum(train, np.repeat([1.0, -1.0], [len(members), len(others)]))
    got = 1 / (1 + np.exp(-(seen @ w[:-1] + w[-1])))
    np.testing.assert_allclose(got, expected_of(expected, classifier, "exact"), **EXACT)
    if classifier == "plain":
        np.testing.assert_allclose(w[:-1], expected["lr_plain_exact_coef"], **EXACT)
        np.testing.assert_allclose(w[-1], expected["lr_plain_exact_intercept"], **EXACT)
    if classifier == "pca10":
        whole = prepared(members, others, targets, "plain")[0].var(axis=0).sum()
        assert train.shape[1] == expected["pca_n_components"]
        np.testing.assert_allclose(train.var(axis=0) / whole, expected["pca_explained_variance_ratio"], **EXACT)


def test_scaling():
    (members, others, targets), expected = sup()
    scaling = Scaling.of(members, others)
    np.testing.assert_allclose(scaling.median, expected["median"], rtol=1e-12)
    train = scaling.scaled(np.concatenate([members, others]))
    constant = array(expected["scaler_max"]) == array(expected["scaler_min"])
    assert constant.any() and (scaling.span[constant] == 1).all() and (train[:, constant] == 0).all()
    np.testing.assert_allclose(scaling.low, expected["scaler_min"], rtol=1e-12)
    np.testing.assert_allclose((scaling.low + scaling.span)[~constant], array(expected["scaler_max"])[~constant])
    assert train.min() == 0 and train.max() == 1
    assert scaling.scaled(targets).max() > 1  # not clipped


def features(rng, n, shift=0.0):
    return rng.normal(shift, size=(n, 71))


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_feature_that_a_class_lacks_counts_for_nothing(classifier):
    rng = np.random.default_rng(3)
    members, others, targets = features(rng, 8, 1), features(rng, 9), features(rng, 5)
    missing = [2, 40]
    members[:, missing] = math.nan
    without = probabilities(members, others, targets, classifier)
    for x in (others, targets):
        x[:, missing] = features(rng, len(x), 50)[:, missing]
    np.testing.assert_array_equal(probabilities(members, others, targets, classifier), without)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_no_features_at_all(classifier):
    nothing = np.full((3, 71), math.nan)
    assert probabilities(nothing, nothing, nothing, classifier).tolist() == [0.5] * 3


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_two_texts_a_class_are_enough(classifier):
    rng = np.random.default_rng(4)
    members, others = features(rng, 2, 1), features(rng, 2)
    got = probabilities(members, others, np.concatenate([members, others]), classifier)
    assert got[:2].min() > got[2:].max()


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_probability_does_not_depend_on_the_other_targets(classifier):
    rng = np.random.default_rng(5)
    members, others, targets = features(rng, 20, 0.3), features(rng, 21), features(rng, 33)
    targets[rng.random(targets.shape) < 0.1] = math.nan
    together = probabilities(members, others, targets, classifier)
    alone = [probabilities(members, others, target[None], classifier)[0] for target in targets]
    assert together.tobytes() == np.array(alone).tobytes()


# --- the attack -------------------------------------------------------------------------------------------------------


class Words:
    """A word is a token with the space before it; a space before a digit, or at the end, is a token of its own.

    Words of `odd` are other tokens where something follows.
    """

    eos_id = None
    special_ids = frozenset({zlib.crc32(b"^") % 2**20})

    def __init__(self, odd=()):
        self.odd = odd

    def encode_all(self, texts, max_tokens):
        return [self._encode(text, max_tokens) for text in texts]

    def _encode(self, text, max_tokens):
        tokens = self._tokens(text)
        last = len(tokens) - 1
        marked = [t + "'" if t.strip() in self.odd and i < last else t for i, t in enumerate(tokens)]
        ids = np.array([zlib.crc32(t.encode()) % 2**20 for t in marked[:max_tokens]], np.int32)
        return TokenizedText(ids, len(tokens), "".join(tokens[:max_tokens]))

    def cut(self, text, max_tokens):
        return "".join(self._tokens(text)[:max_tokens])

    @staticmethod
    def _tokens(text):
        return re.findall(r" ?[^ \d]+|\d+| ", text)


def with_(**changes):
    return dataclasses.replace(AUDITED, **changes)


def read(texts, protocol=AUDITED, tokenizer=None, answer=answer):
    """Each text's features, and the requests."""
    steps = read_texts(texts, tokenizer or Words(), protocol)
    asked = next(steps)
    try:
        steps.send([answer(request) for request in asked])
    except StopIteration as stop:
        return stop.value, asked
    raise AssertionError("asked twice")


def log_prob(ids):
    """Of a pass over these ids; [T-1], so that element i is of token i + 1."""
    return answer(ScoreTokens(ids)).log_prob


def ids_of(text, tokenizer=None):
    return (tokenizer or Words())._encode(text, 10**6).ids


def record(text, label, number=0, side=""):
    return Record(f"r{number}", text, label, "java", f"java.jsonl, line {number + 1}", side)


def sentences(count, seed):
    rng = random.Random(seed)
    return [" ".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(5, 14))) for _ in range(count)]


def labelled(members, others, seed):
    return [record(t, int(i < members), i) for i, t in enumerate(sentences(members + others, seed))]


def values(scores):
    return np.array([s.value for s in scores]).tobytes()


TEXT, DIGITS = "a b c d e", "1 a b c"  # five tokens; four


@pytest.mark.parametrize(
    ("text", "slices", "starts", "lengths"),
    [
        (TEXT, "aligned", (5, 10), (4, 4)),
        (TEXT, "released", (6, 11), (3, 3)),
        (DIGITS, "aligned", (5, 10), (3, 3)),
        (DIGITS, "released", (5, 10), (3, 3)),
    ],
)
def test_where_the_copies_begin(text, slices, starts, lengths):
    got, asked = read([text], with_(sup_camia_slices=slices))
    copies = log_prob(ids_of(" ".join([text] * 3)))
    taken = [
        copies[: len(ids_of(" ".join([text] * n))) - 1][s:][: len(ids_of(text)) - 1]
        for n, s in ((2, starts[0]), (3, starts[1]))
    ]
    assert tuple(map(len, taken)) == lengths
    np.testing.assert_array_equal(got[text].features, text_features(log_prob(ids_of(text)), ids_of(text), taken))
    assert [len(request.ids) for request in asked] == [len(ids_of(" ".join([text] * 3)))]
    if slices == "aligned":  # the same tokens again, but for the space
        repeated = ids_of(" ".join([text] * 3))
        for start, length in zip(starts, lengths, strict=True):
            np.testing.assert_array_equal(repeated[start + 1 : start + 1 + length], ids_of(text)[1:])


def test_the_pass_is_that_of_camia():
    group = Group(labelled(2, 2, 1), labelled(3, 3, 2))
    asked = [next(attack.requests(group, Words(), AUDITED)) for attack in (Camia("edgington"), SupCamia("lodo"))]
    assert [r.digest for r in asked[0]] == [r.digest for r in asked[1]] and len(asked[0]) == 10


def test_settings_ask_for_the_same():
    group = Group(labelled(2, 2, 1), labelled(3, 3, 2))
    asked = [
        [r.digest for r in next(SupCamia(setting).requests(group, Words(), AUDITED))]
        for setting in ("in-domain", "lodo", "pooled")
    ]
    assert asked[0] == asked[1] == asked[2]


def test_a_text_that_reads_differently_before_a_copy():
    """Its last token is another one where something follows: no pass holds a shorter one."""
    tokenizer = Words(odd=["e"])
    got, asked = read([TEXT, "a b"], tokenizer=tokenizer)
    one, two, three = (ids_of(" ".join([TEXT] * n), tokenizer) for n in (1, 2, 3))
    assert [r.ids.tolist() for r in asked] == [
        one.tolist(),
        two.tolist(),
        three.tolist(),
        ids_of("a b a b a b").tolist(),
    ]
    slices = [log_prob(two)[5:9], log_prob(three)[10:14]]
    assert three[14] == two[9] == one[4] != three[4]
    np.testing.assert_array_equal(got[TEXT].features, text_features(log_prob(one), one, slices))
    np.testing.assert_array_equal(got[TEXT].plain.log_prob, log_prob(one))


@pytest.mark.parametrize(
    ("changes", "tokens", "lengths", "asked"),
    [
        ({"window": 12}, 5, (4, 1), [12]),  # the third copy is cut
        ({"window": 7}, 5, (1, 0), [7]),
        ({"window": 5}, 5, (0, 0), [5]),
        ({"window": 4}, 5, (0, 0), [5]),  # the window is for copies, the text alone is longer
        ({"max_tokens": 3}, 3, (2, 2), [9]),  # no token behind the third is read, in no copy
        ({"max_tokens": 3, "window": 7}, 3, (2, 0), [7]),
    ],
)
def test_limits(changes, tokens, lengths, asked):
    got, requests = read([TEXT], with_(**changes))
    assert [len(r.ids) for r in requests] == asked
    ids = ids_of(TEXT)[:tokens]
    copies = log_prob(ids_of(" ".join([" ".join(TEXT.split()[:tokens])] * 3)))
    slices = [copies[tokens * n :][:length] for n, length in zip((1, 2), lengths, strict=True)]
    np.testing.assert_array_equal(got[TEXT].features, text_features(log_prob(ids), ids, slices))
    plain = got[TEXT].plain
    assert (plain.n_tokens, len(plain.targets), plain.truncated) == (5, tokens - 1, tokens < 5)


def test_a_long_text_is_read_as_by_everyone():
    """Cut before its copies: what PPL asks for, so no pass is added."""
    long = " ".join("abcdefghij"[i % 7] for i in range(40))
    _, requests = read([long], with_(max_tokens=20, window=20))
    assert [r.ids.tolist() for r in requests] == [ids_of(long)[:20].tolist()]


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_scores_follow_the_protocol(classifier):
    group, protocol = Group(labelled(3, 4, 1), labelled(6, 7, 2)), with_(sup_camia_classifier=classifier)
    scores, asked = run(SupCamia("in-domain"), group, protocol, tokenizer=Words())
    assert len(asked) == 1
    found, _ = read([r.text for r in (*group.records, *group.dev)])

    def table(records):
        return np.stack([found[r.text].features for r in records])

    classes = [table([r for r in group.dev if r.label == label]) for label in (1, 0)]
    expected = probabilities(*classes, table(group.records), classifier)
    np.testing.assert_allclose([s.value for s in scores], expected, atol=1e-6)
    for s, r in zip(scores, group.records, strict=True):
        n = len(ids_of(r.text))
        assert (s.n_tokens, s.n_scored, s.truncated, s.missing, s.note) == (n, n - 1, False, None, None)


def test_members_score_higher():
    """Texts that the model has seen, as a stand-in: it gives each of their tokens more."""
    group = Group(labelled(10, 10, 1), labelled(12, 12, 2))
    seen = {ids_of(r.text)[:4].tobytes() for r in (*group.records, *group.dev) if r.label == 1}

    def model(request):
        known = request.ids[:4].tobytes() in seen
        return dataclasses.replace(answer(request), log_prob=answer(request).log_prob / (1 + known))

    scores, _ = run(SupCamia("pooled"), group, AUDITED, model, Words())
    member, other = ([s.value for s, r in zip(scores, group.records, strict=True) if r.label == c] for c in (1, 0))
    assert np.mean(np.array(member)[:, None] > np.array(other)) > 0.9


def test_no_label_of_a_scored_record_counts():
    group = Group(labelled(3, 4, 1), labelled(6, 7, 2))
    unlabelled = dataclasses.replace(group, records=[dataclasses.replace(r, label=None) for r in group.records])
    both = [run(SupCamia("in-domain"), g, AUDITED, tokenizer=Words())[0] for g in (group, unlabelled)]
    assert values(both[0]) == values(both[1])


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), classifier=st.sampled_from(CLASSIFIERS))
def test_order_changes_nothing(seed, classifier):
    records, dev, protocol = labelled(3, 3, seed), labelled(4, 5, seed + 1), with_(sup_camia_classifier=classifier)
    before, _ = run(SupCamia("lodo"), Group(records, dev), protocol, tokenizer=Words())
    order = random.Random(seed).sample(range(6), 6)
    shuffled = Group([records[i] for i in order], random.Random(seed).sample(dev, len(dev)))
    after, _ = run(SupCamia("lodo"), shuffled, protocol, tokenizer=Words())
    assert values(after) == values([before[i] for i in order])


def test_a_score_does_not_depend_on_its_neighbours():
    group = Group([*labelled(6, 6, 1), record("a b", 1, 50)], labelled(8, 9, 2))
    together, _ = run(SupCamia("lodo"), group, AUDITED, tokenizer=Words())
    alone = [run(SupCamia("lodo"), Group([r], group.dev), AUDITED, tokenizer=Words())[0][0] for r in group.records]
    assert values(together) == values(alone)


def test_ids():
    attacks = [SupCamia(setting) for setting in ("in-domain", "lodo", "pooled")]
    assert [a.id for a in attacks] == ["sup_camia", "sup_camia_lodo", "sup_camia_pooled"]
    assert all((a.family, a.needs_dev) == ("sup_camia", True) for a in attacks)
    with pytest.raises(UsageError, match="setting: unknown value 'cross'; allowed are: in-domain, lodo, pooled"):
        SupCamia("cross")


def test_holes_have_names():
    dev = labelled(3, 3, 1)
    records = [record("", 0), record("b r o k e n", 1, 1), record("l a t e r", 1, 2), record("f i n e", 1, 3)]
    broken, later = (ids_of(records[i].text) for i in (1, 2))

    def model(request):
        found = answer(request)
        for ids, position in ((broken, 2), (later, len(later) + 1)):
            if (request.ids[: len(ids)] == ids).all():
                found.log_prob[position] = np.nan
        return found

    scores, _ = run(SupCamia("in-domain"), Group(records, dev), AUDITED, model, Words())
    assert scores[0].missing == "the record has no text"
    assert scores[1].missing.startswith("the model's statistics are not finite numbers")
    assert scores[2].missing.startswith("in its copies: the model's statistics are not finite numbers")
    assert all(math.isnan(s.value) for s in scores[:3]) and math.isfinite(scores[3].value)

    # Nobody learns from such texts.
    with_holes = Group(records, [*records[:3], *dev])
    assert values(run(SupCamia("in-domain"), with_holes, AUDITED, model, Words())[0]) == values(scores)


def test_a_text_of_one_token_has_the_medians():
    dev = labelled(5, 6, 1)
    group = Group([record("alone", None), record("f i n e", 1, 1)], dev)
    (score, fine), asked = run(SupCamia("in-domain"), group, AUDITED, tokenizer=Words())
    assert len(asked[0]) == len(dev) + 1
    found, _ = read([r.text for r in dev])
    tables = [np.stack([found[r.text].features for r in dev if r.label == label]) for label in (1, 0)]
    medians = np.nanmedian(np.concatenate(tables)[:, ~np.isnan(tables[0]).all(axis=0)], axis=0)
    target = np.full((1, 71), math.nan)
    target[:, ~np.isnan(tables[0]).all(axis=0)] = medians
    assert score.value == pytest.approx(probabilities(*tables, target, "plain")[0], abs=1e-6)
    assert score.missing is None and score.note.startswith("one token") and fine.note is None
    assert (score.n_tokens, score.n_scored, score.truncated) == (1, 0, False)

    # Nobody learns from such a text: it has no features.
    more = dataclasses.replace(group, dev=[record("one", 0, 9), record("other", 1, 10), *dev])
    assert values(run(SupCamia("in-domain"), more, AUDITED, tokenizer=Words())[0]) == values([score, fine])


def test_special_tokens_are_counted():
    (score,), _ = run(SupCamia("lodo"), Group([record("a^ ^ b", 1)], labelled(2, 2, 1)), AUDITED, tokenizer=Words())
    assert score.special_ids == 0
    tokenizer = Words()
    tokenizer.special_ids = frozenset({zlib.crc32(b" ^") % 2**20})
    (score,), _ = run(SupCamia("lodo"), Group([record("a ^ ^ b", 1)], labelled(2, 2, 1)), AUDITED, tokenizer=tokenizer)
    assert score.special_ids == 2


def test_what_is_scored_teaches_nothing():
    dev = labelled(3, 3, 1)
    group = Group(labelled(2, 2, 2), dev, held_out=frozenset({text_hash("something else")}))
    run(SupCamia("lodo"), group, AUDITED, tokenizer=Words())
    group = dataclasses.replace(group, held_out=frozenset({text_hash(dev[4].text)}))
    with pytest.raises(
        DataError, match=r"java.jsonl, line 5 \(record 'r4'\): Sup-CAMIA would learn from a text that it is to"
    ):
        next(SupCamia("lodo").requests(group, Words(), AUDITED))


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ([], "0 development members"),
        (labelled(3, 1, 1), "1 development non-members"),
        (labelled(1, 3, 1), "1 development members"),
        ([*labelled(3, 1, 1), record("", 0, 8)], "1 development non-members"),
    ],
)
def test_a_class_that_is_too_small(dev, message):
    with pytest.raises(DataError, match=f"Sup-CAMIA on subset java: {message}.*at least 2.*--attacks"):
        next(SupCamia("in-domain").requests(Group(labelled(1, 1, 0), dev), Words(), AUDITED))


def test_a_class_that_turns_out_too_small():
    dev = labelled(3, 2, 1)
    broken = ids_of(dev[4].text)[:5].tobytes()

    def model(request):
        hole = np.full(len(request.ids) - 1, np.nan, np.float32)
        return TokenStatistics(hole, hole, hole) if request.ids[:5].tobytes() == broken else answer(request)

    with pytest.raises(DataError, match="Sup-CAMIA on subset java: 1 development non-members"):
        run(SupCamia("pooled"), Group(labelled(1, 1, 0), dev), AUDITED, model, Words())


def test_nothing_to_score():
    assert run(SupCamia("in-domain"), Group([], labelled(2, 2, 1)), AUDITED, tokenizer=Words())[0] == []
