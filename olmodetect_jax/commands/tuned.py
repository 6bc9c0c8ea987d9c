"""The file in which `olmodetect tune` leaves its choice, and the guard that keeps it off the texts it was made on."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.hyperparameters import checked
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import load_yaml, write_text
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import Record

FILE_NAME = "hyperparameters.yaml"  # in the run folder


@dataclass(frozen=True)
class Tuned:
    """Hyperparameters and the texts they were chosen on.

    Attributes:
        values: by name.
        model: weights digest of the model.
        protocol: fields of the protocol they were chosen under.
        texts: the texts' hashes (`Record.text_sha1`).
        path: the file; for messages.
    """

    values: Mapping[str, float | int | str]
    model: str
    protocol: Mapping[str, Any]
    texts: frozenset[str]
    path: Path

    def save(self) -> None:
        """Writes the file."""
        import yaml

        tuned_on = {"model": self.model, "protocol": dict(self.protocol), "texts": sorted(self.texts)}
        content = {"values": dict(self.values), "tuned_on": tuned_on}
        head = "# Chosen by `olmodetect tune` on the texts listed here, which must not be scored with these values.\n"
        write_text(self.path, head + yaml.safe_dump(content, sort_keys=False))

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of it."""
        return {"path": str(self.path), "sha256": hashlib.sha256(self.path.read_bytes()).hexdigest()}

    def check(self, model: str, protocol: Protocol) -> None:
        """Holds the file against the run that uses it; says which fields of the protocol differ.

        Args:
            model: weights digest of the run's model.
            protocol: the run's.

        Raises:
            UsageError: the values were chosen for another model.
        """
        if model != self.model:
            raise UsageError(
                f"--hyperparameters {self.path}: chosen for other weights ({self.model[:12]}, now {model[:12]}); run "
                "`olmodetect tune` with this model"
            )
        others = [name for name, value in protocol.fields().items() if self.protocol.get(name) != value]
        if others:
            print(f"warning: {self.path}: chosen under another protocol ({', '.join(others)})", file=sys.stderr)

    def refuse_own_texts(self, records: Iterable[Record]) -> None:
        """Keeps the values off the texts they were chosen on.

        Raises:
            DataError: naming the first such record.
        """
        for record in records:
            if record.text and record.text_sha1 in self.texts:
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
        texts, model, protocol = frozenset(tuned_on["texts"]), tuned_on["model"], tuned_on["protocol"]
        if not isinstance(values, dict) or not isinstance(protocol, dict) or not isinstance(model, str):
            raise TypeError("values, tuned_on.protocol or tuned_on.model has another type")
        if not isinstance(tuned_on["texts"], list) or not texts or not all(map(_is_hash, texts)):
            raise TypeError("tuned_on.texts: expected the hashes of the texts, 20 hex digits each")
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a file of `olmodetect tune`: {error}") from None
    try:
        return Tuned({name: checked(name, value) for name, value in values.items()}, model, protocol, texts, path)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _is_hash(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{20}", text) is not None
