"""Sup-CAMIA's features: 71 numbers a text, an older set than CAMIA's signals (CAMIA and PAC spec, 2.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from olmodetect_jax.attacks.camia_signals import (
    BINS,
    CUTS,
    HEAD,
    THRESHOLDS,
    approximate_entropy,
    count_above_pre,
    lz_complexity,
    slope,
)

HEADS: Mapping[str, int | None] = {"full": None, "200": 200, "300": 300}  # nothing is dropped from the full sequence
ENTROPY_CUTS = (200, 300)  # of the text alone, as are `CUTS` of the slope
DIVERSITY_TOKENS = 1024
LEAST_LZ, LEAST_ENTROPY = 6, 21  # values without which there is no such feature

_SLICED = ("loss", "ppl", "cal_loss", "cal_ppl", "count_mean")
_COMPARED = (
    *(f"{block}_{head}" for block in _SLICED for head in HEADS),
    *(f"count_above_{threshold:.1f}" for threshold in THRESHOLDS),
    *(f"lz_{bins}" for bins in BINS),
)
_OWN = (
    *(f"count_prev_mean_{head}" for head in HEADS),
    *(f"apen_{cut}" for cut in ENTROPY_CUTS),
    *(f"slope_{cut}" for cut in CUTS),
)
_DIFFERENCES = ("r1_diff_", "r2_diff_")  # begin the names of what the text has more than its second and third copy
FEATURES = tuple(sorted((*_COMPARED, *_OWN, *(before + name for before in _DIFFERENCES for name in _COMPARED))))


def group_of(feature: str) -> str:
    """The signal that a feature is a variation of, alone or as a difference: one of ten."""
    for before in _DIFFERENCES:
        feature = feature.removeprefix(before)
    return feature.rpartition("_")[0]


GROUPS = tuple(group_of(feature) for feature in FEATURES)


def text_features(log_prob: np.ndarray, ids: np.ndarray, copies: Sequence[np.ndarray]) -> np.ndarray:
    """All features of one text.

    Args:
        log_prob: [L], of the text's tokens but the first; finite.
        ids: [L+1], of all its tokens.
        copies: the log-probabilities of the text's second and third copy, [<= L] each; finite.

    Returns:
        [71] float64 in the order of `FEATURES`; NaN is a feature that the text does not have (all of them for L = 0),
        or one beyond float64.
    """
    x = log_prob.astype(np.float64)
    diversity = np.array([_diversity(ids[:DIVERSITY_TOKENS][:head]) for head in HEADS.values()])
    with np.errstate(over="ignore", invalid="ignore"):  # a perplexity beyond float64 is no feature
        own = _compared(x, diversity)
        found = own | _alone(x)
        for before, copy in zip(_DIFFERENCES, copies, strict=True):
            other = _compared(copy.astype(np.float64), diversity)
            found |= {before + name: own[name] - other[name] for name in own.keys() & other.keys()}
    values = np.array([found.get(name, math.nan) for name in FEATURES], np.float64)
    values[~np.isfinite(values)] = math.nan
    return values


def _diversity(ids: np.ndarray) -> float:
    """Distinct ids over ids, the first token's too."""
    return len(np.unique(ids)) / len(ids) if len(ids) else math.nan


def _compared(x: np.ndarray, diversity: np.ndarray) -> dict[str, float]:
    """The features that are also compared between copies; `diversity` [3] is the text's own for every copy."""
    if not len(x):
        return {}
    head, slices = x[:HEAD], [x[:end] for end in HEADS.values()]
    loss = np.array([s.mean() for s in slices])
    ppl = np.exp(-loss)
    values = [
        *loss,
        *ppl,
        *loss / diversity,
        *ppl / diversity,
        *(np.mean(s > mean) for s, mean in zip(slices, loss, strict=True)),
        *(np.mean(head >= threshold) for threshold in THRESHOLDS),
        *(lz_complexity(head) if len(head) >= LEAST_LZ else [math.nan] * len(BINS)),
    ]
    return dict(zip(_COMPARED, map(float, values), strict=True))


def _alone(x: np.ndarray) -> dict[str, float]:
    """The features of the text alone."""
    entropy = [approximate_entropy(x[:cut]) if len(x) >= LEAST_ENTROPY else math.nan for cut in ENTROPY_CUTS]
    values = [*count_above_pre(x), *entropy, *(slope(x[:cut]) for cut in CUTS)]
    return dict(zip(_OWN, values, strict=True))
