"""Sums and means of token statistics, in float64 or rounded as the released bfloat16 scores are."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from olmodetect_jax.protocol import Protocol

VARIANCE_FLOOR, SIGMA_GUARD = 1e-9, 1e-9  # of the released MinK++


def rounded(values: np.ndarray | float, protocol: Protocol) -> np.ndarray:
    """`values` as float64, after one rounding to bfloat16 where the protocol's scores are bfloat16."""
    values = np.asarray(values, np.float64)
    if protocol.score_dtype == "bfloat16":
        return values.astype(ml_dtypes.bfloat16).astype(np.float64)
    return values


def mean(values: np.ndarray, protocol: Protocol) -> float:
    """Mean of [n] values; NaN for n = 0."""
    return float(rounded(np.mean(values, dtype=np.float64), protocol)) if len(values) else math.nan


def total(values: np.ndarray, protocol: Protocol) -> float:
    """Sum of [n] values; NaN for n = 0."""
    return float(rounded(np.sum(values, dtype=np.float64), protocol)) if len(values) else math.nan


def smallest_count(k: float, n: int) -> int:
    """max(1, floor(k n)) with the product in float64, as the released code takes it (0.7 x 90 counts 62)."""
    return max(1, int(k * n))


def mean_of_smallest(values: np.ndarray, k: float, protocol: Protocol) -> float:
    """Mean of the share `k` of [n] values that are smallest; NaN where that is none of them.

    The share is at least one value, unless the protocol takes none (`min_k_least`).
    """
    if not len(values) or (protocol.min_k_least == "none" and int(k * len(values)) == 0):
        return math.nan
    count = smallest_count(k, len(values))
    return mean(np.partition(values, count - 1)[:count], protocol)


def standardised(log_prob: np.ndarray, expected: np.ndarray, variance: np.ndarray, protocol: Protocol) -> np.ndarray:
    """(log p - E[log p]) / sigma, with the released guards: sigma = sqrt(max(variance, 1e-9)) + 1e-9.

    Args:
        log_prob: [n].
        expected: [n], the mean of log p under p.
        variance: [n]; rounding may have left it slightly negative.
        protocol: says whether each step is rounded to bfloat16, and whether sigma is guarded or the plain root (a
            value is then NaN or infinite where the variance is not positive).

    Returns:
        [n] float64.
    """
    distance = rounded(log_prob.astype(np.float64) - expected.astype(np.float64), protocol)
    if protocol.min_k_plus_plus_sigma == "plain":
        with np.errstate(invalid="ignore", divide="ignore"):  # the caller reports what is not finite
            return rounded(distance / rounded(np.sqrt(variance.astype(np.float64)), protocol), protocol)
    clamped = rounded(np.maximum(variance.astype(np.float64), VARIANCE_FLOOR), protocol)
    sigma = rounded(rounded(np.sqrt(clamped), protocol) + SIGMA_GUARD, protocol)
    return rounded(distance / sigma, protocol)
