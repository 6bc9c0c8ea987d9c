"""Pools: the candidates of one class of a subset after boundary rule and de-duplication (construction spec, 3)."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from olmodetect_jax.construction.boundary import closest_to_threshold
from olmodetect_jax.construction.candidates import Candidate, Steps
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.config import Side, SubsetConfig, validated
from olmodetect_jax.construction.readers import read_rows, row_files
from olmodetect_jax.construction.sources.registry import load_source
from olmodetect_jax.errors import DataError, UsageError

SHIFTED_LIMIT = 20_000  # candidates for shifted members, where the configuration says nothing

SideName = Literal["members", "non-members", "shifted members"]
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


def read_pool(
    subset: SubsetConfig, side_name: SideName, folder: Path, choices: Choices, *, seed: int, encode: Encode
) -> Pool:
    """Reads one class of a subset from its source.

    Args:
        subset: its configuration.
        side_name: which class; shifted members have no boundary rule.
        folder: that relative paths start from.
        choices: of construction.
        seed: of the draw, where the configuration limits the pool.
        encode: texts to ids, for the boundary rule that counts tokens.

    Raises:
        UsageError: options that the source does not have.
        DataError: a row that breaks the source's format, or nothing left.
    """
    side, source = side_of(subset, side_name), load_source(subset.source)
    name, member = f"{subset.id}: {side_name}", side_name != "non-members"
    if side_name == "shifted members":
        choices = choices.model_copy(update={"boundary": "none"})
    options = _options(subset, side_name, folder)
    steps = Steps()
    rows = read_rows(resolved(side.paths, folder))
    found = (source.members if member else source.non_members)(rows, options, choices, steps)
    candidates = list(found) if side.limit is None else _draw(found, side.limit, seed, steps)
    if choices.boundary == "closest" and "hq" in (candidates[0].quality if candidates else ()):
        candidates = _nearest(candidates, side, member, name, encode, steps)
    if not candidates:
        raise DataError(f"{name}: no candidate is left of {', '.join(side.paths)}; the steps were {steps.rows()}")
    return Pool(candidates, steps)


def side_of(subset: SubsetConfig, name: SideName) -> Side:
    """The part of a subset's configuration that says where a class comes from."""
    if name == "non-members":
        return subset.non_members
    if name == "members":
        return subset.members
    if subset.shifted is not None:
        return subset.shifted
    return subset.members if subset.members.limit else subset.members.model_copy(update={"limit": SHIFTED_LIMIT})


def _options(subset: SubsetConfig, name: SideName, folder: Path) -> BaseModel:
    """The source's options for one class; relative paths start from `folder`."""
    given = subset.options | side_of(subset, name).options
    options = validated(load_source(subset.source).Options, given, f"{subset.id}: {name}: options")
    return options.model_copy(update={field: folder / path for field, path in _paths(options).items()})


def _paths(options: BaseModel) -> dict[str, Path]:
    values = {field: getattr(options, field) for field in type(options).model_fields}
    return {field: value for field, value in values.items() if isinstance(value, Path)}


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


def files_of_options(subset: SubsetConfig, name: SideName, folder: Path) -> list[list[Any]]:
    """The same for files that options name: a classifier, worked examples."""
    found = []
    for path in _paths(_options(subset, name, folder)).values():
        found.append([str(path), path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else [str(path)])
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
