"""The attacks that exist, and how one is made ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from olmodetect_jax.attacks.base import TITLES, Attack
from olmodetect_jax.attacks.camia import Camia
from olmodetect_jax.attacks.cdd import Cdd
from olmodetect_jax.attacks.dc_pdd import DcPdd
from olmodetect_jax.attacks.dcq import Dcq
from olmodetect_jax.attacks.em_mia import EmMia, EmMiaBestOfFour
from olmodetect_jax.attacks.frequencies import FILE_NAME, FrequencyTable
from olmodetect_jax.attacks.fsd import Fsd
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.guided import Guided
from olmodetect_jax.attacks.hyperparameters import Hyperparameters
from olmodetect_jax.attacks.limited import Limited
from olmodetect_jax.attacks.lower import Lower
from olmodetect_jax.attacks.mia_tuner import MiaTuner
from olmodetect_jax.attacks.min_k import MinK
from olmodetect_jax.attacks.min_k_plus_plus import MinKPlusPlus
from olmodetect_jax.attacks.neighborhood import Neighborhood
from olmodetect_jax.attacks.pac import Pac
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.recall import Recall
from olmodetect_jax.attacks.self_critique import SelfCritique
from olmodetect_jax.attacks.sup_camia import SupCamia
from olmodetect_jax.attacks.supervised import (
    FSD_BASES,
    IN_DOMAIN,
    SETTINGS,
    SUPERVISED,
    SUPERVISED_TITLES,
    parts_of,
    row_ids,
)
from olmodetect_jax.attacks.zlib import Zlib
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.neighbours.files import load_neighbours
from olmodetect_jax.quiz.files import Quizzes, load_quizzes
from olmodetect_jax.training import LoraRecipe


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
# By family: from an attack's row id in-domain and a setting.
_SUPERVISED_MAKERS: dict[str, Callable[[str, str, Settings], Attack]] = {
    "sup_camia": lambda _, setting, settings: SupCamia(setting),
    "mia_tuner": lambda _, setting, settings: _mia_tuner(setting, settings),
    "fsd": lambda attack, setting, settings: _fsd(attack.removeprefix("fsd_"), setting, settings.hyperparameters),
}
UNSUPERVISED = tuple(_MAKERS)
ATTACKS = (*UNSUPERVISED, *SUPERVISED_TITLES)
GROUPS = ("all", "unsupervised", "supervised")
assert set(ATTACKS) <= set(TITLES), "every attack needs its title in attacks/base.py"


def attack_ids(text: str, setting: str = IN_DOMAIN) -> tuple[str, ...]:
    """Reads `ppl,fsd` or `all` into the ids of attacks and of supervised attacks' rows, in the order of the tables.

    Args:
        text: ids, families (`sup_camia`, `mia_tuner`, `fsd`), and `all`, `unsupervised` or `supervised`. FSD brings the
            attacks whose scores it is a deviation from, which cost nothing more. A row that is named in full
            (`fsd_ppl_lodo`) is taken as it is.
        setting: `in-domain`, `lodo`, `pooled` or some of them, separated by commas: those of the families.

    Raises:
        UsageError: an unknown attack or setting, or none.
    """
    settings = _named("--setting", setting, SETTINGS, SETTINGS)
    families = {family: [row for s in settings for row in row_ids(family, s)] for family in SUPERVISED}
    families["fsd"] += FSD_BASES
    supervised = [row for rows in families.values() for row in rows]
    words = {**families, "supervised": supervised, "unsupervised": UNSUPERVISED, "all": (*UNSUPERVISED, *supervised)}
    names = _named("--attacks", text, {*words, *ATTACKS}, (*UNSUPERVISED, *SUPERVISED, *GROUPS))
    ids = {each for name in names for each in words.get(name, [name])}
    return tuple(a for a in ATTACKS if a in ids)


def _named(option: str, text: str, allowed: Collection[str], shown: Collection[str]) -> list[str]:
    """The names between commas; `shown` are the allowed ones without the many rows."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise one_of(option, name, shown)
    if not names:
        raise UsageError(f"{option}: none named; allowed are: {', '.join(shown)}")
    return names


def build_attacks(ids: Sequence[str], settings: Settings) -> list[Attack]:
    """Makes attacks ready.

    Raises:
        UsageError: dc_pdd is asked for and there is no table, or dcq and there is no quiz.
        DataError: a file they are made from cannot be used.
    """
    return [_limited(_made(name, settings), settings) for name in ids]


def _made(name: str, settings: Settings) -> Attack:
    row = parts_of(name)
    if row is None:
        return _MAKERS[name](settings.hyperparameters, settings)
    family, attack, setting = row
    return _SUPERVISED_MAKERS[family](attack, setting, settings)


def _mia_tuner(setting: str, settings: Settings) -> MiaTuner:
    h = settings.hyperparameters
    return MiaTuner(setting, settings.prompts, h["mia_tuner_learning_rate"], h["mia_tuner_epochs"])


def _fsd(base: str, setting: str, h: Hyperparameters) -> Fsd:
    """FSD over a base attack, whose share of tokens is the published one whatever was tuned (supervised spec, 1.1)."""
    recipe = LoraRecipe(
        rank=h["fsd_rank"], alpha=2.0 * h["fsd_rank"], learning_rate=h["fsd_learning_rate"], epochs=h["fsd_epochs"]
    )
    bases = {"ppl": Ppl(), "zlib": Zlib(), "lower": Lower(), "min_k": MinK(0.2), "min_k_plus_plus": MinKPlusPlus(0.2)}
    return Fsd(bases[base], setting, recipe)


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
        others = ",".join(name for name in UNSUPERVISED if name != "dc_pdd")
        raise UsageError(
            f"dc_pdd: no token-frequency table at {path}; count one on text outside both classes with "
            f"`olmodetect frequencies TEXTS --model MODEL --out MODEL/{FILE_NAME}` (it is found there, or given with "
            f"--frequencies), or leave the attack out: --attacks {others}"
        )
    return FrequencyTable.load(path)
