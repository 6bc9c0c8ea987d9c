"""Run folders as `olmodetect score` leaves them, with invented scores."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from olmodetect_jax.benchmark import load_tree

MANIFEST: dict[str, Any] = {
    "format": 1,
    "command": "olmodetect score --model MODEL --benchmark BENCHMARK --out RUN",
    "version": "0.1.0",
    "created_at": "2026-01-02T03:04:05Z",
    "model": {
        "name": "sample",
        "path": "/models/sample",
        "weights_digest": "sha256:ab",
        "tokenizer_digest": "sha256:cd",
        "size": None,
    },
    "benchmark": {"path": "/data/bench", "tree": "sample"},
    "texts": None,
    "split": "test",
    "variant": "matched",
    "protocol": {
        "preset": "audited",
        "fields": {"max_tokens": 1024, "zlib_numerator": "sum"},
        "changed": {"max_tokens": 1024},
    },
    "hyperparameters": {"min_k": {"k": 0.2}},
    "dtype": "float32",
    "mesh": {"data": 1},
    "attacks": [],
    "subsets": [],
    "libraries": {"numpy": "2.4.6"},
}


def score_line(record_id: str, label: int | None, score: Any, **more: Any) -> dict[str, Any]:
    """One line of a score file; the hash is of the record's id and label, so every text is another one."""
    sha1 = hashlib.sha1(f"{record_id} {label}".encode("utf-8", "surrogatepass")).hexdigest()[:20]
    line = {"record_id": record_id, "text_sha1": sha1, "label": label, "score": score, "n_tokens": 9}
    return {**line, "truncated": False, **more}


def write_run(
    path: Path,
    scores: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    **changes: Any,
) -> Path:
    """Writes attack → subset → score lines, and a manifest that lists them, with `changes` to its fields."""
    manifest = copy.deepcopy(MANIFEST)
    manifest["attacks"] = list(scores)
    manifest["subsets"] = list(dict.fromkeys(s for subsets in scores.values() for s in subsets))
    manifest.update(changes)
    path.mkdir(parents=True, exist_ok=True)
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for attack, subsets in scores.items():
        for subset, lines in subsets.items():
            file = path / "scores" / attack / f"{subset}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def random_scores(
    attacks: Sequence[str], *, tree: str = "sample", n: int = 12, seed: int = 0
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """n members and n non-members in every subset of a tree."""
    rng = np.random.default_rng(seed)
    return {
        attack: {
            subset.id: [
                score_line(f"{subset.id}-{i}", label, round(float(rng.normal(label)), 3))
                for label in (1, 0)
                for i in range(n)
            ]
            for subset in load_tree(tree).subsets
        }
        for attack in attacks
    }
