"""Lower: how much a text loses when it is lower-cased (likelihood spec, section 4)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from olmodetect_jax.attacks.base import Answers, Group, Requests, Score, ScoredText, refuse_special_ids, score_texts
from olmodetect_jax.attacks.reductions import mean
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.tokenization import Tokenizer


@dataclass(frozen=True)
class Lower:
    """Members lose more probability with their capitals; the text without them is scored as a text of its own."""

    id: ClassVar[str] = "lower"
    needs_dev: ClassVar[bool] = False

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, tuple[list[ScoredText], list[ScoredText]]]:
        """One pass over the texts and one over their lower-cased forms (the same request where they are equal)."""
        texts = [r.text for r in group.records]
        if protocol.text_span == "scored":
            lowered = [t.span.lower() for t in tokenizer.encode_all(texts, protocol.max_tokens)]
        else:
            lowered = [t.lower() for t in texts]
        scored = yield from score_texts([*texts, *lowered], tokenizer, protocol)
        plain, lower = scored[: len(texts)], scored[len(texts) :]
        refuse_special_ids(group.records, plain, protocol)
        refuse_special_ids(group.records, lower, protocol)
        return plain, lower

    def score(
        self, group: Group, answers: tuple[list[ScoredText], list[ScoredText]], protocol: Protocol
    ) -> list[Score]:
        """Mean LL(text) - mean LL(lower(text)), or mean LL(lower(text)) / mean LL(text)."""
        del group
        scores = []
        for plain, lower in zip(*answers, strict=True):
            own, other = (mean(text.body().log_prob, protocol) for text in (plain, lower))
            if protocol.lower_form == "difference":
                value = own - other
            else:
                value = other / own if own else math.nan
            hole = lower.body().result(0.0).missing  # why the lower-cased text has no mean of its own
            score = plain.body().result(0.0 if hole else value)
            if hole and not score.missing:
                score = dataclasses.replace(score, value=math.nan, missing=f"in lower case: {hole}")
            scores.append(dataclasses.replace(score, special_ids=plain.special_ids + lower.special_ids))
        return scores
