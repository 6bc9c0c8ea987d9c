"""`training.json` of a run folder: what was trained for its supervised attacks, with every step's loss."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError
from olmodetect_jax.files import parse_json, write_json
from olmodetect_jax.training import Trained

FORMAT = 1
FILE_NAME = "training.json"


def write_training(run: Path, trained: Iterable[Trained]) -> None:
    """Adds adapters to a run's log; does nothing where there is none to add.

    Raises:
        DataError: the log that is there cannot be read.
    """
    new = {t.name: _entry(t) for t in trained}
    if not new:
        return
    path = run / FILE_NAME
    known: dict[str, Any] = {}
    if path.exists():
        try:
            known = {entry["name"]: entry for entry in parse_json(path.read_text(encoding="utf-8"))["adapters"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: cannot be read ({error!r}); delete it and give the same command again") from None
    entries = {**known, **new}.values()
    entries = sorted(entries, key=lambda e: (e["attack"], e["setting"], e["trained_for"], e["name"]))
    write_json(path, {"format": FORMAT, "adapters": entries})


def _entry(trained: Trained) -> dict[str, Any]:
    origin = trained.origin
    return {
        "name": trained.name,
        "attack": origin.attack,
        "setting": origin.setting,
        "trained_for": origin.trained_for,
        "n_texts": len(origin.sources),
        "steps": len(trained.losses),
        "losses": [float(loss) for loss in trained.losses],
        "batch": trained.batch,
    }
