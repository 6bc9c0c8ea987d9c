"""Which words of a text are replaced in its neighbours (generative spec, section 1, items 1 to 4)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from olmodetect_jax.records import text_hash

COPIES = 10  # neighbours of a text
HEAD_WORDS = 300  # words of a longer text that are perturbed
CHUNK_ROWS = 20  # (text, copy) rows that share a random stream under the seed rule `file`
SHARE, SPAN, BUFFER = 0.3, 2, 1  # of words to mask at most; tokens a span; tokens kept free on both sides of it
FEWEST_TOKENS = 14  # of a text that has a span at all

WindowRule = Literal["kept", "flattened"]
SeedRule = Literal["text", "file"]


def split_window(text: str, rule: WindowRule) -> tuple[str, str]:
    """The part of a text that is perturbed, and what follows it unchanged.

    The head of a text of more than 300 white-space words is the first 300; that of any other is the whole text.

    Args:
        text: the whole text.
        rule: `kept` cuts a long text after its 300th word; `flattened` joins the words of both parts by single
            spaces, as the released code does.
    """
    words = text.split()
    if len(words) <= HEAD_WORDS:
        return text, ""
    if rule == "flattened":
        return " ".join(words[:HEAD_WORDS]), " " + " ".join(words[HEAD_WORDS:])
    last = next(itertools.islice(re.finditer(r"\S+", text), HEAD_WORDS - 1, None))
    return text[: last.end()], text[last.end() :]


def spans_of(n_tokens: int) -> tuple[int, int]:
    """Tokens of a span, and how many spans a text of so many tokens gets."""
    length = max(1, min(int(SHARE * n_tokens), SPAN))
    return length, int(SHARE * n_tokens / (length + 2 * BUFFER))


@dataclass(frozen=True)
class Masked:
    """A text with gaps: pieces[0], gap, pieces[1], gap, ..., pieces[-1].

    Attributes:
        pieces: what stays, one more than gaps.
        words: what stood in each gap.
    """

    pieces: tuple[str, ...]
    words: tuple[str, ...]

    def filled(self, fills: Sequence[str]) -> str:
        """The text with other words in its gaps; the spaces beside a gap stay, whatever is put into it."""
        return "".join(itertools.chain.from_iterable(zip(self.pieces, [*fills, ""], strict=True)))

    @property
    def with_sentinels(self) -> str:
        """The text with T5's sentinels in its gaps, numbered from left to right."""
        return self.filled([f"<extra_id_{i}>" for i in range(len(self.words))])

    def ranges(self, fills: Sequence[str]) -> list[tuple[int, int]]:
        """The characters (first, one after the last) that each fill takes in `filled(fills)`."""
        lengths = [len(part) for pair in zip(self.pieces, fills, strict=False) for part in pair]
        ends = [0, *itertools.accumulate(lengths)]
        return [(ends[i], ends[i + 1]) for i in range(1, len(ends) - 1, 2)]

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Where the gaps' own words stand in the unmasked text."""
        return self.ranges(self.words)


def mask(text: str, random: np.random.RandomState) -> Masked:
    """Draws where a text's gaps are.

    Tokens are what stands between single spaces: a line feed stays inside one, a run of spaces makes empty ones. The
    last token is never masked, and no gap is within one token of another.

    Args:
        text: the head of a text.
        random: drawn from once for each try.
    """
    tokens = text.split(" ")
    length, count = spans_of(len(tokens))
    runs = [(i, i + 1) for i in range(len(tokens))]  # tokens from, to; a gap becomes one run
    gaps: set[tuple[int, int]] = set()
    for _ in range(5 * count + 50 if count else 0):
        start = int(random.randint(0, max(1, len(runs) - length)))
        if not gaps.isdisjoint(runs[max(0, start - BUFFER) : start + length + BUFFER]):
            continue
        gap = (runs[start][0], runs[start + length - 1][1])
        runs[start : start + length] = [gap]
        gaps.add(gap)
        if len(gaps) == count:
            break
    pieces, words, done = [], [], 0
    for first, end in sorted(gaps):
        before = " ".join(tokens[done:first])
        pieces.append((" " if done else "") + before + (" " if first else ""))
        words.append(" ".join(tokens[first:end]))
        done = end
    pieces.append((" " if done else "") + " ".join(tokens[done:]))
    return Masked(tuple(pieces), tuple(words))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows whose gaps are drawn from one random stream, one row after the other.

    Attributes:
        rows: a text for each copy of it.
        random: the stream.
    """

    rows: tuple[str, ...]
    random: np.random.RandomState


def chunks(texts: Sequence[str], rule: SeedRule, *, copies: int = COPIES, rows: int = CHUNK_ROWS) -> list[Chunk]:
    """Every text so many times, in its order, cut into chunks.

    Args:
        texts: of one file.
        rule: `text` gives each text a stream that is seeded by its hash, so that its gaps do not depend on the others;
            `file` seeds a stream for each chunk of rows by the chunk's place, as the released code does.
        copies: of a text.
        rows: of a chunk under the rule `file`.
    """
    if rule == "text":
        return [Chunk((text,) * copies, np.random.RandomState(_seed(text))) for text in texts]
    repeated = [text for text in texts for _ in range(copies)]
    starts = range(0, len(repeated), rows)
    return [Chunk(tuple(repeated[i : i + rows]), np.random.RandomState(place)) for place, i in enumerate(starts)]


def _seed(text: str) -> int:
    """As many bits of the text's hash as such a stream takes."""
    return int.from_bytes(text_hash(text)[:4], "big")
