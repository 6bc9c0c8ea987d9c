"""One subset from its pools to its classes: texts, matched members, dev and test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmodetect_jax.construction.annealing import AnnealingSettings, anneal
from olmodetect_jax.construction.candidates import Candidate, Texts
from olmodetect_jax.construction.choices import Choices
from olmodetect_jax.construction.config import Annealing
from olmodetect_jax.construction.dates import days
from olmodetect_jax.construction.pools import Encode
from olmodetect_jax.construction.splits import Split, split_members, split_non_members


@dataclass(frozen=True, eq=False)
class Class:
    """The chosen texts of one class, and which of them are for development.

    Attributes:
        positions: in the pool, sorted.
        split: of these; its positions count within `positions`.
        n_tokens: of all of them.
    """

    positions: np.ndarray
    split: Split
    n_tokens: int

    def part(self, split: str) -> np.ndarray:
        """Positions in the pool of dev or test."""
        dev = np.zeros(len(self.positions), bool)
        dev[self.split.dev] = True
        return self.positions[dev if split == "dev" else ~dev]

    def facts(self) -> dict[str, Any]:
        """Counts for the recipe."""
        dev = self.split
        return {
            "records": len(self.positions),
            "tokens": self.n_tokens,
            "dev_records": len(dev.dev),
            "dev_tokens": dev.tokens,
            "dev_target": dev.target,
            "dev_within_tolerance": dev.met,
        }


def texts_of(candidates: Sequence[Candidate], encode: Encode, *, dated: bool) -> Texts:
    """Ids, dates and keys of candidates.

    Args:
        candidates: of one class.
        encode: texts to ids.
        dated: whether the domain has a temporal term; without one every text counts as undated.
    """
    ids = [np.concatenate(encode(c.texts)) for c in candidates]
    dates = [days(c.date) if dated else None for c in candidates]
    values = np.array([np.nan if d is None else d for d in dates], np.float64)
    return Texts(ids, values, [c.key for c in candidates])


def match(
    members: Texts,
    non_members: Texts,
    settings: Annealing,
    choices: Choices,
    *,
    seed: int,
    name: str,
    report: Callable[[int], None],
) -> dict[str, Any]:
    """Chooses matched members by annealing; plain values, to be kept (a loss that is not finite becomes None).

    Args:
        members: the pool.
        non_members: the chosen ones.
        settings: of the annealing.
        choices: of construction.
        seed: of every draw.
        name: of the subset, for messages.
        report: is told how many steps are done.
    """
    options = AnnealingSettings(
        n_steps=settings.steps, margin=settings.margin, t0=settings.start_temperature, factor=settings.factor,
        seed=seed, dates=bool(np.isfinite(non_members.days).any()), stale_loss=choices.stale_loss,
    )  # fmt: skip
    found = dataclasses.asdict(anneal(members, non_members, options, name=name, report=report))
    return {field: _plain(value) for field, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def non_member_class(pool: Texts, positions: np.ndarray, *, seed: int, name: str) -> Class:
    """The chosen non-members with their split."""
    chosen = pool.take(positions)
    return Class(positions, split_non_members(chosen, seed=seed, name=name), int(chosen.n_tokens.sum()))


def member_class(pool: Texts, positions: np.ndarray, non_members: Class, *, seed: int, name: str) -> Class:
    """The chosen members, split as the non-members are."""
    chosen = pool.take(positions)
    split = split_members(chosen, non_members.split, seed=seed, name=name)
    return Class(positions, split, int(chosen.n_tokens.sum()))
