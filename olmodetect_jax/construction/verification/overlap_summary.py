"""Means and spreads of overlap scores, as in tables 22 and 23 (construction spec, section 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OverlapSummary:
    """Overlap of one domain.

    Attributes:
        subset_mean: of each subset (or field of DPO).
        subset_std: population standard deviation of each.
        mean: of the subsets' means.
        std: root mean square of their standard deviations.
    """

    subset_mean: Mapping[str, float]
    subset_std: Mapping[str, float]
    mean: float
    std: float


def overlap_summary(scores: Mapping[str, Sequence[float]]) -> OverlapSummary:
    """Summarises the scores of a domain's subsets; the three fields of DPO combine like subsets.

    Args:
        scores: by subset, of its non-members; none is empty.
    """
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    spreads = {name: float(np.std(values)) for name, values in scores.items()}
    return OverlapSummary(
        means, spreads, float(np.mean(list(means.values()))), float(np.sqrt(np.mean(np.square(list(spreads.values())))))
    )
