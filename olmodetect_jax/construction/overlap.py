"""How much of a text a model may have seen: the share of its 13-token windows that occur (construction spec, 4).

A window counts by its position, so one that stands in a text twice counts twice. Token indices are asked with ids,
which makes the filter sensitive to case and to where words begin: "The" and "the" are other tokens, and so is a word
without the space before it. A window at the start of a text may therefore be missed in another where the words stand
after a space. The first-token variant makes up for that: each window is asked a second time with the word-start mark of
its first piece toggled. Text indices are asked with what the window's ids spell, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from olmodetect_jax.construction.index.base import NgramIndex, windows
from olmodetect_jax.construction.pieces import Pieces

ShortText = Literal["reject", "zero"]


@dataclass(frozen=True, eq=False)
class SizeOverlap:
    """One text against the training data of one model size.

    Attributes:
        eta: share of its windows that occur; 1 or 0 for a text without windows. Where reading stopped early (blocks,
            and the variant, which is then left out) it is a lower bound; the text is rejected anyway.
        kept: whether that is below the threshold.
        hits: [W] bool, which windows occur (of those read).
        plain_hits: how many occur without the variant.
        total_count: occurrences of the windows themselves, times the copies of their index.
        stopped_after: windows read when those that occur without the variant reached the threshold; None if never.
    """

    eta: float
    kept: bool
    hits: np.ndarray
    plain_hits: int
    total_count: int
    stopped_after: int | None


@dataclass(frozen=True)
class Overlap:
    """One text against the sizes it is for, in their order, up to the first that rejects it.

    Attributes:
        by_size: what was found.
    """

    by_size: Mapping[str, SizeOverlap]

    @property
    def kept(self) -> bool:
        """Whether no size rejects it."""
        return all(found.kept for found in self.by_size.values())

    @property
    def first_failing(self) -> str | None:
        """The size that rejects it."""
        return next((size for size, found in self.by_size.items() if not found.kept), None)


class OverlapMeasure:
    """Measures texts against indices.

    Attributes:
        n: tokens of a window.
        threshold: a text is kept if strictly less than this share of its windows occurs.
    """

    def __init__(
        self,
        indices: Mapping[str, NgramIndex],
        copies: Mapping[str, Mapping[str, int]],
        *,
        n: int = 13,
        threshold: float = 0.2,
        pieces: Pieces | None = None,
        decode: Callable[[np.ndarray], str] | None = None,
    ):
        """See the attributes.

        Args:
            indices: by name.
            copies: by model size, how often each index was trained on.
            n: tokens of a window.
            threshold: of the share.
            pieces: the vocabulary, for the first-token variant; None to leave that out.
            decode: ids to text, for indices that are asked with text.
        """
        self.n, self.threshold = n, threshold
        self._indices, self._copies, self._pieces, self._decode = indices, copies, pieces, decode

    def measure(
        self,
        texts: Sequence[np.ndarray],
        sizes: Sequence[str],
        *,
        short_text: ShortText,
        report: Callable[[int], None] = lambda done: None,
    ) -> list[Overlap]:
        """Measures texts together.

        Args:
            texts: ids of each, [T] uint32.
            sizes: model sizes, in the order they are checked; one that rejects a text ends its checking.
            short_text: whether a text of fewer than n tokens is rejected (1.0) or has no overlap (0.0).
            report: is told how many more texts are done.

        Returns:
            One result a text.
        """
        found: list[dict[str, SizeOverlap]] = [{} for _ in texts]
        alive = list(range(len(texts)))
        answers = {name: _Answers(index, self) for name, index in self._indices.items()}
        for size in sizes:
            rejected = []
            for i, overlap in zip(
                alive, self._of_size([texts[i] for i in alive], size, short_text, answers), strict=True
            ):
                found[i][size] = overlap
                if not overlap.kept:
                    rejected.append(i)
            report(len(rejected))
            alive = [i for i in alive if found[i][size].kept]
        report(len(alive))
        return [Overlap(by_size) for by_size in found]

    def _of_size(
        self, texts: list[np.ndarray], size: str, short_text: ShortText, answers: Mapping[str, _Answers]
    ) -> list[SizeOverlap]:
        copies = {name: n for name, n in self._copies[size].items() if n}
        used = [answers[name] for name in copies]
        readings = [_Reading(windows(ids, self.n), self.threshold) for ids in texts]
        block = min((a.index.block for a in used if a.index.block is not None), default=None)
        # Blocks of each text from left to right, all texts together, until enough windows occur or none is left.
        while spans := [(r, r.next_span(block)) for r in readings if not r.done]:
            asked = np.concatenate([r.windows[span] for r, span in spans])
            counts = sum(n * answers[name].plain(asked) for name, n in copies.items()) + np.zeros(len(asked), np.int64)
            for (r, _), part in zip(spans, _split(counts, spans), strict=True):
                r.read(part)
        open_windows = [(r, r.without_hits()) for r in readings if r.stopped_after is None]
        asked = np.concatenate([r.windows[places] for r, places in open_windows] or [np.zeros((0, self.n), np.uint32)])
        variant = np.zeros(len(asked), bool)
        for a in used:
            variant |= a.variant(asked)
        start = 0
        for r, places in open_windows:
            r.hits[places] = variant[start : start + len(places)]
            start += len(places)
        return [r.result(short_text) for r in readings]

    @property
    def has_variant(self) -> bool:
        """Whether windows are asked with another first piece too."""
        return self._pieces is not None

    def partner(self, token: int) -> int | None:
        """The first piece's partner; None if it has none, or where the variant is left out."""
        return None if self._pieces is None else self._pieces.toggled(token)

    def spelt(self, window: np.ndarray) -> str:
        """What a window's ids spell."""
        if self._decode is None:
            raise ValueError("an index that is asked with text needs `decode`")
        return self._decode(window)


def _split(values: np.ndarray, spans: Sequence[tuple[_Reading, slice]]) -> list[np.ndarray]:
    return np.split(values, np.cumsum([span.stop - span.start for _, span in spans])[:-1])


class _Answers:
    """What one index says; asked once for each window of a batch, whatever number of sizes use it."""

    def __init__(self, index: NgramIndex, measure: OverlapMeasure):
        self.index, self._measure = index, measure
        self._known: dict[bytes, int] = {}

    def plain(self, asked: np.ndarray) -> np.ndarray:
        """Occurrences of windows: [Q] int64."""
        return self._count(asked)

    def variant(self, asked: np.ndarray) -> np.ndarray:
        """Whether windows occur with another first piece: [Q] bool; text has no variant."""
        found = np.zeros(len(asked), bool)
        if self.index.asked_with == "text" or not len(asked):
            return found
        partners = {int(token): self._measure.partner(int(token)) for token in np.unique(asked[:, 0])}
        places = np.flatnonzero([partners[int(token)] is not None for token in asked[:, 0]])
        changed = asked[places].copy()
        changed[:, 0] = [partners[int(token)] for token in changed[:, 0]]
        found[places] = self._count(changed) > 0
        return found

    def _count(self, asked: np.ndarray) -> np.ndarray:
        asked = np.ascontiguousarray(asked)
        keys = [row.tobytes() for row in asked]
        new = {key: i for i, key in enumerate(keys) if key not in self._known}
        if new:
            rows = asked[list(new.values())]
            queries = rows if self.index.asked_with == "ids" else [self._measure.spelt(row) for row in rows]
            self._known |= zip(new, self.index.count(queries).tolist(), strict=True)
        return np.array([self._known[key] for key in keys], np.int64)


class _Reading:
    """One text's windows, read from left to right."""

    def __init__(self, text_windows: np.ndarray, threshold: float):
        self.windows, self._threshold = text_windows, threshold
        self.hits = np.zeros(len(text_windows), bool)
        self.stopped_after: int | None = None
        self._read = self._plain_hits = self._total = 0

    @property
    def done(self) -> bool:
        return self.stopped_after is not None or self._read == len(self.windows)

    def next_span(self, block: int | None) -> slice:
        end = len(self.windows) if block is None else min(self._read + block, len(self.windows))
        return slice(self._read, end)

    def read(self, counts: np.ndarray) -> None:
        """Takes the occurrences of the next windows."""
        span = slice(self._read, self._read + len(counts))
        self.hits[span] = counts > 0
        # The share, as in `result`: a rounded product could stop at what is not rejected, or read on where it is.
        reached = (self._plain_hits + np.cumsum(counts > 0)) / len(self.windows) >= self._threshold
        if reached.any():
            self.stopped_after = self._read + int(np.argmax(reached)) + 1
        self._read = span.stop
        self._plain_hits += int((counts > 0).sum())
        self._total += int(counts.sum())

    def without_hits(self) -> np.ndarray:
        return np.flatnonzero(~self.hits)

    def result(self, short_text: ShortText) -> SizeOverlap:
        if not len(self.windows):
            eta = 1.0 if short_text == "reject" else 0.0
            return SizeOverlap(eta, short_text == "zero", self.hits, 0, 0, None)
        eta = float(self.hits.mean())
        kept = eta < self._threshold
        return SizeOverlap(eta, kept, self.hits, self._plain_hits, self._total, self.stopped_after)


def score_field(size: str, field: str) -> str:
    """The name of a record's overlap score: of its text, or of its prompt, chosen or rejected."""
    return f"{size}_{field}_13-gram_overlap_score" if field else f"{size}_13-gram_overlap_score"
