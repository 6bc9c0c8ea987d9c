"""Prompts: slots, a user's own files, and the names that sources get."""

import hashlib

import pytest

from olmodetect_jax.attacks import prompts as module
from olmodetect_jax.attacks.prompts import NAMES, SLOTS, Prompts
from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.errors import UsageError

OWN = Prompts.load()

# Generative spec, section 0: the name of every source in the released code; None is the generic one.
RELEASED = {
    "dclm": "DCLM",
    "openwebmath": "OpenWebMath",
    "pes2o": "peS2o",
    "starcoder": "StarCoder",
    "gsm8k": None,
    "stackexchange": "Stack Exchange",
    "dpo": "OLMo2 DPO training data",
    "rlvr": "OLMo2 RLVR training data",
    "sft": "OLMo2 SFT training data",
}


def written(folder, content, name="mine.txt"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def test_sources_are_called_what_the_released_code_calls_them():
    domains = {s.domain for s in load_tree("olmo2").subsets}
    assert set(RELEASED) == domains
    for domain, title in RELEASED.items():
        assert OWN.source(domain) == (title or "the OLMo2 training corpus")
    assert OWN.source(None) == OWN.source("novel") == "the OLMo2 training corpus"
    assert OWN.source("math-mix") == "OLMo2 math midtraining mix"


@pytest.mark.parametrize("name", SLOTS)
def test_every_slot_of_our_own_prompts_is_filled(name):
    values = {slot: f"<value of {slot}>" for slot in SLOTS[name]}
    text = OWN.fill(name, **values)
    assert all(text.count(value) == 1 for value in values.values())
    assert "{" not in text and "}" not in text


def test_our_own_prompts_have_the_structure_of_the_released_ones():
    guided = OWN.fill("guided", source="S", first_piece="P")
    general = OWN.fill("general", first_piece="P")
    end = guided[guided.index("\n\n") :]
    assert general.endswith(end) and general.splitlines()[0] == guided.splitlines()[0]  # same heading, same labels
    assert end.splitlines()[-1].endswith(":") and end.endswith("\n") and "S" in guided
    assert OWN.fill("critique", response="R").startswith("\n")
    options = dict.fromkeys(("option_a", "option_b", "option_c", "option_d"), "O")
    quiz = OWN.fill("dcq_quiz", split_name="training", dataset_name="D", **options)
    assert quiz.endswith(":\n") and [f"\n{letter})\n" in quiz for letter in "ABCDEF"] == [True] * 5 + [False]
    request = OWN.fill("dcq_options", original_instance="T")
    assert [f"\n{letter}) " in request for letter in "ABCDE"] == [True] * 4 + [False]


def test_a_text_in_a_slot_is_never_read_as_a_slot(tmp_path):
    prompts = Prompts.load({"guided": written(tmp_path, "{source}|{first_piece}|{source} { x } {}")})
    filled = prompts.fill("guided", source="{first_piece}", first_piece="\\1 {source}")
    assert filled == "{first_piece}|\\1 {source}|{first_piece} { x } {}"
    with pytest.raises(ValueError, match="expected the slots first_piece"):
        prompts.fill("general", source="s")


def test_facts_tell_whose_wording_it_is(tmp_path, monkeypatch):
    path = written(tmp_path, "Say {first_piece}\r\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = Prompts.load({"general": path}).facts()
    assert tuple(facts) == NAMES
    assert facts["general"] == {"path": str(path), "sha256": digest, "known_as": None}
    assert {n: f["path"] for n, f in facts.items() if n != "general"} == dict.fromkeys(set(NAMES) - {"general"})
    assert not any(f["known_as"] for f in OWN.facts().values())
    assert facts["guided"]["sha256"] == OWN.facts()["guided"]["sha256"]
    monkeypatch.setitem(module.KNOWN, digest, "a wording we know")
    assert Prompts.load({"general": path}).facts()["general"]["known_as"] == "a wording we know"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "{source} {first_piece} {word}",
            r"unknown slot \{word\}; this prompt has the slots \{source\}, \{first_piece\}",
        ),
        ("{source}", r"no slot \{first_piece\}"),
        ("", r"no slot \{source\}, \{first_piece\}"),
        (b"{source} {first_piece} \xff", "not UTF-8"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, problem):
    path = written(tmp_path, content)
    with pytest.raises(UsageError, match=f"mine.txt: {problem}"):
        Prompts.load({"guided": path})


def test_unknown_names_and_missing_files(tmp_path):
    with pytest.raises(UsageError, match="prompt: unknown value 'guide'; allowed are: guided, general"):
        Prompts.load({"guide": tmp_path / "x"})
    with pytest.raises(UsageError, match="none.txt: cannot be read: No such file"):
        Prompts.load({"guided": tmp_path / "none.txt"})


def test_sources_can_be_ones_own(tmp_path):
    sources = Prompts.load({"sources": written(tmp_path, "other: a corpus\nnovel: Novels\n")})
    assert (sources.source("novel"), sources.source("dclm"), sources.source(None)) == ("Novels", "a corpus", "a corpus")
    for bad in ("novel: Novels", "[other]", "", "other: 3", "other: ''", "1: x\nother: y", "other: [\n", "{"):
        with pytest.raises(UsageError, match=r"s\.yaml: (expected domain ids|not a YAML file)"):
            Prompts.load({"sources": written(tmp_path, bad, "s.yaml")})
