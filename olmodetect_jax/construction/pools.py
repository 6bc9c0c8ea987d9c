"""Pools: the candidates of one class of a subset after boundary rule and de-duplication (construction spec, 3)."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from olmodetect_jax.construction.boundary import closest_to_threshold
from olmodetect_jax.construction.candidates import Candidate, Steps
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.config import Side, SubsetConfig, validated
from olmodetect_jax.construction.readers import read_rows, row_files
from olmodetect_jax.construction.sources.registry import load_source
from olmodetect_jax.errors import DataError, UsageError

Encode = Callable[[Sequence[str]], list[np.ndarray]]


@dataclass(frozen=True)
class Pool:
    """The candidates of one class.

    Attributes:
        candidates: in the order of the source.
        steps: what each step saw, kept and dropped.
    """

    candidates: list[Candidate]
    steps: Steps

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `from_json`."""
        return {"candidates": [dataclasses.asdict(c) for c in self.candidates], "steps": self.steps.rows()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Pool:
        """The pool that `as_json` wrote."""
        candidates = [Candidate(**c | {"texts": tuple(c["texts"])}) for c in value["candidates"]]
        return cls(candidates, Steps.from_rows(value["steps"]))


def read_pool(subset: SubsetConfig, member: bool, folder: Path, choices: Choices, *, seed: int, encode: Encode) -> Pool:
    """Reads one class of a subset from its source.

    Args:
        subset: its configuration.
        member: which class.
        folder: that relative paths start from.
        choices: of construction.
        seed: of the draw, where the configuration limits the pool.
        encode: texts to ids, for the boundary rule that counts tokens.

    Raises:
        UsageError: options that the source does not have.
        DataError: a row that breaks the source's format, or nothing left.
    """
    side, source = subset.members if member else subset.non_members, load_source(subset.source)
    name = f"{subset.id}: {'members' if member else 'non-members'}"
    options = _with_paths(validated(source.Options, subset.options | side.options, f"{name}: options"), folder)
    steps = Steps()
    rows = read_rows(resolved(side.paths, folder))
    found = (source.members if member else source.non_members)(rows, options, choices, steps)
    candidates = list(found) if side.limit is None else _draw(found, side.limit, seed, steps)
    if choices.boundary == "closest" and "hq" in (candidates[0].quality if candidates else ()):
        candidates = _nearest(candidates, side, member, name, encode, steps)
    if not candidates:
        raise DataError(f"{name}: no candidate is left of {', '.join(side.paths)}; the steps were {steps.rows()}")
    return Pool(candidates, steps)


def _with_paths(options: BaseModel, folder: Path) -> BaseModel:
    """Options whose relative paths start from `folder`."""
    values = {name: getattr(options, name) for name in type(options).model_fields}
    return options.model_copy(update={name: folder / v for name, v in values.items() if isinstance(v, Path)})


def resolved(paths: Sequence[str], folder: Path) -> list[Path | str]:
    """Local paths taken from `folder`; those of a hub as they are."""
    return [path if path.startswith("hub:") else folder / path for path in paths]


def made_from(paths: Sequence[str], folder: Path) -> list[list[Any]]:
    """What tells whether source files are still the same: name, size and time of change; a hub path is its own name."""
    found: list[list[Any]] = []
    for path in resolved(paths, folder):
        if isinstance(path, str):
            found.append([path])
        else:
            found += [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in row_files(path)]
    return found


def _draw(candidates: Iterator[Candidate], limit: int, seed: int, steps: Steps) -> list[Candidate]:
    """The candidates with the smallest hashes: a draw that depends on no order and holds no more than it keeps."""
    kept: list[tuple[int, int, Candidate]] = []
    for place, candidate in enumerate(candidates):
        digest = hashlib.sha256(f"{seed}\x00pool\x00{candidate.key}".encode()).digest()
        item = (-int.from_bytes(digest, "big"), -place, candidate)
        if len(kept) < limit:
            heapq.heappush(kept, item)
            steps.keep("drawn")
        else:
            heapq.heappushpop(kept, item)
            steps.drop("drawn", "beyond the limit")
    return [candidate for _, _, candidate in sorted(kept, key=lambda item: -item[1])]


def _nearest(
    candidates: list[Candidate], side: Side, member: bool, name: str, encode: Encode, steps: Steps
) -> list[Candidate]:
    if side.nearest is None:
        raise UsageError(f"{name}: boundary closest needs `nearest: {{records: N, tokens: N}}`; or choose bands")
    lengths = np.array([sum(map(len, encode(c.texts))) for c in candidates], np.int64)
    chosen = closest_to_threshold(
        np.array([c.quality["hq"] for c in candidates]), lengths,
        side="above" if member else "below", min_records=side.nearest.records, min_tokens=side.nearest.tokens,
    )  # fmt: skip
    steps.keep("nearest", len(chosen))
    steps.drop("nearest", "farther from the threshold", len(candidates) - len(chosen))
    return [candidates[i] for i in chosen]
