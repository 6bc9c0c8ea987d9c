"""Where an unfinished training stands: Orbax checkpoints every so many steps, of which the last is kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from olmodetect_jax.errors import StoreError


class Checkpoints:
    """The checkpoints of one group of trainings, in a folder of its own: `step-<n>` after n steps."""

    def __init__(self, folder: Path, every: int):
        """Opens the folder, which need not exist.

        Args:
            folder: of this very group: its name tells everything that decides the training.
            every: steps between checkpoints.
        """
        self._folder = folder.absolute()
        self._every = every

    def latest(self, start: Any) -> tuple[int, Any]:
        """The last checkpoint, on the places and in the types of `start`.

        Args:
            start: the state before the first step.

        Returns:
            The steps done, and the state after them; 0 and `start` where nothing is kept.

        Raises:
            StoreError: the checkpoint cannot be read.
        """
        steps = self._steps()
        if not steps:
            return 0, start
        leaves, tree = jax.tree.flatten(start)
        target = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) if isinstance(x, jax.Array) else x
            for x in leaves
        ]
        path = self._folder / f"step-{steps[-1]}"
        try:
            with _checkpointer() as checkpointer:
                found = checkpointer.restore(path, dict(enumerate_names(target)))
        except (OSError, ValueError, LookupError) as error:
            raise StoreError(f"{path}: damaged ({error}); delete it, training then goes on from before it") from None
        restored = [found[name] for name, _ in enumerate_names(leaves)]
        restored = [np.array(x) if isinstance(own, np.ndarray) else x for x, own in zip(restored, leaves, strict=True)]
        return steps[-1], jax.tree.unflatten(tree, restored)

    def keep(self, step: int, steps: int, state: Callable[[], Any]) -> None:
        """Writes a checkpoint if it is time for one; the end needs none.

        Args:
            step: steps done.
            steps: of the whole training.
            state: gives the state to write.
        """
        if step % self._every or step == steps:
            return
        before = self._steps()
        with _checkpointer() as checkpointer:  # leaving it waits for the write; a killed one leaves no such folder
            checkpointer.save(
                self._folder / f"step-{step}", dict(enumerate_names(jax.tree.leaves(state()))), force=True
            )
        for old in before:
            shutil.rmtree(self._folder / f"step-{old}")

    def what_is_kept(self) -> str:
        """Where the last good state lies, for messages."""
        steps = self._steps()
        return f"the state after step {steps[-1]} is kept in {self._folder}" if steps else "nothing was kept before it"

    def remove(self) -> None:
        """Removes what a finished training needs no more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _steps(self) -> list[int]:
        """Steps after which there is a checkpoint, ascending; what Orbax was writing when killed has another name."""
        names = [path.name.removeprefix("step-") for path in self._folder.glob("step-*")]
        return sorted(int(name) for name in names if name.isdecimal())


def enumerate_names(leaves: list[Any]) -> list[tuple[str, Any]]:
    """Leaves with names that sort in their order."""
    return [(f"{i:04d}", leaf) for i, leaf in enumerate(leaves)]


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    return ocp.StandardCheckpointer()
