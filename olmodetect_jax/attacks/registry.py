"""The attacks that exist, their hyperparameters, and how one is made ready."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from olmodetect_jax.attacks.base import TITLES, Attack
from olmodetect_jax.attacks.dc_pdd import DcPdd
from olmodetect_jax.attacks.frequencies import FILE_NAME, FrequencyTable
from olmodetect_jax.attacks.lower import Lower
from olmodetect_jax.attacks.min_k import MinK
from olmodetect_jax.attacks.min_k_plus_plus import MinKPlusPlus
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.zlib import Zlib
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.files import config_path, load_yaml

Hyperparameters = Mapping[str, float]

# In the order of the tables. Each is made from the hyperparameters and the frequency table's file.
_MAKERS: dict[str, Callable[[Hyperparameters, Path], Attack]] = {
    "ppl": lambda h, _: Ppl(),
    "zlib": lambda h, _: Zlib(),
    "lower": lambda h, _: Lower(),
    "min_k": lambda h, _: MinK(h["min_k"]),
    "min_k_plus_plus": lambda h, _: MinKPlusPlus(h["min_k_plus_plus"]),
    "dc_pdd": lambda h, frequencies: DcPdd(h["dc_pdd_alpha"], _load_table(frequencies)),
}
ATTACKS = tuple(_MAKERS)
assert set(ATTACKS) <= set(TITLES), "every attack needs its title in attacks/base.py"


def attack_ids(text: str) -> tuple[str, ...]:
    """Reads `ppl,zlib` or `all` into attack ids, in the order of the tables.

    Raises:
        UsageError: an unknown attack, or none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if "all" in names:
        names = [*ATTACKS, *(name for name in names if name != "all")]
    for name in names:
        if name not in ATTACKS:
            raise one_of("--attacks", name, (*ATTACKS, "all"))
    if not names:
        raise UsageError(f"--attacks: none named; allowed are: {', '.join(ATTACKS)}, all")
    return tuple(a for a in ATTACKS if a in names)


def load_hyperparameters(model: str, overrides: Mapping[str, str]) -> dict[str, float]:
    """The values of one model, with single ones replaced.

    Args:
        model: its name; the published Instruct models have values of their own.
        overrides: name to value, as text.

    Raises:
        UsageError: an unknown name, or a value outside its range.
    """
    config = load_yaml(config_path("attacks", "hyperparameters.yaml"))
    own = next((v for name, v in config["models"].items() if name.lower() == model.lower()), {})
    values: dict[str, float] = {**config["default"], **own}
    for name, text in overrides.items():
        try:
            values[name] = float(text)
        except ValueError:
            raise UsageError(f"{name}: expected a number, got {text!r}") from None
        largest = 1.0 if name.startswith("min_k") else sys.float_info.max
        if not 0 < values[name] <= largest:
            raise UsageError(f"{name}: expected a number above 0{' and at most 1' if largest == 1 else ''}, got {text}")
    return values


def build_attacks(ids: Sequence[str], hyperparameters: Hyperparameters, frequencies: Path) -> list[Attack]:
    """Makes attacks ready.

    Args:
        ids: attack ids.
        hyperparameters: as `load_hyperparameters` gives them.
        frequencies: file of the frequency table, read only if an attack needs it.

    Raises:
        UsageError: dc_pdd is asked for and there is no table.
    """
    return [_MAKERS[name](hyperparameters, frequencies) for name in ids]


def _load_table(path: Path) -> FrequencyTable:
    if not path.is_file():
        others = ",".join(name for name in ATTACKS if name != "dc_pdd")
        raise UsageError(
            f"dc_pdd: no token-frequency table at {path}; count one on text outside both classes with "
            f"`olmodetect frequencies TEXTS --model MODEL --out MODEL/{FILE_NAME}` (it is found there, or given with "
            f"--frequencies), or leave the attack out: --attacks {others}"
        )
    return FrequencyTable.load(path)
