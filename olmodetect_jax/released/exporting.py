"""A run in the released layout, so that others' evaluation can read it (released layout, sections 3, 4 and 10)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from olmodetect_jax import __version__
from olmodetect_jax.errors import DataError, UsageError, one_of
from olmodetect_jax.evaluation.runs import Run, Score
from olmodetect_jax.files import write_text
from olmodetect_jax.records import MEMBER
from olmodetect_jax.released.files import compact
from olmodetect_jax.released.layout import (
    BASE_COLUMNS,
    COLUMNS,
    COPIES,
    EMMIA,
    HASH_LAST,
    INITS,
    LODO_STEMS,
    PAIR,
    RESULTS,
    RESULTS_LODO,
    WITH_LABEL,
    WITHOUT_HASH,
    Side,
    emmia_tags,
    folder_name,
    rows_of,
    sides,
)

SHAPES = ("B", "A")
_EMMIA_ROWS = ("em_mia_best_of_four", "em_mia")  # the first keeps all four scores under any protocol


def export_run(run: Run, out: Path, *, shape: str = "B") -> tuple[list[Path], list[str]]:
    """Writes a run's scores as a tree of released scores; a missing score is an absent sample and a count.

    Args:
        run: on a benchmark.
        out: the tree's root; files that are there already are an error.
        shape: `B`, with the envelope a detector writes; or `A`, consolidated: samples alone.

    Returns:
        The files, and what has no place in the layout.

    Raises:
        UsageError: a run of own texts or of another split than test, or an unknown shape.
        DataError: a file is there already.
    """
    if shape not in SHAPES:
        raise one_of("--shape", shape, SHAPES)
    if run.tree is None or run.manifest["split"] != "test":
        raise UsageError(f"{run.path}: the released layout holds runs on the test split of a benchmark")
    size, left = run.manifest["model"].get("size"), []
    folder_name(run.model, str(run.path / "manifest.json"))
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is not a folder")
    by_place = {
        (s.subset, s.label, s.side): (folder, s)
        for (folder, own), s in sides(run.tree).items()
        if own in (None, size) and s.variant in (None, run.manifest["variant"])
    }
    written = []
    for root, stem, rows in _methods(run):
        for (subset, label, side), (folder, own) in by_place.items():
            columns = {row: _lines(run, row, subset, label, side) for row in rows if subset in run.scores[row]}
            columns = {row: lines for row, lines in columns.items() if lines}
            if columns:
                path = out / root / folder / run.model / f"{stem}.json"
                _write(path, _file(run, stem, rows, columns, own, folder, shape), shape)
                written.append(path)
    if size is None and any(s.sized for s in run.tree.subsets if s.id in run.subsets):
        left.append("subsets with texts for each model size: the run's model has no size")
    row = next((row for row in _EMMIA_ROWS if row in run.attacks and size is not None), None)
    emmia, unplaced = _emmia(run, row, out, size) if row and size else ([], [])
    left += unplaced
    placed = {row, *(row for _, _, rows in _methods(run) for row in rows)}
    left += [f"{attack}: the layout has no file for it" for attack in run.attacks if attack not in placed]
    return written + emmia, left


def _methods(run: Run) -> list[tuple[str, str, Mapping[str, str]]]:
    """(folder below the root, file stem, row id to column) of what the run has."""
    found = []
    for lodo in (False, True):
        for stem in COLUMNS if not lodo else LODO_STEMS:
            rows = {row: column for row, column in rows_of(stem, lodo=lodo).items() if row in run.attacks}
            if rows:
                found.append((f"{RESULTS_LODO}/{stem}" if lodo else RESULTS, stem, rows))
    return found


def _lines(run: Run, row: str, subset: str, label: int, side: str) -> list[Score]:
    lines = [s for s in run.scores[row][subset] if s.label == label]
    if side == PAIR:  # a score a prompt: on the line of the chosen answer, or a line of its own
        return [s for s in lines if row == "self_critique" and "rejected" not in s.side]
    return [s for s in lines if s.side == side and (row != "self_critique" or not side)]


def _file(
    run: Run,
    stem: str,
    rows: Mapping[str, str],
    columns: Mapping[str, Sequence[Score]],
    side: Side,
    folder: str,
    shape: str,
) -> dict[str, Any]:
    samples, n_records = _samples(stem, rows, columns), len(next(iter(columns.values())))
    if shape == "A":
        return {"result": {"samples": samples}}
    kind = "dpo" if side.side == PAIR else "paragraph"
    protocol = run.manifest["protocol"]
    means = {f"mean_{rows[row]}": _mean([s.value for s in lines]) for row, lines in columns.items()}
    return {
        "model_name": run.model,
        "model_path": f"olmo_models/{run.model}",
        "dataset_name": folder,
        "dataset_path": (Path("benchmark") / side.benchmark).as_posix(),
        "dataset_data_type": kind,
        "method_name": stem,
        "elapsed_seconds": None,
        "result": {
            "method": stem,
            "dataset": folder,
            "dataset_data_type": kind,
            "olmodetect_jax": {
                "version": __version__,
                "protocol": protocol["preset"],
                "changed": protocol["changed"],
                "hyperparameters": run.manifest.get("hyperparameters") or {},
            },
            "num_total_records": n_records,
            "num_scored_records": len(samples),
            "num_skipped_records": n_records - len(samples),
            "summary": means,
            "samples": samples,
        },
    }


def _samples(stem: str, rows: Mapping[str, str], columns: Mapping[str, Sequence[Score]]) -> list[dict[str, Any]]:
    samples = []
    lines = next(iter(columns.values()))
    for i, line in enumerate(lines):
        values: dict[str, Any] = {}
        for row, own in columns.items():
            score = own[i]
            if score.value is None:
                continue
            if score.base_value is not None:
                values[BASE_COLUMNS[row.removesuffix("_lodo")]] = score.base_value
            values[rows[row]] = score.value
            values |= dict.fromkeys(COPIES.get(stem, ()), score.value)
        if values:
            sample: dict[str, Any] = {"record_index": i, "sample_id": line.record_id}
            if stem in WITH_LABEL:
                sample["label"] = None
            sha1 = {"text_sha1": line.text_sha1} if stem not in WITHOUT_HASH and line.text_sha1 else {}
            samples.append(sample | values | sha1 if stem in HASH_LAST else sample | sha1 | values)
    return samples


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None


def _emmia(run: Run, row: str, out: Path, size: str) -> tuple[list[Path], list[str]]:
    """EMMIA's own files, of subsets where every text has all four scores; and which subsets have none."""
    written: list[Path] = []
    variant, tags = run.manifest["variant"], emmia_tags(run.tree, size) if run.tree else {}
    own = {tag: (subset, side) for tag, (subset, side, of) in tags.items() if of == variant and "_sub300" not in tag}
    lines_of = {
        tag: [s for s in run.scores[row].get(subset, ()) if s.side == side and s.label is not None]
        for tag, (subset, side) in own.items()
    }
    # Places are all that joins these files to texts, so a text without a score cannot be left out.
    partial = {
        own[tag][0] for tag, lines in lines_of.items() if not all(s.value is not None and s.choices for s in lines)
    }
    for tag, lines in lines_of.items():
        if not lines or own[tag][0] in partial:
            continue
        ordered = sorted(lines, key=lambda s: s.label != MEMBER)
        n_member = sum(s.label == MEMBER for s in lines)
        samples = [
            {
                "index": i, "label": s.label, "source": "member" if s.label else "non-member",
                "final_scores": dict(zip(INITS, s.choices, strict=True)),
            }
            for i, s in enumerate(ordered)
        ]  # fmt: skip
        value = {
            "method": "emmia_multi_init", "model_path": f"olmo_models/{run.model}", "n_con": n_member,
            "n_uncon": len(lines) - n_member, "n_total": len(lines), "inits": list(INITS), "samples": samples,
        }  # fmt: skip
        path = out / RESULTS / EMMIA / tag / f"emmia_{size}.json"
        _write(path, value, "A")
        written.append(path)
    nowhere = set(run.scores[row]) - {subset for subset, _ in own.values()}
    reasons = (
        (partial, "its files need all four scores of every text"),
        (nowhere, f"it has no {variant} files of these subsets"),
    )
    return written, [f"{row}: {reason}; left out: {', '.join(sorted(names))}" for names, reason in reasons if names]


def _write(path: Path, value: dict[str, Any], shape: str) -> None:
    if path.exists():
        raise DataError(f"{path}: is there already; choose another --out")
    text = compact(value) if shape == "A" else json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    write_text(path, text)
