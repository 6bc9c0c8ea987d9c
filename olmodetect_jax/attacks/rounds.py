"""Running attacks together: their requests are pooled, so that each distinct one is answered once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from olmodetect_jax.attacks.base import Attack, Score
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import Record
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.tokenization import Tokenizer

Engine = Callable[[list[ScoreTokens]], Mapping[bytes, TokenStatistics]]


def run_attacks(
    attacks: Sequence[Attack],
    records: Mapping[str, Sequence[Record]],
    tokenizer: Tokenizer,
    protocol: Protocol,
    engine: Engine,
) -> dict[tuple[str, str], list[Score]]:
    """Scores every subset under every attack.

    Attacks advance in rounds: what all of them ask for in a round is answered together.

    Args:
        attacks: made ready by `build_attacks`.
        records: records by subset.
        tokenizer: the model's.
        protocol: with `max_tokens` already capped by the model's context.
        engine: answers distinct requests, by digest.

    Returns:
        One score a record, by (attack id, subset).
    """
    jobs = {(a.id, s): a.requests(rs, tokenizer, protocol) for a in attacks for s, rs in records.items()}
    asked = {key: next(job) for key, job in jobs.items()}
    finished: dict[tuple[str, str], Any] = {}
    while asked:
        distinct = {r.digest: r for requests in asked.values() for r in requests}
        answers = engine(list(distinct.values()))
        asked_next = {}
        for key, requests in asked.items():
            try:
                asked_next[key] = jobs[key].send([answers[r.digest] for r in requests])
            except StopIteration as stop:
                finished[key] = stop.value
        asked = asked_next
    return {(a.id, s): a.score(rs, finished[a.id, s], protocol) for a in attacks for s, rs in records.items()}
