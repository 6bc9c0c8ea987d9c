"""Where the texts are for which something is made once for all models: neighbours, or a quiz."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from olmodetect_jax.benchmark import SIZES, SPLITS, VARIANTS, tree_of
from olmodetect_jax.errors import MissingFilesError


def text_files(inputs: Path, size: str | None, subsets: Sequence[str] | None) -> list[Path]:
    """The files of texts; of a benchmark those that are there, of all its splits and variants.

    Args:
        inputs: a benchmark's folder, or a JSONL file.
        size: of a benchmark that has texts of its own for each model size; None takes all.
        subsets: of a benchmark; None takes all.

    Raises:
        MissingFilesError: none is.
    """
    if not inputs.is_dir():
        return [inputs]
    tree = tree_of(inputs)
    sizes = [size] if size else [s for s in SIZES if s in tree.size_pairs] or [None]
    wanted = dict.fromkeys(
        path
        for subset in tree.select(subsets)
        for split in SPLITS
        for variant in VARIANTS
        if variant == "matched" or subset.variants
        for own in sizes
        for path, _, _ in tree.paths(inputs, subset, split=split, variant=variant, size=own)
    )
    there = [path for path in wanted if path.is_file()]
    if not there:
        raise MissingFilesError(
            f"{inputs}: none of the benchmark's {len(wanted)} files is there, such as {min(wanted)}"
        )
    missing = [path for path in wanted if not path.is_file()]
    if missing:
        print(f"left out: {len(missing)} files that are not there, such as {missing[0]}", file=sys.stderr)
    return there
