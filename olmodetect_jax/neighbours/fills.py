"""What a T5 wrote for the gaps of a text (generative spec, section 1, item 6)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from olmodetect_jax.neighbours.masking import Masked

_SENTINEL = re.compile(r"<extra_id_\d+>")


def extract_fills(decoded: str, ignored: Sequence[str]) -> list[str]:
    """The pieces between sentinels of any number, stripped; one may be empty.

    What stands before the first sentinel or after the last is dropped, so a fill counts only once the sentinel after
    it has been written.

    Args:
        decoded: what was generated, special tokens and all.
        ignored: special tokens that are no sentinels, `<pad>` and `</s>`.
    """
    for token in ignored:
        decoded = decoded.replace(token, "")
    return [piece.strip() for piece in _SENTINEL.split(decoded)[1:-1]]


def fill_gaps(masked: Masked, decoded: str, ignored: Sequence[str]) -> str | None:
    """The neighbour that a T5's output makes; None if it has fewer fills than the text has gaps.

    Their order decides, not the sentinels' numbers; fills beyond the gaps are ignored.
    """
    fills, count = extract_fills(decoded, ignored), len(masked.words)
    return masked.filled(fills[:count]) if len(fills) >= count else None
