"""The sample's only source of chance: a hash of what is decided and of the id it is decided for.

Nothing depends on order, so a document added or removed moves no other document.
"""

from __future__ import annotations

import hashlib

SEED = 20250


def chance(purpose: str, *names: str) -> float:
    """A number in [0, 1) that only the seed, the purpose and the names decide."""
    key = "\x00".join((str(SEED), purpose, *names)).encode("utf-8")
    return int.from_bytes(hashlib.sha256(key).digest()[:6], "big") / 2**48  # 48 bits are exact in a float64
