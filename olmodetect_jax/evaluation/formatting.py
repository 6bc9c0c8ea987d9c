"""How numbers and texts of a run are shown, in the terminal and in the report."""

from __future__ import annotations

ABSENT = "–"


def two_decimals(value: float | None) -> str:
    """A value as the paper prints it; a dash if it is missing."""
    return f"{ABSENT:>4}" if value is None else f"{value:.2f}"


def signed(difference: float) -> str:
    """A difference with its sign and two decimals; exactly none has no sign."""
    return f"{difference:+.2f}" if difference else "0.00"


def share(value: float | None, n: int) -> str:
    """A share of n: two decimals, but one significant digit below 0.01, and 0 of n as `<1/n`."""
    if value is None:
        return ABSENT
    if value == 0:
        return f"<{1 / n:.1g}" if n else "0.00"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1g}"


def printable(text: str) -> str:
    """Text from files as it may be shown: control, bidirectional and other invisible characters become escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
