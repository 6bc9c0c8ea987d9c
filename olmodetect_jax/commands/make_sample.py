"""Making the embedded sample: data from the source texts, a model trained on them, and what attacks find in it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conversion import load_model_directory
from conversion.digest import weights_digest
from conversion.export import export_hf
from conversion.model import LoadedModel
from olmodetect_jax import sample
from olmodetect_jax.attacks.frequencies import FILE_NAME as TABLE
from olmodetect_jax.attacks.frequencies import build_table
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.hyperparameters import search_space
from olmodetect_jax.commands.build import build_benchmark
from olmodetect_jax.commands.options import ScoreOptions
from olmodetect_jax.commands.quiz import QuizOptions, make_quiz
from olmodetect_jax.commands.score import score
from olmodetect_jax.commands.shipped import CDD_LENGTH, FILE_NAME, NEW_TOKENS
from olmodetect_jax.commands.tune import tune
from olmodetect_jax.commands.tuned import FILE_NAME as HYPERPARAMETERS
from olmodetect_jax.commands.tuned import load_tuned
from olmodetect_jax.evaluation.results import evaluate
from olmodetect_jax.evaluation.tuning import FILE_NAME as TUNING
from olmodetect_jax.files import config_path, write_json
from olmodetect_jax.models.olmo2 import Olmo2Config
from olmodetect_jax.models.registry import FAMILIES
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.sample.benchmark import write_data, write_pools
from olmodetect_jax.sample.data import SampleData, build_data
from olmodetect_jax.tokenization import Tokenizer
from olmodetect_jax.tuning.pretrain import Recipe, Stage, train

TRAINING = "training.json"  # beside the sample's data.json
# Attacks whose AUCs it holds: those of one pass over the texts.
RECORDED = "ppl,zlib,lower,min_k,min_k_plus_plus,dc_pdd"

CONFIG = Olmo2Config(
    vocab_size=4096,
    hidden_size=128,
    intermediate_size=512,
    num_layers=4,
    num_heads=2,
    num_kv_heads=2,
    head_dim=64,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=1024,
    tie_word_embeddings=False,
)

RECIPE = Recipe(
    stages=(
        Stage("pretraining", epochs=10, learning_rate=4e-3),
        Stage("midtraining", epochs=8, learning_rate=1e-3),
        Stage("posttraining", epochs=8, learning_rate=5e-4),
    ),
    seed=0,
    row_length=1024,
    rows_per_step=1,
    weight_decay=0.1,
    clip=1.0,
)


def make_sample(sources: Path, out: Path, recipe: Recipe = RECIPE) -> dict[str, Any]:
    """Makes everything of the sample but its sources, and records how.

    Args:
        sources: folder of the compressed source texts.
        out: folder to write the model, the benchmark, `data.json` and `training.json` to; what is there is replaced
            when all is made.
        recipe: of the training.

    Returns:
        What `training.json` says: recipe, model, losses, weights digest and the AUCs of some attacks.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "sample"
        data = build_data(sources)
        write_data(data, made)
        build_sample(data, made / "benchmark")
        losses, digest = _train_model(data, made / sample.MODEL, recipe)
        facts = {
            "recipe": dataclasses.asdict(recipe),
            "model": dataclasses.asdict(CONFIG),
            "losses": losses,
            "weights_digest": digest,
            "auc": _aucs(made),
            "made_with": {name: version(name) for name in ("jax", "flax", "optax", "numpy")},
        }
        write_json(made / TRAINING, facts)
        make_quiz(made / "benchmark", made / sample.QUIZ, QuizOptions(perturber=True), confirm=lambda question: False)
        for name in (sample.MODEL, "benchmark"):
            shutil.rmtree(out / name, ignore_errors=True)
        shutil.copytree(made, out, dirs_exist_ok=True)
    return facts


def build_sample(data: SampleData, out: Path) -> dict[str, Any]:
    """Builds the sample's benchmark from its pools and training texts, as a user would.

    Args:
        data: the sample's.
        out: folder to make.

    Returns:
        What `construction.json` says.
    """
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "sources"
        write_pools(data, sources)
        config = config_path("construction", "sample.yaml")
        return build_benchmark(config, out, sources=sources, work=Path(folder) / "work")


def _train_model(data: SampleData, directory: Path, recipe: Recipe) -> tuple[dict[str, Any], str]:
    """Trains, and writes weights, config and token frequencies beside the tokenizer that is there."""
    tokenizer = Tokenizer(directory)
    documents = [
        [t.ids for t in tokenizer.encode_all(texts, CONFIG.max_position_embeddings)] for _, texts in data.stages
    ]
    steps = sum(_steps(d, s, recipe) for d, s in zip(documents, recipe.stages, strict=True))
    with progress("Training", steps, unit="steps") as advance:
        params, history = train(
            CONFIG, documents, recipe, eos_id=tokenizer.eos_id, report=lambda stage, step, total, loss: advance(1)
        )
    model = LoadedModel(FAMILIES["olmo2"], CONFIG, params, weights_digest(params), sample.MODEL, "float32")
    exported = directory.parent / "exported"
    export_hf(model, exported, "bfloat16")
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    write_json(directory / "config.json", config | {"eos_token_id": tokenizer.eos_id, "bos_token_id": None})
    (exported / "model.safetensors").rename(directory / "model.safetensors")
    shutil.rmtree(exported)
    table = build_table(
        data.reference_texts,
        tokenizer,
        max_tokens=4096,
        source="texts of the sample's sources in neither class and never trained on",
    )
    table.save(directory / TABLE)
    digest = load_model_directory(directory, "bfloat16").weights_digest
    losses = {
        stage: {"first": values[0], "last": values[-1], "steps": len(values)} for stage, values in history.items()
    }
    return losses, digest


def _steps(documents: list[Any], stage: Stage, recipe: Recipe) -> int:
    tokens = stage.epochs * sum(len(ids) + 1 for ids in documents)
    return tokens // recipe.row_length // recipe.rows_per_step


def tune_generative(sample_dir: Path) -> dict[str, Any]:
    """Chooses the generative attacks' hyperparameters on the sample's development texts, for the quickstart.

    Args:
        sample_dir: the sample's folder, finished, with its quiz; gets `generative_tuning.json`.

    Returns:
        What the file says: the grid of each attack, and the weights and the protocol they hold for.
    """
    with tempfile.TemporaryDirectory() as run:
        options = ScoreOptions(
            model=sample_dir / sample.MODEL,
            benchmark=sample_dir / "benchmark",
            out=Path(run),
            attacks=",".join(name for name in GENERATIVE if search_space(name)),
            settings=NEW_TOKENS,
            quiz=sample_dir / sample.QUIZ,
        )
        tune(options)
        found = json.loads((options.out / TUNING).read_text(encoding="utf-8"))
        digest = load_tuned(options.out / HYPERPARAMETERS).model
    found["attacks"]["cdd"] = _of_length(found["attacks"]["cdd"], CDD_LENGTH)
    kept = {name: found[name] for name in ("format", "protocol", "n_member", "n_non_member", "attacks")}
    facts = {"weights_digest": digest, **kept}
    write_json(sample_dir / FILE_NAME, facts)
    return facts


def _of_length(cdd: dict[str, Any], length: int) -> dict[str, Any]:
    """CDD's grid at one length only; of equals the first is chosen, as in tuning."""
    grid = [candidate for candidate in cdd["grid"] if candidate["values"]["cdd_length"] == length]
    known = [candidate for candidate in grid if candidate["auc"] is not None]
    best = max(known, key=lambda candidate: candidate["auc"])["values"] if known else None
    return {**cdd, "grid": grid, "chosen": best}


def _aucs(made: Path) -> dict[str, dict[str, float | None]]:
    """AUC of the recorded attacks by stage and over all, on the test split of what was just made."""
    with tempfile.TemporaryDirectory() as run:
        model, benchmark = made / sample.MODEL, made / "benchmark"
        score(ScoreOptions(model=model, benchmark=benchmark, out=Path(run), attacks=RECORDED))
        (metrics,) = evaluate([Path(run)])
    return {row.id: {**row.auc.stage, "all": row.auc.all} for row in metrics.rows}


def differences(recorded: Path, made: Path) -> list[str]:
    """What a sample that was made again does not have in common with the recorded one.

    Data digests must be equal; All-level AUCs may differ by 0.02 (another processor sums in another order).

    Args:
        recorded: the sample's folder.
        made: folder of the one made again.

    Returns:
        One line a difference.
    """

    def load(folder: Path, name: str) -> dict[str, Any]:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    old, new = load(recorded, "data.json")["digests"], load(made, "data.json")["digests"]
    found = [f"digest of {name}" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    old_auc, new_auc = load(recorded, TRAINING)["auc"], load(made, TRAINING)["auc"]
    for attack, values in old_auc.items():
        again = new_auc.get(attack, {}).get("all")
        if again is None or abs(again - values["all"]) > 0.02:
            found.append(f"AUC of {attack} over all: recorded {values['all']:.4f}, now {again}")
    return found


def main(sources: Path, out: Path, check: bool) -> int:
    """Makes the sample into `out`, or into nowhere and compares.

    Returns:
        0, or 1 if `check` found differences.
    """
    if not check:
        facts = make_sample(sources, out)
        tune_generative(out)
        print(json.dumps(facts["auc"], indent=2))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make_sample(sources, Path(folder))
        found = differences(out, Path(folder))
    for line in found:
        print(f"differs: {line}", file=sys.stderr)
    print("the same data, and AUCs within 0.02" if not found else f"{len(found)} differences")
    return 1 if found else 0
