"""Writes the sample's data: tokenizer files, the pools and training texts a benchmark is built from, and the recipe."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from olmodetect_jax.files import write_json, write_text
from olmodetect_jax.sample import MODEL
from olmodetect_jax.sample.data import SampleData, pool_record
from olmodetect_jax.sample.tokenizer import tokenizer_config

RECIPE = "data.json"


def write_data(data: SampleData, sample: Path) -> None:
    """Writes tokenizer and recipe.

    Args:
        data: what `build_data` made.
        sample: the sample's folder; gets its model's tokenizer files and `data.json` (settings, counts, digests, and
            the version of `tokenizers` that the digests hold for).
    """
    write_text(sample / MODEL / "tokenizer.json", data.tokenizer)
    write_json(sample / MODEL / "tokenizer_config.json", tokenizer_config())
    write_json(sample / RECIPE, data.recipe() | {"made_with": {"tokenizers": version("tokenizers")}})


def write_pools(data: SampleData, folder: Path) -> None:
    """Writes what `configs/construction/sample.yaml` builds from: tokenizer, training texts, pools."""
    write_text(folder / "model" / "tokenizer.json", data.tokenizer)
    for stage, texts in data.stages:
        _write(folder / "training" / f"{stage}.jsonl", ({"text": text} for text in texts))
    for subset, pools in data.pools.items():
        _write(folder / "pools" / subset / "members.jsonl", map(pool_record, pools.members))
        _write(folder / "pools" / subset / "non_members.jsonl", map(pool_record, pools.non_members))


def _write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
