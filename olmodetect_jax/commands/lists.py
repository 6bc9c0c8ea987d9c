"""`olmodetect attacks` and `olmodetect protocols`: what there is to choose from."""

from __future__ import annotations

import json

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.attacks.registry import ATTACKS
from olmodetect_jax.attacks.supervised import parts_of
from olmodetect_jax.protocol import PRESETS, attacks_of, load_protocol


def print_attacks(*, as_json: bool) -> None:
    """Prints id and title of every attack, and of every row of the supervised ones."""
    if as_json:
        print(json.dumps([{"id": a, "title": TITLES[a]} for a in ATTACKS], indent=2))
    else:
        for name in ATTACKS:
            print(f"{name:<27} {TITLES[name]}")


def print_protocols(*, as_json: bool) -> None:
    """Prints every field of the protocol, its value in each preset, and the attacks or families it bears on."""
    presets = {name: load_protocol(name).fields() for name in PRESETS}
    if as_json:
        print(json.dumps(presets, indent=2))
        return
    print(f"{'field':<26}" + "".join(f"{name:<16}" for name in PRESETS) + "attacks")
    for field in presets[PRESETS[0]]:
        values = "".join(f"{presets[name][field]!s:<16}" for name in PRESETS)
        attacks = dict.fromkeys((parts_of(attack) or (attack,))[0] for attack in attacks_of(field))
        print(f"{field:<26}{values}{', '.join(attacks) or 'all'}")
