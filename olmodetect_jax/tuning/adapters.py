"""Trained adapters on disk: one safetensors file each, with a JSON file beside it that says what it is.

    <folder>/<attack>-<setting>-<trained for>-<name>.safetensors, .json

The name follows from everything that decides the adapter, so one that is there is the one that was asked for: a run
that goes on, or another run with the same model and texts, uses it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from olmodetect_jax.errors import StoreError
from olmodetect_jax.files import parse_json, write_json, write_tensors
from olmodetect_jax.scoring.kept import checksum, damage_named, read_arrays
from olmodetect_jax.training import LoraRecipe, SoftPromptRecipe
from olmodetect_jax.tuning.lora import from_tensors, to_tensors
from olmodetect_jax.tuning.steps import Training, batch_of, texts_of

FORMAT = 1


@dataclass(frozen=True, eq=False)
class KeptAdapter:
    """An adapter as it is kept.

    Attributes:
        arrays: of a LoRA adapter by linear map, of a soft prompt [P, D].
        recipe: how it was trained.
        losses: [steps] float32.
    """

    arrays: Any
    recipe: LoraRecipe | SoftPromptRecipe
    losses: np.ndarray

    @property
    def scaling(self) -> float:
        """Alpha / rank of a LoRA adapter; 0 of a soft prompt."""
        return self.recipe.alpha / self.recipe.rank if isinstance(self.recipe, LoraRecipe) else 0.0


class AdapterFolder:
    """The adapters below a folder."""

    def __init__(self, folder: Path):
        """Opens the folder, which need not exist."""
        self.folder = folder

    def has(self, name: str) -> bool:
        """Whether an adapter is there; its JSON file is written last."""
        return bool(self._find(name))

    def read(self, name: str) -> KeptAdapter:
        """An adapter that is there.

        Raises:
            StoreError: a file of it is damaged.
        """
        path = self._find(name)[0]
        tensors_path = path.with_suffix(".safetensors")
        try:
            facts = parse_json(path.read_text(encoding="utf-8"))
            kind = LoraRecipe if facts["kind"] == "lora" else SoftPromptRecipe
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in facts["recipe"].items()}
            recipe, losses = kind(**values), np.array(facts["losses"], np.float32)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path}: damaged ({error!r}); delete it, the adapter is then trained again") from None
        with damage_named(tensors_path):
            tensors = read_arrays(tensors_path)
            arrays = tensors["soft_prompt"] if kind is SoftPromptRecipe else from_tensors(tensors, recipe.targets)
        return KeptAdapter(arrays, recipe, losses)

    def write(self, name: str, request: Training, arrays: Any, losses: np.ndarray, facts: Mapping[str, Any]) -> None:
        """Writes a trained adapter.

        Args:
            name: hex.
            request: what was trained.
            arrays: of a LoRA adapter by linear map, of a soft prompt [P, D].
            losses: [steps] float32, finite.
            facts: of the model and the machine, for readers.
        """
        lora = isinstance(request.recipe, LoraRecipe)
        tensors = to_tensors(arrays) if lora else {"soft_prompt": np.asarray(arrays)}
        origin = request.origin
        label = "-".join((origin.attack, origin.setting, re.sub(r"[^A-Za-z0-9_.]+", "_", origin.trained_for), name))
        path = self.folder / f"{label}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, {"sha256": checksum(tensors)})
        content = {
            "format": FORMAT,
            "name": name,
            "kind": "lora" if lora else "soft_prompt",
            "attack": origin.attack,
            "setting": origin.setting,
            "trained_for": origin.trained_for,
            "n_texts": len(texts_of(request)),
            "steps": len(losses),
            "batch": batch_of(request),
            "recipe": asdict(request.recipe),
            **facts,
            "losses": [float(loss) for loss in losses],
        }
        write_json(path.with_suffix(".json"), content)

    def _find(self, name: str) -> list[Path]:
        return sorted(self.folder.glob(f"*-{name}.json"))
