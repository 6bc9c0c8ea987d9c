"""The generative attacks through the commands, with invented answers in place of a model's: limits, files, facts."""

import json
import shlex
import shutil

import pytest
import yaml

from olmodetect_jax import sample
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.benchmark import read_benchmark, tree_of
from olmodetect_jax.commands.make_sample import tune_generative
from olmodetect_jax.commands.open_model import OpenModel
from olmodetect_jax.commands.quickstart import quickstart
from olmodetect_jax.evaluation.protocols import read_protocols
from olmodetect_jax.evaluation.runs import read_run
from olmodetect_jax.evaluation.tuning import read_tuning
from olmodetect_jax.neighbours.files import Neighbours, write_neighbours
from olmodetect_jax.protocol import attacks_of, load_protocol
from olmodetect_jax.quiz.files import Quiz, write_quizzes
from olmodetect_jax.quiz.options import Options
from olmodetect_jax.records import text_key
from tests.stub_attacks import answer

FIVE = "neighborhood,guided,dcq,cdd,self_critique"
SHORT = ("--set", "guided_new_tokens=8", "--set", "self_critique_new_tokens=8", "--set", "cdd_length=8")


@pytest.fixture(autouse=True)
def invented(monkeypatch, tmp_path):
    """Answers are made from the ids alone; keeps what was asked. The sample's own quiz is not there."""
    monkeypatch.setattr(sample, "quiz_file", lambda: tmp_path / "no quiz")
    asked = []

    def engine(self, score_dtype):
        def answers(requests):
            asked.extend(requests)
            return {r.digest: answer(r) for r in requests}

        return answers

    monkeypatch.setattr(OpenModel, "engine", engine)
    return asked


def texts_of(benchmark):
    tree = tree_of(benchmark)
    for split in ("dev", "test"):
        found = read_benchmark(benchmark, tree, tree.subsets, split=split, variant="matched", size=None)
        yield from (r.text for records in found.values() for r in records)


def options_of(text):
    words = text.split(" ")
    return Options(*(" ".join([*words[:i], "rather", *words[i:]]) for i in (1, 2, 3, 4)))


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """The sample's benchmark with a quiz in it."""
    folder = shutil.copytree(sample.benchmark_directory(), tmp_path_factory.mktemp("bench") / "benchmark")
    quizzes = {text_key(t): Quiz(options_of(t), "a word more", "2026-01-02") for t in texts_of(folder)}
    write_quizzes(folder / "quiz.jsonl.zst", quizzes)
    return folder


@pytest.fixture
def plain(benchmark, tmp_path):
    """The same without a quiz."""
    folder = shutil.copytree(benchmark, tmp_path / "plain")
    (folder / "quiz.jsonl.zst").unlink()
    return folder


def score(out, benchmark, attacks=FIVE, *more, limit=2, subsets="gsm8k,mbpp"):
    given = ["--model", sample.model_directory(), "--benchmark", benchmark, "--out", out, "--attacks", attacks]
    return ["score", *given, "--limit", limit, "--subsets", subsets, *SHORT, *more]


def manifest_of(run_folder):
    return json.loads((run_folder / "manifest.json").read_text())


def lines(run_folder, attack, subset):
    return [json.loads(s) for s in (run_folder / "scores" / attack / f"{subset}.jsonl").read_text().splitlines()]


def test_each_attack_takes_so_many_of_each_class_where_it_is_defined(run, benchmark, tmp_path):
    code, out, err = run(*score(tmp_path, benchmark, FIVE, "--generation-limit", 1))
    assert code == 0 and "18 scores, 0 missing, 18 left out by choice" in out, err
    assert sorted(p.parent.name for p in (tmp_path / "scores").rglob("gsm8k.jsonl")) == sorted(FIVE.split(",")[:4])
    for attack in FIVE.split(","):
        found = lines(tmp_path, attack, "mbpp")
        taken = [line["label"] for line in found if line["score"] is not None]
        assert sorted(taken) == [0, 1] and len(found) == 4
        gone = {line["missing"] for line in found if line["score"] is None}
        assert gone == {"left out: --generation-limit takes 1 records of each class"}
    facts = manifest_of(tmp_path)["generation"]
    assert facts["limit"] == 1 and facts["neighbours"] == {"backend": "the target model"}
    assert list(facts["prompts"]) == ["guided", "general", "sources", "dcq_quiz", "critique"]
    assert facts["quiz"]["path"] == str(benchmark / "quiz.jsonl.zst") and facts["quiz"]["generator"] == "a word more"
    titles = [read_run(tmp_path).attack_title(a) for a in FIVE.split(",")]
    assert titles == [
        "Neigh. (1 a class)", "Guided (1 a class, 8 tokens)", "DCQ (1 a class)", "CDD (1 a class, 8 tokens)",
        "SelfCrit (1 a class, 8 tokens)",
    ]  # fmt: skip
    assert run("evaluate", tmp_path)[0] == 0 and run("report", tmp_path, "--out", tmp_path / "r.html")[0] == 0


def test_attacks_are_added_with_their_files_and_other_files_are_another_run(run, benchmark, plain, tmp_path):
    mine, out = tmp_path / "mine.txt", tmp_path / "run"
    mine.write_text("Go on.\n{first_piece}")
    assert run(*score(out, benchmark, "ppl,cdd", limit=1))[0] == 0
    assert manifest_of(out)["generation"] == {"limit": None}
    assert run(*score(out, benchmark, "guided", "--prompt", f"general={mine}", limit=1))[0] == 0
    shutil.copy(benchmark / "quiz.jsonl.zst", tmp_path / "moved.jsonl.zst")
    assert run(*score(out, plain, "dcq", "--quiz", tmp_path / "moved.jsonl.zst", limit=1))[0] == 0
    assert run(*score(out, benchmark, "zlib", limit=1))[0] == 0
    manifest = manifest_of(out)
    assert manifest["attacks"] == ["ppl", "zlib", "guided", "dcq", "cdd"]
    assert manifest["generation"]["prompts"]["general"]["path"] == str(mine)
    assert manifest["generation"]["quiz"]["path"] == str(tmp_path / "moved.jsonl.zst")
    neighbours = {text_key(t): Neighbours((t + " too",), {"filler": "t5-small"}) for t in texts_of(benchmark)}
    write_neighbours(tmp_path / "n.jsonl", neighbours)
    assert run(*score(out, benchmark, "neighborhood", "--neighbours", tmp_path / "n.jsonl", limit=1))[0] == 0
    facts = manifest_of(out)["generation"]["neighbours"]
    assert facts["path"] == str(tmp_path / "n.jsonl") and facts["backend"] == "t5-small" and len(facts["sha256"]) == 64
    for attacks, more, name in (
        ("guided", (), "another prompt general"),
        ("neighborhood", (), "another generation.neighbours"),
        ("cdd", ("--generation-limit", 1), "another generation.limit"),
    ):
        code, _, err = run(*score(out, benchmark, attacks, *more, limit=1))
        assert code == 2 and name in err, err


def test_what_cannot_run_is_left_out_of_all_and_refused_by_name(run, benchmark, plain, tmp_path):
    model = shutil.copytree(sample.model_directory(), tmp_path / "model")
    (model / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
    no_chat = score("O", benchmark, "A", "--model", model)
    for place, (arguments, attack, title, reason) in enumerate(
        [
            (score("O", plain, "A"), "dcq", "DCQ", "needs a quiz on these texts"),
            (
                score("O", benchmark, "A", subsets="gsm8k"),
                "self_critique",
                "SelfCrit",
                "of the domains dpo, rlvr, mbpp",
            ),
            (no_chat, "self_critique", "SelfCrit", "needs a chat template"),
        ]
    ):
        code, _, err = run(*[attack if a == "A" else tmp_path / "named" if a == "O" else a for a in arguments])
        assert code == 2 and f"error: --attacks {attack}: " in err and reason in err
        out = tmp_path / str(place)
        code, _, err = run(*["unsupervised" if a == "A" else out if a == "O" else a for a in arguments], "--limit", 1)
        assert code == 0 and f"left out: {title}: " in err and reason in err
        assert set(FIVE.split(",")) - set(manifest_of(out)["attacks"]) == {attack}
    assert not (tmp_path / "named").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--prompt", "guided=nowhere.txt"), "nowhere.txt: cannot be read"),
        (("--prompt", "story=x"), "--prompt: unknown value 'story'"),
        (("--quiz", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
        (("--neighbours", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
        (("--generation-limit", 0), "--generation-limit: expected a positive number"),
    ],
)
def test_files_that_are_none(run, benchmark, tmp_path, more, message):
    code, _, err = run(*score(tmp_path / "run", benchmark, FIVE, *more))
    assert code in (1, 2) and message in err and not (tmp_path / "run").exists()


def test_own_texts(run, benchmark, tmp_path):
    mine, reference = tmp_path / "mine.jsonl", tmp_path / "reference.jsonl"
    mine.write_text(json.dumps({"text": "<|user|>\nWhich way is it?\n<|assistant|>\nThis way."}) + "\n")
    reference.write_text(json.dumps({"text": "<|user|>\nAnd who said so?\n<|assistant|>\nI did."}) + "\n")
    arguments = ["score", "--model", sample.model_directory(), "--texts", mine, "--reference", reference, *SHORT]
    code, _, err = run(*arguments, "--out", tmp_path / "all")
    assert code == 0 and "left out: SelfCrit: answers the question" in err and "left out: DCQ: needs a quiz" in err
    assert {"neighborhood", "guided", "cdd"} <= set(manifest_of(tmp_path / "all")["attacks"])
    code, _, err = run(*arguments, "--attacks", "self_critique", "--out", tmp_path / "named")
    assert code == 0 and lines(tmp_path / "named", "self_critique", "texts")[0]["score"] is not None
    assert len(lines(tmp_path / "named", "self_critique", "reference")) == 1


def test_tuning_takes_all_development_records_and_says_how_to_go_on(run, benchmark, tmp_path):
    out = tmp_path / "run"
    attacks = "neighborhood,guided,dcq"
    assert run(*score(out, benchmark, attacks, "--generation-limit", 1))[0] == 0
    code, printed, err = run("tune", out)
    tuning = read_tuning(out)
    assert code == 0 and (tuning.n_member, tuning.n_non_member) == (4, 4), err
    assert {name: len(a.grid) for name, a in tuning.attacks.items()} == {"neighborhood": 2, "guided": 2, "dcq": 4}
    assert not any(a.shipped for a in tuning.attacks.values())
    command = printed.splitlines()[-1].split("; next: ")[1]
    words = shlex.split(command)
    assert words[:2] == ["olmodetect", "score"] and run(*words[1:])[0] == 0
    tuned = manifest_of(tmp_path / "run-tuned")
    values = yaml.safe_load((out / "hyperparameters.yaml").read_text())["values"]
    assert set(values) == {"neighborhood_score", "guided_score", "dcq_score"}
    assert values.items() <= tuned["hyperparameters"].items() and tuned["generation"]["limit"] == 1
    own, other = (manifest_of(p) for p in (out, tmp_path / "run-tuned"))
    assert own["generation"] == other["generation"] and own["protocol"] == other["protocol"]


def test_limits_do_not_count_in_tuning(run, benchmark, tmp_path, invented):
    from olmodetect_jax.requests import Generate

    assert run(*score(tmp_path, benchmark, "guided", "--generation-limit", 1))[0] == 0
    texts = {r.digest for r in invented if isinstance(r, Generate)}
    invented.clear()
    assert run("tune", tmp_path)[0] == 0
    tuned = {r.digest for r in invented if isinstance(r, Generate)}
    assert len(texts) == 4 and len(tuned) == 8 * 2  # 8 development texts, with and without their source


def test_protocols_are_compared_with_the_limits_and_the_files_of_the_run(run, benchmark, tmp_path):
    folder, out = shutil.copytree(benchmark, tmp_path / "benchmark"), tmp_path / "run"
    assert run(*score(out, folder, FIVE, "--generation-limit", 1))[0] == 0
    code, _, err = run("report", out, "--compare-protocols", "--out", tmp_path / "r.html")
    assert code == 0, err
    rows = {(row.field, row.value): row.auc for row in read_protocols(out).changes}
    own = {field for field in load_protocol("audited").fields() if set(attacks_of(field)) & set(GENERATIVE)}
    assert {field for field, _ in rows} == own
    assert set(rows["dcq_chance", "per_file"]) == {"dcq"}
    assert set(rows["generation_context", 512]) == set(FIVE.split(","))
    assert rows["self_critique_problem", "text"]["self_critique"] in (0.0, 0.5, 1.0)  # of one member, one non-member
    assert None not in read_protocols(out).auc.values()
    quizzes = {text_key(t): Quiz(options_of(t), "others", "2026") for t in texts_of(folder)}
    write_quizzes(folder / "quiz.jsonl.zst", quizzes)
    code, _, err = run("report", out, "--compare-protocols", "--out", tmp_path / "r.html")
    assert code == 1 and "generation.quiz is not what the run was made with" in err
    (folder / "quiz.jsonl.zst").unlink()
    code, _, err = run("report", out, "--compare-protocols", "--out", tmp_path / "r.html")
    assert code == 1 and "quiz.jsonl.zst: cannot be read" in err


@pytest.fixture
def own_sample(benchmark, tmp_path, monkeypatch):
    """A copy of the sample whose generative attacks are tuned on one text of each class and subset."""
    folder = tmp_path / "sample"
    shutil.copytree(sample.model_directory(), folder / sample.MODEL)
    shutil.copytree(benchmark, folder / "benchmark")
    for file in folder.rglob("*_dev.jsonl"):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    (folder / "benchmark" / "quiz.jsonl.zst").rename(folder / sample.QUIZ)
    for name, value in (("model_directory", folder / sample.MODEL), ("benchmark_directory", folder / "benchmark"),
                        ("directory", folder), ("quiz_file", folder / sample.QUIZ)):  # fmt: skip
        monkeypatch.setattr(sample, name, lambda value=value: value)
    return folder


def test_the_quickstart_takes_over_what_the_sample_brings(own_sample, tmp_path, capsys):
    facts = tune_generative(own_sample)
    assert facts["protocol"]["changed"] == {"guided_new_tokens": 64, "self_critique_new_tokens": 64}
    assert (facts["n_member"], facts["n_non_member"]) == (10, 10)
    assert {name: len(a["grid"]) for name, a in facts["attacks"].items()} == {
        "neighborhood": 2, "guided": 2, "dcq": 4, "cdd": 27,
    }  # fmt: skip
    out = tmp_path / "q"
    attacks = "ppl,dc_pdd,guided,dcq,cdd,self_critique"
    quickstart(out, attacks=attacks, limit=1)
    printed = capsys.readouterr().out
    assert "chosen on 5 + 5 development texts: dc_pdd_alpha=" in printed
    assert "chosen when the sample was made: guided_score=" in printed
    tuning = read_tuning(out)
    assert {name: a.shipped for name, a in tuning.attacks.items()} == {
        "dc_pdd": None, "guided": (10, 10), "dcq": (10, 10), "cdd": (10, 10),
    }  # fmt: skip
    assert (tuning.n_member, tuning.n_non_member) == (5, 5)
    file = yaml.safe_load((out / "hyperparameters.yaml").read_text())
    chosen = {k: v for name in ("guided", "dcq", "cdd") for k, v in facts["attacks"][name]["chosen"].items()}
    assert chosen.items() <= file["values"].items() and set(file["values"]) == {*chosen, "dc_pdd_alpha"}
    assert len(file["tuned_on"]["texts"]) == 20  # all on which the shipped values were chosen
    manifest = manifest_of(out)
    assert manifest["tuned"] and chosen.items() <= manifest["hyperparameters"].items()
    assert manifest["generation"]["quiz"]["path"] == str(own_sample / sample.QUIZ)
    assert manifest["generation"]["limit"] == 10 and manifest["attacks"] == attacks.split(",")
    assert "chosen when the sample was made, on 10 members" in (out / "report.html").read_text()
    quickstart(tmp_path / "full", attacks="guided", limit=1, full=True)
    assert manifest_of(tmp_path / "full")["generation"]["limit"] is None
    quickstart(tmp_path / "none", attacks="self_critique", limit=1)
    assert manifest_of(tmp_path / "none")["tuned"] is None


def test_the_quickstart_does_not_take_what_another_model_was_given(run, own_sample, tmp_path):
    tune_generative(own_sample)
    path = own_sample / "generative_tuning.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "weights_digest": "0" * 64}))
    code, _, err = run("quickstart", "--attacks", "dcq", "--limit", 1, "--out", tmp_path / "q")
    assert code == 1 and "chosen for other weights or under another protocol" in err
    path.unlink()
    code, _, err = run("quickstart", "--attacks", "dcq", "--limit", 1, "--out", tmp_path / "q")
    assert code == 1 and "generative_tuning.json: cannot be used" in err
