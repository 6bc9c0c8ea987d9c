"""Writes the sample's data: tokenizer files, benchmark in the released layout, and the recipe that made them."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from olmodetect_jax.benchmark import SPLITS, load_tree
from olmodetect_jax.files import write_json, write_text
from olmodetect_jax.sample import MODEL
from olmodetect_jax.sample.data import TREE, SampleData
from olmodetect_jax.sample.tokenizer import tokenizer_config

RECIPE = "data.json"


def write_data(data: SampleData, sample: Path) -> None:
    """Writes everything but the weights.

    Args:
        data: what `build_data` made.
        sample: the sample's folder; gets its model's tokenizer files, `benchmark/` and
            `data.json` (settings, counts, digests, and the version of `tokenizers` that the digests hold for).
    """
    write_text(sample / MODEL / "tokenizer.json", data.tokenizer)
    write_json(sample / MODEL / "tokenizer_config.json", tokenizer_config())
    root = sample / "benchmark"
    write_text(root / "benchmark.yaml", f"tree: {TREE}\n")
    tree = load_tree(TREE)
    for subset in tree.subsets:
        for split in SPLITS:
            for path, label, _ in tree.paths(root, subset, split=split, variant="matched", size=None):
                lines = (json.dumps(r, ensure_ascii=False) + "\n" for r in data.records[subset.id, label, split])
                write_text(path, "".join(lines))
    write_json(sample / RECIPE, data.recipe() | {"made_with": {"tokenizers": version("tokenizers")}})
