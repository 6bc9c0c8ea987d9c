"""Self-Critique: asked for another way, a model that knows a problem goes the same one (generative spec, section 5)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import LEFT_OUT, Answers, Group, Requests, Score
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.written import NO_TEXT, Written
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import Record
from olmodetect_jax.requests import Continuation, Generate
from olmodetect_jax.tokenization import Tokenizer

RESERVE = 50  # tokens that the released rule keeps free for the critique's own words
_USER_TURN = re.compile(r"<\|user\|>[^\S\n]*\n(.*?)(?:\n<\|assistant\|>|\Z)", re.DOTALL)
_ELSEWHERE = LEFT_OUT + "Self-Critique is for DPO and RLVR (and the sample's MBPP), whose texts pose a problem"
_REJECTED = LEFT_OUT + "the pair's problem is asked once, with its chosen answer"
_NO_PROBLEM = "its user turn is empty: there is no problem to ask"
_NO_ANSWER = "the model ended an answer at once, so there are no entropies to compare"
_SHORTENED = "answers shorter than self_critique_new_tokens: the context has room for no more"
_CUT = "the critique shows the start of the first answer only"


def similarity(first: np.ndarray, second: np.ndarray) -> float:
    """How alike two sequences of entropies are, 0 to 1.

    Their cosine, the shorter one padded with zeros, times the shorter length over the longer one; 0 where one is empty
    or all zero, NaN where one is not finite.

    Args:
        first: [n], n >= 0.
        second: [m], m >= 0.
    """
    a, b = first.astype(np.float64), second.astype(np.float64)
    shorter, longer = sorted((len(a), len(b)))
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if norms == 0 or not math.isfinite(norms):
        return 0.0 if norms == 0 else math.nan
    return min(float(a[:shorter] @ b[:shorter]) / norms, 1.0) * shorter / longer


def released_cap(context: int, prompt: int, max_new: int) -> int:
    """Most tokens of the first answer that the released critique shows; it cuts nothing where this is 0 or less."""
    return context - prompt - max_new - RESERVE


def problem_of(text: str, domain: str | None, protocol: Protocol) -> str:
    """What the model is asked: the text's first user turn, up to the answer in it, or the whole text.

    A text of DPO ends with an answer, which the released pairs do not show: always the user turn there.
    """
    turn = _USER_TURN.search(text) if domain == "dpo" or protocol.self_critique_problem == "user_turn" else None
    return text if turn is None else turn[1].strip()


@dataclass(frozen=True, eq=False)
class _Question:
    """A problem that the model is asked twice.

    Attributes:
        problem: as text.
        prompt: [P] int32, its own user turn.
        max_new: most tokens of each of the two answers.
    """

    problem: str
    prompt: np.ndarray
    max_new: int


@dataclass(frozen=True)
class SelfCritique:
    """How alike the entropies along a model's answer and along the other one that it is then asked for are.

    Attributes:
        prompts: the critique follows the problem, with the first answer in it.
    """

    prompts: Prompts
    id: ClassVar[str] = "self_critique"
    needs_dev: ClassVar[bool] = False
    DOMAINS: ClassVar[tuple[str, ...]] = ("dpo", "rlvr", "mbpp")

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, list[Written]]:
        """A greedy answer to each text's problem, then one to the problem and its critique.

        `n_scored` counts the problem's tokens.

        Raises:
            UsageError: there is something to ask, and the model has no chat template.
        """
        written, questions = [], []
        for record in group.records:
            n_tokens = tokenizer.encode(record.text, protocol.generation_context).n_tokens
            question = self._hole(record, group.domain) or self._question(
                record.text, group.domain, tokenizer, protocol
            )
            if isinstance(question, str):
                written.append(Written(n_tokens, hole=question))
                continue
            n_scored = tokenizer.encode(question.problem, protocol.generation_context).n_tokens
            note = _SHORTENED if question.max_new < protocol.self_critique_new_tokens else None
            written.append(Written(n_tokens, n_scored, note=note))
            questions.append(question)
        stop = tokenizer.stop_ids
        answers = yield [Generate(q.prompt, q.max_new, stop) for q in questions]
        first = [answer.rows[0] for answer in answers]
        critiques = [self._critique(q, row, tokenizer, protocol) for q, row in zip(questions, first, strict=True)]
        answers = yield [Generate(ids, q.max_new, stop) for q, (ids, _) in zip(questions, critiques, strict=True)]
        found = iter(zip(first, (a.rows[0] for a in answers), (cut for _, cut in critiques), strict=True))
        return [w if w.hole else _answered(w, *next(found)) for w in written]

    def _hole(self, record: Record, domain: str | None) -> str | None:
        """Why a record is not asked about, whatever its text; a user's own texts always are."""
        if domain is not None and domain not in self.DOMAINS:
            return _ELSEWHERE
        if "rejected" in record.side:
            return _REJECTED
        return None if record.text else NO_TEXT

    def _question(self, text: str, domain: str | None, tokenizer: Tokenizer, protocol: Protocol) -> _Question | str:
        """What is asked about a text, or why nothing can be."""
        problem, context = problem_of(text, domain, protocol), protocol.generation_context
        if not problem:
            return _NO_PROBLEM
        prompt, most = tokenizer.chat_ids(problem), protocol.self_critique_new_tokens
        left = context - len(prompt)
        if protocol.self_critique_cut == "always":
            # The second prompt holds the first answer, and an answer as long follows it: half of the room for each.
            left = (context - len(tokenizer.chat_ids(problem + self._critique_text("")))) // 2
            most = min(most, left)
        if left < 1:
            return f"its problem, of {len(prompt)} tokens, leaves no room for answers in a context of {context} tokens"
        return _Question(problem, prompt, most)

    def _critique_text(self, response: str) -> str:
        return self.prompts.fill("critique", response=response)

    def _critique(
        self, question: _Question, answer: Continuation, tokenizer: Tokenizer, protocol: Protocol
    ) -> tuple[np.ndarray, bool]:
        """Ids of the second prompt, and whether the answer in it is cut."""
        always, ids = protocol.self_critique_cut == "always", answer.ids
        cap = released_cap(protocol.generation_context, len(question.prompt), question.max_new)
        if not always and cap > 0:
            ids = ids[:cap]
        while True:
            prompt = tokenizer.chat_ids(question.problem + self._critique_text(tokenizer.decode(ids)))
            beyond = len(prompt) + question.max_new - protocol.generation_context
            if not always or beyond <= 0:
                return prompt, len(ids) < len(answer.ids)
            ids = ids[: max(len(ids) - beyond, 0)]  # read again as text, an answer can have more tokens than before

    def score(self, group: Group, answers: Sequence[Written], protocol: Protocol) -> list[Score]:
        """How alike each text's two sequences of entropies are."""
        del group, protocol
        return [w.result(math.nan if w.hole else similarity(*(row.entropy for row in w.rows))) for w in answers]


def _answered(written: Written, first: Continuation, second: Continuation, cut: bool) -> Written:
    hole = None if len(first.ids) and len(second.ids) else _NO_ANSWER
    return dataclasses.replace(
        written,
        rows=(first, second),
        hole=hole,
        note="; ".join(n for n in (written.note, _CUT if cut else None) if n) or None,
    )
