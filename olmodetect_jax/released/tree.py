"""A folder of released scores as a whole: which files there are, and the scores of each row, subset and side."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from olmodetect_jax.benchmark import VARIANTS, Tree, model_size
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.records import MEMBER, NON_MEMBER
from olmodetect_jax.released.aucs import read_aucs
from olmodetect_jax.released.emmia import read_emmia
from olmodetect_jax.released.files import Joined, Line, Sample, join, read_lines, read_scores, unscored
from olmodetect_jax.released.layout import (
    BASE_COLUMNS,
    COLUMNS,
    EMMIA,
    LODO_AUCS,
    LODO_STEMS,
    PAIR,
    RESULTS,
    RESULTS_LODO,
    Side,
    emmia_tags,
    folder_name,
    rows_of,
    side_of,
    sides,
)
from olmodetect_jax.released.scored import Scored, count_conflicts, placed

READINGS = ("as_stored", "current")


@dataclass
class Released:
    """What one model's released scores hold, by variant.

    Attributes:
        model: name of its folder.
        size: of an OLMo 2 model, else None.
        rows: (variant, row id, subset id) to {(label, side): scores}.
        files: path from the tree's root to SHA-256.
        notes: what a reader should know: samples that join to nothing, repeated texts, records without a score, files
            that were left out.
        aucs: path to the AUCs in it, of files that hold no scores.
    """

    model: str
    size: str | None
    rows: dict[tuple[str, str, str], dict[tuple[int, str], tuple[Scored, ...]]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    aucs: dict[str, Mapping[str, float]] = field(default_factory=dict)


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
    for path in sorted((root / RESULTS_LODO / LODO_AUCS).glob("*.json")):
        reader.aucs(path)
    reader.finish()
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
        self._seen: set[Path] = set()

    def scores(self, path: Path, folder: str, model: str, stem: str, *, lodo: bool) -> None:
        """One file of a method."""
        self._seen.add(path)
        size = model_size(folder_name(model, str(path)))
        side = side_of(self.tree, folder, size)
        of = self._of(model, size)
        if side is None:
            of.notes.append(f"{self._name(path)}: {folder} is no side of a subset of this model; left out")
            return
        samples, lines = read_scores(path).samples, self._lines_of(side, of)
        self._keep(of, path)
        rows = rows_of(stem, lodo=lodo)
        joined = None if lines is None else join(samples, lines)
        if lines is not None and joined is not None:
            self._say(path, samples, joined, lines, of, tuple(rows.values()))
        for row, column in rows.items():
            base = BASE_COLUMNS.get(row.removesuffix("_lodo"))
            values = placed(samples, lines, joined, column, base, one_a_line=self.reading == "current")
            for variant in VARIANTS if side.variant is None else (side.variant,):
                self._add(of, variant, row, side.subset, (side.label, side.side), values, path)

    def emmia(self, path: Path) -> None:
        """One of EMMIA's files: both sides in one, joined by place."""
        self._seen.add(path)
        file = read_emmia(path)
        of = self._of(file.model, model_size(file.model))
        if of.size and path.stem != f"emmia_{of.size}":
            raise DataError(f"{path}: model_path is of {file.model}; expected a model of the size in the file's name")
        tags = emmia_tags(self.tree, of.size) if of.size else {}
        if path.parent.name not in tags:
            if not path.parent.name.endswith("_dev"):
                of.notes.append(f"{self._name(path)}: {path.parent.name} is no test file of a subset; left out")
            return
        subset, side, variant = tags[path.parent.name]
        self._keep(of, path)
        for label, choices in ((MEMBER, file.member), (NON_MEMBER, file.non_member)):
            own = self._emmia_side(subset, side, label, variant, of.size)
            lines = self._lines_of(own, of) if own else None
            joined = lines if lines is not None and len(lines) == len(choices) else None
            if lines is not None and joined is None:
                self._note(of, path, f"{len(choices)} texts, its benchmark file {len(lines)}: places say nothing here")
                if self.reading == "current":
                    return
            tag = "" if joined is not None or not path.parent.name.endswith("_sub300") else "sub300_"
            values = tuple(
                Scored(
                    joined[i].record_id if joined else f"{tag}sample_{i}", joined[i].key if joined else "",
                    scores[0], choices=scores,
                )
                for i, scores in enumerate(choices)
            )  # fmt: skip
            self._add(of, variant, "em_mia", subset, (label, side), values, path)

    def aucs(self, path: Path) -> None:
        """A file of LODO Sup-CAMIA: AUCs, of which no run's scores can be made."""
        self._seen.add(path)
        file = read_aucs(path)
        for of in self.found.values():
            if of.size == file.size:
                self._keep(of, path)
                of.aucs[self._name(path)] = file.values
                self._note(of, path, "holds AUCs without scores, so the run has no row of it")

    def finish(self) -> None:
        """Says what was not read, and leaves out subsets of which a side's file is not there."""
        unread: Counter[str] = Counter()
        for top in (RESULTS, RESULTS_LODO):
            for path in sorted((self.root / top).rglob("*.json")):
                if path not in self._seen and not path.name.startswith("run_manifest_"):
                    unread[f"{top}/**/{path.name}"] += 1
        for of in self.found.values():
            of.notes += [f"{name}: {n} files of no known method or place, or links to nothing; left out"
                         for name, n in unread.items()]  # fmt: skip
            for (variant, row, subset), leaf in list(of.rows.items()):
                absent = [own for own in self._expected(of, row, subset, variant) if own not in leaf]
                if not absent:
                    continue
                del of.rows[variant, row, subset]
                # Non-members stand for both variants, and so does a subset without variants: once is enough.
                varied = next(s.variants for s in self.tree.subsets if s.id == subset)
                if variant == VARIANTS[0] or varied and any(label == MEMBER for label, _ in leaf):
                    names = ", ".join(f"{'member' if label else 'non-member'} {side}".strip() for label, side in absent)
                    of.notes.append(f"{row} on {subset}, {variant}: no file of {names}; left out")

    def _expected(self, of: Released, row: str, subset: str, variant: str) -> list[tuple[int, str]]:
        """(label, side) of the files that make a subset whole."""
        own = {s.side for s in _sides_of(self.tree, of.size) if s.subset == subset}
        if PAIR in own:
            own = {PAIR} if any(side == PAIR for _, side in of.rows[variant, row, subset]) else own - {PAIR}
        return [(label, side) for label in (MEMBER, NON_MEMBER) for side in sorted(own)]

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

    def _note(self, of: Released, path: Path, text: str) -> None:
        note = f"{self._name(path)}: {text}"
        if note not in of.notes:
            of.notes.append(note)

    def _keep(self, of: Released, path: Path) -> None:
        of.files[self._name(path)] = hashlib.sha256(path.read_bytes()).hexdigest()

    def _lines_of(self, side: Side, of: Released) -> tuple[Line, ...] | None:
        if self.benchmark is None:
            return None
        path = self.benchmark / side.benchmark
        if path not in self._lines:
            self._lines[path] = read_lines(path) if path.is_file() else None
        if self._lines[path] is None and self.reading == "current":
            raise DataError(f"{path}: no such file, so the scores of {side.subset} cannot be joined to it")
        note = f"{side.benchmark.as_posix()}: not in the benchmark, so scores of {side.subset} are joined to nothing"
        if self._lines[path] is None and note not in of.notes:
            of.notes.append(note)
        return self._lines[path]

    def _say(
        self,
        path: Path,
        samples: Sequence[Sample],
        joined: Sequence[Joined],
        lines: Sequence[Line],
        of: Released,
        columns: Sequence[str],
    ) -> None:
        gone = sum(j.line is None for j in joined)
        there = [j.line for j in joined if j.line is not None]
        repeated, without = len(there) - len(set(there)), len(unscored(joined, len(lines)))
        if gone or repeated or without:
            conflicts = count_conflicts(samples, joined, columns)
            self._note(
                of, path,
                f"of {len(samples)} samples {gone} are of no record of the benchmark, {repeated} repeat one; "
                f"{without} of its {len(lines)} records have none"
                + (f"; {conflicts} records have scores that differ" if conflicts else ""),
            )  # fmt: skip

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
