"""Running attacks together: their requests are pooled, so that each distinct one is answered once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from olmodetect_jax.attacks.base import Attack, Group, Score, ScoresSidesTogether
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
        group: the subset's records; each side of it, of a subset that has two, is run for itself (but see
            `ScoresSidesTogether`).
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
    sides = {key: _sides(job.group) for key, job in jobs.items()}
    generators = {
        (key, side): jobs[key].attack.requests(group, tokenizer, jobs[key].protocol)
        for key, groups in sides.items()
        for side, group in groups.items()
    }
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
    scores = {}
    for key, job in jobs.items():
        groups, answers = list(sides[key].values()), [finished[key, side] for side in sides[key]]
        columns = score_sides(job.attack, groups, answers, job.protocol)
        of_side = dict(zip(sides[key], map(iter, columns), strict=True))
        scores[key] = [next(of_side[r.side]) for r in job.group.records]
    return scores


def score_sides(
    attack: Attack, groups: Sequence[Group], answers: Sequence[Any], protocol: Protocol
) -> list[list[Score]]:
    """The scores of each side's group, from what the attack's `requests` returned for it."""
    if isinstance(attack, ScoresSidesTogether):
        return attack.score_sides(groups, answers, protocol)
    return [attack.score(group, own, protocol) for group, own in zip(groups, answers, strict=True)]


def _sides(group: Group) -> dict[str, Group]:
    """A group cut by the records' sides."""

    def of(records: Sequence[Record], side: str) -> list[Record]:
        return [r for r in records if r.side == side]

    def dev(side: str) -> Sequence[Record]:
        return of(group.dev, side) if group.sides_apart else group.dev

    def trained_for(side: str) -> str:
        return side if side and group.trained_for and group.sides_apart else group.trained_for

    return {
        s: dataclasses.replace(group, records=of(group.records, s), dev=dev(s), trained_for=trained_for(s))
        for s in dict.fromkeys(r.side for r in group.records)
    }
