"""`training.json` of a run folder: what was trained for its supervised attacks, with every step's loss."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError
from olmodetect_jax.evaluation.training import FILE_NAME, FORMAT, Adapter, read_training
from olmodetect_jax.files import write_json
from olmodetect_jax.training import Trained


def write_training(run: Path, trained: Iterable[Trained]) -> None:
    """Adds adapters to a run's log; does nothing where there is none to add.

    Args:
        run: the run folder, in which attacks may have been added one after the other.
        trained: what this command trained or found.

    Raises:
        DataError: the log that is there is damaged.
    """
    new = {t.name: _adapter(t) for t in trained}
    if not new:
        return
    try:
        known = {adapter.name: adapter for adapter in read_training(run) or ()}
    except DataError as error:
        raise DataError(f"{error}; delete the file and give the commands that made the run again") from None
    adapters = sorted({**known, **new}.values(), key=lambda a: (a.attack, a.setting, a.trained_for, a.name))
    write_json(run / FILE_NAME, {"format": FORMAT, "adapters": [_entry(adapter) for adapter in adapters]})


def _adapter(trained: Trained) -> Adapter:
    origin = trained.origin
    losses = tuple(float(loss) for loss in trained.losses)
    return Adapter(
        trained.name, origin.attack, origin.setting, origin.trained_for, len(origin.sources), losses, trained.batch
    )


def _entry(adapter: Adapter) -> dict[str, Any]:
    return {
        "name": adapter.name,
        "attack": adapter.attack,
        "setting": adapter.setting,
        "trained_for": adapter.trained_for,
        "n_texts": adapter.n_texts,
        "steps": adapter.steps,
        "losses": list(adapter.losses),
        "batch": adapter.batch,
    }
