"""The random numbers of training, from numpy alone: those the published runs drew (supervised spec, 5.4).

Both come from the raw 32-bit outputs of a Mersenne Twister seeded the old way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def permutation(n: int, seed: int) -> list[int]:
    """The order of n things in an epoch: each place in turn changes with one at or after it."""
    order = list(range(n))
    for i, u in enumerate(_outputs(np.random.RandomState(seed), n)[: n - 1]):
        j = i + int(u) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order


def lora_starts(sizes: Sequence[tuple[int, int, int]], seed: int) -> Iterator[np.ndarray]:
    """The first matrix of each linear map's update, uniform within 1/sqrt(D_in); the second one starts at zero.

    One stream serves all maps. Each skips as many numbers as both its matrices have, which a start that is drawn over
    again used up.

    Args:
        sizes: (r, D_in, D_out) of the maps in order.
        seed: of the stream.

    Yields:
        [r, D_in] float32.
    """
    state = np.random.RandomState(seed)
    for rank, d_in, d_out in sizes:
        _outputs(state, rank * (d_in + d_out))
        bound = np.float64(np.float32(1 / np.sqrt(d_in)))
        share = (_outputs(state, rank * d_in) & 0xFFFFFF) * 2.0**-24
        # The product and the difference are rounded once, together.
        yield (share * (2 * bound) - bound).astype(np.float32).reshape(rank, d_in)


def _outputs(state: np.random.RandomState, n: int) -> np.ndarray:
    return state.randint(0, 2**32, n, dtype=np.uint32)
