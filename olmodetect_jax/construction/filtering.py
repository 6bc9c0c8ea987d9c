"""The non-members of a pool that the model cannot have seen: no member's text, and little of them in its indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmodetect_jax.construction.candidates import Candidate, Steps
from olmodetect_jax.construction.index.base import NgramIndex
from olmodetect_jax.construction.overlap import Overlap, OverlapMeasure, ShortText, score_field
from olmodetect_jax.construction.pools import Encode, Pool

STEP = "13-gram overlap"
_TOGETHER = 256  # candidates whose windows are looked up together
_SHOWN = 5  # passages that are kept of a candidate


def drop_members(non_members: Pool, members: Iterable[Pool]) -> Pool:
    """The non-members without those whose texts stand in a pool of members too."""
    known, steps = {c.key for pool in members for c in pool.candidates}, Steps.from_rows(non_members.steps.rows())
    kept = [c for c in non_members.candidates if c.key not in known]
    steps.keep("not among members", len(kept))
    if len(kept) < len(non_members.candidates):
        steps.drop("not among members", "its text is a member's", len(non_members.candidates) - len(kept))
    return Pool(kept, steps)


@dataclass(frozen=True)
class Filter:
    """The 13-gram filter with what it needs (construction spec, section 4).

    Attributes:
        measure: of texts against the indices.
        indices: the same indices, by name.
        copies: by model size, how often each was trained on.
        encode: texts to ids.
        decode: ids to text.
    """

    measure: OverlapMeasure
    indices: Mapping[str, NgramIndex]
    copies: Mapping[str, Mapping[str, int]]
    encode: Encode
    decode: Callable[[np.ndarray], str]

    def description(self, sizes: Sequence[str]) -> dict[str, Any]:
        """What the filter's answers for these sizes depend on, as JSON values."""
        used = {size: dict(self.copies[size]) for size in sizes}
        names = sorted({name for copies in used.values() for name in copies})
        indices = {name: self.indices[name].description for name in names}
        return {
            "n": self.measure.n, "threshold": self.measure.threshold, "variant": self.measure.has_variant,
            "sizes": used, "indices": indices,
        }  # fmt: skip

    def keep(
        self, pool: Pool, sizes: Sequence[str], *, short_text: ShortText, report: Callable[[int], None]
    ) -> tuple[Pool, list[dict[str, Any]]]:
        """The candidates that no size rejects, with their overlap scores added to their records.

        Args:
            pool: of non-members.
            sizes: model sizes, in the order they are checked.
            short_text: what a text of fewer tokens than a window gets.
            report: is told how many more candidates are done.

        Returns:
            The pool that is left; and of each candidate with a window that occurs: where it came from, whether it was
            kept, its scores, how often its windows occur, and the passages that do.
        """
        steps, kept, found = Steps.from_rows(pool.steps.rows()), [], []
        for start in range(0, len(pool.candidates), _TOGETHER):
            some = pool.candidates[start : start + _TOGETHER]
            texts = [text for c in some for text in c.overlap_texts.values()]
            ids = self.encode(texts)
            overlaps = iter(zip(ids, self.measure.measure(ids, sizes, short_text=short_text), strict=True))
            for candidate in some:
                fields = {name: next(overlaps) for name in candidate.overlap_texts}
                failing = [(o.first_failing, name) for name, (_, o) in fields.items() if not o.kept]
                if failing:
                    size, name = failing[0]
                    short = " (too short)" if len(fields[name][0]) < self.measure.n else ""
                    steps.drop(STEP, f"{f'{name}, ' if name else ''}{size}{short}")
                else:
                    steps.keep(STEP)
                    kept.append(_with_scores(candidate, fields))
                passages = self._passages(fields)
                if passages:
                    found.append(
                        {
                            "where": candidate.where,
                            "kept": not failing,
                            "scores": _scores(fields),
                            "occurrences": _occurrences(fields),
                            "passages": passages,
                        }
                    )
            report(len(some))
        return Pool(kept, steps), found

    def _passages(self, fields: Mapping[str, tuple[np.ndarray, Overlap]]) -> list[str]:
        """The longest runs of tokens whose windows all occur, as text, of each field."""
        runs = []
        for ids, overlap in fields.values():
            hits = np.zeros(max(0, len(ids) - self.measure.n + 1), bool)
            for of_size in overlap.by_size.values():
                hits |= of_size.hits
            edges = np.flatnonzero(np.diff(np.concatenate([[0], hits, [0]])))
            runs += [ids[first : last + self.measure.n - 1] for first, last in edges.reshape(-1, 2)]
        return [self.decode(run) for run in sorted(runs, key=len, reverse=True)[:_SHOWN]]


def _scores(fields: Mapping[str, tuple[np.ndarray, Overlap]]) -> dict[str, float]:
    return {
        score_field(size, name): of_size.eta
        for name, (_, overlap) in fields.items()
        for size, of_size in overlap.by_size.items()
    }


def _occurrences(fields: Mapping[str, tuple[np.ndarray, Overlap]]) -> dict[str, int]:
    """By size: how often the windows occur, times the copies of their index."""
    found: dict[str, int] = {}
    for _, overlap in fields.values():
        for size, of_size in overlap.by_size.items():
            found[size] = found.get(size, 0) + of_size.total_count
    return found


def _with_scores(candidate: Candidate, fields: Mapping[str, tuple[np.ndarray, Overlap]]) -> Candidate:
    files = {part: {**record, **_scores(fields)} for part, record in candidate.files.items()}
    return dataclasses.replace(candidate, files=files)
