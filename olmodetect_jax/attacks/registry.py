"""The attacks that exist, and how one is made ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from olmodetect_jax.attacks.base import TITLES, Attack
from olmodetect_jax.attacks.camia import Camia
from olmodetect_jax.attacks.cdd import Cdd
from olmodetect_jax.attacks.dc_pdd import DcPdd
from olmodetect_jax.attacks.dcq import Dcq
from olmodetect_jax.attacks.em_mia import EmMia, EmMiaBestOfFour
from olmodetect_jax.attacks.frequencies import FILE_NAME, FrequencyTable
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.guided import Guided
from olmodetect_jax.attacks.hyperparameters import Hyperparameters
from olmodetect_jax.attacks.limited import Limited
from olmodetect_jax.attacks.lower import Lower
from olmodetect_jax.attacks.min_k import MinK
from olmodetect_jax.attacks.min_k_plus_plus import MinKPlusPlus
from olmodetect_jax.attacks.neighborhood import Neighborhood
from olmodetect_jax.attacks.pac import Pac
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.recall import Recall
from olmodetect_jax.attacks.self_critique import SelfCritique
from olmodetect_jax.attacks.zlib import Zlib
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.neighbours.files import load_neighbours
from olmodetect_jax.quiz.files import Quizzes, load_quizzes


@dataclass(frozen=True)
class Settings:
    """What attacks are made from.

    Attributes:
        hyperparameters: as `load_hyperparameters` gives them.
        frequencies: file of DC-PDD's frequency table, read only if that attack is made.
        em_mia_limit: records of each class that EMMIA takes; None for all.
        generation_limit: the same of the generative attacks.
        prompts: what they fill with texts.
        quiz: file of DCQ's options, read only if that attack is made.
        neighbours: file of Neigh.'s neighbours, read only if that attack is made; None to let the model fill the gaps.
    """

    hyperparameters: Hyperparameters
    frequencies: Path
    em_mia_limit: int | None = None
    generation_limit: int | None = None
    prompts: Prompts = dataclasses.field(default_factory=Prompts.load)
    quiz: Path | None = None
    neighbours: Path | None = None


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
    "em_mia": lambda h, _: EmMia(h["em_mia_base"]),
    "em_mia_best_of_four": lambda h, _: EmMiaBestOfFour(),
    "camia": lambda h, _: Camia(h["camia_composition"]),
    "neighborhood": lambda h, settings: Neighborhood(
        h["neighborhood_score"], settings.neighbours and load_neighbours(settings.neighbours)
    ),
    "guided": lambda h, settings: Guided(h["guided_score"], settings.prompts),
    "dcq": lambda h, settings: Dcq(h["dcq_score"], settings.prompts, _load_quizzes(settings.quiz)),
    "cdd": lambda h, _: Cdd(h["cdd_ratio"], h["cdd_length"], h["cdd_alpha"]),
    "self_critique": lambda h, settings: SelfCritique(settings.prompts),
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
        UsageError: dc_pdd is asked for and there is no table, or dcq and there is no quiz.
        DataError: a file they are made from cannot be used.
    """
    return [_limited(_MAKERS[name](settings.hyperparameters, settings), settings) for name in ids]


def _limited(attack: Attack, settings: Settings) -> Attack:
    """An attack under the limit that is meant for it."""
    limit, option = None, ""
    if attack.id in ("em_mia", "em_mia_best_of_four"):
        limit, option = settings.em_mia_limit, "--em-mia-limit"
    elif attack.id in GENERATIVE:
        limit, option = settings.generation_limit, "--generation-limit"
    return attack if limit is None else Limited(attack, limit, f"{option} takes {limit} records of each class")


def _load_quizzes(path: Path | None) -> Quizzes:
    if path is None:
        raise UsageError(
            "dcq: no quiz; make one with `olmodetect quiz` and give it with --quiz FILE, or leave the attack out of "
            "--attacks"
        )
    return load_quizzes(path)


def _load_table(path: Path) -> FrequencyTable:
    if not path.is_file():
        others = ",".join(name for name in ATTACKS if name != "dc_pdd")
        raise UsageError(
            f"dc_pdd: no token-frequency table at {path}; count one on text outside both classes with "
            f"`olmodetect frequencies TEXTS --model MODEL --out MODEL/{FILE_NAME}` (it is found there, or given with "
            f"--frequencies), or leave the attack out: --attacks {others}"
        )
    return FrequencyTable.load(path)
