"""Answers on disk: files below a folder that is named by everything that decides the answers' values.

    <root>/<key>/provenance.json        weights, tokenizer, dtypes and version behind the answers
    <root>/<key>/plan-<digest>.json     a plan that was started: its batches, in order
    <root>/<key>/<kind>-<digest>.safetensors    some answers

Files appear whole or not at all. A run that was killed finds its plan, skips the batches that are there and runs
the others in the very shapes they were planned in, so its answers are the same bytes as without the kill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from olmodetect_jax.errors import StoreError
from olmodetect_jax.files import parse_json, write_json, write_tensors
from olmodetect_jax.scoring.planning import Batch

SPEC_VERSION = 1  # raise when the meaning of a stored number changes


@dataclass(frozen=True)
class Provenance:
    """What decides a text's statistics beside its token ids; two models can never share an answer.

    Attributes:
        weights_digest: SHA-256 over all weights at their compute dtype.
        tokenizer_digest: SHA-256 of the tokenizer's file.
        config: the model's config as text: the same weights with other rotary positions are another model.
        dtype: of weights and activations.
        logits_dtype: in which logits and statistics are rounded.
        spec_version: of the stored numbers' meaning.
    """

    weights_digest: str
    tokenizer_digest: str
    config: str
    dtype: str
    logits_dtype: str
    spec_version: int = SPEC_VERSION

    @property
    def key(self) -> str:
        """20 hex digits that name the folder."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]


class Kept:
    """The answers of one provenance below a folder; a subclass says what they are."""

    requests_per_row = 1  # how many requests of a batch may take one of its rows, one after the other

    def __init__(self, root: Path, provenance: Provenance):
        """Opens or makes the folder.

        Raises:
            StoreError: the folder is another provenance's.
        """
        self.folder = root / provenance.key
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "provenance.json"
        if not path.exists():
            write_json(path, asdict(provenance))
        elif read_json(path) != asdict(provenance):
            raise StoreError(f"{path}: belongs to other weights or settings than this run; use another --out")

    def write(self, kind: str, digests: Sequence[bytes], arrays: Mapping[str, np.ndarray]) -> None:
        """Writes some answers.

        Args:
            kind: begins the file's name.
            digests: of the requests; they are in the file as `digests`, [n, 32] uint8.
            arrays: the answers, in an order that the caller can read.
        """
        arrays = {"digests": np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32), **arrays}
        path = self.folder / f"{kind}-{_name(digests)}.safetensors"
        write_tensors(path, arrays, {"sha256": checksum(arrays)})

    def files(self, kind: str) -> list[Path]:
        """The files of one kind that are there."""
        return sorted(self.folder.glob(f"{kind}-*.safetensors"))

    def keep_plan(self, plan: Sequence[Batch], budget: int) -> None:
        """Writes a plan down before its first batch runs.

        Args:
            plan: the batches.
            budget: tokens a batch was allowed.
        """
        name = _name([d for b in plan for d in b.digests])
        batches = [{"bucket": b.bucket, "rows": b.rows, "digests": [d.hex() for d in b.digests]} for b in plan]
        write_json(self.folder / f"plan-{name}.json", {"budget": budget, "batches": batches})

    def unfinished(self, wanted: set[bytes], row_multiple: int, budget: int) -> list[Batch]:
        """Batches of kept plans that are to be run: none of their requests is answered or in an earlier such batch.

        Args:
            wanted: digests of the requests that need an answer.
            row_multiple: of the mesh; a batch whose rows do not divide evenly is left out.
            budget: tokens that a batch is allowed now; plans for more are left out, for they may not have fitted.
        """
        batches, left = [], set(wanted)
        for file in sorted(self.folder.glob("plan-*.json")):
            try:
                content = read_json(file)
                kept = [_kept_batch(b, self.requests_per_row) for b in content["batches"]]
                allowed = content["budget"] <= budget
            except (KeyError, TypeError, ValueError):
                raise StoreError(f"{file}: not a plan; delete it and start again, finished batches stay") from None
            for batch in kept if allowed else ():
                if batch.rows % row_multiple == 0 and left.issuperset(batch.digests):
                    batches.append(batch)
                    left.difference_update(batch.digests)
        return batches


def _kept_batch(value: dict, requests_per_row: int) -> Batch:
    batch = Batch(value["bucket"], value["rows"], tuple(bytes.fromhex(d) for d in value["digests"]))
    integers = type(batch.bucket) is int and type(batch.rows) is int
    most = batch.rows * requests_per_row
    if not integers or batch.bucket < 2 or not 0 < len(set(batch.digests)) == len(batch.digests) <= most:
        raise ValueError("not a batch")
    return batch


def checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays: what a safetensors file of ours states of its content."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _name(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()[:20]


def read_json(path: Path) -> dict:
    """A JSON file of the store.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}; delete it and start again, finished batches stay") from None


def digests_of(arrays: Mapping[str, np.ndarray]) -> list[bytes]:
    """The digests that `write` put into a file."""
    return [row.tobytes() for row in arrays["digests"]]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What a file holds.

    Raises:
        ValueError: its checksum does not fit; `damage_named` makes it a message.
    """
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if (file.metadata() or {}).get("sha256") != checksum(arrays):
            raise ValueError("its checksum does not fit its content")
    return arrays


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Names a file that cannot be read.

    Raises:
        StoreError: with what to do.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"{path}: damaged ({error}); delete it, what it held is then computed again") from None
