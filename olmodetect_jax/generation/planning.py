"""From requests to batches of few shapes. Pure numpy, the same on every host, whatever order the requests came in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from olmodetect_jax.requests import Generate
from olmodetect_jax.scoring.planning import Batch, prefix_bucket

# Tokens of each text between two looks at which have ended. Texts begin at such a look and go on to the next one at
# least, so a ring of a multiple of STEPS columns is never written twice by one text (`decode.Slots`).
STEPS = 16
# Texts that are continued at once there: enough for an accelerator to be bound by its units and not its memory.
MOST_ROWS = 256
# Requests of a batch, in loads of its slots: what is lost by a kill against slots that wait for the batch's last text.
LOADS = 4


@dataclass(frozen=True)
class Shape:
    """What decides the programs a request needs.

    Attributes:
        prompt: P, tokens a prompt is padded to.
        new: S, tokens a text can get.
        width: W, texts that continue a prompt at once.
        stop_ids: tokens that end a text.
        top_k: of the draws; None where there are none.
        top_p: of the draws.
    """

    prompt: int
    new: int
    width: int
    stop_ids: tuple[int, ...]
    top_k: int | None
    top_p: float

    @classmethod
    def of(cls, request: Generate) -> Shape:
        """The shape of a request, by itself."""
        new = max(STEPS, 2 ** math.ceil(math.log2(request.max_new)))  # a multiple of STEPS
        how = request.sampling
        draws = (None, 1.0) if how is None else (how.top_k, how.top_p)
        return cls(prefix_bucket(len(request.prompt)), new, _width(request.rows), request.stop_ids, *draws)

    def slots(self, kv_tokens: int) -> int:
        """Prompts that fit at once on one place."""
        return max(1, min(kv_tokens // (self.prompt + self.width * self.new), MOST_ROWS // self.width))


def _width(rows: int) -> int:
    """Few widths: one text, a few, or many in turns of 16; the usual 50 and 51 samples go at once."""
    if 32 < rows <= 52:
        return 52
    return next(w for w in (1, 4, 16) if w >= min(rows, 16))


def make_plan(requests: Sequence[Generate], *, kv_tokens: int, row_multiple: int) -> list[Batch]:
    """Groups distinct requests into batches of one shape; a batch holds up to `LOADS` times as many as it has slots.

    The number of slots follows from how many requests share a shape, so a text that is asked for among others is
    computed in another program than alone: the same up to the order of sums, which decides a near-tie.

    Args:
        requests: distinct requests in any order.
        kv_tokens: keys and values of a batch on each place that rows are split over.
        row_multiple: the number of slots is a multiple of this.
    """
    by_shape: dict[Shape, list[bytes]] = {}
    for request in requests:
        by_shape.setdefault(Shape.of(request), []).append(request.digest)
    plan = []
    for shape, digests in sorted(by_shape.items(), key=lambda item: repr(item[0])):
        digests.sort()
        most = shape.slots(kv_tokens) * row_multiple
        batches = math.ceil(len(digests) / (LOADS * most))
        size = math.ceil(len(digests) / batches)
        slots = min(most, math.ceil(size / row_multiple) * row_multiple)
        plan += [Batch(shape.prompt, slots, tuple(digests[i : i + size])) for i in range(0, len(digests), size)]
    return plan


def row_key(request: Generate, row: int) -> np.ndarray:
    """[2] uint32 from which everything is drawn for one text: its record's seed and its own place, nothing else."""
    if request.sampling is None or row < request.greedy:
        return np.zeros(2, np.uint32)
    name = f"{request.sampling.seed} {row - request.greedy}".encode()
    return np.frombuffer(hashlib.sha256(name).digest()[:8], "<u4").astype(np.uint32)
