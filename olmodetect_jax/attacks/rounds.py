"""Running attacks together: their requests are pooled, so that each distinct one is answered once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from olmodetect_jax.attacks.base import Attack, Group, Score
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import Record
from olmodetect_jax.requests import Answer, Request
from olmodetect_jax.tokenization import Tokenizer

AnswerRequests = Callable[[Sequence[Request]], Mapping[bytes, Answer]]  # distinct requests in, answers by digest out
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Job:
    """One attack on one subset.

    Attributes:
        attack: made ready by `build_attacks`.
        group: the subset's records; each side of it, of a subset that has two, is run for itself.
        protocol: already capped by the model's context.
    """

    attack: Attack
    group: Group
    protocol: Protocol


def run_jobs(jobs: Mapping[Key, Job], tokenizer: Tokenizer, answer: AnswerRequests) -> dict[Key, list[Score]]:
    """Runs attacks in rounds: what all of them ask for in a round is answered together.

    Args:
        jobs: by any key.
        tokenizer: the model's.
        answer: the engine's.

    Returns:
        One score a record of each job's group, in its order.
    """
    parts = {(key, side): dataclasses.replace(job, group=group) for key, job in jobs.items()
             for side, group in _sides(job.group).items()}  # fmt: skip
    generators = {key: job.attack.requests(job.group, tokenizer, job.protocol) for key, job in parts.items()}
    asked = {key: next(generator) for key, generator in generators.items()}
    finished: dict[Any, Any] = {}
    while asked:
        distinct = {r.digest: r for requests in asked.values() for r in requests}
        answers = answer(list(distinct.values()))
        asked_next = {}
        for key, requests in asked.items():
            try:
                asked_next[key] = generators[key].send([answers[r.digest] for r in requests])
            except StopIteration as stop:
                finished[key] = stop.value
        asked = asked_next
    scores = {key: iter(job.attack.score(job.group, finished[key], job.protocol)) for key, job in parts.items()}
    return {key: [next(scores[key, r.side]) for r in job.group.records] for key, job in jobs.items()}


def _sides(group: Group) -> dict[str, Group]:
    """A group cut by the records' sides."""

    def of(records: Sequence[Record], side: str) -> list[Record]:
        return [r for r in records if r.side == side]

    sides = dict.fromkeys(r.side for r in group.records)
    return {side: Group(of(group.records, side), of(group.dev, side), group.domain) for side in sides}
