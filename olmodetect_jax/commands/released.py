"""`olmodetect import-released` and `export-released`: between the released layout of scores and run folders."""

from __future__ import annotations

import sys
from pathlib import Path

from olmodetect_jax.benchmark import load_tree, tree_of
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.evaluation.formatting import printable
from olmodetect_jax.evaluation.runs import read_run
from olmodetect_jax.released.emmia import read_dev_picks
from olmodetect_jax.released.exporting import export_run
from olmodetect_jax.released.importing import write_runs
from olmodetect_jax.released.tree import READINGS, read_released


def import_released(
    root: Path, out: Path, *, benchmark: Path | None = None, reading: str = "as_stored", em_mia: str = "published"
) -> list[Path]:
    """Makes run folders of released scores; says on standard error what joins to nothing.

    Args:
        root: folder that holds `results`.
        out: folder to make the run folders in.
        benchmark: folder of the benchmark, to join samples to its records; None for none.
        reading: `as_stored` or `current`.
        em_mia: `published`, the best of four base scores on the test labels; or `dev`, the one chosen on development
            texts.

    Returns:
        The run folders.

    Raises:
        UsageError: no such tree, or an unknown reading or rule.
        DataError: a file cannot be used.
    """
    if reading not in READINGS:
        raise one_of("--reading", reading, READINGS)
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder")
    if em_mia not in ("published", "dev"):
        raise one_of("--em-mia", em_mia, ["published", "dev"])
    tree = tree_of(benchmark) if benchmark else load_tree("olmo2")
    released = read_released(root, tree, benchmark=benchmark, reading=reading)
    for note in dict.fromkeys(note for of in released.values() for note in of.notes):
        print(f"note: {printable(note)}", file=sys.stderr)
    picks = read_dev_picks(root) if em_mia == "dev" else None
    return write_runs(released, tree, out, source=root, benchmark=benchmark, reading=reading, dev_picks=picks)


def export_released(run: Path, out: Path, *, shape: str = "B") -> list[Path]:
    """Writes a run in the released layout; says on standard error what has no place there.

    Args:
        run: run folder.
        out: root of the tree to write.
        shape: `A` or `B`.

    Raises:
        UsageError: a run of own texts, or an unknown shape.
        DataError: the run cannot be read, or a file is there already.
    """
    written, left = export_run(read_run(run), out, shape=shape)
    for note in left:
        print(f"note: {printable(note)}", file=sys.stderr)
    return written
