"""The one comparison behind every load: what a checkpoint holds against what the model needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from olmodetect_jax.errors import CheckpointError


@dataclass(frozen=True)
class Expected:
    """What the model needs of one tensor: its shape and the dtypes that will do."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """What the checkpoint says about one tensor."""

    shape: tuple[int, ...]
    dtype: str


def check_tensors(where: str, found: Mapping[str, Found], expected: Mapping[str, Expected]) -> None:
    """Compares all names, then the shapes and dtypes of those on both sides, before any weight is read.

    Args:
        where: the checkpoint, for the message.
        found: what it holds, by name.
        expected: what the model needs, by the same names.

    Raises:
        CheckpointError: one error with every missing, unexpected and misshaped name, and every wrong dtype.
    """
    both = sorted(set(found) & set(expected))
    lists = {
        "missing": sorted(set(expected) - set(found)),
        "unexpected": sorted(set(found) - set(expected)),
        "misshaped": [
            f"{name}: the checkpoint has {list(found[name].shape)}, the config needs {list(expected[name].shape)}"
            for name in both
            if found[name].shape != expected[name].shape
        ],
        "of the wrong dtype": [
            f"{name}: the checkpoint has {found[name].dtype}, accepted: {', '.join(expected[name].dtypes)}"
            for name in both
            if found[name].dtype not in expected[name].dtypes
        ],
    }
    if any(lists.values()):
        counts = ", ".join(f"{len(lines)} {kind}" for kind, lines in lists.items() if lines)
        details = "".join(f"\n  {kind}: {line}" for kind, lines in lists.items() for line in lines)
        raise CheckpointError(f"{where}: the weights do not fit config.json: {counts}{details}")
