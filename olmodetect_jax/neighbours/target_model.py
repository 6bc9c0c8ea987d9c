"""Neighbours that the attacked model proposes itself: the default, which needs no other model.

Gaps are drawn as for any other filler (`masking.py`); what fills one is the model's own continuation of the text before
it. Unlike T5, the model does not see what follows a gap, so its neighbours fit less well: its scores are comparable
with each other, not with published ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from olmodetect_jax.neighbours.masking import COPIES, Masked, chunks, mask, split_window
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import text_seed
from olmodetect_jax.requests import Continuations, Generate, Sampling
from olmodetect_jax.tokenization import Tokenizer

NEW_TOKENS = 8  # enough for two words
TOP_K = 50  # as the released code samples from T5


@dataclass(frozen=True, eq=False)
class Proposal:
    """The neighbours of one text, before their gaps are filled.

    Attributes:
        copies: the text's head, each with gaps of its own.
        tail: what follows the head in every neighbour.
        asked: of each copy, the places of the gaps that the model fills, in the order of the request's rows. A gap
            keeps its own words if no token stands before it, if it has no words, or if it lies beyond the context.
        request: for all of them; None if there is none.
    """

    copies: tuple[Masked, ...]
    tail: str
    asked: tuple[tuple[int, ...], ...]
    request: Generate | None

    def neighbours(self, answer: Continuations | None, tokenizer: Tokenizer) -> list[str]:
        """The neighbours, once the request is answered.

        A fill is as many white-space words as the gap had, from the continuation's start; fewer or none if it is
        shorter.
        """
        rows = iter(answer.rows if answer else ())
        texts = []
        for masked, asked in zip(self.copies, self.asked, strict=True):
            fills = list(masked.words)
            for place in asked:
                words = tokenizer.decode(next(rows).ids).split()
                fills[place] = " ".join(words[: len(fills[place].split())])
            texts.append(masked.filled(fills) + self.tail)
        return texts


def propose(texts: Sequence[str], tokenizer: Tokenizer, protocol: Protocol) -> list[Proposal]:
    """What to ask the model for, one proposal a text.

    Args:
        texts: of one file, in its order (which counts under `neighborhood_seed` `file` only).
        tokenizer: the model's.
        protocol: `neighborhood_window`, `neighborhood_seed` and `generation_context` decide.
    """
    windows = {text: split_window(text, protocol.neighborhood_window) for text in texts}
    copies = [
        mask(windows[text][0], chunk.random)
        for chunk in chunks(texts, protocol.neighborhood_seed)
        for text in chunk.rows
    ]
    return [
        _proposal(text, windows[text], tuple(copies[i * COPIES : (i + 1) * COPIES]), tokenizer, protocol)
        for i, text in enumerate(texts)
    ]


def _proposal(
    text: str, window: tuple[str, str], copies: tuple[Masked, ...], tokenizer: Tokenizer, protocol: Protocol
) -> Proposal:
    whole = "".join(window)
    # A continuation begins with the space before the gap: the tokens that end before that space are what it follows.
    ends = [max(0, first - 1) for masked in copies for first, _ in masked.spans]
    counts = iter(tokenizer.token_counts(whole, ends) if ends else ())
    room = protocol.generation_context - NEW_TOKENS
    asked, starts = [], []
    for masked in copies:
        before = [(place, next(counts)) for place in range(len(masked.words))]
        usable = [(place, n) for place, n in before if masked.words[place].split() and 1 <= n <= room]
        asked.append(tuple(place for place, _ in usable))
        starts += [n for _, n in usable]
    request = None
    if starts:
        prompt = tokenizer.encode(whole, protocol.generation_context).ids[: max(starts)]
        request = Generate(
            prompt, NEW_TOKENS, tokenizer.stop_ids, greedy=False, sampling=Sampling(text_seed(text), top_k=TOP_K),
            starts=np.asarray(starts, np.int32),
        )  # fmt: skip
    return Proposal(copies, window[1], tuple(asked), request)
