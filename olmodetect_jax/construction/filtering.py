"""The non-members of a pool that the model cannot have seen: in no member text, and little of them in its indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from olmodetect_jax.construction.candidates import Candidate, Steps
from olmodetect_jax.construction.pools import Pool
from olmodetect_jax.errors import DataError


def drop_members(non_members: Pool, members: Pool) -> Pool:
    """The non-members without those whose texts stand in the pool of members too."""
    known, steps = {c.key for c in members.candidates}, Steps.from_rows(non_members.steps.rows())
    kept = [c for c in non_members.candidates if c.key not in known]
    steps.keep("not among members", len(kept))
    if len(kept) < len(non_members.candidates):
        steps.drop("not among members", "its text is a member's", len(non_members.candidates) - len(kept))
    return Pool(kept, steps)
