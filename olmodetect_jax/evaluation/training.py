"""How FSD's and MIA-Tuner's adapters were trained: a run's file `training.json`, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from olmodetect_jax.attacks.supervised import SETTINGS
from olmodetect_jax.evaluation.json_fields import Field, read_fields

FILE_NAME = "training.json"
FORMAT = 1
TITLES = {"fsd": "FSD", "mia_tuner": "MIA-Tuner"}  # the attacks that train an adapter


@dataclass(frozen=True)
class Adapter:
    """One adapter, LoRA's (FSD) or a soft prompt (MIA-Tuner).

    Attributes:
        name: unique in the run.
        attack: `fsd` or `mia_tuner`.
        setting: what was trained on.
        trained_for: the subset, side, domain or everything that it serves.
        n_texts: texts it was trained on.
        losses: of each step; None where a loss was no finite number.
        batch: texts (FSD) or pairs of texts (MIA-Tuner) a step.
    """

    name: str
    attack: str
    setting: str
    trained_for: str
    n_texts: int
    losses: tuple[float | None, ...]
    batch: int

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return len(self.losses)


def read_training(run: Path) -> tuple[Adapter, ...] | None:
    """Reads what `olmodetect score` left in a run folder about training; None if it left nothing.

    Raises:
        DataError: the file is no such one; names file and field.
    """
    file = read_fields(run / FILE_NAME, FORMAT)
    return None if file is None else tuple(map(_adapter, file["adapters"].elements()))


def _adapter(field: Field) -> Adapter:
    losses = tuple(loss.number() for loss in field["losses"].elements())
    if field["steps"].count() != len(losses):
        raise field["steps"].error(f"{len(losses)}, the number of losses")
    return Adapter(
        name=field["name"].string(),
        attack=field["attack"].text(TITLES),
        setting=field["setting"].text(SETTINGS),
        trained_for=field["trained_for"].string(),
        n_texts=field["n_texts"].count(),
        losses=losses,
        batch=field["batch"].count(),
    )
