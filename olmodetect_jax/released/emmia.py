"""EMMIA's released files: both classes in one, four scores a text, joined by place (released layout, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation.metrics import is_valid_score
from olmodetect_jax.records import MEMBER, NON_MEMBER
from olmodetect_jax.released.files import read_object
from olmodetect_jax.released.layout import INITS, folder_name


@dataclass(frozen=True)
class EmmiaFile:
    """The final scores of one tag and model.

    Attributes:
        model: last part of the model's path.
        member: for each line of the member file its four scores, in the order of `layout.INITS`.
        non_member: for each line of the non-member file.
    """

    model: str
    member: tuple[tuple[float, ...], ...]
    non_member: tuple[tuple[float, ...], ...]


def read_emmia(path: Path) -> EmmiaFile:
    """Reads one file.

    Raises:
        DataError: it is no such file, or a text has no place or no four finite scores; names the sample.
    """
    value = read_object(path)
    samples, model = value.get("samples"), value.get("model_path")
    counts = value.get("n_con"), value.get("n_uncon")
    if not isinstance(samples, list) or not isinstance(model, str) or any(type(n) is not int for n in counts):
        raise DataError(f"{path}: expected samples (a list), model_path (a string), n_con and n_uncon (integers)")
    sides: dict[int, dict[int, tuple[float, ...]]] = {MEMBER: {}, NON_MEMBER: {}}
    for i, sample in enumerate(samples):
        label, index, scores = _sample(path, i, sample)
        place = index if label == MEMBER else index - counts[0]
        if place in sides[label] or not 0 <= place < counts[0 if label == MEMBER else 1]:
            raise DataError(f"{path}: samples[{i}].index: {index} is no place of its own among {counts[0]}+{counts[1]}")
        sides[label][place] = scores
    for label, n in ((MEMBER, counts[0]), (NON_MEMBER, counts[1])):
        if len(sides[label]) != n:
            raise DataError(f"{path}: {len(sides[label])} samples with label {label}, {n} are announced")
    member, non_member = (tuple(sides[label][i] for i in sorted(sides[label])) for label in (MEMBER, NON_MEMBER))
    name = folder_name(model.rstrip("/").rsplit("/", 1)[-1], str(path))
    return EmmiaFile(name, member, non_member)


def _sample(path: Path, i: int, sample: Any) -> tuple[int, int, tuple[float, ...]]:
    where = f"{path}: samples[{i}]"
    if not isinstance(sample, dict):
        raise DataError(f"{where}: expected an object")
    label, index, final = sample.get("label"), sample.get("index"), sample.get("final_scores")
    if label not in (MEMBER, NON_MEMBER) or type(index) is not int:
        raise DataError(f"{where}: expected label 1 or 0 and an integer index")
    if not isinstance(final, dict) or not all(is_valid_score(final.get(name)) for name in INITS):
        raise DataError(f"{where}.final_scores: expected a finite number for each of {', '.join(INITS)}")
    return label, index, tuple(float(final[name]) for name in INITS)


def read_dev_picks(root: Path) -> dict[str, int]:
    """Which base score did best on the development split, by model size: its place in `layout.INITS`.

    Args:
        root: of the released tree.

    Raises:
        UsageError: the tree does not hold the file that says so.
        DataError: it says so of no size, or names no base score.
    """
    path = root / "analysis" / "logs" / "emmia_dev_select.json"
    if not path.is_file():
        raise UsageError(f"--em-mia dev: {path}, which says what was chosen on development texts, is not there")
    selection = read_object(path).get("selection")
    if not isinstance(selection, dict) or not selection:
        raise DataError(f"{path}: field selection: expected an object by model size")
    picks = {}
    for size, found in selection.items():
        pick = found.get("matched_dev_pick") if isinstance(found, dict) else None
        if pick not in INITS:
            raise DataError(f"{path}: field selection.{size}.matched_dev_pick: expected one of {', '.join(INITS)}")
        picks[size.lower()] = INITS.index(pick)
    return picks
