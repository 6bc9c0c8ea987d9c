"""Quiz options: replies, files, importers, the perturber, a local model, and the command that makes them."""

import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax import sample
from olmodetect_jax.benchmark import read_benchmark, tree_of
from olmodetect_jax.commands import quiz as command
from olmodetect_jax.commands.quiz import QuizOptions, make_quiz
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.quiz import local_model
from olmodetect_jax.quiz.files import (
    Quiz,
    cache_path,
    load_quizzes,
    read_cache,
    read_table,
    text_key,
    write_quizzes,
)
from olmodetect_jax.quiz.local_model import ask_model
from olmodetect_jax.quiz.options import LETTERS, Options, parse_reply, problem
from olmodetect_jax.quiz.perturber import CREATED, NAME, other_names, perturb, synonyms
from olmodetect_jax.quiz.python_names import free_names, split, usable
from olmodetect_jax.requests import Continuation, Continuations, Sampling
from tests.stub_attacks import StubTokenizer

OPTIONS = Options("one", "two", "three", "four")
REPLY = "A)\none\n\nB)\ntwo\n\nC)\nthree\n\nD)\nfour"
PERTURBER = QuizOptions(perturber=True)
TEXT = "The old man began to sail across the wide sea with a small crew and many strange animals."


def cases(golden, name):
    file = json.loads((golden / name).read_text(encoding="utf-8"))
    return zip(file["case_names"], file["inputs"], file["expected"], strict=True)


def refuse(question):
    raise AssertionError(f"nothing needs to be asked: {question}")


def texts_file(path, *texts):
    path.write_text("".join(json.dumps({"id": f"r{i}", "text": t}) + "\n" for i, t in enumerate(texts)))
    return path


# --- replies


def test_golden_replies(golden):
    for name, inputs, expected in cases(golden, "dcq_parse.json"):
        options = parse_reply(inputs["reply"])
        assert dataclasses.asdict(options) == expected["options"], name
        assert (options.count == 4) == expected["complete"], name


@given(st.text(st.sampled_from("ABCDE)* \n\tx(é"), max_size=40) | st.text())
def test_any_reply_is_read(reply):
    options = parse_reply(reply)
    assert all(text == text.strip() and text in reply for text in options.texts)


def test_a_marker_follows_no_word_and_no_asterisk():
    assert parse_reply("A) vitamin-A)x B) y").texts == ("x", "y", "", "")
    assert parse_reply("A) vitaminB) x").a == "vitaminB) x"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("a", "b", "c", "d"), None),
        (("a", " ", "c", ""), "option B, D is missing"),
        (("a", "b", "a\n", "d"), "options A and C are identical"),
        (("a", "b", "c", "text "), "option D is the text itself"),
        (("a", "b\ud800", "c", "d"), "option B holds a lone surrogate"),
    ],
)
def test_what_makes_no_quiz(texts, expected):
    found = problem(Options(*texts), "text\n")
    assert found == expected or found.startswith(expected)


# --- files


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_files_come_back_with_the_same_bytes(tmp_path, ending):
    path, again = tmp_path / f"quiz.{ending}", tmp_path / f"again.{ending}"
    quizzes = {text_key(t): Quiz(dataclasses.replace(OPTIONS, a=f"{t}\u2028é"), "g", "2026") for t in ("x", "y")}
    for p in (path, again):
        write_quizzes(p, quizzes)
    assert path.read_bytes() == again.read_bytes()
    assert not ending.endswith("gz") or path.read_bytes()[4:8] == bytes(4)  # no time of the day in it
    assert ending != "jsonl.gz" or path.read_bytes()[4:8] == bytes(4)  # no time in its head
    read = load_quizzes(path)
    assert dict(read.by_key) == quizzes and read.of("x") == quizzes[text_key("x")] and read.of("z") is None


def test_facts_are_of_the_options_alone(tmp_path):
    path, other = tmp_path / "quiz.jsonl", tmp_path / "other.jsonl.gz"
    quizzes = {text_key(t): Quiz(dataclasses.replace(OPTIONS, a=t), f"by {t}", "2026") for t in ("x", "y")}
    write_quizzes(path, quizzes)
    write_quizzes(other, dict(reversed(quizzes.items())))
    facts = load_quizzes(path).facts()
    assert facts == load_quizzes(other).facts() and facts["texts"] == 2 and facts["generator"] == "by x, by y"
    assert str(tmp_path) not in json.dumps(facts)
    quizzes[text_key("x")] = Quiz(OPTIONS, "by x", "2026")
    write_quizzes(path, quizzes)
    assert load_quizzes(path).facts()["sha256"] != facts["sha256"]


GOOD = {"text_sha256": "0" * 64, "a": "1", "b": "2", "c": "3", "d": "4", "generator": "g", "created": ""}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({**GOOD, "text_sha256": "0"}, "line 2: text_sha256 is '0'; expected 64 hex digits"),
        ({**GOOD, "text_sha256": None}, "line 2: text_sha256"),
        (GOOD, "line 2: the text 0+ stands in the file already"),
        ({**GOOD, "text_sha256": "1" * 64, "c": 3}, "line 2: c is 3; expected a text"),
        ({k: v for k, v in GOOD.items() if k != "generator"} | {"text_sha256": "1" * 64}, "line 2: generator is None"),
        ("{", "line 2: not a JSON value"),
    ],
)
def test_damaged_files_are_named(tmp_path, second, expected):
    path = tmp_path / "quiz.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + (second if isinstance(second, str) else json.dumps(second)) + "\n")
    with pytest.raises(DataError, match=f"quiz.jsonl, {expected}"):
        load_quizzes(path)


def test_no_file_or_an_empty_one(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        load_quizzes(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no quiz; make some"):
        load_quizzes(tmp_path / "empty.jsonl")


def test_bad_options_cost_no_other_text_its_quiz(tmp_path):
    path = tmp_path / "quiz.jsonl"
    path.write_text(json.dumps({**GOOD, "a": ""}) + "\n" + json.dumps({**GOOD, "text_sha256": "1" * 64}) + "\n")
    assert len(load_quizzes(path).by_key) == 2


# --- importers


def test_golden_names_of_cached_replies(golden, tmp_path):
    for name, inputs, expected in cases(golden, "dcq_cachekey.json"):
        kind, model, max_tokens, temperature, prompt = inputs["parts"]
        assert (kind, temperature) == ("generate_text", "1.0")
        path = cache_path(tmp_path, model, int(max_tokens), prompt)
        assert path.relative_to(tmp_path).as_posix() == expected["relative_path"], name


def cached(folder, text, max_tokens, content):
    path = cache_path(folder, "judge", max_tokens, f"reword {text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_cached_replies(tmp_path):
    cached(tmp_path, "x", 4000, {"text": REPLY})
    cached(tmp_path, "y", 4000, {"text": "A) 1 B) 2"})
    cached(tmp_path, "y", 16000, {"text": REPLY})
    cached(tmp_path, "z", 4000, {"text": "A) 1 B) 2"})
    cached(tmp_path, "z", 16000, {"text": "A) 9"})  # fewer: the first is kept
    cached(tmp_path, "v", 4000, {"text": "A) 1"})
    cached(tmp_path, "v", 16000, {"text": "A) 9"})  # as many: the second is taken
    cached(tmp_path, "w", 16000, {"text": REPLY})
    found = read_cache(tmp_path, "judge", lambda text: f"reword {text}", ["x", "y", "z", "v", "w", "unknown"])
    some = {"z": Options("1", "2", "", ""), "v": Options("9", "", "", "")}
    assert found == {"x": OPTIONS, "y": OPTIONS, "w": OPTIONS, **some}
    for content in ("<html>", "[" * 100_000, [REPLY], {"text": 1}):
        path = cached(tmp_path, "x", 4000, content)
        with pytest.raises(DataError, match=path.name):
            read_cache(tmp_path, "judge", lambda text: f"reword {text}", ["x"])
    with pytest.raises(DataError, match="no such folder"):
        read_cache(tmp_path / "none", "judge", str, ["x"])


def test_tables_of_the_original(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('instance,option_a,option_b,option_c,option_d\n" x\n",one,two,three,"four"\n,1,2,3,4\n', "utf-8")
    assert read_table(path) == {"x": OPTIONS}
    path.write_text(f'generated_options,instance\n"{REPLY}",x\n', "utf-8")
    assert read_table(path) == {"x": OPTIONS}
    path.write_text(f'instance,generated_options\nx,"{REPLY}"\ny\n', "utf-8-sig")  # with a mark; a row too short
    assert read_table(path) == {"x": OPTIONS, "y": Options("", "", "", "")}
    for content, expected in (
        (b"instance,option_a\nx,1\n", "expected the columns instance, and option_a"),
        (b"", "expected the columns"),
        (b"instance,generated_options\nx,\xff\n", "not a CSV file"),
        (b'instance,generated_options\nx,1\ny,"A) 1\n', "line 3: not a line of a CSV file"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"table.csv[:,] {expected}"):
            read_table(path)


# --- the perturber

CODE = '''def total_size(paths, limit=None):
    """Return the total size of many files, as paths names them."""
    total = 0
    for path in paths:
        # add the size of each
        total += os.stat(path, follow=limit).limit
    print(f"{total} bytes", sep='total')
    return total
'''


@given(st.text() | st.sampled_from([CODE, TEXT]).flatmap(lambda t: st.integers(0, len(t)).map(lambda n: t[n:])))
def test_pieces_are_the_text_and_options_make_a_quiz(text):
    assert "".join(piece.text for piece in split(text)) == text
    options = perturb(text.strip())
    assert options is None or problem(options, text) is None


def test_names_that_code_gives():
    assert free_names(CODE) == {"total_size", "paths", "path", "limit"}  # total stands in an f-string
    assert free_names("def f(a: int, *b, c=g(d), **e): pass") == {"f", "a", "b", "c", "e"}
    # x is a keyword of another's; so, by its looks, may be the second of two that are given together
    assert free_names("import math as m\nx, y = 1, 2\nz += m.z(x=1)\nself = 3") == {"m", "z"}
    assert free_names("def run(self):\n    self.run()\n    len = 1") == set()
    assert not free_names("")


def test_names_change_together_and_nothing_else_in_code():
    options = perturb(CODE.strip())
    for option in options.texts:
        compile(option, "option", "exec")
        assert ("for path in" in option) == ("os.stat(path," in option)
        assert re.search(r"def \w+\((\w+), (\w+)=None\)", option)[2] == re.search(r"follow=(\w+)\)\.limit", option)[1]
        assert "sep='total'" in option and "total += os.stat(" in option and ' bytes"' in option
    assert len({option.split("(")[0] for option in options.texts}) > 1


def test_prose_around_code():
    text = "<|user|>\nWrite a function to find big_list of a.\nassert big_list(1) == 2\n<|assistant|>\n"
    text += "def big_list(a):\n    return a + 1"
    for option in perturb(text).texts:
        name = re.search(r"def (\w+)\(", option)[1]
        assert option.count(name) == 3 and " of a.\n" in option and "<|user|>\n" in option and "<|assistant|>" in option


def test_words_keep_their_case_and_layout():
    text = "  Many people began.\n\tBut Great Britain's big ship, a small one: large: vast_size (12.5 big-ended).  "
    options = perturb(text)
    for option in options.texts:
        assert "Great Britain's" in option and "vast_size (12.5 big-ended)." in option and ": large:" in option
        assert [c for c in re.sub(r"[\w']+", "", option)] == [c for c in re.sub(r"[\w']+", "", text)]
        first = re.search(r"\w+", option)[0]
        assert first in {"Many", *(w.capitalize() for w in synonyms()["many"])}
        assert not re.search(r"\ba [aeiou]", option)
    assert perturb(text) == options


def test_too_little_to_replace():
    for text in ("", "42", "Ελληνικά", "鲸鱼", "zzz"):
        assert perturb(text) is None


def test_other_names_are_names():
    for name in ("x", "N", "max_value", "getKey", "is", "items", "_a", "lists", "an_d"):
        found = other_names(name)
        assert found and name not in found and all(usable(other) for other in found)
    assert "maxValue" in other_names("max_value") and "get_key" in other_names("getKey") and "o" not in other_names("x")


def test_the_table():
    for word, others in synonyms().items():
        assert word not in others and others and all(re.fullmatch("[a-z]+", other) for other in (word, *others))


# --- the sample


@pytest.fixture(scope="module")
def sample_texts():
    root = sample.benchmark_directory()
    tree = tree_of(root)
    found = {}
    for split_name in ("dev", "test"):
        read = read_benchmark(root, tree, tree.subsets, split=split_name, variant="matched", size=None)
        for subset, records in read.items():
            found.setdefault(subset, []).extend(r.text for r in records)
    return found


def test_the_sample_has_a_quiz_of_every_text(sample_texts):
    quizzes = load_quizzes(sample.quiz_file())
    assert quizzes.facts()["generator"] == NAME and {q.created for q in quizzes.by_key.values()} == {CREATED}
    everything = [text for texts in sample_texts.values() for text in texts]
    left_out = [text for text in everything if text_key(text) not in quizzes.by_key]
    assert len(left_out) == 1  # a function with hardly a word that the table knows
    assert perturb(left_out[0]) is None
    assert len(quizzes.by_key) == len(everything) - 1
    for texts in sample_texts.values():
        texts = [text for text in texts if text not in left_out]
        for text in texts:
            options = quizzes.of(text).options
            assert problem(options, text) is None
            assert all(0.8 < len(option) / len(text) < 1.25 for option in options.texts)
        for text in texts[::20]:
            assert perturb(text) == quizzes.of(text).options


def test_the_sample_quiz_is_small():
    assert sample.quiz_file().stat().st_size < 700_000


# --- a local model


def test_a_local_model_is_asked_once_a_text():
    texts = ["xyz", "other text", "xyz", "l" * 300]
    tokenizer, asked = StubTokenizer(), []

    def answer(requests):
        asked.extend(requests)
        ids = tokenizer.encode(REPLY, 999).ids
        row = Continuation(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.float32), ended=True)
        return {r.digest: Continuations((row,)) for r in requests}

    made = ask_model(texts, lambda text: f"reword {text}", tokenizer, answer, 400)
    assert made[:3] == [OPTIONS] * 3
    assert "request of 309 tokens and four options do not fit the model's context of 400" in made[3]
    assert [tokenizer.text(r.prompt) for r in asked] == ["[reword xyz]", "[reword other text]"]
    first = asked[0]
    seed = int.from_bytes(bytes.fromhex(text_key("xyz"))[:8], "big")
    assert (first.max_new, first.greedy, first.sampling) == (400 - 12, False, Sampling(seed))
    assert first.starts.tolist() == [12] and first.stop_ids == tokenizer.stop_ids

    class Base(StubTokenizer):
        has_chat = False

    made = ask_model(["xyz", "l" * 500], lambda text: f"reword {text}", Base(), answer, 400)
    assert tokenizer.text(asked[-1].prompt) == "reword xyz" and "507 tokens" in made[1]
    made = [ask_model(["xyz"], lambda text: f"reword {text}", tokenizer, answer, 12 + room) for room in (11, 12)]
    assert "request of 12 tokens" in made[0][0] and made[1] == [OPTIONS] and asked[-1].max_new == 12


def test_the_command_runs_a_local_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(local_model, "REPLY_TOKENS", 8)
    inputs = texts_file(tmp_path / "texts.jsonl", TEXT)
    with pytest.raises(DataError, match=r"quiz.jsonl: not written, for none of 1 texts has options"):
        make_quiz(inputs, tmp_path / "quiz.jsonl", QuizOptions(from_model=sample.model_directory()), confirm=refuse)
    assert "texts.jsonl, line 1 (record 'r0'): option A, B, C, D is missing" in capsys.readouterr().err


# --- the command


def test_a_benchmark_is_quizzed_and_gone_on_with(tmp_path, capsys, monkeypatch):
    benchmark, out = tmp_path / "benchmark", tmp_path / "quiz.jsonl"
    shutil.copytree(sample.benchmark_directory(), benchmark)
    for path in benchmark.rglob("*.jsonl"):
        if "dev" not in path.name:
            path.unlink()  # a missing split is no fault
    made = make_quiz(benchmark, out, dataclasses.replace(PERTURBER, subsets=["novel", "mbpp"]), confirm=refuse)
    assert len(made.by_key) == 40 and "left out: 4 files that are not there" in capsys.readouterr().err
    first = out.read_bytes()
    (tmp_path / "half.jsonl").write_bytes(b"".join(first.splitlines(keepends=True)[:7]))
    count = []
    monkeypatch.setattr(command, "perturb", lambda text: count.append(text) or perturb(text))
    again = dataclasses.replace(PERTURBER, subsets=["novel", "mbpp"])
    make_quiz(benchmark, tmp_path / "half.jsonl", again, confirm=refuse)
    assert (tmp_path / "half.jsonl").read_bytes() == first and len(count) == 33
    make_quiz(benchmark, out, again, confirm=refuse)
    assert out.read_bytes() == first and len(count) == 33


def test_a_kill_keeps_what_is_made(tmp_path, monkeypatch):
    def killed(text):
        if text.startswith("Second"):
            raise KeyboardInterrupt
        return perturb(text)

    monkeypatch.setattr(command, "perturb", killed)
    inputs = texts_file(tmp_path / "texts.jsonl", TEXT, "Second", TEXT + " More.")
    with pytest.raises(KeyboardInterrupt):
        make_quiz(inputs, tmp_path / "quiz.jsonl", PERTURBER, confirm=refuse)
    assert list(load_quizzes(tmp_path / "quiz.jsonl").by_key) == [text_key(TEXT)]


def test_texts_without_options_are_named_and_the_rest_is_kept(tmp_path, capsys):
    inputs = texts_file(tmp_path / "texts.jsonl", TEXT, "42", "", TEXT)
    made = make_quiz(inputs, tmp_path / "quiz.jsonl", PERTURBER, confirm=refuse)
    err = capsys.readouterr().err
    assert f"line 2 (record 'r1'): {NAME} finds too few words" in err and err.count("left out") == 1
    assert list(made.by_key) == [text_key(TEXT)]
    with pytest.raises(DataError, match="none of 1 texts"):
        make_quiz(texts_file(tmp_path / "few.jsonl", "42"), tmp_path / "few-quiz.jsonl", PERTURBER, confirm=refuse)
    assert not (tmp_path / "few-quiz.jsonl").exists()


def test_bad_options_in_the_file_are_made_again(tmp_path):
    out = tmp_path / "quiz.jsonl"
    write_quizzes(out, {text_key(TEXT): Quiz(dataclasses.replace(OPTIONS, b="one"), "other", "2026")})
    made = make_quiz(texts_file(tmp_path / "texts.jsonl", TEXT), out, PERTURBER, confirm=refuse)
    assert made.of(TEXT) == Quiz(perturb(TEXT), NAME, CREATED)


def test_imported_options(tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text(f"instance,option_a,option_b,option_c,option_d\n{TEXT},one,two,three,four\nx,a,a,c,d\n")
    inputs, out = texts_file(tmp_path / "texts.jsonl", TEXT, "x", "y"), tmp_path / "quiz.jsonl"
    made = make_quiz(inputs, out, QuizOptions(imported=table), confirm=refuse)
    assert list(made.by_key.values()) == [Quiz(OPTIONS, "imported from table.csv", "")]
    err = capsys.readouterr().err
    assert "(record 'r1'): options A and B are identical" in err and "(record 'r2'): is not in" in err
    cache = tmp_path / "cache"
    (tmp_path / "prompt.txt").write_text("reword {original_instance}")
    cached(cache, "y", 4000, {"text": REPLY})
    options = QuizOptions(imported=cache, model="judge", prompt=tmp_path / "prompt.txt")
    assert make_quiz(inputs, out, options, confirm=refuse).of("y") == Quiz(OPTIONS, "judge", "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (QuizOptions(), "Give one of --model, --from-model, --perturber, --import"),
        (QuizOptions(perturber=True, model="m"), "Give one of"),
        (QuizOptions(imported="cache"), "--import: a CSV file, or a cache folder together with the --model"),
        (QuizOptions(imported="t.csv", model="m"), "--import: a CSV file"),
        (QuizOptions(model=" "), "--model: expected the name"),
        (QuizOptions(perturber=True, size="2b"), "--size: unknown value '2b'"),
        (QuizOptions(perturber=True, dtype="int8"), "--dtype: unknown value"),
        (QuizOptions(perturber=True, price_in=1, price_out=1), "--price-in and --price-out go together"),
        (QuizOptions(model="m", price_in=1), "--price-in and --price-out go together"),
        (QuizOptions(model="m", price_in=-1, price_out=1), "expected what a million tokens cost"),
        (QuizOptions(model="m", price_in=1, price_out=math.nan), "expected what a million tokens cost"),
        (QuizOptions(model="m"), "OPENAI_BASE_URL: not set"),
        (QuizOptions(perturber=True, prompt="nowhere.txt"), "nowhere.txt: cannot be read"),
    ],
)
def test_wrong_options(tmp_path, options, expected):
    paths = {name: tmp_path / value for name in ("imported", "prompt") if (value := getattr(options, name))}
    options = dataclasses.replace(options, **paths)
    with pytest.raises(UsageError, match=re.escape(expected)):
        make_quiz(tmp_path / "texts.jsonl", tmp_path / "out", options, confirm=refuse, environment={})


def test_letters():
    assert LETTERS == "ABCD" and OPTIONS.texts == ("one", "two", "three", "four")
