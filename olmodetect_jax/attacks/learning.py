"""The labelled texts that FSD and MIA-Tuner train on (supervised spec, 1.2 and 2.5)."""

from __future__ import annotations

from collections.abc import Sequence

from olmodetect_jax.attacks.base import Group
from olmodetect_jax.errors import DataError
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, text_hash
from olmodetect_jax.training import Origin

LEAST = 2  # texts of a class
_CLASSES = {MEMBER: "members", NON_MEMBER: "non-members"}


def training_records(group: Group, label: int, attack: str) -> list[Record]:
    """The development records of one class that have a text, in the order of their files.

    Raises:
        DataError: a text is among those that are scored with what is learnt.
    """
    records = [r for r in group.dev if r.label == label and r.text]
    for record in records:
        if text_hash(record.text) in group.held_out:
            raise DataError(
                f"{record}: {attack} would learn from a text that it is to score; remove it from the development split"
            )
    return records


def require_enough(
    records: Sequence[Record], group: Group, label: int, attack: str, usable: str = "of two tokens or more"
) -> None:
    """Refuses to learn from fewer than two usable texts.

    Args:
        records: the usable ones of a class.
        group: whose attack it is.
        label: the class.
        attack: its title.
        usable: what makes a text so.

    Raises:
        DataError: names subset, class and count.
    """
    if len(records) < LEAST:
        subset = group.records[0].subset if group.records else group.trained_for
        raise DataError(
            f"{attack} on subset {subset}: {len(records)} development {_CLASSES[label]} {usable} to learn from, and "
            f"it needs at least {LEAST}; add some, or leave the attack out of --attacks"
        )


def origin_of(records: Sequence[Record], group: Group, attack: str, setting: str) -> Origin:
    """What a training request says of its texts, these being those of `records` in their order."""
    trained_for = group.trained_for or (group.records[0].subset if group.records else "")
    sources = tuple(text_hash(record.text) for record in records)
    return Origin(attack, setting, trained_for, sources, group.held_out)
