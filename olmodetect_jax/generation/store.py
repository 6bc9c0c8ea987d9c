"""The engine's store for what was generated: `generations/<key>/batch-*.safetensors`, prompts and what followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from olmodetect_jax.generation.planning import LOADS
from olmodetect_jax.requests import Continuation, Continuations, Generate
from olmodetect_jax.scoring.kept import Kept, Provenance, damage_named, digests_of, read_arrays

_COLUMNS = ("ids", "log_prob", "entropy")


class GenerationStore(Kept):
    """The continuations of one provenance.

    Attributes:
        answers: by digest of the request.
    """

    requests_per_row = LOADS

    def __init__(self, root: Path, provenance: Provenance):
        """Opens or makes the folder and reads what is there.

        Raises:
            StoreError: the folder is another provenance's, or a file in it is damaged.
        """
        super().__init__(root, provenance)
        self.answers: dict[bytes, Continuations] = {}
        for file in self.files("batch"):
            self.answers = _read(file) | self.answers  # an answer that is there stays the answer

    def add(self, requests: Sequence[Generate], answers: Sequence[Continuations]) -> None:
        """Writes one finished batch, the prompts included."""
        digests = [r.digest for r in requests]
        rows = [row for answer in answers for row in answer.rows]
        arrays = {
            "prompts": np.concatenate([r.prompt for r in requests]),
            "prompt_lengths": np.array([len(r.prompt) for r in requests], np.int32),
            "row_counts": np.array([len(a.rows) for a in answers], np.int32),
            "lengths": np.array([len(row.ids) for row in rows], np.int32),
            "ended": np.array([row.ended for row in rows]),
            **{name: np.concatenate([getattr(row, name) for row in rows]) for name in _COLUMNS},
        }
        self.write("batch", digests, arrays)
        self.answers.update(zip(digests, answers, strict=True))


def _read(path: Path) -> dict[bytes, Continuations]:
    with damage_named(path):
        arrays = read_arrays(path)
        ends = np.cumsum(arrays["lengths"])[:-1]
        columns = [np.split(arrays[name], ends) for name in _COLUMNS]
        rows = [Continuation(*own[:-1], ended=bool(own[-1])) for own in zip(*columns, arrays["ended"], strict=True)]
        found, taken = {}, 0
        for digest, count in zip(digests_of(arrays), arrays["row_counts"].tolist(), strict=True):
            found[digest] = Continuations(tuple(rows[taken : taken + count]))
            taken += count
        return found
