"""Each attack's hyperparameters: their published values, what a user may set, and what tuning tries."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import Any

from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.files import config_path, load_yaml

Hyperparameters = Mapping[str, float | int | str]

_SHARE, _POSITIVE, _COUNT = "a number above 0 and at most 1", "a number above 0", "an integer of at least 1"
_SHARE_OR_0 = "a number from 0 to 1"
_ALLOWED: dict[str, str | tuple[str, ...]] = {
    "min_k": _SHARE,
    "min_k_plus_plus": _SHARE,
    "dc_pdd_alpha": _POSITIVE,
    "pac_far": _SHARE,
    "pac_near": _SHARE,
    "recall_shots": _COUNT,
    "em_mia_base": ("loss", "zlib", "mink", "minkpp"),
    "camia_composition": ("edgington", "fisher", "george", "pearson"),
    "neighborhood_score": ("d", "z"),
    "guided_score": ("rouge_guided", "rouge_delta"),
    "dcq_score": ("mean", "min", "kappa", "kappa_np"),
    "cdd_ratio": _SHARE,
    "cdd_length": _COUNT,
    "cdd_alpha": _SHARE_OR_0,
    "fsd_rank": _COUNT,
    "fsd_learning_rate": _POSITIVE,
    "fsd_epochs": _COUNT,
    "mia_tuner_learning_rate": _POSITIVE,
    "mia_tuner_epochs": _COUNT,
}
NAMES = tuple(_ALLOWED)


def load_hyperparameters(model: str, overrides: Mapping[str, Any]) -> dict[str, float | int | str]:
    """The values of one model, with single ones replaced.

    Args:
        model: its name; the published Instruct models have values of their own.
        overrides: name to value, as text from the command line or already typed.

    Raises:
        UsageError: an unknown name, or a value outside its range.
    """
    config = load_yaml(config_path("attacks", "hyperparameters.yaml"))
    own = next((v for name, v in config["models"].items() if name.lower() == model.lower()), {})
    values = {**config["default"], **own, **overrides}
    return {name: checked(name, value) for name, value in values.items()}


def checked(name: str, value: Any) -> float | int | str:
    """A hyperparameter's value with its type.

    Raises:
        UsageError: an unknown name, or a value outside its range.
    """
    if name not in _ALLOWED:
        raise one_of("hyperparameter", name, NAMES)
    allowed = _ALLOWED[name]
    if isinstance(allowed, tuple):
        if value not in allowed:
            raise one_of(name, value, allowed)
        return value
    kind = int if allowed == _COUNT else float
    try:
        whole = not isinstance(value, float) or value.is_integer()
        number = -1 if isinstance(value, bool) or (kind is int and not whole) else kind(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    large_enough = number >= 0 if allowed == _SHARE_OR_0 else number > 0
    if not large_enough or not number <= (1 if allowed in (_SHARE, _SHARE_OR_0) else sys.float_info.max):
        raise UsageError(f"{name}: expected {allowed}, got {value!r}")
    return number


def fallback(attack: str) -> dict[str, float | int | str]:
    """What the released tuners take for an attack where no candidate has a finite score."""
    values = load_yaml(config_path("attacks", "hyperparameters.yaml"))["fallback"].get(attack, {})
    return {name: checked(name, value) for name, value in values.items()}


def search_space(attack: str) -> list[dict[str, float | int | str]]:
    """The values that tuning tries for an attack, in order; empty if it has none to choose."""
    space = load_yaml(config_path("attacks", "hyperparameters.yaml"))["spaces"].get(attack, {})
    combinations = itertools.product(*space.values()) if space else ()
    return [{name: checked(name, v) for name, v in zip(space, values, strict=True)} for values in combinations]
