"""An attack that takes some records of each class only: those that cost much a record, or a pair of records."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from olmodetect_jax.attacks.base import LEFT_OUT, Answers, Attack, Group, Requests, Score
from olmodetect_jax.attacks.rounds import score_sides
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import Record, text_hash
from olmodetect_jax.tokenization import Tokenizer


@dataclass(frozen=True, eq=False)
class Taken:
    """What becomes of a group.

    Attributes:
        group: the records that the attack is given.
        left_out: place in the whole group to the score of a record that it is not given.
        answers: what the attack's own `requests` returned.
    """

    group: Group
    left_out: dict[int, Score]
    answers: Any


@dataclass(frozen=True)
class Limited:
    """Hands on the first records of each class and side by hash of their text, and leaves the others out.

    A text of fewer than two tokens uses up no place: the attack itself says what it makes of it.

    Attributes:
        attack: what scores the records that are taken.
        limit: how many of each class and side.
        reason: why the others have no score.
    """

    attack: Attack
    limit: int
    reason: str

    @property
    def id(self) -> str:
        """The attack's."""
        return self.attack.id

    @property
    def needs_dev(self) -> bool:
        """The attack's."""
        return self.attack.needs_dev

    def requests(self, group: Group, tokenizer: Tokenizer, protocol: Protocol) -> Generator[Requests, Answers, Taken]:
        """What the attack asks about the records that are taken."""
        tokens = tokenizer.encode_all([r.text for r in group.records], protocol.max_tokens)
        n_tokens = [t.n_tokens if r.text else 0 for r, t in zip(group.records, tokens, strict=True)]
        beyond = self._beyond(group.records, n_tokens)
        missing = LEFT_OUT + self.reason
        left_out = {i: Score(math.nan, n_tokens[i], 0, truncated=False, missing=missing) for i in beyond}
        records = [r for i, r in enumerate(group.records) if i not in left_out]
        # Records that are their own development texts stay so, or the attack would learn from what it scores.
        taken = dataclasses.replace(group, records=records, dev=records if group.is_dev else group.dev)
        return Taken(taken, left_out, (yield from self.attack.requests(taken, tokenizer, protocol)))

    def _beyond(self, records: Sequence[Record], n_tokens: Sequence[int]) -> list[int]:
        """Places of the records that the limit leaves out; the ids decide between equal texts."""
        usable = [i for i, n in enumerate(n_tokens) if n > 1]
        seen: Counter[tuple[int | None, str]] = Counter()
        beyond = []
        for i in sorted(usable, key=lambda i: (text_hash(records[i].text), records[i].record_id)):
            seen[records[i].label, records[i].side] += 1
            if seen[records[i].label, records[i].side] > self.limit:
                beyond.append(i)
        return beyond

    def score(self, group: Group, answers: Taken, protocol: Protocol) -> list[Score]:
        """The attack's scores, and those of the records that it was not given, in the group's order."""
        return self.score_sides([group], [answers], protocol)[0]

    def score_sides(self, groups: Sequence[Group], answers: Sequence[Taken], protocol: Protocol) -> list[list[Score]]:
        """The same for all the sides of a subset."""
        columns = score_sides(self.attack, [a.group for a in answers], [a.answers for a in answers], protocol)
        merged = []
        for group, taken, column in zip(groups, answers, columns, strict=True):
            rest = iter(column)
            merged.append([taken.left_out.get(i) or next(rest) for i in range(len(group.records))])
        return merged
