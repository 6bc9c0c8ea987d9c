"""Answers on disk: one file a finished batch, under a folder named by everything that decides their values.

    statistics/<key>/provenance.json        weights, tokenizer, dtypes and version behind the answers
    statistics/<key>/plan-<digest>.json     a plan that was started: its batches, in order
    statistics/<key>/batch-<digest>.safetensors    statistics of texts
    statistics/<key>/rows-<digest>.safetensors     likelihoods of targets after some prefixes, a row each

Files appear whole or not at all. A run that was killed finds its plan, skips the batches that are there and runs
the others in the very shapes they were planned in, so its scores are the same bytes as without the kill.
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
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
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


class Store:
    """The answers of one provenance below a folder."""

    def __init__(self, root: Path, provenance: Provenance):
        """Opens or makes the folder and reads which answers are there.

        Raises:
            StoreError: the folder is another provenance's, or a file in it is damaged.
        """
        self.folder = root / provenance.key
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "provenance.json"
        if not path.exists():
            write_json(path, asdict(provenance))
        elif _read_json(path) != asdict(provenance):
            raise StoreError(f"{path}: belongs to other weights or settings than this run; use another --out")
        self._answers: dict[bytes, TokenStatistics] = {}
        for file in sorted(self.folder.glob("batch-*.safetensors")):
            self._answers = _read_batch(file) | self._answers  # an answer that is there stays the answer
        self.rows: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        for file in sorted(self.folder.glob("rows-*.safetensors")):
            self.rows = _read_rows(file) | self.rows

    def known(self, digest: bytes) -> bool:
        """Whether the answer to a request is there."""
        return digest in self._answers

    def __getitem__(self, digest: bytes) -> TokenStatistics:
        """The answer to a request."""
        return self._answers[digest]

    def add(self, batch: Batch, requests: Mapping[bytes, ScoreTokens], answers: Sequence[TokenStatistics]) -> None:
        """Writes one finished batch, the ids that were scored included; `answers` in the order of its digests."""
        arrays = {
            "digests": np.frombuffer(b"".join(batch.digests), np.uint8).reshape(-1, 32),
            "ids": np.concatenate([requests[d].ids for d in batch.digests]),
            "lengths": np.array([len(a.log_prob) for a in answers], np.int32),
            **{name: np.concatenate([getattr(a, name) for a in answers]) for name in ("log_prob", "mean", "variance")},
        }
        self._write(f"batch-{_name(batch.digests)}", arrays)
        self._answers.update(zip(batch.digests, answers, strict=True))

    def add_rows(self, digests: Sequence[bytes], first: np.ndarray, rest: np.ndarray) -> None:
        """Writes the answers to some `ScoreTargets`, which `rows` then holds by name.

        Args:
            digests: names (`row`) of R requests with the same targets.
            first: [R, N] float32, in the order of `Targets.order`.
            rest: [R, N] float32.
        """
        arrays = {"digests": np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32), "first": first, "rest": rest}
        self._write(f"rows-{_name(digests)}", arrays)
        self.rows.update(zip(digests, zip(first, rest, strict=True), strict=True))

    def _write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        write_tensors(self.folder / f"{name}.safetensors", arrays, {"sha256": _checksum(arrays)})

    def keep_plan(self, plan: Sequence[Batch]) -> None:
        """Writes a plan down before its first batch runs."""
        name = _name([d for b in plan for d in b.digests])
        batches = [{"bucket": b.bucket, "rows": b.rows, "digests": [d.hex() for d in b.digests]} for b in plan]
        write_json(self.folder / f"plan-{name}.json", {"batches": batches})

    def unfinished(self, wanted: set[bytes], row_multiple: int) -> list[Batch]:
        """Batches of kept plans that are to be run: none of their requests is answered or in an earlier such batch.

        Args:
            wanted: digests of the requests that need an answer.
            row_multiple: of the mesh; a batch whose rows do not divide evenly is left out.
        """
        batches, left = [], set(wanted)
        for file in sorted(self.folder.glob("plan-*.json")):
            try:
                kept = [_kept_batch(b) for b in _read_json(file)["batches"]]
            except (KeyError, TypeError, ValueError):
                raise StoreError(f"{file}: not a plan; delete it and start again, finished batches stay") from None
            for batch in kept:
                if batch.rows % row_multiple == 0 and left.issuperset(batch.digests):
                    batches.append(batch)
                    left.difference_update(batch.digests)
        return batches


def _kept_batch(value: dict) -> Batch:
    batch = Batch(value["bucket"], value["rows"], tuple(bytes.fromhex(d) for d in value["digests"]))
    integers = type(batch.bucket) is int and type(batch.rows) is int
    if not integers or batch.bucket < 2 or not 0 < len(set(batch.digests)) == len(batch.digests) <= batch.rows:
        raise ValueError("not a batch")
    return batch


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _name(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()[:20]


def _read_json(path: Path) -> dict:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}; delete it and start again, finished batches stay") from None


def _read_batch(path: Path) -> dict[bytes, TokenStatistics]:
    with _damage_named(path):
        arrays = _read_arrays(path)
        ends = np.cumsum(arrays["lengths"])[:-1]
        parts = [np.split(arrays[name], ends) for name in ("log_prob", "mean", "variance")]
        digests = [row.tobytes() for row in arrays["digests"]]
        return {d: TokenStatistics(*p) for d, p in zip(digests, zip(*parts, strict=True), strict=True)}


def _read_rows(path: Path) -> dict[bytes, tuple[np.ndarray, np.ndarray]]:
    with _damage_named(path):
        arrays = _read_arrays(path)
        if not all(arrays[name].ndim == 2 and arrays[name].dtype == np.float32 for name in ("first", "rest")):
            raise ValueError("its likelihoods are not [R, N] float32")
        rows = zip(arrays["first"], arrays["rest"], strict=True)
        return dict(zip((row.tobytes() for row in arrays["digests"]), rows, strict=True))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if (file.metadata() or {}).get("sha256") != _checksum(arrays):
            raise ValueError("its checksum does not fit its content")
    return arrays


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"{path}: damaged ({error}); delete it, its texts are then scored again") from None
