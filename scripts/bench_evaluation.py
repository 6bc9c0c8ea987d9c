"""The bootstrap of an evaluation as large as the paper's: 14 attacks, 13 subsets, 4 models, 2,000 resamples."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.attacks.supervised import SUPERVISED_TITLES
from olmodetect_jax.benchmark import SIZES, load_tree
from olmodetect_jax.evaluation.intervals import Draws, bootstrap, metrics_of_draws, scored
from olmodetect_jax.evaluation.results import RunMetrics, evaluate_run
from olmodetect_jax.evaluation.runs import Run, Score

ATTACKS = [a for a in TITLES if a not in (*SUPERVISED_TITLES, "em_mia_best_of_four", "self_critique", "bag_of_words")]
TEXTS = {  # of each class in the test split; DPO has two texts a prompt
    "dclm": 134, "pes2o": 241, "openwebmath": 136, "sc_python": 90, "sc_java": 50, "gsm8k": 937, "se_math": 56,
    "se_stackoverflow": 331, "sft_aya": 140, "sft_wildchat": 64, "dpo": 204, "rlvr_cot-gsm8k": 128,
    "rlvr_cot-math": 133,
}  # fmt: skip


def run_of(size: str) -> RunMetrics:
    """One model's invented scores, rounded as bfloat16 scores are, so that many are equal."""
    rng = np.random.default_rng(SIZES.index(size))
    tree = load_tree("olmo2")

    def lines(subset: str) -> tuple[Score, ...]:
        found = []
        for label in (1, 0):
            for i, value in enumerate(rng.normal(0.3 * label, 1, TEXTS[subset])):
                own = size if subset == "dpo" else ""
                record = f"{own}{i // 2 if subset == 'dpo' else i}"
                found.append(Score(record, f"{label}{own}{i}", label, float(np.round(value, 2)), None, False))
        return tuple(found)

    scores = {attack: {s.id: lines(s.id) for s in tree.subsets} for attack in ATTACKS}
    manifest = {
        "model": {"name": size, "size": size}, "split": "test", "variant": "matched",
        "protocol": {"preset": "audited", "fields": {}, "changed": {}},
    }  # fmt: skip
    return evaluate_run(Run(Path(size), manifest, tree, tuple(ATTACKS), tuple(TEXTS), scores, {}))


def bench_evaluation(n_resamples: int = 2000, sklearn_resamples: int = 4) -> dict[str, Any]:
    """Seconds of the whole bootstrap, and how often faster a resample is than scikit-learn's two functions.

    Args:
        n_resamples: of the bootstrap.
        sklearn_resamples: of the loop it is compared with, over every attack, subset and model.
    """
    results = [run_of(size) for size in SIZES]
    bootstrap(results[:1], n_resamples=40)  # compiles
    started = time.perf_counter()
    found = bootstrap(results, n_resamples=n_resamples)
    seconds = time.perf_counter() - started
    assert found.mean is not None
    loop, apart = sklearn_loop(results, sklearn_resamples)
    interval = found.mean.auc["ppl"].all
    return {
        "case": "evaluation",
        "attacks": len(ATTACKS), "subsets": len(TEXTS), "models": len(results), "resamples": n_resamples,
        "seconds": round(seconds, 2),
        "ratio_to_sklearn": round(loop / sklearn_resamples / (seconds / n_resamples), 1),
        "largest_difference": apart,
        "width_of_model_avg": round(interval.high - interval.low, 4),
    }  # fmt: skip


def sklearn_loop(results: list[RunMetrics], n_resamples: int) -> tuple[float, float]:
    """(seconds, largest difference from ours) of AUC and TPR of the same resamples, one call each."""
    seconds, apart = 0.0, 0.0
    for result in results:
        for attack in result.run.attacks:
            for subset in result.run.subsets:
                sides = [scored(result.run, attack, subset, label) for label in (1, 0)]
                draws = Draws(n_resamples)
                ours = metrics_of_draws(*sides, draws, subset)
                counts = [
                    draws.of(side.population, f"{subset} {name}")
                    for side, name in zip(sides, ("member", "non-member"), strict=True)
                ]
                for b in range(n_resamples):
                    drawn = [np.repeat(side.choices[0], c[b]) for side, c in zip(sides, counts, strict=True)]
                    labels = np.repeat([1, 0], [len(side) for side in drawn])
                    values = np.concatenate(drawn)
                    started = time.perf_counter()
                    auc = roc_auc_score(labels, values)
                    fpr, tpr, _ = roc_curve(labels, values)
                    at = np.interp(0.05, fpr, tpr)
                    seconds += time.perf_counter() - started
                    apart = max(apart, abs(auc - ours[0][b]), abs(at - ours[1][b]))
    return seconds, float(apart)
