"""Options that several commands read the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from olmodetect_jax.attacks.registry import load_hyperparameters
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.protocol import Protocol, load_protocol

DTYPES = ("float32", "bfloat16")


def choices(preset: str, settings: Sequence[str], model: str) -> tuple[Protocol, dict[str, float]]:
    """The protocol and the hyperparameters, after the `--set NAME=VALUE` of the command line.

    Args:
        preset: name of the protocol.
        settings: as given.
        model: its name, for its published hyperparameters.

    Raises:
        UsageError: a setting that is not NAME=VALUE, or an unknown name or value.
    """
    fields = {f.name for f in dataclasses.fields(Protocol)} - {"preset"}
    defaults = load_hyperparameters(model, {})
    of_protocol, of_attacks = {}, {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise UsageError(f"--set: expected NAME=VALUE, got {setting!r}")
        if name in fields:
            of_protocol[name] = value
        elif name in defaults:
            of_attacks[name] = value
        else:
            raise one_of("--set", name, sorted(fields | set(defaults)))
    return load_protocol(preset, of_protocol), load_hyperparameters(model, of_attacks)


def check_dtype(dtype: str) -> str:
    """Returns `dtype` if it is one that models compute in.

    Raises:
        UsageError: it is not.
    """
    if dtype not in DTYPES:
        raise one_of("--dtype", dtype, DTYPES)
    return dtype
