"""`olmodetect build`: one configuration to one benchmark folder."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from olmodetect_jax.commands.index import open_indices
from olmodetect_jax.construction.build import Builder
from olmodetect_jax.construction.config import BuildConfig, load_build_config
from olmodetect_jax.construction.filtering import Filter
from olmodetect_jax.construction.index.base import NgramIndex
from olmodetect_jax.construction.layout import tree_description, tree_of_config
from olmodetect_jax.construction.overlap import OverlapMeasure
from olmodetect_jax.construction.pieces import Pieces
from olmodetect_jax.construction.stages import Stages
from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import folder_lock, remove_temporaries, write_json, write_text
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.tokenization import Tokenizer

RECIPE = "construction.json"  # beside the benchmark's files: how it was made


def build_benchmark(config_path: Path, out: Path, *, sources: Path | None, work: Path | None) -> dict[str, Any]:
    """Builds a benchmark; a killed build goes on where it was.

    Args:
        config_path: the configuration.
        out: folder to make.
        sources: folder that relative paths of the configuration start from; None for its own.
        work: folder of indices and finished steps; None for `out` with `.work` after it.

    Returns:
        What `construction.json` says.

    Raises:
        OlmoDetectError: the configuration, a source or a pool cannot be used; names field, file or subset.
    """
    config = load_build_config(config_path)
    tree = tree_of_config(config, config_path)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: is not empty; choose another folder, or remove it first")
    folder = sources or config_path.parent
    tokenizer = Tokenizer(folder / config.tokenizer)
    work = work or out.with_name(f"{out.name}.work")
    with folder_lock(work, "build"):
        remove_temporaries(work)
        stages = Stages(work)
        indices = open_indices(config, folder, tokenizer, stages)
        chosen = config.chosen()
        builder = Builder(
            config=config, tree=tree, sources=folder, encode=tokenizer.bare_ids, tokenizer_digest=tokenizer.digest,
            filter=_filter(config, tokenizer, indices) if indices else None, stages=stages, progress=progress,
        )  # fmt: skip
        made = out.with_name(f".{out.name}.partial")  # beside `out`, so that it can appear there at once
        shutil.rmtree(made, ignore_errors=True)
        facts = {
            "format": 1,
            "config": config.model_dump(mode="json"),
            "choices": chosen.model_dump(),
            "tokenizer": tokenizer.digest,
            "indices": {name: index.description for name, index in indices.items()},
            "subsets": builder.run(made),
            "made_with": {name: version(name) for name in ("olmodetect-jax", "numpy", "tokenizers")},
        }
        write_text(made / "benchmark.yaml", _marker(tree_description(config)))
        write_json(made / RECIPE, facts)
        if out.exists():
            out.rmdir()
        made.rename(out)
    return facts


def _filter(config: BuildConfig, tokenizer: Tokenizer, indices: dict[str, NgramIndex]) -> Filter:
    pieces = Pieces.of_tokenizer(tokenizer.path) if config.chosen().first_token_variant else None
    measure = OverlapMeasure(
        indices, config.copies(), n=config.overlap.n, threshold=config.overlap.threshold, pieces=pieces,
        decode=tokenizer.decode,
    )  # fmt: skip
    return Filter(measure, indices, config.copies(), tokenizer.bare_ids, tokenizer.decode)


def _marker(tree: str | dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump({"tree": tree}, sort_keys=False, allow_unicode=True)


def summary(facts: dict[str, Any]) -> str:
    """What was built, one line a subset."""
    lines = [] if facts["indices"] else ["no 13-gram filter: the configuration names no index"]
    for label, subset in facts["subsets"].items():
        others, members, found = subset["non_members"], subset["members_matched"], subset["annealing"]
        lines.append(
            f"{label}: {others['records']:,} of each class ({others['dev_records']:,} for dev), "
            f"{members['tokens']:,} and {others['tokens']:,} tokens, JSD {found['jsd']:.3f}"
            + (f", dates {found['temporal']:.3f}" if found["temporal"] else "")
        )
    return "\n".join(lines)
