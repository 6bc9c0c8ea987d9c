"""Which records the report shows token by token, and their statistics: from what a run has kept, without the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from olmodetect_jax.benchmark import read_benchmark
from olmodetect_jax.errors import OlmoDetectError
from olmodetect_jax.evaluation.runs import TEXTS, Run, Score
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, read_records
from olmodetect_jax.report.token_view import TokenView, TokenViews
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.scoring.store import kept_statistics
from olmodetect_jax.tokenization import Tokenizer

CHOOSING = ("min_k_plus_plus", "min_k", "ppl")  # by whose scores records are chosen, the first that the run has


def token_views(run: Run) -> TokenViews:
    """Views of the lowest, the middle and the highest score of each class and subset.

    A text is shown only if its hash is the one that was scored, and its statistics are still in the run's folder and
    finite.
    """
    manifest = run.manifest
    try:
        tokenizer = _tokenizer(manifest)
        records = _records(run)
    except OlmoDetectError as error:
        return TokenViews((), str(error))
    kept = kept_statistics(
        run.path / "statistics", manifest["model"].get("weights_digest") or "", manifest.get("dtype") or ""
    )
    longest = manifest.get("max_tokens_used")
    if not kept or type(longest) is not int:
        return TokenViews((), f"{run.path / 'statistics'} holds no statistics of this model's texts")
    views = []
    for subset in run.subsets:
        for line in _chosen(run, subset):
            record = records.get((subset, line.label, line.record_id, line.text_sha1))
            view = record and _view(record, line, tokenizer, longest, kept)
            if view:
                views.append(view)
    return TokenViews(views, None if views else "none of the chosen texts is as it was scored")


def _tokenizer(manifest: Mapping) -> Tokenizer:
    model = manifest["model"]
    if not isinstance(model.get("path"), str):
        raise OlmoDetectError("the manifest does not say where the model lies")
    tokenizer = Tokenizer(Path(model["path"]))
    if tokenizer.digest != model.get("tokenizer_digest"):
        raise OlmoDetectError(f"{tokenizer.path}: another tokenizer than the run's")
    return tokenizer


def _records(run: Run) -> dict[tuple[str, int | None, str, str], Record]:
    manifest = run.manifest
    if run.tree is None:
        groups = {TEXTS: read_records(Path(manifest["texts"]), subset=TEXTS)}
    else:
        path = manifest["benchmark"].get("path")
        if not isinstance(path, str):
            raise OlmoDetectError("the manifest does not say where the benchmark lies")
        groups = read_benchmark(
            Path(path), run.tree, run.tree.select(run.subsets), split=manifest["split"], variant=manifest["variant"],
            size=manifest["model"].get("size"),
        )  # fmt: skip
    return {(name, r.label, r.record_id, r.text_sha1): r for name, records in groups.items() for r in records}


def _chosen(run: Run, subset: str) -> list[Score]:
    attack = next((a for a in (*CHOOSING, *run.attacks) if a in run.attacks and subset in run.scores[a]), None)
    chosen = []
    for label in (MEMBER, NON_MEMBER, None):
        lines = [s for s in run.scores[attack][subset] if s.label == label and s.value is not None] if attack else []
        lines.sort(key=lambda s: (s.value, s.record_id, s.text_sha1))
        chosen += [lines[i] for i in sorted({0, len(lines) // 2, len(lines) - 1})] if lines else []
    return chosen


def _view(
    record: Record, line: Score, tokenizer: Tokenizer, longest: int, kept: Mapping[bytes, TokenStatistics]
) -> TokenView | None:
    ids = tokenizer.encode(record.text, longest).ids
    found = kept.get(ScoreTokens(ids).digest) if len(ids) > 1 else None
    if found is None or not all(np.isfinite(a).all() for a in (found.log_prob, found.mean, found.variance)):
        return None
    pieces: Sequence[str] = tokenizer.pieces(record.text, longest)
    return TokenView(
        record.subset, line.label, line.record_id, line.text_sha1, tuple(pieces), found.log_prob, found.mean,
        found.variance,
    )  # fmt: skip
