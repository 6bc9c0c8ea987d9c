"""The supervised attacks through the commands on the sample's own model: training, going on, reuse; shuffled labels."""

import dataclasses
import functools
import hashlib
import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.attacks.hyperparameters import load_hyperparameters
from olmodetect_jax.attacks.registry import Settings, build_attacks
from olmodetect_jax.attacks.rounds import run_jobs
from olmodetect_jax.attacks.supervised import FSD_BASES, parts_of, row_id, row_ids
from olmodetect_jax.benchmark import tree_of
from olmodetect_jax.cli import main
from olmodetect_jax.commands.inputs import jobs_of, read_inputs
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.commands.training_texts import training_sets_of
from olmodetect_jax.evaluation.aggregate import aggregate
from olmodetect_jax.evaluation.metrics import ClassScores, auc, delong_variance
from olmodetect_jax.evaluation.training import read_training
from olmodetect_jax.protocol import load_protocol
from olmodetect_jax.requests import NextTokens, ScoreTokens, TokenStatistics
from olmodetect_jax.tokenization import Tokenizer
from olmodetect_jax.training import Trained, TrainSoftPrompt

pytestmark = pytest.mark.slow  # one run trains the real model's adapters, and compiles for it

SETTINGS = ("in-domain", "lodo")
ROWS = [row for s in SETTINGS for family in ("sup_camia", "mia_tuner", "fsd") for row in row_ids(family, s)]
SUBSETS = ("novel", "mbpp")
LIMIT = 3
SHORT = {"training_tokens": 128, "max_tokens": 128, "window": 384}


def arguments(out, *more):
    """Short texts, one epoch, and a budget under which every step is cut into rows of one shape."""
    changes = [word for name, value in SHORT.items() for word in ("--set", f"{name}={value}")]
    changes += ["--set", "fsd_epochs=1", "--set", "mia_tuner_epochs=1"]
    given = ["--model", "sample", "--benchmark", "sample", "--attacks", "fsd,mia_tuner,sup_camia"]
    given += ["--setting", ",".join(SETTINGS), "--limit", LIMIT, "--subsets", ",".join(SUBSETS), "--token-budget", 256]
    return [str(word) for word in ("score", "--out", out, *given, *changes, *more)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run, the only one that trains."""
    out = tmp_path_factory.mktemp("supervised") / "run"
    assert main(arguments(out)) == 0
    return out


@pytest.fixture
def untrainable(monkeypatch):
    monkeypatch.setattr("olmodetect_jax.tuning.tuner.train", lambda *a, **k: pytest.fail("trained again"))


def files(folder):
    """By name; a lock is not one of them."""
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def lines(run_folder, attack, subset):
    return [json.loads(s) for s in (run_folder / "scores" / attack / f"{subset}.jsonl").read_text().splitlines()]


def test_what_is_written(finished):
    manifest = json.loads((finished / "manifest.json").read_text())
    assert set(manifest["attacks"]) == {*FSD_BASES, *ROWS} and manifest["subsets"] == list(SUBSETS)
    assert set(manifest["training_records"]) == {
        row_id(f, s) for f in ("sup_camia", "mia_tuner", "fsd") for s in SETTINGS
    }
    assert set(manifest["generation"]["prompts"]) == {"mia_tuner_question", "mia_tuner_start"}
    assert set(files(finished / "scores")) == {f"{a}/{s}.jsonl" for a in manifest["attacks"] for s in SUBSETS}
    for row in ROWS:
        family, attack, _ = parts_of(row)
        for subset in SUBSETS:
            found = lines(finished, row, subset)
            assert [line["label"] for line in found] == [1] * LIMIT + [0] * LIMIT
            if family == "mia_tuner":
                for line in found:
                    assert line["p_yes"] == pytest.approx(1 / (1 + math.exp(-line["score"])), rel=1e-12)
            elif family == "fsd":
                plain = lines(finished, attack.removeprefix("fsd_"), subset)
                for line, own in zip(found, plain, strict=True):
                    assert line["base_score"] == own["score"] != line["tuned_score"]
                    assert line["score"] == line["base_score"] - line["tuned_score"]
            else:
                assert all(0 < line["score"] < 1 for line in found)


def test_the_log_and_the_adapters_that_were_trained(finished):
    adapters = read_training(finished)
    expected = {("fsd", "in-domain"): (LIMIT, 1), ("fsd", "lodo"): (4 * LIMIT, 2),
                ("mia_tuner", "in-domain"): (2 * LIMIT, 1), ("mia_tuner", "lodo"): (8 * LIMIT, 2)}  # fmt: skip
    assert [(a.attack, a.setting, a.trained_for) for a in adapters] == [
        (attack, setting, subset) for attack, setting in expected for subset in sorted(SUBSETS)
    ]
    for adapter in adapters:
        assert (adapter.n_texts, adapter.steps) == expected[adapter.attack, adapter.setting]
        assert adapter.batch == min(8, adapter.n_texts // (1 if adapter.attack == "fsd" else 2))
        assert all(0 < loss < 20 for loss in adapter.losses)
        stem = f"{adapter.attack}-{adapter.setting}-{adapter.trained_for}-{adapter.name}"
        tensors = load_file(finished / "adapters" / f"{stem}.safetensors")
        facts = json.loads((finished / "adapters" / f"{stem}.json").read_text())
        assert facts["losses"] == list(adapter.losses) and facts["name"] == adapter.name
        if adapter.attack == "fsd":
            assert len(tensors) == 4 * 7 * 2 and any(t.any() for n, t in tensors.items() if "lora_B" in n)
        else:
            assert tensors["soft_prompt"].shape == (50, 128)
    assert len(files(finished / "adapters")) == 2 * len(adapters)


def test_the_same_command_again_trains_nothing_and_gives_the_same_bytes(finished, untrainable):
    before = files(finished)
    assert main(arguments(finished)) == 0
    assert files(finished) == before


def test_another_run_takes_the_adapters_of_the_first(finished, untrainable, tmp_path):
    shared = files(finished / "adapters")
    assert main(arguments(tmp_path / "other", "--adapters", finished / "adapters")) == 0
    assert files(tmp_path / "other" / "scores") == files(finished / "scores")
    assert (tmp_path / "other" / "training.json").read_bytes() == (finished / "training.json").read_bytes()
    assert not (tmp_path / "other" / "adapters").exists() and files(finished / "adapters") == shared


def test_evaluate_and_report(finished, run, tmp_path):
    code, out, err = run("evaluate", finished)
    assert code == 0, err
    metrics = (finished / "tables" / "auc.csv").read_text()
    assert all(TITLES[row] in metrics for row in ROWS) and "MIA-Tuner" in out
    code, _, err = run("report", finished, "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert code == 0 and "In-domain" in page and "leave one domain out" in page, err


# Shuffled labels. The answers are invented: a model that finds the sample's members a little more probable than other
# texts, and "learns" a soft prompt as the difference between the two classes' means.

SHUFFLES = 16
NOISE = 12  # numbers beside the one that tells members apart


def seeded(ids):
    return np.random.default_rng(int.from_bytes(hashlib.sha256(ids.tobytes()).digest()[:8], "big"))


class Invented:
    """Answers by ids: `members` holds how the ids of members begin, as whole texts and as what follows the question."""

    def __init__(self, records, tokenizer, attack):
        contents = {r.text: attack.prompts.fill("mia_tuner_question", text=tokenizer.cut(r.text, 128)) for r in records}
        asked = {text: tokenizer.chat_ids(content) for text, content in contents.items()}
        self._head = next(i for i, column in enumerate(zip(*asked.values(), strict=False)) if len(set(column)) > 1)
        members = {r.text for r in records if r.label == 1}
        self._asked = {self._key(asked[text]) for text in members}
        self._whole = {tokenizer.encode(text, 16).ids.tobytes() for text in members}
        self._learnt = {}

    def _key(self, ids):
        return ids[self._head : self._head + 16].tobytes()

    def _seen(self, ids):
        """[NOISE + 1], what a model could tell of a text after the question."""
        numbers = seeded(ids[self._head : self._head + 16]).normal(size=NOISE + 1)
        numbers[0] += 2 * (self._key(ids) in self._asked)
        return numbers

    def answer(self, request):
        if isinstance(request, TrainSoftPrompt):
            name = request.digest.hex()
            means = [
                np.mean([self._seen(ids) for ids in side], axis=0) for side in (request.members, request.non_members)
            ]
            self._learnt[name] = means[0] - means[1]
            return Trained(name, request.origin, np.zeros(1, np.float32), 8)
        if isinstance(request, ScoreTokens):
            loss = seeded(request.ids).exponential(3, len(request.ids) - 1)
            log_prob = -(loss * (0.9 if request.ids[:16].tobytes() in self._whole else 1)).astype(np.float32)
            return TokenStatistics(log_prob, -np.ones_like(log_prob), np.ones_like(log_prob))
        margin = self._learnt[request.adapter] @ self._seen(request.prompts[0])
        return NextTokens(np.array([[margin - 50, -50]], np.float32))

    def __call__(self, requests):
        return {r.digest: self.answer(r) for r in requests}


@pytest.fixture(scope="module")
def whole():
    """Jobs of both attacks over the whole sample, each learning from its own subset's development texts."""
    options = ScoreOptions(sample.model_directory(), sample.model_directory(), sample.benchmark_directory())
    protocol = dataclasses.replace(load_protocol(), **SHORT)
    tokenizer = Tokenizer(options.model)
    tokenizer.chat_ids = functools.cache(tokenizer.chat_ids)
    tokenizer.cut = functools.cache(tokenizer.cut)
    attacks = build_attacks(["sup_camia", "mia_tuner"], Settings(load_hyperparameters("any", {}), options.model))
    inputs = read_inputs(options, None)
    jobs = jobs_of(attacks, inputs.groups, protocol, training_sets_of(attacks, inputs.groups, inputs.texts, protocol))
    records = [r for group in inputs.groups.values() for r in (*group.records, *group.dev)]
    return jobs, tokenizer, Invented(records, tokenizer, attacks[1])


def relabelled(jobs, labels):
    """The jobs with other labels of the texts that are learnt from."""

    def job(own):
        dev = [dataclasses.replace(r, label=labels[r.text]) for r in own.group.dev]
        return dataclasses.replace(own, group=dataclasses.replace(own.group, dev=dev))

    return {key: job(own) for key, own in jobs.items()}


def over_all(jobs, scores):
    """AUC over All, and its variance from the subsets' DeLong variances."""
    tree, aucs, variance = tree_of(sample.benchmark_directory()), {}, 0.0
    for (attack, name), column in scores.items():
        assert not any(s.missing for s in column) and len(column) == len(jobs[attack, name].group.records) > 100
        values = {0: [], 1: []}
        for record, s in zip(jobs[attack, name].group.records, column, strict=True):
            values[record.label].append(s.value)
        classes = ClassScores(values[1], values[0])
        weight = aggregate({s.id: float(s.id == name) for s in tree.subsets}, tree).all
        aucs[name] = auc(classes)
        variance += weight**2 * delong_variance(classes)
    return aggregate(aucs, tree).all, variance


def learn_nothing(jobs, scores_of):
    """Checks scores of jobs that were given other labels to learn from.

    DeLong's interval is that of one trained attack. What it learns from shuffled labels is more or less like the
    truth by chance, so the mean over shuffles is looked at, whose error has a second part from their spread.
    """
    truth, variance = over_all(jobs, scores_of(jobs))
    assert truth > 0.5 + 5 * math.sqrt(variance)  # there is something to be learnt
    true_labels = {r.text: r.label for job in jobs.values() for r in job.group.dev}
    shuffled = []
    for seed in range(SHUFFLES):
        labels = np.random.default_rng(seed).permutation(list(true_labels.values()))
        own = relabelled(jobs, dict(zip(true_labels, map(int, labels), strict=True)))
        shuffled.append(over_all(own, scores_of(own)))
    aucs, variances = np.array(shuffled).T
    half_width = 1.96 * math.sqrt(variances.mean() + aucs.var(ddof=1) / SHUFFLES)
    assert abs(aucs.mean() - 0.5) < half_width < 0.06


def test_sup_camia_learns_nothing_from_shuffled_labels(whole):
    jobs, tokenizer, answer = whole
    jobs = {key: job for key, job in jobs.items() if key[0] == "sup_camia"}
    features = {}  # they do not depend on labels, and take the time
    for key, job in jobs.items():
        asking = job.attack.requests(job.group, tokenizer, job.protocol)
        requests = next(asking)
        with pytest.raises(StopIteration) as stop:
            asking.send([answer.answer(r) for r in requests])
        features[key] = stop.value.value
    learn_nothing(
        jobs, lambda own: {k: job.attack.score(job.group, features[k], job.protocol) for k, job in own.items()}
    )


def test_mia_tuner_learns_nothing_from_shuffled_labels(whole):
    jobs, tokenizer, answer = whole
    jobs = {key: job for key, job in jobs.items() if key[0] == "mia_tuner"}
    learn_nothing(jobs, lambda own: run_jobs(own, tokenizer, answer))
