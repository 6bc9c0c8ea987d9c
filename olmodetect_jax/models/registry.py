"""Which architectures exist, and which published model a directory's name stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flax import nnx

from olmodetect_jax.errors import one_of
from olmodetect_jax.models.olmo2 import Olmo2, Olmo2Config


@dataclass(frozen=True)
class Family:
    """One architecture: how its config is read and which module runs it."""

    name: str
    config_class: type[Any]
    model_class: type[nnx.Module]


FAMILIES = {"olmo2": Family("olmo2", Olmo2Config, Olmo2)}


def model_family(config: dict[str, Any]) -> Family:
    """The family of a Hugging Face `config.json`.

    Raises:
        UsageError: its `model_type` is missing or not supported.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise one_of("config.json: model_type", name, FAMILIES)
    return FAMILIES[name]
