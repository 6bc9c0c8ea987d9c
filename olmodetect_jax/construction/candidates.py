"""Plain data on the way from a source to a benchmark's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from olmodetect_jax.errors import DataError
from olmodetect_jax.records import text_key


@dataclass(frozen=True)
class Row:
    """One row of a source as it was read.

    Attributes:
        where: file and line (or row) it was read from, for messages.
        value: its fields.
    """

    where: str
    value: Mapping[str, Any]

    def field(self, name: str, kind: type | tuple[type, ...] = str) -> Any:
        """The value of a field that the row must have.

        Raises:
            DataError: the row lacks it, or it is of another type; names file and line.
        """
        value = self.value.get(name)
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        found = f"is {type(value).__name__}" if name in self.value else f"is missing; it has {', '.join(self.value)}"
        raise DataError(f"{self.where}: field {name!r} {found}; expected {names}")


@dataclass(frozen=True)
class Candidate:
    """What may become a record of a subset.

    Attributes:
        files: the lines it is written as, by file of the subset: `""` where there is one, else chosen, rejected, pair.
        texts: the texts that are scored, whose tokens are counted and matched.
        overlap_texts: what the 13-gram filter reads, by field: `""` where there is one, else prompt, chosen, rejected.
        date: the value the temporal term reads, as the source has it; None if it has none.
        quality: numbers of the boundary rule (score, stars, shares, votes); empty for a domain without one.
        where: file and line it was read from.
    """

    files: Mapping[str, Mapping[str, Any]]
    texts: tuple[str, ...]
    overlap_texts: Mapping[str, str]
    date: str | None
    quality: Mapping[str, float]
    where: str

    @property
    def key(self) -> str:
        """SHA-256 of its texts, hex: what is drawn for it depends on nothing else."""
        return text_key("\x00".join(self.texts))


def single(
    record: Mapping[str, Any],
    where: str,
    *,
    overlap_text: str | None = None,
    date: str | None = None,
    quality: Mapping[str, float] | None = None,
) -> Candidate:
    """A candidate of a subset with one file; the filter reads its `text` unless told otherwise."""
    text = record["text"]
    return Candidate(
        {"": record}, (text,), {"": text if overlap_text is None else overlap_text}, date, quality or {}, where
    )


@dataclass
class Steps:
    """What each step of one pool saw, kept and dropped, and why; an output, kept beside the benchmark."""

    _kept: dict[str, int] = field(default_factory=dict)
    _dropped: dict[str, dict[str, int]] = field(default_factory=dict)

    def keep(self, step: str, n: int = 1) -> None:
        """Counts what a step lets pass."""
        self._kept[step] = self._kept.get(step, 0) + n

    def drop(self, step: str, reason: str, n: int = 1) -> None:
        """Counts what a step leaves out, by reason."""
        self._kept.setdefault(step, 0)
        reasons = self._dropped.setdefault(step, {})
        reasons[reason] = reasons.get(reason, 0) + n

    def rows(self) -> list[dict[str, Any]]:
        """One row a step, in the order in which they were first met: step, seen, kept, dropped by reason."""
        found = []
        for step, kept in self._kept.items():
            dropped = dict(sorted(self._dropped.get(step, {}).items()))
            found.append({"step": step, "seen": kept + sum(dropped.values()), "kept": kept, "dropped": dropped})
        return found

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Steps:
        """The counts that `rows` gave."""
        kept = {row["step"]: row["kept"] for row in rows}
        return cls(kept, {row["step"]: dict(row["dropped"]) for row in rows if row["dropped"]})


@dataclass(frozen=True, eq=False)
class Texts:
    """What annealing, budget and splits know of some candidates.

    Attributes:
        ids: token ids of each, [T] uint32 (the ids of all its texts, one after the other).
        days: [N] float64, NaN where undated.
        keys: each one's key.
    """

    ids: Sequence[np.ndarray]
    days: np.ndarray
    keys: Sequence[str]

    @property
    def n_tokens(self) -> np.ndarray:
        """[N] int64."""
        return np.array([len(ids) for ids in self.ids], np.int64)

    def take(self, positions: np.ndarray) -> Texts:
        """Those at the given positions, in that order."""
        return Texts([self.ids[i] for i in positions], self.days[positions], [self.keys[i] for i in positions])


def shuffled(keys: Iterable[str], seed: int, purpose: str) -> np.ndarray:
    """Positions in a seeded order that depends on the keys alone, not on the order they come in: [N] int64.

    Equal keys (texts that occur twice) keep their order.
    """
    digests = [hashlib.sha256(f"{seed}\x00{purpose}\x00{key}".encode()).digest() for key in keys]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), np.int64)
