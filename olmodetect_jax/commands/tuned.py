"""The file in which `olmodetect tune` leaves its choice, and the guard that keeps it off the texts it was made on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.hyperparameters import checked
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import load_yaml, write_text
from olmodetect_jax.records import Record

FILE_NAME = "hyperparameters.yaml"  # in the run folder


@dataclass(frozen=True)
class Tuned:
    """Hyperparameters and the texts they were chosen on.

    Attributes:
        values: by name.
        model: weights digest of the model.
        texts: the texts' hashes (`Record.text_sha1`).
        path: the file; for messages.
    """

    values: Mapping[str, float | int | str]
    model: str
    texts: frozenset[str]
    path: Path

    def save(self) -> None:
        """Writes the file."""
        import yaml

        content = {"values": dict(self.values), "tuned_on": {"model": self.model, "texts": sorted(self.texts)}}
        head = "# Chosen by `olmodetect tune` on the texts listed here, which must not be scored with these values.\n"
        write_text(self.path, head + yaml.safe_dump(content, sort_keys=False))

    def refuse_own_texts(self, records: Iterable[Record]) -> None:
        """Keeps the values off the texts they were chosen on.

        Raises:
            DataError: naming the first such record.
        """
        for record in records:
            if record.text_sha1 in self.texts:
                raise DataError(
                    f"{record}: the hyperparameters of {self.path} were tuned on this text, so a score with them would "
                    "flatter the attack; score other texts, or tune on others"
                )


def load_tuned(path: Path) -> Tuned:
    """Reads the file.

    Raises:
        UsageError: it is missing or does not hold hyperparameters; names the field.
    """
    content: Any = load_yaml(path)
    try:
        values, tuned_on = content["values"], content["tuned_on"]
        texts, model = frozenset(tuned_on["texts"]), tuned_on["model"]
        if not isinstance(values, dict) or not all(isinstance(t, str) for t in (*texts, model)):
            raise TypeError("values, tuned_on.model or tuned_on.texts has another type")
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a file of `olmodetect tune`: {error!r}") from None
    return Tuned({name: checked(name, value) for name, value in values.items()}, model, texts, path)
