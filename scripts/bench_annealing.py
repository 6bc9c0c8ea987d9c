"""The construction's annealing on a problem of the shape of DCLM's: 300 candidates of real text, 150 chosen."""

from __future__ import annotations

import hashlib
import statistics
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import regex

from olmodetect_jax.construction.annealing import AnnealingSettings, Search
from olmodetect_jax.construction.candidates import Texts
from olmodetect_jax.construction.jsd import js_divergence

_WORD = regex.compile(r"\w+|[^\w\s]+|\s+")
TOKENS, CHOSEN, CANDIDATES = 217_163, 150, 300


def problem(seed: int = 0) -> tuple[Texts, Texts]:
    """Pool and non-members of real text: passages of the Python library, whose words are hashed to 100,000 ids."""
    words = _words()
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(np.log(TOKENS / CHOSEN) - 0.18, 0.6, CHOSEN + CANDIDATES).astype(int).clip(60, 8000)
    lengths[:CHOSEN] = _scaled(lengths[:CHOSEN])
    starts = rng.permutation(len(words) - 8000)[: len(lengths)]
    ids = [words[start : start + n] for start, n in zip(starts, lengths, strict=True)]
    undated = np.full(len(ids), np.nan)
    keys = [str(i) for i in range(len(ids))]
    texts = Texts(ids, undated, keys)
    return texts.take(np.arange(CHOSEN, len(ids))), texts.take(np.arange(CHOSEN))


def _scaled(lengths: np.ndarray) -> np.ndarray:
    scaled = (lengths * (TOKENS / lengths.sum())).astype(int)
    scaled[0] += TOKENS - scaled.sum()
    return scaled


def _words() -> np.ndarray:
    library, found = Path(sysconfig.get_path("stdlib")), []
    for path in sorted(library.glob("*.py")):
        found += _WORD.findall(path.read_text(encoding="utf-8", errors="replace"))
    known = {w: int.from_bytes(hashlib.sha256(w.encode()).digest()[:4], "big") % 100_000 for w in set(found)}
    return np.array([known[w] for w in found], np.uint32)


def bench_annealing(steps: int = 1_000_000, rounds: int = 3, numpy_steps: int = 2_000) -> dict[str, Any]:
    """Proposals a second of the compiled search, and against a loop that computes the divergence anew."""
    pool, others = problem()
    settings = AnnealingSettings()
    rates, ratios, drift = [], [], 0.0
    for seed in range(rounds + 1):  # the first one compiles
        search = Search(pool, others, settings, np.arange(CHOSEN), np.arange(CHOSEN, CANDIDATES))
        rng = np.random.default_rng(seed)
        _propose(search, rng, 100_000)  # into the margin
        before = search.accepted
        seconds = _timed(lambda search=search, rng=rng: _propose(search, rng, steps))
        plain, compared = _numpy_seconds(pool, others, search, np.random.default_rng(seed + 100), numpy_steps)
        search.check("bench")
        if seed:
            rates.append(steps / seconds)
            ratios.append((plain / numpy_steps) / (seconds / steps))
            drift = max(drift, search.drift)
    rate = statistics.median(rates)
    return {
        "candidates": CANDIDATES,
        "chosen": CHOSEN,
        "tokens": int(others.n_tokens.sum()),
        "distinct_ids": len(np.unique(np.concatenate([*pool.ids, *others.ids]))),
        "proposals_per_second": round(rate),
        "seconds_for_1e7": round(1e7 / rate, 1),
        "ratio_to_numpy": round(statistics.median(ratios), 1),
        "ratios": [round(r, 1) for r in ratios],
        "share_compared": round(compared / numpy_steps, 3),
        "accepted": search.accepted - before,
        "largest_drift": drift,
    }


def _timed(function: Any) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _propose(search: Search, rng: np.random.Generator, steps: int) -> None:
    search.propose(rng.integers(0, CHOSEN, steps), rng.integers(0, CANDIDATES - CHOSEN, steps), rng.random(steps))


def _numpy_seconds(
    pool: Texts, others: Texts, search: Search, rng: np.random.Generator, steps: int
) -> tuple[float, int]:
    """Seconds of a plain loop from the same state: the divergence anew at every proposal within the margin."""
    vocabulary = np.unique(np.concatenate([*pool.ids, *others.ids]))

    def counts(ids: np.ndarray) -> np.ndarray:
        return np.bincount(np.searchsorted(vocabulary, ids), minlength=len(vocabulary))

    texts = [counts(ids) for ids in pool.ids]
    q, chosen, rest = counts(np.concatenate(others.ids)), search.chosen.copy(), search.rest.copy()
    p = sum(texts[i] for i in chosen)
    lengths, target = pool.n_tokens, int(others.n_tokens.sum())
    loss, tokens, temperature, compared = js_divergence(p, q), search.tokens, search.temperature, 0
    outs, ins = rng.integers(0, CHOSEN, steps), rng.integers(0, CANDIDATES - CHOSEN, steps)
    uniforms = rng.random(steps)
    started = time.perf_counter()
    for out, into, uniform in zip(outs, ins, uniforms, strict=True):
        old, new = chosen[out], rest[into]
        after = tokens - lengths[old] + lengths[new]
        if abs(after - target) > search.settings.margin:
            continue
        compared += 1
        trial = p - texts[old] + texts[new]
        found = js_divergence(trial, q)
        if found < loss or uniform < np.exp(-(found - loss) / temperature):
            p, loss, tokens, chosen[out], rest[into] = trial, found, after, new, old
            temperature *= search.settings.factor
    return time.perf_counter() - started, compared
