"""FSD: how much a text's score changes when the model is tuned on non-members (supervised spec, section 1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from olmodetect_jax.attacks.base import Answers, Attack, Group, Requests, Score
from olmodetect_jax.attacks.learning import origin_of, require_enough, training_records
from olmodetect_jax.attacks.supervised import row_id
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import NON_MEMBER
from olmodetect_jax.tokenization import Tokenizer
from olmodetect_jax.training import LoraRecipe, TrainLora

TITLE = "FSD"


@dataclass(frozen=True)
class Fsd:
    """Tuning on non-members raises the scores of non-members most: what a member keeps is larger.

    Attributes:
        base: the attack whose score deviates; its pass over the untouched model is the very one of that attack.
        setting: what the adapter was trained on; it is in the id alone, for the texts are the group's `dev`.
        recipe: how the adapter is trained.
    """

    base: Attack
    setting: str
    recipe: LoraRecipe
    family: ClassVar[str] = "fsd"
    needs_dev: ClassVar[bool] = True

    @property
    def id(self) -> str:
        """The id of the row."""
        return row_id(f"fsd_{self.base.id}", self.setting)

    def requests(self, group: Group, tokenizer: Tokenizer, protocol: Protocol) -> Generator[Requests, Answers, Any]:
        """The base attack's requests, the adapter's training, and the same requests under the adapter.

        Raises:
            DataError: there are too few non-members to train on, or one of them is to be scored.
        """
        if not group.records:
            return None
        training = self._training(group, tokenizer, protocol)
        plain = yield from self.base.requests(group, tokenizer, protocol)
        (trained,) = yield [training]
        tuned = yield from _under(trained.name, self.base.requests(group, tokenizer, protocol))
        return plain, tuned

    def _training(self, group: Group, tokenizer: Tokenizer, protocol: Protocol) -> TrainLora:
        records = training_records(group, NON_MEMBER, TITLE)
        tokens = tokenizer.encode_all([r.text for r in records], protocol.training_tokens)
        usable = [(r, t.ids) for r, t in zip(records, tokens, strict=True) if len(t.ids) > 1]
        require_enough([r for r, _ in usable], group, NON_MEMBER, TITLE)
        origin = origin_of([r for r, _ in usable], group, self.family, self.setting)
        return TrainLora(tuple(ids for _, ids in usable), self.recipe, origin)

    def score(self, group: Group, answers: Any, protocol: Protocol) -> list[Score]:
        """S(base) - S(tuned), with both scores in the details."""
        if not group.records:
            return []
        columns = [self.base.score(group, own, protocol) for own in answers]
        return [_deviation(base, tuned) for base, tuned in zip(*columns, strict=True)]


def _deviation(base: Score, tuned: Score) -> Score:
    if base.missing:
        return base
    if tuned.missing:
        return dataclasses.replace(base, value=math.nan, missing=f"under the tuned model: {tuned.missing}")
    details = {"base_score": base.value, "tuned_score": tuned.value}
    return dataclasses.replace(base, value=base.value - tuned.value, details=details)


def _under(adapter: str, asking: Generator[Requests, Answers, Any]) -> Generator[Requests, Answers, Any]:
    """The requests of an attack as they are under an adapter."""
    requests = next(asking)
    while True:
        answers = yield [dataclasses.replace(request, adapter=adapter) for request in requests]
        try:
            requests = asking.send(answers)
        except StopIteration as stop:
            return stop.value
