"""CAMIA's signals: 25 blocks of three numbers a text (CAMIA and PAC spec, 1.2, 1.3 and 1.10)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from olmodetect_jax.compiled import compiled

ENDS = (-1, 200, 300)  # ends of slices: -1 drops the last element
HEAD = 200  # elements that count_above and lz_complexity see
THRESHOLDS = (-1, -2, -3)
BINS = (3, 4, 5)
CUTS = (600, 800, 1000)  # of the repeated pass
PRE_CUTS = (None, 200, 300)
ENTROPY_WINDOW, ENTROPY_TOLERANCE = 8, 0.8
OCCURRENCES, SHORTEST_PATTERN = 3, 3
DISCARDED = 2  # last matches that CAMIA's own code does not use

COMPARED = ("loss", "ppl", "count_above", "lz_complexity", "count_mean", "calibrated_loss", "calibrated_ppl")
DIFFERENCES = tuple(f"overall_diff_{copy}_{name}" for copy in (1, 2) for name in COMPARED)
BLOCKS = tuple(
    sorted((*COMPARED, *DIFFERENCES, "token_diversity", "slope", "approximate_entropy", "count_above_pre"))
)  # sorted, for that is the order of the p-values' columns

NO_SIGNALS = np.full((len(BLOCKS), 3), math.nan)
NO_SIGNALS.flags.writeable = False

Variant = Literal["paper", "original"]
_MISSING = (math.nan,) * 3


def text_signals(
    log_prob: np.ndarray,
    ids: np.ndarray,
    repeated_log_prob: np.ndarray,
    repeated_ids: np.ndarray,
    variant: Variant = "paper",
) -> np.ndarray:
    """All signals of one text.

    Args:
        log_prob: [L], of the text's tokens but the first; finite.
        ids: [L+1], of all its tokens.
        repeated_log_prob: [M-1], of the copies' tokens but the first; finite.
        repeated_ids: [M], of the copies joined by one space.
        variant: how diversity and occurrences are taken.

    Returns:
        [25, 3] float64 in the order of `BLOCKS`; NaN is a signal the text does not have (all of them for L = 0).
    """
    if not len(log_prob):
        return NO_SIGNALS
    x, repeated = log_prob.astype(np.float64), repeated_log_prob.astype(np.float64)
    diversity = token_diversity(ids if variant == "original" else ids[1:])
    with np.errstate(over="ignore", invalid="ignore"):  # a perplexity beyond float64 is a signal that is not finite
        blocks = {
            **_compared(x, diversity),
            "token_diversity": diversity,
            "slope": [slope(repeated[:cut]) for cut in CUTS],
            "approximate_entropy": [approximate_entropy(repeated[:cut]) for cut in CUTS],
            "count_above_pre": count_above_pre(x),
        }
        copies = occurrence_slices(repeated, ids, repeated_ids, variant)
        if copies:
            first, *others = (_compared(copy, diversity) for copy in copies)
            for number, other in enumerate(others, start=1):
                blocks |= {f"overall_diff_{number}_{name}": first[name] - other[name] for name in COMPARED}
    return np.array([blocks.get(name, _MISSING) for name in BLOCKS], np.float64)


def _compared(x: np.ndarray, diversity: np.ndarray) -> dict[str, np.ndarray]:
    """The blocks [3] that are also compared between copies; `diversity` [3] is the text's own for every copy."""
    head, slices = x[:HEAD], [x[:end] for end in ENDS]
    loss = np.array([s.mean() if len(s) else math.nan for s in slices])
    ppl = np.exp(-loss)
    above = [np.count_nonzero(s > m) if len(s) else math.nan for s, m in zip(slices, loss, strict=True)]
    return {
        "loss": loss,
        "ppl": ppl,
        "count_above": np.array([np.mean(head >= threshold) for threshold in THRESHOLDS]),
        "lz_complexity": lz_complexity(head),
        "count_mean": np.array(above, np.float64),
        "calibrated_loss": loss / diversity,
        "calibrated_ppl": ppl / diversity,
    }


def token_diversity(ids: np.ndarray) -> np.ndarray:
    """[3] float64: distinct ids over ids in each slice of [n] ids; NaN for an empty one."""
    slices = [ids[:end] for end in ENDS]
    return np.array([len(np.unique(s)) / len(s) if len(s) else math.nan for s in slices])


def count_above_pre(x: np.ndarray) -> np.ndarray:
    """[3] float64: the share of values above the mean of all values before them; NaN for fewer than two values."""
    above = x[1:] > np.cumsum(x)[:-1] / np.arange(1, len(x))
    heads = [above[: None if cut is None else cut - 1] for cut in PRE_CUTS]
    return np.array([h.mean() if len(h) else math.nan for h in heads])


def slope(x: np.ndarray) -> float:
    """Least-squares slope of [n] values against 0, 1, 2, ...; NaN for n <= 2."""
    if len(x) <= 2:
        return math.nan
    t = np.arange(len(x)) - (len(x) - 1) / 2
    return float(t @ (x - x.mean()) / (t @ t))


def lz_complexity(x: np.ndarray) -> np.ndarray:
    """Lempel-Ziv (78) phrases per value, for each number of bins; [3] float64, NaN for no values."""
    if not len(x):
        return np.array(_MISSING)
    levels = np.digitize(x, np.linspace(x.min(), 0, 100), right=True)
    phrases = []
    for bins in BINS:
        bounds = np.linspace(levels.min(), levels.max(), bins + 1)[1:]
        phrases.append(_phrases(np.searchsorted(bounds, levels, side="left"), bins))
    return np.array(phrases) / len(x)


@compiled()
def _phrases(symbols: np.ndarray, bins: int) -> int:
    """Phrases of a left-to-right parse, the dictionary being a tree whose nodes are phrases; 0 is its root."""
    children = np.zeros((len(symbols) + 1, bins), np.int64)
    count, node = 0, 0
    for symbol in symbols:
        if children[node, symbol]:
            node = children[node, symbol]
        else:
            count += 1
            children[node, symbol] = count
            node = 0
    return count


def approximate_entropy(x: np.ndarray, window: int = ENTROPY_WINDOW, tolerance: float = ENTROPY_TOLERANCE) -> float:
    """Approximate entropy of [n] values.

    Args:
        x: [n] float64.
        window: m, length of the windows that are compared (with m + 1).
        tolerance: r, in standard deviations.

    Returns:
        |phi(m) - phi(m + 1)|; 0 for n <= m + 1 and where the values do not vary.
    """
    if len(x) <= window + 1 or not (allowed := tolerance * x.std()):
        return 0.0
    phis = [np.mean(np.log(counts / len(counts))) for counts in _close_windows(x, allowed, window)]
    return float(abs(phis[0] - phis[1]))


@compiled()
def _close_windows(x: np.ndarray, allowed: float, window: int) -> tuple[np.ndarray, np.ndarray]:
    """For each window of m and of m + 1 values, how many windows (itself too) stay within `allowed` of it.

    Two windows i and i + d are close where m values of the d-th diagonal of |x_i - x_j| in a row are small enough, so
    one walk along each diagonal with the length of the current run counts both.
    """
    n = len(x)
    short = np.ones(n - window + 1, np.int64)
    long = np.ones(n - window, np.int64)
    for d in range(1, n):
        run = 0
        for i in range(n - d):
            run = run + 1 if abs(x[i] - x[i + d]) <= allowed else 0
            if run >= window:
                start = i - window + 1
                short[start] += 1
                short[start + d] += 1
                if run > window:
                    long[start - 1] += 1
                    long[start - 1 + d] += 1
    return short, long


def occurrence_slices(
    repeated: np.ndarray, ids: np.ndarray, repeated_ids: np.ndarray, variant: Variant
) -> list[np.ndarray]:
    """The log-probabilities of the text's first three occurrences among its copies; empty if there are none.

    Args:
        repeated: [M-1], of the copies' tokens but the first.
        ids: [L+1], of the text.
        repeated_ids: [M], of the copies.
        variant: CAMIA's own code looks for the text without its first two tokens, keeps its last two matches out, and
            takes as many values from a match of a shorter end of the pattern as the whole pattern has.
    """
    if variant == "original":
        pattern, needed = ids[2:], OCCURRENCES + DISCARDED
    else:
        pattern, needed = ids[1:], OCCURRENCES
    starts, length = occurrences(pattern, repeated_ids[1:], needed)
    taken = len(pattern) if variant == "original" else length
    return [repeated[start : start + taken] for start in starts[:OCCURRENCES]]


def occurrences(pattern: np.ndarray, ids: np.ndarray, needed: int = OCCURRENCES) -> tuple[np.ndarray, int]:
    """Where a pattern occurs, or else its longest end that occurs often enough.

    Args:
        pattern: [P] integer ids.
        ids: [N] integer ids.
        needed: occurrences (they may overlap) without which the pattern's first token is dropped.

    Returns:
        Starts of all occurrences, [>= needed] ascending, and the length of what occurs there; ([], 0) where fewer than
        three tokens of the pattern would be left.
    """
    common = _common_ends(pattern, ids)
    # The end of length k occurs wherever at least k tokens agree, so the needed-th largest agreement is the answer.
    length = int(np.partition(common, -needed)[-needed]) if len(common) >= needed else 0
    if length < SHORTEST_PATTERN:
        return np.zeros(0, np.int64), 0
    return np.flatnonzero(common >= length) + 1 - length, length


def _common_ends(pattern: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """[N]: how many last tokens of the pattern end at each position of `ids`."""
    joined = np.concatenate([pattern[::-1], [-1], ids[::-1]]).astype(np.int64)  # -1 is no id: nothing agrees beyond it
    return _common_starts(joined)[: len(pattern) : -1]


@compiled()
def _common_starts(ids: np.ndarray) -> np.ndarray:
    """[N]: how many tokens from each position on agree with the sequence's start (the Z function; 0 at position 0).

    Linear: [left, right) is the agreement that reaches furthest, and inside it earlier answers hold again.
    """
    agree = np.zeros(len(ids), np.int64)
    left, right = 0, 0
    for i in range(1, len(ids)):
        length = min(right - i, agree[i - left]) if i < right else 0
        while i + length < len(ids) and ids[length] == ids[i + length]:
            length += 1
        agree[i] = length
        if i + length > right:
            left, right = i, i + length
    return agree
