"""The named choices on which the paper, its released code and careful practice differ (likelihood spec, section 0)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.files import config_path, load_yaml

PRESETS = ("audited", "paper", "release")


@dataclass(frozen=True)
class Protocol:
    """One value for every choice; `configs/protocols/<preset>.yaml` holds the three presets.

    Attributes:
        preset: the preset the values came from.
        max_tokens: tokens of a text that are read, from its start; the model's own context caps it.
        text_span: the text that Zlib's byte count and Lower's lower-casing see: the span that was scored, or
            the full text although only its first `max_tokens` tokens were scored.
        zlib_numerator: Zlib divides the sum or the mean of the log-probabilities by the compressed length.
        lower_form: Lower is the difference mean LL(text) - mean LL(lower), or the ratio mean LL(lower) / mean LL(text).
        score_dtype: type in which token statistics and their sums and means are rounded; `bfloat16` reproduces
            the released scores' grid.
        special_ids: what happens when a special token's id is among a text's targets: the record is flagged
            in its score line, or the command ends with an error that names it. A final end-of-text id is
            always dropped from the targets of PPL, Zlib, Lower, MinK and MinK++ instead.
    """

    preset: str
    max_tokens: int
    text_span: Literal["scored", "full"]
    zlib_numerator: Literal["sum", "mean"]
    lower_form: Literal["difference", "ratio"]
    score_dtype: Literal["float32", "bfloat16"]
    special_ids: Literal["flag", "error"]

    def fields(self) -> dict[str, Any]:
        """Every choice by name, without `preset`."""
        values = dataclasses.asdict(self)
        del values["preset"]
        return values

    def changed(self) -> dict[str, Any]:
        """The choices that differ from the preset: what a results file must name."""
        preset = load_protocol(self.preset).fields()
        return {name: value for name, value in self.fields().items() if value != preset[name]}


def load_protocol(preset: str = "audited", overrides: Mapping[str, str] | None = None) -> Protocol:
    """Reads a preset and replaces single fields.

    Args:
        preset: `audited`, `paper` or `release`.
        overrides: field name to value, as text from the command line or already typed.

    Raises:
        UsageError: an unknown preset, field or value; the message lists what is allowed.
    """
    if preset not in PRESETS:
        raise one_of("protocol", preset, PRESETS)
    path = config_path("protocols", f"{preset}.yaml")
    values = load_yaml(path)
    hints = {name: hint for name, hint in get_type_hints(Protocol).items() if name != "preset"}
    if not isinstance(values, dict) or set(values) != set(hints):
        raise UsageError(f"{path}: expected exactly the fields {', '.join(hints)}")
    for name, value in (overrides or {}).items():
        if name not in hints:
            raise one_of("protocol field", name, hints)
        values[name] = value
    return Protocol(preset=preset, **{name: _checked(name, value, hints[name]) for name, value in values.items()})


def _checked(name: str, value: Any, hint: Any) -> Any:
    if hint is int:
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = 0
        if isinstance(value, (bool, float)) or number < 2:
            raise UsageError(f"protocol field {name}: expected an integer of at least 2, got {value!r}")
        return number
    if value not in get_args(hint):
        raise one_of(f"protocol field {name}", value, get_args(hint))
    return value
