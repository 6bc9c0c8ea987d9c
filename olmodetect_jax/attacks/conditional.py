"""Texts scored by themselves and after prefixes, in one list of requests: what ReCaLL and EMMIA start from."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence

from olmodetect_jax.attacks.base import Answers, Requests, ScoredText, score_texts
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.requests import ScoreTargets, TargetLikelihoods
from olmodetect_jax.tokenization import Tokenizer


def score_texts_and(
    others: Sequence[ScoreTargets],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    protocol: Protocol,
    *,
    upcast: bool = False,
) -> Generator[Requests, Answers, tuple[list[ScoredText], list[TargetLikelihoods]]]:
    """`score_texts` with further requests in the same list.

    Returns (as a generator's value) the scored texts and the answers to `others`.
    """
    plain = score_texts(texts, tokenizer, protocol)
    own = [dataclasses.replace(request, upcast=upcast) for request in next(plain)]
    answers = yield [*own, *others]
    try:
        plain.send(answers[: len(own)])
    except StopIteration as stop:
        return stop.value, list(answers[len(own) :])
    raise RuntimeError("score_texts asked twice")
