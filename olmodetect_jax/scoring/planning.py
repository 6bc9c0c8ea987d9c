"""From requests to batches of few shapes. Pure numpy, the same on every host, whatever order the requests came in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from olmodetect_jax.requests import ScoreTokens, Targets

# A text's bucket follows from its own length, never from its neighbours'.
BUCKETS = (*range(64, 512, 64), *range(512, 1024, 128), *range(1024, 2048, 256), *range(2048, 4097, 512))

# Padding a prefix costs some masked keys only, so few buckets do.
PREFIX_BUCKETS = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Batch:
    """Requests that run together.

    Attributes:
        bucket: T, tokens a row including padding.
        rows: B, rows of the compiled program; those past the requests are dummies of length 0.
        digests: of the requests, a row each.
    """

    bucket: int
    rows: int
    digests: tuple[bytes, ...]


def bucket_of(length: int) -> int:
    """The smallest bucket that holds `length` tokens; above the largest, the next multiple of 1,024."""
    return next((b for b in BUCKETS if b >= length), math.ceil(length / 1024) * 1024)


def make_plan(requests: Sequence[ScoreTokens], *, token_budget: int, row_multiple: int) -> list[Batch]:
    """`plan_groups` for texts by themselves, those under one adapter being a group."""
    lengths: dict[str, dict[bytes, int]] = {}
    for request in requests:
        lengths.setdefault(request.adapter, {})[request.digest] = len(request.ids)
    groups = [lengths[adapter] for adapter in sorted(lengths)]
    return plan_groups(groups, token_budget=token_budget, row_multiple=row_multiple)


def plan_lengths(lengths: Mapping[bytes, int], *, token_budget: int, row_multiple: int) -> list[Batch]:
    """Groups distinct requests into batches: one shape a bucket, rows filled evenly.

    Args:
        lengths: tokens of each request, by digest.
        token_budget: tokens of a batch, padding included; a text longer than it runs alone.
        row_multiple: rows are a multiple of this (the places that rows are split over).

    Returns:
        Batches, longest bucket first, so that memory runs out at once or not at all.
    """
    return plan_groups([lengths], token_budget=token_budget, row_multiple=row_multiple)


def plan_groups(groups: Sequence[Mapping[bytes, int]], *, token_budget: int, row_multiple: int) -> list[Batch]:
    """`plan_lengths` for groups that cannot share a batch: each bucket has one shape for all of them.

    Args:
        groups: tokens of each request, by digest.
        token_budget: as there.
        row_multiple: as there.
    """
    by_bucket: dict[int, dict[int, list[bytes]]] = {}
    for number, lengths in enumerate(groups):
        for digest, length in lengths.items():
            by_bucket.setdefault(bucket_of(length), {}).setdefault(number, []).append(digest)
    plan = []
    for bucket, parts in sorted(by_bucket.items(), reverse=True):
        largest = max(map(len, parts.values()))
        most = max(row_multiple, token_budget // bucket // row_multiple * row_multiple)
        batches = math.ceil(largest / most)
        rows = math.ceil(largest / batches / row_multiple) * row_multiple
        for digests in map(sorted, parts.values()):
            plan += [Batch(bucket, rows, tuple(digests[i : i + rows])) for i in range(0, len(digests), rows)]
    return plan


@dataclass(frozen=True)
class TargetBatch:
    """Targets that run together after a prefix.

    Attributes:
        bucket: T, tokens a row including padding.
        rows: B, rows of the compiled program; those past the targets are dummies of length 0.
        places: where the targets stand in `Targets.order`, a row each.
    """

    bucket: int
    rows: int
    places: tuple[int, ...]


def plan_targets(targets: Targets, *, token_budget: int, row_multiple: int) -> list[TargetBatch]:
    """Cuts targets, longest first, into batches; a batch's bucket is that of its longest.

    Args:
        targets: in any order.
        token_budget: tokens of a batch, padding included; a target longer than it runs alone.
        row_multiple: rows are a multiple of this.
    """
    lengths = [len(targets[i]) for i in targets.order]
    left = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    step = math.lcm(row_multiple, 8)  # few shapes, little waste
    plan = []
    while left:
        bucket = bucket_of(lengths[left[0]])
        most = max(row_multiple, token_budget // bucket // row_multiple * row_multiple)
        rows = min(most, math.ceil(len(left) / step) * step)
        plan.append(TargetBatch(bucket, rows, tuple(left[:rows])))
        left = left[rows:]
    return plan


def prefix_bucket(length: int) -> int:
    """Tokens a prefix is padded to; above the largest bucket, the next multiple of 1,024."""
    return next((b for b in PREFIX_BUCKETS if b >= length), math.ceil(length / 1024) * 1024)


def padded_ids(texts: Sequence[np.ndarray], rows: int, bucket: int) -> np.ndarray:
    """Ids padded with 0 (a real token's id: lengths say what counts, not ids).

    Args:
        texts: [T_i] int32 each, T_i at most `bucket`.
        rows: B, at least as many as there are texts.
        bucket: T.

    Returns:
        [B, T] int32.
    """
    ids = np.zeros((rows, bucket), np.int32)
    for row, own in enumerate(texts):
        ids[row, : len(own)] = own
    return ids


def padding_share(plan: Sequence[Batch], requests: dict[bytes, ScoreTokens]) -> float:
    """Share of the plan's positions that no text fills."""
    places = sum(b.rows * b.bucket for b in plan)
    return 1 - sum(len(requests[d].ids) for b in plan for d in b.digests) / places if places else 0.0
