"""Neighbours: where gaps are, what fills them, the files they are kept in, and the command that makes them."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax import sample
from olmodetect_jax.commands import neighbours as command
from olmodetect_jax.errors import DataError, MissingFilesError, UsageError
from olmodetect_jax.neighbours.files import (
    Neighbours,
    load_neighbours,
    released_key,
    text_key,
    write_neighbours,
)
from olmodetect_jax.neighbours.fills import extract_fills, fill_gaps
from olmodetect_jax.neighbours.masking import COPIES, Masked, chunks, mask, spans_of, split_window
from olmodetect_jax.neighbours.target_model import NEW_TOKENS, propose
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.requests import Continuation, Continuations
from olmodetect_jax.tokenization import Tokenizer
from tests.stub_attacks import StubTokenizer, answer

GOLDEN = Path(__file__).parents[1] / "golden"
AUDITED = load_protocol("audited")
IGNORED = ("<pad>", "</s>")


def cases(name, kind=None):
    data = json.loads((GOLDEN / f"neigh_{name}.json").read_text())
    rows = zip(data["case_names"], data["inputs"], data["expected"], strict=True)
    return [pytest.param(i, e, id=n) for n, i, e in rows if kind is None or i["kind"] == kind]


@pytest.mark.parametrize(("inputs", "expected"), cases("masking", "count"))
def test_golden_counts(inputs, expected):
    assert spans_of(inputs["n_space_tokens"]) == (expected["span_length_used"], expected["n_spans"])


@pytest.mark.parametrize(("inputs", "expected"), cases("masking", "mask"))
def test_golden_masks(inputs, expected):
    masked = mask(inputs["text"], np.random.RandomState(inputs["numpy_randomstate_seed"]))
    assert masked.with_sentinels == expected["masked"]
    assert len(inputs["text"].split(" ")) == expected["n_space_tokens"]
    assert len(masked.words) == expected["n_spans"]


@pytest.mark.parametrize(("inputs", "expected"), cases("masking", "chunks"))
def test_golden_chunks(inputs, expected):
    own = chunks(inputs["texts"], "file", copies=inputs["n_perturbations"], rows=inputs["chunk_size"])
    got = [mask(text, chunk.random).with_sentinels for chunk in own for text in chunk.rows]
    assert got == expected["masked_in_order"] and inputs["seed"] == 0


@pytest.mark.parametrize(("inputs", "expected"), cases("masking", "window"))
def test_golden_windows(inputs, expected):
    head, tail = split_window(inputs["text"], "flattened")
    assert hashlib.sha256(head.encode()).hexdigest() == expected["head_sha256"]
    assert (tail, len(head.split())) == (expected["tail"], expected["head_words"])
    assert (head == inputs["text"]) == expected["head_equals_text"]
    kept, rest = split_window(inputs["text"], "kept")
    assert kept + rest == inputs["text"] and kept.split() == head.split() and not kept[-1:].isspace()


def test_every_golden_kind_is_tested():
    kinds = {i["kind"] for i in json.loads((GOLDEN / "neigh_masking.json").read_text())["inputs"]}
    assert kinds == {"count", "mask", "chunks", "window"}


@pytest.mark.parametrize(("inputs", "expected"), cases("fills"))
def test_golden_fills(inputs, expected):
    pieces = re.split(r"<extra_id_\d+>", inputs["masked"])
    masked = Masked(tuple(pieces), ("",) * (len(pieces) - 1))
    assert extract_fills(inputs["t5_decoded_with_specials"], IGNORED) == expected["fills"]
    got = fill_gaps(masked, inputs["t5_decoded_with_specials"], IGNORED)
    assert (got or "") == expected["neighbour_or_empty"] and (got is None) == (expected["neighbour_or_empty"] == "")


def test_output_without_a_sentinel_has_no_fill():
    assert extract_fills("just words", IGNORED) == [] and extract_fills("", IGNORED) == []


texts = st.text(st.sampled_from("ab\n  é日"), max_size=160)


@given(texts, st.integers(0, 2**32 - 1))
def test_gaps_lie_apart_and_own_words_restore_the_text(text, seed):
    masked = mask(text, np.random.RandomState(seed))
    length, count = spans_of(len(text.split(" ")))
    assert len(masked.words) == count == len(masked.spans)
    assert masked.filled(masked.words) == text
    assert [text[a:b] for a, b in masked.spans] == list(masked.words)
    assert all(len(words.split(" ")) == length for words in masked.words)
    tokens = [(text[:a].count(" "), text[:b].count(" ")) for a, b in masked.spans]  # first and last token of each
    assert all(later - earlier > 1 for (_, earlier), (later, _) in zip(tokens, tokens[1:], strict=False))
    assert not tokens or tokens[-1][1] < text.count(" ")
    fills = [f"fill{i}" for i in range(count)]
    assert [masked.filled(fills)[a:b] for a, b in masked.ranges(fills)] == fills


def test_a_sentinel_spelt_out_in_the_text_is_no_gap():
    text = "<extra_id_0> " + " ".join(f"w{i}" for i in range(14))
    masked = mask(text, np.random.RandomState(3))
    assert masked.filled(["new"]).count("<extra_id_0>") == 1 or "<extra_id_0>" in masked.words[0]
    assert masked.filled(masked.words) == text


@pytest.mark.parametrize("words", [300, 301])
def test_the_kept_window_ends_with_a_word(words):
    text = "\n\n  ".join(["wörd"] * words) + " \u2028"
    head, tail = split_window(text, "kept")
    assert head + tail == text and len(head.split()) == 300
    assert (tail == "") == (words == 300) and (words == 300 or tail == "\n\n  wörd \u2028")


MANY = ["one " * 30, "two " * 40, "three " * 20, "short"]


@given(st.permutations(range(4)))
def test_text_seeds_forget_the_order(order):
    def drawn(texts):
        return {t: [mask(t, c.random) for t in c.rows] for c in chunks(texts, "text") for t in c.rows[:1]}

    assert drawn(MANY) == drawn([MANY[i] for i in order])


def test_a_text_seed_is_the_start_of_its_hash():
    (chunk,) = chunks(MANY[:1], "text")
    random = np.random.RandomState(int(hashlib.sha256(MANY[0].encode()).hexdigest()[:8], 16))
    assert [mask(t, chunk.random) for t in chunk.rows] == [mask(MANY[0], random) for _ in range(COPIES)]


def test_file_seeds_depend_on_the_place():
    def drawn(texts):
        return [mask(t, c.random) for c in chunks(texts, "file") for t in c.rows if t == MANY[0]]

    assert drawn(MANY) != drawn(MANY[::-1]) and len(drawn(MANY)) == COPIES
    assert [len(c.rows) for c in chunks(MANY[:3], "file")] == [20, 10]


# The target model as the filler.

WORDS = "  ".join(f"w{i}\nx{i}" for i in range(20)) + " the end"


def proposal(text, **changes):
    (own,) = propose([text], StubTokenizer(), dataclasses.replace(AUDITED, **changes))
    return own


def test_the_model_continues_the_text_before_each_gap():
    own = proposal(WORDS)
    request = own.request
    gaps = [masked.spans[i] for masked, asked in zip(own.copies, own.asked, strict=True) for i in asked]
    assert len(own.copies) == COPIES and request.rows == len(gaps) > COPIES
    assert request.starts.tolist() == [first - 1 for first, _ in gaps]  # a token a character; the space is not read
    assert StubTokenizer.text(request.prompt) == WORDS[: max(request.starts)]
    assert (request.max_new, request.stop_ids, request.greedy) == (NEW_TOKENS, StubTokenizer.stop_ids, False)
    how = request.sampling
    assert (how.temperature, how.top_k, how.top_p) == (1.0, 50, 1.0)
    assert how.seed == int.from_bytes(hashlib.sha256(WORDS.encode()).digest()[:8], "big")
    continuations = answer(request)
    fills = [
        " ".join(StubTokenizer.text(row.ids).split()[: len(WORDS[a:b].split())])
        for row, (a, b) in zip(continuations.rows, gaps, strict=True)
    ]
    got = own.neighbours(continuations, StubTokenizer())
    for masked, asked, text in zip(own.copies, own.asked, got, strict=True):
        assert text == masked.filled([fills.pop(0) if i in asked else words for i, words in enumerate(masked.words)])
    assert not fills


def test_an_empty_continuation_leaves_two_spaces():
    own = proposal("a " * 14 + "b")
    empty = Continuation(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32), True)
    for masked, asked, text in zip(
        own.copies, own.asked, own.neighbours(Continuations((empty,) * own.request.rows), StubTokenizer()), strict=True
    ):
        assert ("  " in text) == bool(asked) and (asked or text == masked.filled(masked.words))


def test_gaps_that_keep_their_words():
    own = proposal("a b " * 7 + "c")
    at_start = [masked.spans[0][0] == 0 for masked in own.copies]
    assert set(at_start) == {True, False}
    assert [asked == () for asked in own.asked] == at_start  # no token stands before it
    blank = proposal(" " * 40 + "end")  # only spaces between its tokens
    assert blank.request is None and blank.neighbours(None, StubTokenizer()) == [" " * 40 + "end"] * COPIES
    room = proposal(WORDS, generation_context=60)
    assert room.request.starts.max() <= 60 - NEW_TOKENS < proposal(WORDS).request.starts.max()
    assert proposal("日本語の文章" * 9).request is None and proposal("").request is None


def test_each_window():
    long = "\n".join(f"word{i} b c" for i in range(140))
    kept, flat = proposal(long), proposal(long, neighborhood_window="flattened")
    for own, whole in ((kept, long), (flat, " ".join(long.split()))):
        assert own.copies[0].filled(own.copies[0].words) + own.tail == whole
        assert own.tail.split() == long.split()[300:]
        neighbours = own.neighbours(answer(own.request), StubTokenizer())
        assert all(n.endswith(own.tail) and n != whole for n in neighbours)
        assert whole.startswith(StubTokenizer.text(own.request.prompt))


def test_the_real_tokenizer_reads_the_text_up_to_the_space():
    tokenizer = Tokenizer(sample.model_directory())
    text = "It was the best of times,\n it was the worst  of times — it was the agè of wisdom, it was the age"
    (own,) = propose([text], tokenizer, AUDITED)
    gaps = [masked.spans[i] for masked, asked in zip(own.copies, own.asked, strict=True) for i in asked]
    for (first, _), start in zip(gaps, own.request.starts, strict=True):
        before = tokenizer.decode(own.request.prompt[:start])
        assert text.startswith(before) and text[len(before) : first].strip() == "" and len(before) < first


# Files.


def line(text, neighbours=("n1", "n2"), **changes):
    value = {"text_sha256": text_key(text), "neighbours": neighbours, "provenance": {"filler": "t5"}}
    return json.dumps({**value, **changes})


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "n.jsonl"
    own = {
        text_key("a\u2028b"): Neighbours(("x\u2028\ny", "日"), {"filler": "t5", "seed": 1}),
        text_key("c"): Neighbours(("c",), {}),
    }
    write_neighbours(path, own)
    file = load_neighbours(path)
    assert file.by_key == own and file.of("c").texts == ("c",) and file.of("d") is None
    facts = file.facts()
    assert facts["texts"] == 2 and facts["provenances"] == [{"filler": "t5", "seed": 1}, {}]
    other = tmp_path / "other.jsonl"
    write_neighbours(other, dict(reversed(own.items())))
    assert load_neighbours(other).facts() == facts
    write_neighbours(other, {**own, text_key("c"): Neighbours(("C",), {})})
    assert load_neighbours(other).facts()["sha256"] != facts["sha256"]


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        ('{"text_sha256": "ab', "not a JSON value"),
        ("[1]", "text_sha256 is None"),
        (line("b", text_sha256="AB" * 32), "64 hex digits"),
        (line("a"), "already"),
        (line("b", neighbours=[]), "at least one"),
        (line("b", neighbours=["x", 1]), "at least one"),
        (line("b", neighbours="xy"), "at least one"),
        (line("b", ["\ud800"]), "lone surrogate"),
        (line("b", provenance=None), "provenance is None"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, damaged, says):
    path = tmp_path / "n.jsonl"
    path.write_text(line("a") + "\n" + damaged + "\n")
    with pytest.raises(DataError, match=f"n.jsonl, line 2: .*{says}"):
        load_neighbours(path)


def test_no_file_and_an_empty_one(tmp_path):
    with pytest.raises(DataError, match="none.jsonl: cannot be read"):
        load_neighbours(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="olmodetect neighbours"):
        load_neighbours(tmp_path / "empty.jsonl")


def cached(folder, key, content):
    path = folder / key[:2] / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_the_released_cache(tmp_path):
    long = "word " * 300 + "end"
    for text in ("short text", long):
        cached(tmp_path, released_key(text), json.dumps({"neighbours": [text.upper()] * 10}))
    file = load_neighbours(tmp_path)
    assert file.of(long).texts == (long.upper(),) * 10 and file.of("other") is None
    assert (file.facts()["texts"], file.facts()["provenances"]) == (2, [{}])
    parts = "text=short text::n=10::sp=2::pct=0.3::buf=1::top_p=1.0::mfm=t5-large::seed=0"
    assert released_key("short text") == hashlib.sha256(parts.encode()).hexdigest()
    windowed = "win=300::" + parts.replace("short text", long)
    assert released_key(long) == hashlib.sha256(windowed.encode()).hexdigest()
    assert load_neighbours(tmp_path, key=lambda text: released_key("short text")).of("any").texts[0] == "SHORT TEXT"


@pytest.mark.parametrize("content", ['{"neighbours": ["a"', "[]", '{"neighbours": 3}', '{"neighbours": []}'])
def test_a_damaged_cache_file_is_named(tmp_path, content):
    path = cached(tmp_path, "ab" * 32, content)
    with pytest.raises(DataError, match=path.name):
        load_neighbours(tmp_path)


def test_a_folder_that_is_no_cache(tmp_path):
    with pytest.raises(DataError, match="holds no file"):
        load_neighbours(tmp_path)
    path = cached(tmp_path, "abc", "{}")
    with pytest.raises(DataError, match=path.name):
        load_neighbours(tmp_path)
    key = "ab" * 32
    (tmp_path / "cd").mkdir()
    path.rename(tmp_path / "cd" / f"{key}.json")
    with pytest.raises(DataError, match=f"cd/{key}.json: expected a name"):
        load_neighbours(tmp_path)


# The command, with a filler that needs no model.


class Upper:
    """Fills gaps with their own words in capitals, and counts what it was asked."""

    def __init__(self, name="upper", most=10**9):
        self.name, self.most, self.filled = name, most, []

    def provenance(self):
        return {"filler": self.name}

    def fill_chunk(self, chunk, window):
        if len(self.filled) >= self.most:
            raise KeyboardInterrupt
        self.filled += chunk.rows[::COPIES]
        masked = [(mask(head, chunk.random), tail) for head, tail in (split_window(t, window) for t in chunk.rows)]
        return [m.filled([w.upper() for w in m.words]) + tail for m, tail in masked]


@pytest.fixture
def use(monkeypatch):
    def replace(filler):
        monkeypatch.setattr(command, "load_filler", lambda directory: filler)
        return filler

    return replace


def texts_file(tmp_path, *texts):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return path


OWN = [" ".join(f"{c}{i}" for i in range(20)) for c in "abcde"]


@pytest.mark.parametrize("rule", ["text", "file"])
def test_work_is_taken_up_where_it_was_broken_off(tmp_path, use, rule):
    path, whole, out = texts_file(tmp_path, *OWN, OWN[0]), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    all_of_it = use(Upper())
    command.make_neighbours(path, tmp_path, whole, seed_rule=rule)
    assert all_of_it.filled == OWN
    first = use(Upper(most=3))
    with pytest.raises(KeyboardInterrupt):
        command.make_neighbours(path, tmp_path, out, seed_rule=rule)
    assert 3 <= len(first.filled) < 5 and len(load_neighbours(out).by_key) == len(first.filled)
    rest = use(Upper())
    file = command.make_neighbours(path, tmp_path, out, seed_rule=rule)
    assert first.filled + rest.filled == OWN and out.read_bytes() == whole.read_bytes()
    assert file.by_key == load_neighbours(out).by_key and all(len(n.texts) == COPIES for n in file.by_key.values())
    assert file.facts()["provenances"] == [{"filler": "upper", "seed_rule": rule, "window": "kept"}]


def test_a_known_text_stays_in_its_chunk(tmp_path, use):
    """Under the rule `file` a text's gaps come from its chunk's stream, so the chunk is filled whole."""
    path, whole, out = texts_file(tmp_path, *OWN), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    use(Upper())
    command.make_neighbours(path, tmp_path, whole, seed_rule="file")
    by_key = load_neighbours(whole).by_key
    write_neighbours(out, {text_key(OWN[0]): by_key[text_key(OWN[0])]})
    assert command.make_neighbours(path, tmp_path, out, seed_rule="file").by_key == by_key


def test_another_filler_is_not_mixed_in(tmp_path, use):
    path, out = texts_file(tmp_path, *OWN), tmp_path / "out.jsonl"
    use(Upper())
    command.make_neighbours(path, tmp_path, out)
    before = out.read_bytes()
    with pytest.raises(UsageError, match="window 'kept', now 'flattened'"):
        command.make_neighbours(path, tmp_path, out, window="flattened")
    use(Upper("other"))
    with pytest.raises(UsageError, match="filler 'upper', now 'other'"):
        command.make_neighbours(path, tmp_path, out)
    assert out.read_bytes() == before


def test_nothing_is_left_behind_by_a_failure_at_the_start(tmp_path, use):
    use(Upper(most=0))
    with pytest.raises(KeyboardInterrupt):
        command.make_neighbours(texts_file(tmp_path, *OWN), tmp_path, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_benchmark_with_one_split(tmp_path, use, capsys):
    import shutil

    root = tmp_path / "benchmark"
    shutil.copytree(sample.benchmark_directory(), root)
    filler = use(Upper())
    both = command.make_neighbours(root, tmp_path, tmp_path / "both.jsonl")
    expected = {
        json.loads(own)["text"].strip() for path in root.rglob("*.jsonl") for own in path.read_text().splitlines()
    }
    assert set(filler.filled) == expected and len(filler.filled) == len(expected) == len(both.by_key)
    assert "left out" not in capsys.readouterr().err
    for path in root.rglob("*_dev.jsonl"):
        path.unlink()
    test = command.make_neighbours(root, tmp_path, tmp_path / "test.jsonl")
    assert 0 < len(test.by_key) < len(both.by_key)
    assert "files that are not there" in capsys.readouterr().err
    for path in root.rglob("*.jsonl"):
        path.unlink()
    with pytest.raises(MissingFilesError, match="none of the benchmark's"):
        command.make_neighbours(root, tmp_path, tmp_path / "none.jsonl")


@pytest.mark.parametrize("wrong", [{"seed_rule": "list"}, {"window": "half"}, {"size": "3b"}])
def test_an_unknown_option_value(tmp_path, use, wrong):
    use(Upper())
    with pytest.raises(UsageError, match="unknown value"):
        command.make_neighbours(texts_file(tmp_path, *OWN), tmp_path, tmp_path / "out.jsonl", **wrong)
