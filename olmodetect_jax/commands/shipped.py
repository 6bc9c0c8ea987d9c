"""Hyperparameters that the embedded sample brings: choosing them means generating for every development text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.hyperparameters import checked, fallback
from olmodetect_jax.errors import DataError

FILE_NAME = "generative_tuning.json"  # in the sample's folder
# The sample's runs generate less than the protocol lets them: a small model soon repeats itself.
CDD_LENGTH = 50
NEW_TOKENS = ("guided_new_tokens=64", "self_critique_new_tokens=64")
_AGAIN = "tune the sample again with commands.make_sample.tune_generative"


@dataclass(frozen=True)
class Shipped:
    """What tuning found when the sample was made.

    Attributes:
        path: the file.
        weights_digest: of the model.
        protocol: preset and changes under which the values were chosen, as a manifest names them.
        attacks: attack id to its grid, as in `tuning.json`.
    """

    path: Path
    weights_digest: str
    protocol: dict[str, Any]
    attacks: dict[str, dict[str, Any]]

    def values(self, attacks: Iterable[str]) -> dict[str, float | int | str]:
        """What was chosen for some of the attacks."""
        chosen = [self.attacks[name]["chosen"] or fallback(name) for name in attacks]
        return {name: checked(name, value) for values in chosen for name, value in values.items()}

    def require(self, weights_digest: str, protocol: dict[str, Any]) -> None:
        """Keeps the values to the model and the protocol they were chosen for.

        Raises:
            DataError: either is another one.
        """
        if (weights_digest, protocol) != (self.weights_digest, self.protocol):
            raise DataError(f"{self.path}: chosen for other weights or under another protocol; {_AGAIN}")


def read_shipped(sample: Path) -> Shipped:
    """Reads what `make_sample.tune_generative` left in the sample's folder.

    Raises:
        DataError: it is not there, or is no such file.
    """
    path = sample / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        counts = {name: content[name] for name in ("n_member", "n_non_member")}
        attacks = {name: {**attack, "shipped": counts} for name, attack in content["attacks"].items()}
        return Shipped(path, content["weights_digest"], content["protocol"], attacks)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: cannot be used ({error!r}); {_AGAIN}") from None
