"""How often members stand in what a model was trained on (paper Table 6; evaluation spec, section 8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from olmodetect_jax.construction.index.base import NgramIndex, windows


def copies(texts: Sequence[np.ndarray], indices: Sequence[NgramIndex], n: int) -> list[int | None]:
    """Counts of each text: a text stands no more often in a corpus than the rarest of its windows.

    Args:
        texts: ids of each, [T] uint32.
        indices: of the corpora, asked with ids.
        n: tokens of a window.

    Returns:
        One count a text, over all indices; None for one without a window.
    """
    parts = [windows(ids, n) for ids in texts]
    asked = np.concatenate([p for p in parts if len(p)]) if any(map(len, parts)) else None
    if asked is None:
        return [None] * len(texts)
    total = np.sum([index.count(asked) for index in indices], axis=0)
    ends = np.cumsum([len(p) for p in parts])
    return [
        int(total[end - len(part) : end].min()) if len(part) else None for part, end in zip(parts, ends, strict=True)
    ]
