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
    "command": "score",
    "version": "0.1.0",
    "created_at": "2026-01-02T03:04:05+00:00",
    "model": {
        "name": "sample",
        "path": "/models/sample",
        "weights_digest": "ab" * 32,
        "tokenizer_digest": "cd" * 32,
        "eos_id": 0,
        "config": {"vocab_size": 4096},
        "size": None,
    },
    "dtype": "float32",
    "mesh": {"data": 1, "fsdp": 1, "tensor": 1},
    "benchmark": {"path": "/data/bench", "tree": "sample"},
    "texts": None,
    "split": "test",
    "variant": "matched",
    "records": {},
    "record_counts": {},
    "limit": None,
    "protocol": {
        "preset": "audited",
        "fields": {
            "max_tokens": 2048,
            "text_span": "scored",
            "zlib_numerator": "sum",
            "lower_form": "difference",
            "score_dtype": "float32",
            "special_ids": "flag",
        },
        "changed": {"max_tokens": 2048},
    },
    "max_tokens_used": 1024,
    "hyperparameters": {"min_k": 0.2, "min_k_plus_plus": 0.2, "dc_pdd_alpha": 0.01},
    "em_mia_limit": None,
    "frequencies": None,
    "generation": {},
    "attacks": [],
    "subsets": [],
    "libraries": {"jax": "0.10.2", "flax": "0.12.8", "numpy": "2.4.6", "tokenizers": "0.23.3"},
    "zlib": {"zlib": "1.3.1"},
}
# What the manifest of a user's own texts has instead.
OWN_TEXTS: dict[str, Any] = {
    "benchmark": None,
    "texts": "/data/mine.jsonl",
    "reference": None,
    "split": None,
    "variant": None,
}


def score_line(record_id: str, label: int | None, score: Any, **more: Any) -> dict[str, Any]:
    """One line of a score file; the hash is of the record's id and label, so every text is another one."""
    sha1 = hashlib.sha1(f"{record_id} {label}".encode("utf-8", "surrogatepass")).hexdigest()[:20]
    line = {"record_id": record_id, "text_sha1": sha1, "label": label, "score": score, "n_tokens": 9, "n_scored": 8}
    return {**line, "truncated": False, **more}


def write_run(
    path: Path,
    scores: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    **changes: Any,
) -> Path:
    """Writes attack → subset → score lines, and a manifest that lists them, with `changes` to its fields.

    Of a user's own texts the subsets are `texts` and maybe `reference`, and the changes `**OWN_TEXTS`.
    """
    manifest = copy.deepcopy(MANIFEST)
    manifest["attacks"] = list(scores)
    names = list(dict.fromkeys(s for subsets in scores.values() for s in subsets))
    manifest["records"] = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    manifest["record_counts"] = {name: len(next(s[name] for s in scores.values() if name in s)) for name in names}
    manifest["subsets"] = [name for name in names if name != "reference"]
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
