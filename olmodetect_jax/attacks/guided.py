"""Guided Instruction: a member's end is recalled better once its source is named (generative spec, section 2)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score
from olmodetect_jax.attacks.guided_split import split
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.written import NO_TEXT, Written
from olmodetect_jax.errors import one_of
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.requests import Generate
from olmodetect_jax.tokenization import Tokenizer

SCORES = ("rouge_guided", "rouge_delta")
_NO_WORDS = "0 where the end of the text has no letter from a to z and no digit: ROUGE-L reads nothing else"


def words(text: str) -> list[str]:
    """The words that ROUGE compares: lower-cased runs of a-z and 0-9, the longer ones stemmed."""
    return _tokenizer().tokenize(text)


def rouge_l(reference: str, candidate: str) -> float:
    """ROUGE-L's F1 with stemming; 0 where either has no word.

    rapidfuzz finds the longest common subsequence far faster than rouge_score. Twice its length over both lengths is
    the F1 of precision and recall without their rounding, which would tell equal scores apart.
    """
    from rapidfuzz.distance import LCSseq

    theirs, ours = words(reference), words(candidate)
    both = len(theirs) + len(ours)
    return 2 * LCSseq.similarity(theirs, ours) / both if both else 0.0


@cache
def _tokenizer() -> Any:
    from rouge_score.tokenizers import DefaultTokenizer

    return DefaultTokenizer(use_stemmer=True)


@dataclass(frozen=True, eq=False)
class Completed:
    """A text whose end was written anew.

    Attributes:
        written: by the model; `n_scored` counts the second piece's tokens.
        second: the true second piece.
        completions: what the model wrote, once the source was named and, if that was asked, without.
    """

    written: Written
    second: str = ""
    completions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guided:
    """How much of a text's end the model writes after its beginning.

    Attributes:
        measure: `rouge_guided`, once the source is named; or `rouge_delta`, how much more than when it is not.
        prompts: filled with the first piece.
    """

    measure: str
    prompts: Prompts
    id: ClassVar[str] = "guided"
    needs_dev: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.measure not in SCORES:
            raise one_of("guided_score", self.measure, SCORES)

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Completed]]:
        """The greedy continuations of each text's prompts, in one list."""
        plans = [self._plan(record.text, group.domain, tokenizer, protocol) for record in group.records]
        answers = iter((yield [request for _, _, asked in plans for request in asked]))
        completed = []
        for written, second, asked in plans:
            rows = [next(answers).rows[0] for _ in asked]
            texts = tuple(tokenizer.decode(row.ids) for row in rows)
            completed.append(Completed(dataclasses.replace(written, rows=rows), second, texts))
        return completed

    def _plan(
        self, text: str, domain: str | None, tokenizer: Tokenizer, protocol: Protocol
    ) -> tuple[Written, str, list[Generate]]:
        """What is known of a text before it is written anew, its second piece, and what is asked."""
        context, new = protocol.generation_context, protocol.guided_new_tokens
        n_tokens, pieces = tokenizer.encode(text, context).n_tokens, split(text)
        if not pieces.second:
            hole = "a single character, which has no two pieces" if text else NO_TEXT
            return Written(n_tokens, hole=hole), "", []
        names = ("guided", "general") if self.measure == "rouge_delta" else ("guided",)
        prompts = [self._prompt(name, pieces.first, domain, tokenizer, protocol) for name in names]
        asked = [Generate(ids, new, tokenizer.stop_ids) for ids, _ in prompts if ids is not None]
        if len(asked) < len(names):
            hole = f"guided_new_tokens, {new}, leaves a prompt no room in a context of {context} tokens; set it lower"
            return Written(n_tokens, hole=hole), "", []
        n_scored = tokenizer.encode(pieces.second, context).n_tokens
        return Written(n_tokens, n_scored, truncated=any(cut for _, cut in prompts)), pieces.second, asked

    def _prompt(
        self, name: str, piece: str, domain: str | None, tokenizer: Tokenizer, protocol: Protocol
    ) -> tuple[np.ndarray | None, bool]:
        """Ids of a prompt, with room for what is written after it, and whether it was cut.

        None in place of ids where nothing of the piece has room.
        """
        source = {"source": self.prompts.source(domain)} if name == "guided" else {}
        limit = protocol.generation_context - protocol.guided_new_tokens
        if limit < 1:
            return None, True
        text = self.prompts.fill(name, first_piece=piece, **source)
        tokens = tokenizer.encode(text, limit)
        if not tokens.truncated:
            return tokens.ids, False
        if protocol.guided_cut == "right":
            return tokenizer.encode(tokenizer.cut(text, limit), limit).ids, True
        # The piece loses its start: what is to be written follows its end. A cut can make tokens where there were
        # none, so it may take more than one.
        while tokens.truncated and piece:
            start = len(tokenizer.cut(piece, tokens.n_tokens - limit))
            piece = piece[max(start, 1) :]
            tokens = tokenizer.encode(self.prompts.fill(name, first_piece=piece, **source), limit)
        return (tokens.ids if piece else None), True

    def score(self, group: Group, answers: Sequence[Completed], protocol: Protocol) -> list[Score]:
        """ROUGE-L against the true second piece, or how much more of it once the source is named."""
        del group, protocol
        return [self._score(completed) for completed in answers]

    def _score(self, completed: Completed) -> Score:
        if completed.written.hole:
            return completed.written.result(math.nan)
        rouge = [rouge_l(completed.second, text) for text in completed.completions]
        value = rouge[0] - rouge[1] if self.measure == "rouge_delta" else rouge[0]
        return completed.written.result(value, None if words(completed.second) else _NO_WORDS)
