"""The safetensors files of a Hugging Face directory: which tensor lies where, and reading slices of them.

Every file is checked before a weight is read: complete to the byte, in agreement with the index, no tensor twice.
Only safetensors are read; pickled weights (`.bin`, `.pt`) can run code when they are opened, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from olmodetect_jax.errors import CheckpointError, UsageError
from olmodetect_jax.files import parse_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = ("BF16", "F16", "F32")

_MAX_HEADER = 100_000_000  # safetensors' own limit; above it the first eight bytes are not a header length
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")

Reader = Callable[[str, tuple[slice, ...]], np.ndarray]


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies, its shape and its dtype as safetensors spells it (`BF16`)."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class SafetensorsIndex:
    """All tensors of a directory by name."""

    directory: Path
    tensors: dict[str, TensorInfo]

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Yields `read(name, slices)`, which reads one part of one tensor in its own dtype (bfloat16 is ml_dtypes').

        Files are memory-mapped on first use and unmapped when the block ends, so that a loader which opens one
        reader a leaf does not keep the whole checkpoint in its resident memory.
        """
        with ExitStack() as stack:
            handles: dict[Path, Any] = {}

            def read(name: str, slices: tuple[slice, ...]) -> np.ndarray:
                file = self.tensors[name].file
                if file not in handles:
                    handles[file] = stack.enter_context(safe_open(file, framework="numpy"))
                return handles[file].get_slice(name)[slices]

            yield read


def index_directory(directory: Path) -> SafetensorsIndex:
    """Finds and checks the safetensors files of a directory, without reading their weights.

    Args:
        directory: holds `model.safetensors`, or `model.safetensors.index.json` and the shards it names.

    Raises:
        UsageError: the directory holds no safetensors weights.
        CheckpointError: a file is truncated or malformed, a shard is missing, or index and shards disagree.
    """
    single, index = directory / SINGLE, directory / INDEX
    if single.is_file() and index.is_file():
        raise CheckpointError(f"{directory}: holds both {SINGLE} and {INDEX}; remove the one that is out of date")
    if single.is_file():
        return SafetensorsIndex(directory, _tensors(single))
    if index.is_file():
        return SafetensorsIndex(directory, _sharded(directory, index))
    pickled = sorted(file.name for pattern in _PICKLED for file in directory.glob(pattern))
    if pickled:
        raise UsageError(
            f"{directory}: holds pickled weights only ({', '.join(pickled)}), which can run code when opened; "
            "convert them to safetensors elsewhere (in transformers: from_pretrained, then save_pretrained)"
        )
    raise UsageError(f"{directory}: no weights found; looked for {SINGLE} and {INDEX}")


def _sharded(directory: Path, index: Path) -> dict[str, TensorInfo]:
    """All tensors of the shards an index names; index and shards must say the same."""
    weight_map = _weight_map(index)
    shards = {name: directory / name for name in sorted(set(weight_map.values()))}
    problems = [f"missing shard: {name}" for name, file in shards.items() if not file.is_file()]
    if problems:
        raise CheckpointError(f"{index}: names files that are not there; fetch them again" + _lines(problems))
    tensors: dict[str, TensorInfo] = {}
    for name, file in shards.items():
        for tensor, info in _tensors(file).items():
            if tensor in tensors:
                problems.append(f"{tensor}: in two shards, {tensors[tensor].file.name} and {name}")
            elif tensor not in weight_map:
                problems.append(f"{tensor}: in {name}, but not in the index")
            elif weight_map[tensor] != name:
                problems.append(f"{tensor}: in {name}, but the index says {weight_map[tensor]}")
            tensors[tensor] = info
    problems += [f"{t}: the index says {weight_map[t]}, no shard holds it" for t in weight_map if t not in tensors]
    if problems:
        raise CheckpointError(f"{index}: index and shards disagree" + _lines(problems))
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name to shard file name, as the index says."""
    try:
        content = parse_json(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index}: not a JSON file: {error}") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    # A shard's name must be a plain file name: an index must not lead out of its directory.
    files = weight_map.values() if isinstance(weight_map, dict) else [None]
    if not all(isinstance(file, str) and Path(file).name == file for file in files):
        raise CheckpointError(f"{index}: needs a `weight_map` from tensor names to names of files beside it")
    return weight_map


def _tensors(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one file, after checking that the file is whole."""
    _check_size(file)
    try:
        with safe_open(file, framework="numpy") as handle:
            slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
            return {n: TensorInfo(file, tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a readable safetensors file: {error}") from None


def _check_size(file: Path) -> None:
    """Compares a file's size with what its header promises.

    safetensors refuses such a file too, but does not say which file nor how many bytes are missing.
    """
    size = file.stat().st_size
    with file.open("rb") as handle:
        prefix = handle.read(8)
        length = int.from_bytes(prefix, "little") if len(prefix) == 8 else 0
        if length > _MAX_HEADER:
            hint = " (a Git LFS pointer: fetch the file itself)" if prefix == b"version " else ""
            raise CheckpointError(f"{file}: not a safetensors file{hint}")
        header = handle.read(length)
    if len(prefix) < 8 or len(header) < length:
        raise CheckpointError(f"{file}: truncated: expected at least {8 + length} bytes, found {size}; fetch it again")
    try:
        tensors = {name: value for name, value in parse_json(header).items() if name != "__metadata__"}
        expected = 8 + length + max((value["data_offsets"][1] for value in tensors.values()), default=0)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise CheckpointError(f"{file}: its safetensors header is not readable; fetch it again") from None
    if size != expected:
        what = "truncated" if size < expected else "too long"
        raise CheckpointError(f"{file}: {what}: expected {expected} bytes, found {size}; fetch it again")


def _lines(problems: list[str]) -> str:
    return "".join(f"\n  {problem}" for problem in problems)
