"""The attacks that exist, and how one is made ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from olmodetect_jax.attacks.base import TITLES, Attack
from olmodetect_jax.attacks.camia import Camia
from olmodetect_jax.attacks.dc_pdd import DcPdd
from olmodetect_jax.attacks.em_mia import EmMia, EmMiaBestOfFour
from olmodetect_jax.attacks.frequencies import FILE_NAME, FrequencyTable
from olmodetect_jax.attacks.hyperparameters import Hyperparameters
from olmodetect_jax.attacks.lower import Lower
from olmodetect_jax.attacks.min_k import MinK
from olmodetect_jax.attacks.min_k_plus_plus import MinKPlusPlus
from olmodetect_jax.attacks.pac import Pac
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.recall import Recall
from olmodetect_jax.attacks.zlib import Zlib
from olmodetect_jax.errors import UsageError, one_of


@dataclass(frozen=True)
class Settings:
    """What attacks are made from.

    Attributes:
        hyperparameters: as `load_hyperparameters` gives them.
        frequencies: file of DC-PDD's frequency table, read only if that attack is made.
        em_mia_limit: records of each class that EMMIA takes; None for all.
    """

    hyperparameters: Hyperparameters
    frequencies: Path
    em_mia_limit: int | None = None


# In the order of the tables.
_MAKERS: dict[str, Callable[[Hyperparameters, Settings], Attack]] = {
    "ppl": lambda h, _: Ppl(),
    "zlib": lambda h, _: Zlib(),
    "lower": lambda h, _: Lower(),
    "min_k": lambda h, _: MinK(h["min_k"]),
    "min_k_plus_plus": lambda h, _: MinKPlusPlus(h["min_k_plus_plus"]),
    "dc_pdd": lambda h, settings: DcPdd(h["dc_pdd_alpha"], _load_table(settings.frequencies)),
    "pac": lambda h, _: Pac(h["pac_far"], h["pac_near"]),
    "recall": lambda h, _: Recall(h["recall_shots"]),
    "em_mia": lambda h, settings: EmMia(h["em_mia_base"], settings.em_mia_limit),
    "em_mia_best_of_four": lambda h, settings: EmMiaBestOfFour(settings.em_mia_limit),
    "camia": lambda h, _: Camia(h["camia_composition"]),
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


def build_attacks(ids: Sequence[str], settings: Settings) -> list[Attack]:
    """Makes attacks ready.

    Raises:
        UsageError: dc_pdd is asked for and there is no table.
    """
    return [_MAKERS[name](settings.hyperparameters, settings) for name in ids]


def _load_table(path: Path) -> FrequencyTable:
    if not path.is_file():
        others = ",".join(name for name in ATTACKS if name != "dc_pdd")
        raise UsageError(
            f"dc_pdd: no token-frequency table at {path}; count one on text outside both classes with "
            f"`olmodetect frequencies TEXTS --model MODEL --out MODEL/{FILE_NAME}` (it is found there, or given with "
            f"--frequencies), or leave the attack out: --attacks {others}"
        )
    return FrequencyTable.load(path)
