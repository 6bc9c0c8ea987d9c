"""Bootstrap resamples of one subset's scores: which records a resample holds how often, and its AUC and TPR.

A resample is a row of counts, one a record. The counts depend on the records alone, so attacks and model sizes that
scored the same records share them; a score enters by its rank only (evaluation spec, 4).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from olmodetect_jax.compiled import compiled
from olmodetect_jax.evaluation.metrics import LOW_FPR, ClassScores, Floats

_AT_ONCE = 1 << 22  # draws that are held before they are counted

Counts = NDArray[np.uint32]


@dataclass(frozen=True)
class Population:
    """The records of one class from which resamples are drawn.

    Attributes:
        keys: what each record is known by, in the order of the counts' columns.
        clusters: for each record, which draw brings it: records that move together have the same number, from 0 up.
    """

    keys: tuple[tuple[str, ...], ...]
    clusters: tuple[int, ...]

    def draws(self, n_resamples: int, seed: int, purpose: str) -> Counts:
        """Draws clusters with replacement, as many as there are.

        Args:
            n_resamples: B.
            seed: of the whole analysis.
            purpose: draws of different purposes are independent; the same records and purpose give the same draws.

        Returns:
            [B, n] how often each record is in each resample.
        """
        named = json.dumps([seed, purpose, self.keys]).encode()
        generator = np.random.default_rng(np.frombuffer(hashlib.sha256(named).digest(), np.uint32))
        n = max(self.clusters) + 1
        counts = np.empty((n_resamples, n), np.uint32)
        step = max(1, _AT_ONCE // n)
        for start in range(0, n_resamples, step):
            block = counts[start : start + step]
            chosen = generator.integers(0, n, block.shape) + n * np.arange(len(block))[:, None]
            block[:] = np.bincount(chosen.ravel(), minlength=block.size).reshape(block.shape)
        return counts if n == len(self.clusters) else counts[:, self.clusters]


def counts_of(indices: Sequence[Sequence[int]], n: int) -> Counts:
    """Counts [B, n] of given draws, a row of places each."""
    return np.stack([np.bincount(row, minlength=n) for row in indices]).astype(np.uint32)


def resampled(scores: ClassScores, member: Counts, non_member: Counts) -> tuple[Floats, Floats]:
    """AUC and TPR@5%FPR of every resample, by the same definitions as `metrics.auc` and `metrics.tpr_at_fpr`.

    Args:
        scores: n members and m non-members.
        member: [B, n] counts in the scores' order.
        non_member: [B, m].

    Returns:
        Two arrays [B].
    """
    values = np.concatenate([scores.member, scores.non_member])
    order = np.argsort(-values, kind="stable")
    falling = values[order]
    ends = np.append(falling[1:] != falling[:-1], True)
    auc, tpr = np.empty(len(member)), np.empty(len(member))
    _resample(order, ends, member, non_member, LOW_FPR, auc, tpr)
    return auc, tpr


@compiled(error_model="numpy")
def _resample(
    order: np.ndarray,
    ends: np.ndarray,
    member: np.ndarray,
    non_member: np.ndarray,
    low: float,
    auc: np.ndarray,
    tpr: np.ndarray,
) -> None:
    """Walks down the ranks once a resample; `order` are places of members, then of non-members, highest score first."""
    n = member.shape[1]
    for b in range(member.shape[0]):
        n_member, n_non_member = member[b].sum(), non_member[b].sum()
        above = true = above_false = false = 0  # of higher scores than the tie at hand, and with it
        half_wins = 0
        x0, y0, found = 0.0, 0.0, False
        for k in range(order.size):
            place = order[k]
            if place < n:
                true += np.int64(member[b, place])
            else:
                false += np.int64(non_member[b, place - n])
            if not ends[k]:
                continue
            half_wins += (false - above_false) * (above + true)
            x, y = false / n_non_member, true / n_member
            if x <= low:
                x0, y0 = x, y
            elif not found:
                tpr[b], found = (y - y0) / (x - x0) * (low - x0) + y0, True
            above, above_false = true, false
        auc[b] = half_wins / (2.0 * n_member * n_non_member)
