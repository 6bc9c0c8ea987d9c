"""Measures one case and prints one JSON object; times are ratios within the run, for machines differ and are noisy.

Example:
    python scripts/bench.py statistics --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from olmodetect_jax.scoring.statistics import sizes, token_statistics


def paired_ratio(case: Callable[[], Any], base: Callable[[], Any], rounds: int) -> tuple[float, list[float]]:
    """Times two functions in turn.

    Args:
        case: what is measured; returns arrays to wait for.
        base: what it is compared with.
        rounds: pairs counted, after one warm-up.

    Returns:
        The median of the pairs' ratios case / base, and the ratios.
    """

    def seconds(function: Callable[[], Any]) -> float:
        started = time.perf_counter()
        jax.block_until_ready(function())
        return time.perf_counter() - started

    seconds(case), seconds(base)
    ratios = [seconds(case) / seconds(base) for _ in range(rounds)]
    return statistics.median(ratios), ratios


def bench_statistics(tokens: int = 1024, width: int = 1024, vocabulary: int = 100_352) -> dict[str, Any]:
    """The statistics kernel against the bare matrix product and one row sum; and its temporary memory."""
    a, b = jax.random.split(jax.random.key(0))
    hidden = jax.random.normal(a, (1, tokens, width))
    head = jax.random.normal(b, (width, vocabulary)) * 0.05
    targets = jnp.zeros((1, tokens), jnp.int32)
    tile, group = sizes(jax.devices()[0].platform, vocabulary)
    kernel = (
        jax.jit(lambda h, w, y: token_statistics(h, w, y, tile=tile, group=group))
        .lower(hidden, head, targets)
        .compile()
    )
    matmul = jax.jit(lambda h, w: jnp.sum(h[0] @ w, axis=-1)).lower(hidden, head).compile()
    ratio, ratios = paired_ratio(lambda: kernel(hidden, head, targets), lambda: matmul(hidden, head), rounds=9)
    return {
        "case": "statistics",
        "ratio_to_matmul": round(ratio, 3),
        "ratios": [round(r, 3) for r in ratios],
        "temp_bytes": kernel.memory_analysis().temp_size_in_bytes,
        "bound_bytes": int(2.5 * min(tile, tokens) * vocabulary * 4),
    }


CASES: dict[str, Callable[[], dict[str, Any]]] = {"statistics": bench_statistics}


def main() -> int:
    """Reads the case and runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=sorted(CASES), help="what to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    result = CASES[options.case]()
    print(json.dumps(result) if options.json else "\n".join(f"{k}: {v}" for k, v in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
