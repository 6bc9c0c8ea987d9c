"""Dates of texts in days, and the temporal term of the matching loss (construction spec, section 7)."""

from __future__ import annotations

import math
import re
from datetime import date

import numpy as np

# ISO 8601: a day, maybe with a time; a fraction of a second and a zone may follow and are not read.
_DATE = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?(?:Z|[+-]\d{2}(?::?\d{2})?)?)?", re.ASCII
)


def days(text: str | None) -> float | None:
    """Ordinal of the day and whole seconds of it, as the text says it, whatever its zone.

    Args:
        text: as the source has it.

    Returns:
        Days, or None for what is no such date: the text then counts as undated.
    """
    found = _DATE.fullmatch(text.strip()) if text else None
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
    if hour > 23 or minute > 59 or second > 59:
        return None
    try:
        ordinal = date(year, month, day).toordinal()
    except ValueError:
        return None
    return ordinal + (hour * 3600 + minute * 60 + second) / 86400


def temporal_term(members: np.ndarray, non_members: np.ndarray) -> float:
    """How far the members' dates are from the non-members', in standard deviations of the latter.

    (|difference of means| + |difference of standard deviations|) / standard deviation of the non-members; not bounded.

    Args:
        members: [N] float64 days, NaN where undated; those are left out.
        non_members: the same.

    Returns:
        0 if no non-member is dated; infinity if some are, but no member.
    """
    members, non_members = members[~np.isnan(members)], non_members[~np.isnan(non_members)]
    if not len(non_members):
        return 0.0
    if not len(members):
        return math.inf
    centre = non_members.mean()  # ordinals squared would lose the hours
    spread = float(np.std(non_members - centre))
    apart = abs(float(np.mean(members - centre)) - float(np.mean(non_members - centre)))
    return (apart + abs(float(np.std(members - centre)) - spread)) / (spread or 1.0)
