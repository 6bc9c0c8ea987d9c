"""CDD: drawn continuations of a member's beginning gather around the most probable one (generative spec, section 4)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score
from olmodetect_jax.attacks.written import NO_TEXT, Written
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import text_seed
from olmodetect_jax.requests import Generate, Sampling
from olmodetect_jax.tokenization import Tokenizer

SAMPLES, TEMPERATURE = 50, 0.8
TUNING_LENGTH = 200  # the longest that tuning tries: one generation serves the shorter ones too
_ALL_EMPTY = "1 where the model ends every continuation at once: they are all alike"


def prompt_tokens(tokens: int, context: int, max_new: int, ratio: float) -> int:
    """How many of a text's first tokens are the prompt; at least one, and not all of more than one.

    Args:
        tokens: of the whole text, at least one.
        context: tokens that the prompt's text and a continuation may have together.
        max_new: most tokens of a continuation, below `context`.
        ratio: share of the text that is the prompt.
    """
    kept = min(tokens, context - max_new)
    return max(1, min(math.floor(ratio * kept), kept - 1))


def peak(greedy: Sequence[int], samples: Sequence[Sequence[int]], alpha: float) -> float:
    """Share of samples within `alpha` times the longest output's length of the greedy one, in edits; 0 for none."""
    from rapidfuzz.distance import Levenshtein

    if not samples:
        return 0.0
    longest = max(len(greedy), *map(len, samples))
    return sum(Levenshtein.distance(greedy, sample) <= alpha * longest for sample in samples) / len(samples)


@dataclass(frozen=True)
class Cdd:
    """How alike a model's continuations of a text's beginning are; the rest of the text is not looked at.

    Attributes:
        ratio: share of the text that is the prompt.
        length: most tokens of a continuation.
        alpha: how far from the greedy continuation counts as alike, as a share of the longest.
    """

    ratio: float
    length: int
    alpha: float
    id: ClassVar[str] = "cdd"
    needs_dev: ClassVar[bool] = False

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Written]]:
        """The greedy continuation and the drawn ones of each text; `n_scored` counts the prompt's tokens."""
        context = protocol.generation_context
        max_new = max(TUNING_LENGTH, self.length) if group.tuning else self.length
        room = context - max_new
        written, asked = [], []
        texts = [r.text for r in group.records]
        for text, tokens in zip(texts, tokenizer.encode_all(texts, context), strict=True):
            hole = None if text and tokens.n_tokens else NO_TEXT
            if room < 1:
                hole = hole or f"cdd_length, {max_new}, leaves a prompt no room in a context of {context} tokens"
            if hole:
                written.append(Written(tokens.n_tokens, hole=hole))
                continue
            prompt = tokens.ids[: prompt_tokens(tokens.n_tokens, context, max_new, self.ratio)]
            written.append(Written(tokens.n_tokens, len(prompt), truncated=tokens.n_tokens > room))
            how = Sampling(text_seed(text), temperature=TEMPERATURE, top_k=protocol.cdd_top_k)
            starts = np.full(SAMPLES, len(prompt), np.int32)
            asked.append(Generate(prompt, max_new, tokenizer.stop_ids, sampling=how, starts=starts))
        answers = iter((yield asked))
        return [w if w.hole else dataclasses.replace(w, rows=next(answers).rows) for w in written]

    def score(self, group: Group, answers: Sequence[Written], protocol: Protocol) -> list[Score]:
        """The peak of each text's continuations, as far as `length` tokens."""
        del group, protocol
        return [written.result(math.nan) if written.hole else self._score(written) for written in answers]

    def _score(self, written: Written) -> Score:
        greedy, *samples = (row.ids[: self.length].tolist() for row in written.rows)
        note = None if any((greedy, *samples)) else _ALL_EMPTY
        return written.result(peak(greedy, samples, self.alpha), note)
