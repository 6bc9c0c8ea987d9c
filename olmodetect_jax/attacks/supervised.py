"""The supervised attacks' names: each attack, or each base score of FSD, in each setting is a row of the tables.

A setting says which development texts an attack learns from (supervised spec, section 3): those of the subset that is
scored, those of all other domains (leave one domain out), or those of all domains, the domain being unknown.
"""

from __future__ import annotations

IN_DOMAIN, LODO, POOLED = SETTINGS = ("in-domain", "lodo", "pooled")
SUPERVISED = ("sup_camia", "mia_tuner", "fsd")
MIA_TUNER_EPOCHS = 50  # published: with fewer it is another row
FSD_BASES = {"ppl": "PPL", "zlib": "Zlib", "lower": "Lower", "min_k": "MinK", "min_k_plus_plus": "MinK++"}

_SUFFIXES = {IN_DOMAIN: "", LODO: "_lodo", POOLED: "_pooled"}
_SUFFIX_TITLES = {IN_DOMAIN: "", LODO: ", LODO", POOLED: ", pooled"}
_ROWS = {"sup_camia": {"sup_camia": "Sup-CAMIA"}, "mia_tuner": {"mia_tuner": "MIA-Tuner"},
         "fsd": {f"fsd_{base}": f"FSD {title}" for base, title in FSD_BASES.items()}}  # fmt: skip


def row_id(attack: str, setting: str) -> str:
    """The id of an attack's row (`sup_camia`, `mia_tuner`, `fsd_ppl` …) in a setting: in-domain rows have no suffix."""
    return attack + _SUFFIXES[setting]


def row_ids(family: str, setting: str) -> tuple[str, ...]:
    """The rows that `sup_camia`, `mia_tuner` or `fsd` makes in a setting."""
    return tuple(row_id(attack, setting) for attack in _ROWS[family])


def parts_of(row: str) -> tuple[str, str, str] | None:
    """(family, attack's row id in-domain, setting) of a supervised row; None for any other id."""
    return _PARTS.get(row)


_PARTS = {
    row_id(attack, setting): (family, attack, setting)
    for family in SUPERVISED
    for attack in _ROWS[family]
    for setting in SETTINGS
}

SUPERVISED_TITLES = {
    row_id(attack, setting): title + _SUFFIX_TITLES[setting]
    for family in SUPERVISED
    for setting in SETTINGS
    for attack, title in _ROWS[family].items()
}
