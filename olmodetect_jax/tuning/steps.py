"""From a request to the rows of each of its steps. Pure numpy.

A step's loss is a sum over rows, each with its weights, so that a step can be cut into micro-batches of few rows whose
gradients add up to the step's (supervised spec, 5.2: averaging micro-batches would weigh tokens by their batch).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from olmodetect_jax.training import TrainLora, TrainSoftPrompt
from olmodetect_jax.tuning.draws import permutation

Training = TrainLora | TrainSoftPrompt


class Rows(NamedTuple):
    """Some rows of a step; those past the texts weigh nothing.

    Attributes:
        ids: [R, T] int32, padded on the right.
        weights: [R, T] float32: of each token's loss in that of the step.
        answers: [R] int32, where the answer begins.
        members: [R] float32, 1 for members.
        shares: [R] float32, the row's share in a mean over the step's pairs (or over its texts).
        places: [R] int32, the row's place in the step, however that is cut into micro-batches.
    """

    ids: np.ndarray
    weights: np.ndarray
    answers: np.ndarray
    members: np.ndarray
    shares: np.ndarray
    places: np.ndarray


def batch_of(request: Training) -> int:
    """Texts or pairs of a full step."""
    return min(request.recipe.batch, count_of(request))


def count_of(request: Training) -> int:
    """Texts or pairs of an epoch."""
    return len(request.texts if isinstance(request, TrainLora) else request.members)


def steps_of(request: Training) -> int:
    """Steps of the whole training."""
    return request.recipe.epochs * math.ceil(count_of(request) / batch_of(request))


def texts_of(request: Training) -> tuple[np.ndarray, ...]:
    """Every text of the request."""
    return request.texts if isinstance(request, TrainLora) else (*request.members, *request.non_members)


def places_of(request: Training, step: int) -> list[int]:
    """Which texts or pairs a step sees, in its order (step 0 is the first)."""
    n, batch = count_of(request), batch_of(request)
    epoch, place = divmod(step, math.ceil(n / batch))
    return list(_order(n, request.recipe.seed + epoch)[place * batch : (place + 1) * batch])


@lru_cache(maxsize=64)
def _order(n: int, seed: int) -> tuple[int, ...]:
    return tuple(permutation(n, seed))


def rates_of(request: Training) -> np.ndarray:
    """[steps] float64: the learning rate of each step, a cosine to 0 for LoRA, a line to 0 for a soft prompt."""
    done = np.arange(steps_of(request)) / steps_of(request)
    shape = (1 + np.cos(np.pi * done)) / 2 if isinstance(request, TrainLora) else 1 - done
    return request.recipe.learning_rate * shape


def rows_of(request: Training, step: int, rows: int, length: int) -> list[Rows]:
    """A step's rows in micro-batches.

    Args:
        request: what is trained.
        step: from 0.
        rows: R of each micro-batch.
        length: T, at least as long as any text.
    """
    places = places_of(request, step)
    if isinstance(request, TrainLora):
        texts = [request.texts[i] for i in places]
        tokens = sum(len(t) - 1 for t in texts)  # one mean over the step's tokens, not over its texts
        lines = [_line(t, np.full(len(t) - 1, 1 / tokens), 1 / len(texts)) for t in texts]
    else:
        lines = [line for i in places for line in _pair(request, i, len(places))]
    return [_stacked(lines[i : i + rows], rows, length, i) for i in range(0, len(lines), rows)]


Line = tuple[np.ndarray, np.ndarray, int, float, float]  # a row's ids, weights, answer, member, share


def _line(ids: np.ndarray, weights: np.ndarray, share: float, answer: int = 0, member: float = 0.0) -> Line:
    return ids, weights, answer, member, share


def _pair(request: TrainSoftPrompt, place: int, pairs: int) -> list[Line]:
    recipe, n = request.recipe, len(request.members)
    lines = []
    for member, texts, answers in (
        (1.0, request.members, request.answers[:n]),
        (0.0, request.non_members, request.answers[n:]),
    ):
        ids, answer = texts[place], int(answers[place])
        if recipe.unaligned:
            lines.append(_line(ids, np.full(len(ids), 1 / len(ids)), 1 / pairs, member=member))
            continue
        # Each row is divided by its tokens, not by their weights; then the means of both classes are averaged.
        own = np.where(np.arange(len(ids)) >= answer, 1.0, recipe.text_weight)
        lines.append(_line(ids, own / len(ids) / (2 * pairs), 1 / pairs, answer, member))
    return lines


def _stacked(lines: Sequence[Line], rows: int, length: int, first: int = 0) -> Rows:
    stacked = Rows(
        np.zeros((rows, length), np.int32),
        np.zeros((rows, length), np.float32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.float32),
        np.arange(first, first + rows, dtype=np.int32),
    )
    for row, (ids, weights, *others) in enumerate(lines):
        stacked.ids[row, : len(ids)] = ids
        stacked.weights[row, : len(weights)] = weights
        for array, value in zip(stacked[2:5], others, strict=True):
            array[row] = value
    return stacked


def no_rows(rows: int, length: int) -> Rows:
    """Rows of a step that has no more of them."""
    return _stacked((), rows, length)
