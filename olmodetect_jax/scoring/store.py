"""The engine's store for what was scored.

Files are `batch-*.safetensors`, texts with their statistics, `rows-*.safetensors`, likelihoods of targets after some
prefixes, a row each, and `next-*.safetensors`, log-probabilities of single tokens after prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from olmodetect_jax.requests import NextTokens, ScoreTokens, TokenStatistics
from olmodetect_jax.scoring.kept import Kept, Provenance, damage_named, digests_of, read_arrays, read_json
from olmodetect_jax.scoring.planning import Batch


class Store(Kept):
    """The scored answers of one provenance."""

    def __init__(self, root: Path, provenance: Provenance):
        """Opens or makes the folder and reads which answers are there.

        Raises:
            StoreError: the folder is another provenance's, or a file in it is damaged.
        """
        super().__init__(root, provenance)
        self._answers: dict[bytes, TokenStatistics] = {}
        for file in self.files("batch"):
            self._answers = _read_batch(file) | self._answers  # an answer that is there stays the answer
        self.rows: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        for file in self.files("rows"):
            self.rows = _read_rows(file) | self.rows
        self.next_tokens: dict[bytes, NextTokens] = {}
        for file in self.files("next"):
            self.next_tokens = _read_next(file) | self.next_tokens

    def known(self, digest: bytes) -> bool:
        """Whether the answer to a request is there."""
        return digest in self._answers

    def __getitem__(self, digest: bytes) -> TokenStatistics:
        """The answer to a request."""
        return self._answers[digest]

    def add(self, batch: Batch, requests: Mapping[bytes, ScoreTokens], answers: Sequence[TokenStatistics]) -> None:
        """Writes one finished batch, the ids that were scored included; `answers` in the order of its digests."""
        arrays = {
            "ids": np.concatenate([requests[d].ids for d in batch.digests]),
            "lengths": np.array([len(a.log_prob) for a in answers], np.int32),
            **{name: np.concatenate([getattr(a, name) for a in answers]) for name in ("log_prob", "mean", "variance")},
        }
        self.write("batch", batch.digests, arrays)
        self._answers.update(zip(batch.digests, answers, strict=True))

    def add_rows(self, digests: Sequence[bytes], first: np.ndarray, rest: np.ndarray) -> None:
        """Writes the answers to some `ScoreTargets`, which `rows` then holds by name.

        Args:
            digests: names (`row`) of R requests with the same targets.
            first: [R, N] float32, in the order of `Targets.order`.
            rest: [R, N] float32.
        """
        self.write("rows", digests, {"first": first, "rest": rest})
        self.rows.update(zip(digests, zip(first, rest, strict=True), strict=True))

    def add_next(self, digests: Sequence[bytes], answers: Sequence[np.ndarray]) -> None:
        """Writes the answers to some `PredictNext` with the same tokens, which `next_tokens` then holds by digest.

        Args:
            digests: of the requests.
            answers: [R_i, N] float32 each.
        """
        counts = np.array([len(a) for a in answers], np.int32)
        self.write("next", digests, {"counts": counts, "log_prob": np.concatenate(answers)})
        self.next_tokens.update(zip(digests, map(NextTokens, answers), strict=True))


def kept_statistics(root: Path, weights_digest: str, dtype: str) -> dict[bytes, TokenStatistics]:
    """Statistics of texts that runs of a model have left, by the requests' digests; nothing is made or computed.

    Args:
        root: a run's `statistics/`.
        weights_digest: of the model.
        dtype: of its weights and activations.

    Raises:
        StoreError: a file is damaged.
    """
    found: dict[bytes, TokenStatistics] = {}
    for path in sorted(root.glob("*/provenance.json")):
        provenance = read_json(path)
        if (provenance.get("weights_digest"), provenance.get("dtype")) == (weights_digest, dtype):
            for file in sorted(path.parent.glob("batch-*.safetensors")):
                found = _read_batch(file) | found
    return found


def _read_next(path: Path) -> dict[bytes, NextTokens]:
    with damage_named(path):
        arrays = read_arrays(path)
        parts = np.split(arrays["log_prob"], np.cumsum(arrays["counts"])[:-1])
        return dict(zip(digests_of(arrays), map(NextTokens, parts), strict=True))


def _read_batch(path: Path) -> dict[bytes, TokenStatistics]:
    with damage_named(path):
        arrays = read_arrays(path)
        ends = np.cumsum(arrays["lengths"])[:-1]
        parts = [np.split(arrays[name], ends) for name in ("log_prob", "mean", "variance")]
        answers = (TokenStatistics(*p) for p in zip(*parts, strict=True))
        return dict(zip(digests_of(arrays), answers, strict=True))


def _read_rows(path: Path) -> dict[bytes, tuple[np.ndarray, np.ndarray]]:
    with damage_named(path):
        arrays = read_arrays(path)
        if not all(arrays[name].ndim == 2 and arrays[name].dtype == np.float32 for name in ("first", "rest")):
            raise ValueError("its likelihoods are not [R, N] float32")
        rows = zip(arrays["first"], arrays["rest"], strict=True)
        return dict(zip(digests_of(arrays), rows, strict=True))
