"""Where a built benchmark's lines go: the tree, and the files of its subsets (construction spec, section 1)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from olmodetect_jax.benchmark import Subset, Tree, load_tree, parse_tree
from olmodetect_jax.construction.config import BuildConfig, SubsetConfig
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.files import write_text

STAGE = "corpus"  # of subsets that belong to no known tree


def tree_description(config: BuildConfig) -> str | dict[str, Any]:
    """What `benchmark.yaml` says of the tree: its name, or where the configuration names none, the tree itself."""
    if config.tree is not None:
        return config.tree
    domains = [
        {
            "id": s.id,
            "title": s.title or s.id,
            "subsets": [
                {
                    "id": s.id,
                    "title": s.title or s.id,
                    "folder": f"{STAGE}/{s.id}",
                    "files": [f"{STAGE}_{s.id}"],
                    "variants": config.shifted,
                }
            ],
        }
        for s in {s.id: s for s in config.subsets}.values()
    ]
    stages = [{"id": STAGE, "title": "Corpus", "domains": domains}]
    return {"name": "built", "title": config.title, "size_pairs": {}, "stages": stages}


def tree_of_config(config: BuildConfig, path: Path) -> Tree:
    """The tree of a benchmark to be built.

    Raises:
        UsageError: the tree is unknown, a subset is not in it, stands in the configuration twice, or lacks its size.
    """
    description = tree_description(config)
    tree = load_tree(description) if isinstance(description, str) else parse_tree(description, path)
    known = {s.id: s for s in tree.subsets}
    seen = set()
    for entry in config.subsets:
        if entry.id not in known:
            raise one_of(f"{path}: subsets: id", entry.id, known)
        sized = known[entry.id].sized
        if sized != (entry.size is not None) or (sized and entry.size not in tree.size_pairs):
            expected = f"one of {', '.join(tree.size_pairs)}" if sized else "left out"
            raise UsageError(f"{path}: subset {entry.id}: size is {entry.size!r}; expected: {expected}")
        if (label := label_of(entry, tree)) in seen:
            raise UsageError(f"{path}: subset {label} stands there twice")
        seen.add(label)
    return tree


def subset_of(entry: SubsetConfig, tree: Tree) -> Subset:
    """The subset of the tree that an entry builds."""
    return next(s for s in tree.subsets if s.id == entry.id)


def label_of(entry: SubsetConfig, tree: Tree) -> str:
    """A name for an entry: the subset, and for one with texts for each size, the size or pair of sizes."""
    subset = subset_of(entry, tree)
    if not subset.sized:
        return entry.id
    return f"{entry.id}_{tree.size_pairs[entry.size] if _paired(subset) else entry.size}"


def sizes_of(entry: SubsetConfig, tree: Tree, copies: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    """The model sizes whose training data an entry's non-members must not be in, in the configuration's order."""
    if entry.sizes is not None:
        return entry.sizes
    subset = subset_of(entry, tree)
    if not subset.sized:
        return tuple(copies)
    own = {s for s in tree.size_pairs if s == entry.size}
    if _paired(subset):
        own = {s for s, pair in tree.size_pairs.items() if pair == tree.size_pairs[entry.size]}
    return tuple(s for s in copies if s in own)


def _paired(subset: Subset) -> bool:
    return "{pair}" in subset.folder + "".join(subset.files)


def file_of(subset: Subset, part: str) -> str:
    """The file name of one part of a candidate: the subset's one, or its chosen, rejected or pair."""
    if not part:
        (file,) = subset.files
        return file
    return os.path.commonprefix(subset.files) + part


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes one file of records, one JSON object a line."""
    write_text(path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
