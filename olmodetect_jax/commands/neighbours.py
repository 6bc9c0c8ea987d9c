"""`olmodetect neighbours`: a mask-filling model makes the neighbours of texts, once for all models that are scored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from olmodetect_jax.benchmark import SIZES
from olmodetect_jax.commands.text_files import text_files
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.neighbours.files import NeighbourFile, Neighbours, load_neighbours, write_neighbours
from olmodetect_jax.neighbours.hf_models import load_filler
from olmodetect_jax.neighbours.masking import COPIES, SeedRule, WindowRule, chunks
from olmodetect_jax.records import read_records, text_key
from olmodetect_jax.runtime.progress import progress

SAVE_EVERY = 60.0  # seconds of work that a kill can cost


def make_neighbours(
    inputs: Path,
    filler: Path,
    out: Path,
    *,
    seed_rule: SeedRule = "text",
    window: WindowRule = "kept",
    size: str | None = None,
    subsets: Sequence[str] | None = None,
) -> NeighbourFile:
    """Writes the neighbours of every text of a benchmark or of a file; texts that `out` has already are kept.

    Args:
        inputs: a benchmark's folder (all its splits and variants that are there), or a JSONL file of texts.
        filler: directory of a T5 or a masked language model in Hugging Face's layout.
        out: the file of neighbours; work on it can be broken off at any time and taken up again.
        seed_rule: as in `chunks`.
        window: as in `split_window`.
        size: of a benchmark that has texts of its own for each model size; None takes all.
        subsets: of a benchmark; None takes all.

    Raises:
        UsageError: an option is wrong, the filler cannot be used, or `out` was made in another way.
        DataError: texts cannot be read, or `out` is no file of neighbours.
    """
    for field, value, allowed in (
        ("--seed-rule", seed_rule, get_args(SeedRule)),
        ("--window", window, get_args(WindowRule)),
        ("--size", size, (None, *SIZES)),
    ):
        if value not in allowed:
            raise one_of(field, value, [a for a in allowed if a])
    files = [read_records(path, subset="texts") for path in text_files(inputs, size, subsets)]
    done = dict(load_neighbours(out).by_key) if out.exists() else {}
    model = load_filler(filler)
    provenance = {**model.provenance(), "window": window, "seed_rule": seed_rule}
    _require_same(out, done, provenance)
    work, known = [], set(done)
    for records in files:
        for chunk in chunks(list(dict.fromkeys(r.text for r in records if r.text)), seed_rule):
            keys = {text_key(text) for text in chunk.rows}
            if not keys <= known:  # a chunk is drawn from one stream: it is filled whole, though some be known
                work.append(chunk)
                known |= keys
    saved = time.monotonic()
    try:
        with progress("Filling", sum(len(c.rows) // COPIES for c in work), unit="texts") as advance:
            for chunk in work:
                filled = model.fill_chunk(chunk, window)
                for i in range(0, len(filled), COPIES):
                    own = Neighbours(tuple(filled[i : i + COPIES]), provenance)
                    done.setdefault(text_key(chunk.rows[i]), own)
                if time.monotonic() - saved > SAVE_EVERY:
                    write_neighbours(out, done)
                    saved = time.monotonic()
                advance(len(chunk.rows) // COPIES)
    finally:
        if work and done:
            write_neighbours(out, done)
    return NeighbourFile(out, done)


def _require_same(out: Path, done: Mapping[str, Neighbours], provenance: Mapping[str, Any]) -> None:
    """Refuses to mix neighbours that were made in two ways.

    Raises:
        UsageError: names what differs.
    """
    for own in done.values():
        names = [n for n in {**own.provenance, **provenance} if own.provenance.get(n) != provenance.get(n)]
        if names:
            differ = "; ".join(f"{n} {own.provenance.get(n)!r}, now {provenance.get(n)!r}" for n in names)
            raise UsageError(f"--out {out}: holds neighbours made in another way ({differ}); choose another file")
