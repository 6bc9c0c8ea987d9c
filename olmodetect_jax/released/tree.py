"""A folder of released scores as a whole: which files there are, and the scores of each row, subset and side."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from olmodetect_jax.benchmark import VARIANTS, Tree, model_size
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.records import MEMBER, NON_MEMBER
from olmodetect_jax.released.emmia import read_emmia
from olmodetect_jax.released.files import Joined, Line, Sample, join, read_lines, read_scores, unscored
from olmodetect_jax.released.layout import (
    BASE_COLUMNS,
    COLUMNS,
    EMMIA,
    LODO_STEMS,
    RESULTS,
    RESULTS_LODO,
    Side,
    emmia_tags,
    rows_of,
    side_of,
    sides,
)

READINGS = ("as_stored", "current")


@dataclass(frozen=True)
class Scored:
    """One record's released score.

    Attributes:
        record_id: of the benchmark's line; of the sample where it joins to none.
        key: hash of the text; empty where neither sample nor benchmark has it.
        value: None where there is no usable score.
        missing: why, then.
        base: the base score that FSD's deviates from.
        choices: EMMIA's scores from its four base scores.
        fill: the marker of a score that was filled in later.
    """

    record_id: str
    key: str
    value: float | None
    missing: str | None = None
    base: float | None = None
    choices: tuple[float, ...] = ()
    fill: str | None = None


@dataclass
class Released:
    """What one model's released scores hold, by variant.

    Attributes:
        model: name of its folder.
        size: of an OLMo 2 model, else None.
        rows: (variant, row id, subset id) to {(label, side): scores}.
        files: path from the tree's root to SHA-256.
        notes: what a reader should know: samples that join to nothing, repeated texts, records without a score.
    """

    model: str
    size: str | None
    rows: dict[tuple[str, str, str], dict[tuple[int, str], tuple[Scored, ...]]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_released(
    root: Path, tree: Tree, *, benchmark: Path | None = None, reading: str = "as_stored"
) -> dict[str, Released]:
    """Reads every model's scores.

    Args:
        root: folder that holds `results`, and maybe `results_lodo`.
        tree: the benchmark's.
        benchmark: its folder, to join samples to its lines; None to take samples as they are.
        reading: `as_stored`, all samples, as the published numbers do; or `current`, one a line of the benchmark.

    Returns:
        Model folder to its scores.

    Raises:
        UsageError: there is no `results`, or `current` without a benchmark.
        DataError: a file is no such file, or one side of a leaf stands there twice.
    """
    if not (root / RESULTS).is_dir():
        raise UsageError(f"{root}: holds no folder `{RESULTS}`, so it is not a tree of released scores")
    if reading == "current" and benchmark is None:
        raise UsageError("reading current: give the benchmark that the scores are joined to")
    reader = _Reader(root, tree, benchmark, reading)
    for path, side_folder, model, stem, lodo in _score_files(root):
        reader.scores(path, side_folder, model, stem, lodo=lodo)
    for path in sorted((root / RESULTS / EMMIA).glob("*/emmia_*.json")):
        reader.emmia(path)
    return reader.found


def _score_files(root: Path) -> Iterator[tuple[Path, str, str, str, bool]]:
    """(path, side folder, model folder, stem, whether trained with the domain left out) of every score file."""
    for stem in COLUMNS:
        for path in sorted((root / RESULTS).glob(f"*/*/{stem}.json")):
            if path.parts[-3] != EMMIA:
                yield path, path.parts[-3], path.parts[-2], stem, False
    for stem in LODO_STEMS:
        for path in sorted((root / RESULTS_LODO / stem).glob(f"*/*/{stem}.json")):
            yield path, path.parts[-3], path.parts[-2], stem, True


class _Reader:
    """Collects scores file by file."""

    def __init__(self, root: Path, tree: Tree, benchmark: Path | None, reading: str):
        self.root, self.tree, self.benchmark, self.reading = root, tree, benchmark, reading
        self.found: dict[str, Released] = {}
        self._lines: dict[Path, tuple[Line, ...] | None] = {}

    def scores(self, path: Path, folder: str, model: str, stem: str, *, lodo: bool) -> None:
        """One file of a method."""
        size = model_size(model)
        side = side_of(self.tree, folder, size)
        of = self._of(model, size)
        if side is None:
            of.notes.append(f"{self._name(path)}: {folder} is no side of a subset of this model; left out")
            return
        self._keep(of, path)
        samples, lines = read_scores(path).samples, self._lines_of(side)
        for row, column in rows_of(stem, lodo=lodo).items():
            base = BASE_COLUMNS.get(row.removesuffix("_lodo"))
            values = self._placed(path, samples, lines, of, column, base)
            for variant in VARIANTS if side.variant is None else (side.variant,):
                self._add(of, variant, row, side.subset, (side.label, side.side), values, path)

    def emmia(self, path: Path) -> None:
        """One of EMMIA's files: both sides in one, joined by place."""
        file = read_emmia(path)
        of = self._of(file.model, model_size(file.model))
        tags = emmia_tags(self.tree, of.size) if of.size else {}
        if path.parent.name not in tags:
            if not path.parent.name.endswith("_dev"):
                of.notes.append(f"{self._name(path)}: {path.parent.name} is no test file of a subset; left out")
            return
        self._keep(of, path)
        subset, side, variant = tags[path.parent.name]
        for label, choices in ((MEMBER, file.member), (NON_MEMBER, file.non_member)):
            own = self._emmia_side(subset, side, label, variant, of.size)
            lines = self._lines_of(own) if own else None
            joined = lines if lines is not None and len(lines) == len(choices) else None
            tag = "" if joined is not None or not path.parent.name.endswith("_sub300") else "sub300_"
            values = tuple(
                Scored(
                    joined[i].record_id if joined else f"{tag}sample_{i}", joined[i].key if joined else "",
                    scores[0], choices=scores,
                )
                for i, scores in enumerate(choices)
            )  # fmt: skip
            self._add(of, variant, "em_mia", subset, (label, side), values, path)

    def _emmia_side(self, subset: str, side: str, label: int, variant: str, size: str | None) -> Side | None:
        for own in _sides_of(self.tree, size):
            wanted = (subset, side, label, variant if label == MEMBER and own.variant else None)
            if (own.subset, own.side, own.label, own.variant) == wanted:
                return own
        return None

    def _of(self, model: str, size: str | None) -> Released:
        return self.found.setdefault(model, Released(model, size))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _keep(self, of: Released, path: Path) -> None:
        of.files[self._name(path)] = hashlib.sha256(path.read_bytes()).hexdigest()

    def _lines_of(self, side: Side) -> tuple[Line, ...] | None:
        if self.benchmark is None:
            return None
        path = self.benchmark / side.benchmark
        if path not in self._lines:
            self._lines[path] = read_lines(path) if path.is_file() else None
        if self._lines[path] is None and self.reading == "current":
            raise DataError(f"{path}: no such file, so the scores of {side.subset} cannot be joined to it")
        return self._lines[path]

    def _placed(
        self,
        path: Path,
        samples: Sequence[Sample],
        lines: Sequence[Line] | None,
        of: Released,
        column: str,
        base: str | None,
    ) -> tuple[Scored, ...]:
        if lines is None:
            return tuple(_scored(s, s.sample_id, s.key or "", column, base) for s in samples)
        joined = join(samples, lines)
        self._say(path, samples, joined, lines, of)
        if self.reading == "current":
            return _one_a_line(samples, joined, lines, column, base)
        found = []
        for sample, j in zip(samples, joined, strict=True):
            line = None if j.line is None else lines[j.line]
            name, key = (line.record_id, line.key) if line else (sample.sample_id, sample.key or "")
            found.append(_scored(sample, name, key, column, base))
        return (*found, *(_without(lines[i]) for i in unscored(joined, len(lines))))

    def _say(
        self, path: Path, samples: Sequence[Sample], joined: Sequence[Joined], lines: Sequence[Line], of: Released
    ) -> None:
        gone = sum(j.line is None for j in joined)
        there = [j.line for j in joined if j.line is not None]
        repeated, without = len(there) - len(set(there)), len(unscored(joined, len(lines)))
        if gone or repeated or without:
            note = (
                f"{self._name(path)}: of {len(samples)} samples {gone} are of no record of the benchmark, {repeated} "
                f"repeat one; {without} of its {len(lines)} records have none"
            )
            if note not in of.notes:
                of.notes.append(note)

    def _add(
        self,
        of: Released,
        variant: str,
        row: str,
        subset: str,
        side: tuple[int, str],
        values: tuple[Scored, ...],
        path: Path,
    ) -> None:
        leaf = of.rows.setdefault((variant, row, subset), {})
        if side in leaf:
            raise DataError(f"{self._name(path)}: the scores of {row} on {subset} stand there twice for one side")
        leaf[side] = values


def _sides_of(tree: Tree, size: str | None) -> list[Side]:
    return [side for (_, own), side in sides(tree).items() if own in (None, size)]


def _scored(sample: Sample, name: str, key: str, column: str, base: str | None) -> Scored:
    value = sample.score(column)
    missing = None if value is not None else f"the released score is {sample.raw.get(column)!r}"
    own_base = sample.score(base) if base and value is not None else None
    return Scored(name, key, value, missing, own_base, fill=sample.fill)


def _without(line: Line) -> Scored:
    return Scored(line.record_id, line.key, None, "no released score")


def _one_a_line(
    samples: Sequence[Sample], joined: Sequence[Joined], lines: Sequence[Line], column: str, base: str | None
) -> tuple[Scored, ...]:
    """One score a text of the benchmark: the first of several; a line that repeats a text has none of its own."""
    first: dict[int, Sample] = {}
    for sample, j in zip(samples, joined, strict=True):
        if j.line is not None:
            first.setdefault(j.line, sample)
    return tuple(
        _scored(first[i], line.record_id, line.key, column, base) if i in first else _without(line)
        for i, line in enumerate(lines)
    )
