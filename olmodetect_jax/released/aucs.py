"""LODO Sup-CAMIA's released files: AUCs by domain or stage, without scores (released layout, section 6)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.metrics import is_valid_score
from olmodetect_jax.released.files import read_object

_NAME = re.compile(r"(?:camia_lr_xdomain|xdomain_pooled)_([0-9]+b)")


@dataclass(frozen=True)
class AucFile:
    """One file.

    Attributes:
        size: of the model, from the file's name.
        values: dotted path of a value in the file, as `per_domain.dclm.lodo_lr`, to the AUC or difference.
    """

    size: str
    values: Mapping[str, float]


def read_aucs(path: Path) -> AucFile:
    """Reads a file of either shape: by domain with `per_domain`, or by stage with `pooled` alone.

    Raises:
        DataError: it is no such file, or a value is not finite; names the field.
    """
    name = _NAME.fullmatch(path.stem)
    if name is None:
        raise DataError(f"{path}: expected camia_lr_xdomain_SIZE.json or xdomain_pooled_SIZE.json")
    value = read_object(path)
    if not isinstance(value.get("pooled"), dict):
        raise DataError(f"{path}: field pooled: expected an object of AUCs")
    if value.get("size", name[1]) != name[1]:
        raise DataError(f"{path}: field size: expected {name[1]}, as in the file's name, got {value['size']!r}")
    return AucFile(name[1], dict(_leaves(path, {k: v for k, v in value.items() if k != "size"}, ())))


def _leaves(path: Path, value: Any, at: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(path, inner, (*at, name))
    elif is_valid_score(value):
        yield ".".join(at), float(value)
    else:
        raise DataError(f"{path}: field {'.'.join(at)}: expected a finite number, got {value!r}")
