"""From CAMIA's signals to one score: directions, p-values and their composition (CAMIA and PAC spec, 1.4 to 1.7)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

COMPOSITIONS = ("edgington", "fisher", "george", "pearson")
CLIP = 1e-10  # how near to 0 and 1 a p-value may come in every composition but Edgington's

Ties = Literal["mid", "rank", "weak"]
Form = Literal["p_value", "statistic"]


def directions(members: np.ndarray, non_members: np.ndarray) -> np.ndarray:
    """Which way each block of signals is turned, so that members come out lower.

    Args:
        members: [n, K, V] float64; values that are not finite do not count.
        non_members: [m, K, V].

    Returns:
        [K] float64: -1 where the members' mean over all values of the block is the greater one, else 1.
    """
    greater = [_mean(members[:, k]) > _mean(non_members[:, k]) for k in range(members.shape[1])]
    return np.where(greater, -1.0, 1.0)


def _mean(values: np.ndarray) -> float:
    """Mean of the finite values, NaN for none; summed exactly, for the order of the texts must not decide a tie."""
    finite = values[np.isfinite(values)]
    return math.fsum(finite) / len(finite) if len(finite) else math.nan


def p_values(targets: np.ndarray, reference: np.ndarray, ties: Ties, own: np.ndarray | None = None) -> np.ndarray:
    """The share of reference values below each target value.

    Args:
        targets: [n, S] float64.
        reference: [m, S]; values that are not finite do not count.
        ties: `mid` counts an equal value half; `rank` as well, and half a value more where there is one; `weak` whole.
        own: [n], the reference row that is the target itself and is not counted for it, or -1; None for no such rows.

    Returns:
        [n, S'] float64: columns without any reference value are left out for every target. A target value that is not
        finite, or has nothing but itself to be held against, has p = 0.5.
    """
    kept = np.isfinite(reference).any(axis=0)
    targets, reference = targets[:, kept], reference[:, kept]
    below, up_to, count = (np.zeros(targets.shape) for _ in range(3))
    for s in range(targets.shape[1]):
        values = np.sort(reference[np.isfinite(reference[:, s]), s])
        below[:, s] = np.searchsorted(values, targets[:, s], side="left")
        up_to[:, s] = np.searchsorted(values, targets[:, s], side="right")
        count[:, s] = len(values)
    if own is not None:
        itself = np.where((own >= 0)[:, None], reference[own], math.nan)
        counted = np.isfinite(itself)
        below -= counted & (itself < targets)
        up_to -= counted & (itself <= targets)
        count -= counted
    if ties == "weak":
        shares = 2 * up_to
    else:
        shares = below + up_to + ((up_to > below) if ties == "rank" else 0)
    known = np.isfinite(targets) & (count > 0)
    return np.where(known, shares / np.where(known, 2 * count, 1), 0.5)


def compose(p: np.ndarray, composition: str, form: Form = "p_value") -> np.ndarray:
    """One score a text; higher means more likely a member.

    Args:
        p: [n, S] p-values, S >= 1.
        composition: one of `COMPOSITIONS`.
        form: minus the combined p-value (from -1, where many texts are exactly, up to 0), or the statistic in the same
            order without those ties. Edgington's score is the same in both.

    Returns:
        [n] float64; it must stay float64, for combined p-values fall below 1e-250.
    """
    from scipy.special import chdtr, chdtrc, stdtr  # the command line starts without it

    p = np.ascontiguousarray(p, np.float64)  # a text's sum is then the same whatever texts stand beside it
    if composition == "edgington":
        return -p.mean(axis=1)
    size = p.shape[1]
    p = np.clip(p, CLIP, 1 - CLIP)
    if composition == "fisher":
        statistic = -2 * np.log(p).sum(axis=1)
        return statistic if form == "statistic" else -chdtrc(2 * size, statistic)
    if composition == "pearson":
        statistic = -2 * np.log1p(-p).sum(axis=1)
        return -statistic if form == "statistic" else -chdtr(2 * size, statistic)
    if composition == "george":
        freedom = 5 * size + 4
        scale = math.sqrt(3 / size) / math.pi * math.sqrt(freedom / (freedom - 2))
        statistic = scale * (np.log1p(-p) - np.log(p)).sum(axis=1)
        return statistic if form == "statistic" else -stdtr(freedom, -statistic)
    raise ValueError(f"unknown composition {composition!r}")
