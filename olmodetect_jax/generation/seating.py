"""Which text sits where: prompts in slots, their texts in the slots' rows. Host only, no arrays of the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from olmodetect_jax.generation.planning import row_key
from olmodetect_jax.requests import Continuation, Generate


class Seating:
    """The texts of one batch: those that wait, those that go on, those that have ended.

    Attributes:
        done: by digest, the continuations of each request whose texts have all ended, in its order.
    """

    def __init__(self, requests: Sequence[Generate], *, slots: int, width: int, parts: int):
        """All requests wait; all slots are free.

        Args:
            requests: in the order in which they take slots.
            slots: G, a multiple of `parts`.
            width: W.
            parts: places that slots are split over, the first G/parts on the first.
        """
        self._waiting = deque(requests)
        self._parts = parts
        self._requests: list[Generate | None] = [None] * slots
        self._left: list[deque[int]] = [deque() for _ in range(slots)]  # rows of each slot's request, yet to begin
        self._rows = np.full((slots, width), -1)  # which of its request's rows sits there; -1 for none
        self._found: list[dict[int, Continuation]] = [{} for _ in range(slots)]
        self.starts = np.zeros((slots, width), np.int32)
        self.limits = np.zeros((slots, width), np.int32)
        self.temperature = np.zeros((slots, width), np.float32)
        self.keys = np.zeros((slots, width, 2), np.uint32)
        self.done: dict[bytes, tuple[Continuation, ...]] = {}

    def next_prompts(self) -> list[tuple[int, Generate]]:
        """Gives waiting prompts a free slot, at most one in each part: (slot, request); empty if none can be given."""
        given = []
        own = len(self._requests) // self._parts
        for part in range(self._parts):
            free = next((g for g in range(part * own, (part + 1) * own) if self._requests[g] is None), None)
            if free is None or not self._waiting:
                continue
            request = self._waiting.popleft()
            self._requests[free] = request
            self._left[free] = deque(range(request.rows))
            given.append((free, request))
        return given

    def seat(self) -> np.ndarray:
        """Gives the next texts of each slot's prompt the free rows; [G, W] bool, where one begins."""
        fresh = np.zeros(self._rows.shape, bool)
        for g, request in enumerate(self._requests):
            for w in np.flatnonzero(self._rows[g] < 0):
                if not self._left[g]:
                    break
                row = self._left[g].popleft()
                greedy = row < request.greedy
                self._rows[g, w], fresh[g, w] = row, True
                self.starts[g, w] = len(request.prompt) if greedy else request.starts[row - request.greedy]
                self.limits[g, w] = request.max_new
                self.temperature[g, w] = 0 if greedy else request.sampling.temperature
                self.keys[g, w] = row_key(request, row)
        return fresh

    @property
    def busy(self) -> bool:
        """Whether a text goes on or waits."""
        return bool(self._waiting) or any(r is not None for r in self._requests)

    def finished(self, active: np.ndarray) -> np.ndarray:
        """[G, W] bool, the seated texts that do not go on."""
        return (self._rows >= 0) & ~active

    def take(self, g: int, w: int, text: Continuation) -> int:
        """Takes a text that has ended from its row.

        Returns:
            How many texts of a request that has now ended as a whole; 0 while it has not.
        """
        self._found[g][int(self._rows[g, w])] = text
        self._rows[g, w] = -1
        request = self._requests[g]
        if len(self._found[g]) < request.rows:
            return 0
        self.done[request.digest] = tuple(self._found[g][row] for row in range(request.rows))
        self._requests[g], self._found[g] = None, {}
        return request.rows
