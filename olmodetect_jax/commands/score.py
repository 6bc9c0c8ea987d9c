"""`olmodetect score`: a model and records in; one score a record and attack out, with all that is behind it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from olmodetect_jax import __version__, sample
from olmodetect_jax.attacks.base import Score
from olmodetect_jax.attacks.frequencies import FILE_NAME
from olmodetect_jax.attacks.registry import attack_ids, build_attacks
from olmodetect_jax.attacks.rounds import Engine, run_attacks
from olmodetect_jax.benchmark import SIZES, read_benchmark, tree_of
from olmodetect_jax.commands.options import check_dtype, choices
from olmodetect_jax.commands.run_folder import join_run, say_holes, write_scores
from olmodetect_jax.errors import DataError, UsageError, one_of
from olmodetect_jax.files import write_json
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, read_records
from olmodetect_jax.tokenization import Tokenizer

TEXTS, REFERENCE = "texts", "reference"  # the subsets of a run over a user's own texts


@dataclass(frozen=True)
class ScoreOptions:
    """What a run is made of; the command line's options under the same names."""

    model: Path
    out: Path
    benchmark: Path | None = None
    texts: Path | None = None
    reference: Path | None = None
    attacks: str = "all"
    protocol: str = "audited"
    settings: Sequence[str] = ()
    split: str = "test"
    variant: str = "matched"
    size: str | None = None
    subsets: Sequence[str] | None = None
    limit: int | None = None
    dtype: str = "float32"
    mesh: str | None = None
    token_budget: int = 16_384
    frequencies: Path | None = None


def score(options: ScoreOptions) -> dict[tuple[str, str], list[Score]]:
    """Scores records under attacks and writes `scores/`, `statistics/` and `manifest.json` below `options.out`.

    Finished batches are kept: the same call after a kill goes on where it was and gives the same bytes.

    Returns:
        One score a record, by (attack id, subset).

    Raises:
        OlmoDetectError: whatever is wrong with the options, the records, the model or the run folder.
    """
    from olmodetect_jax.models.registry import model_size

    ids = attack_ids(options.attacks)
    check_dtype(options.dtype)
    if options.size not in (None, *SIZES):
        raise one_of("--size", options.size, SIZES)
    size = options.size or model_size(options.model.resolve().name)
    protocol, hyperparameters = choices(options.protocol, options.settings, size)
    records = _read(options, size)
    tokenizer = Tokenizer(options.model)
    attacks = build_attacks(ids, hyperparameters, options.frequencies or options.model / FILE_NAME)
    engine, facts, context = _engine(options, protocol, tokenizer)
    manifest = {
        "format": 1,
        "command": "score",
        "version": __version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
        **_source(options),
        "records": _records_digest(records),
        "limit": options.limit,
        "protocol": {"preset": protocol.preset, "fields": protocol.fields(), "changed": protocol.changed()},
        "max_tokens_used": min(protocol.max_tokens, context),
        "hyperparameters": hyperparameters,
        "attacks": list(ids),
        "subsets": [name for name in records if name != REFERENCE],
        "libraries": _libraries(),
    }
    manifest["model"]["size"] = size
    manifest = join_run(options.out / "manifest.json", manifest)
    capped = dataclasses.replace(protocol, max_tokens=manifest["max_tokens_used"])
    scores = run_attacks(attacks, records, tokenizer, capped, engine)
    shares = {a: _reference_shares(scores, a) for a in ids} if REFERENCE in records else {}
    for (attack, subset), column in scores.items():
        path = options.out / "scores" / attack / f"{subset}.jsonl"
        write_scores(path, records[subset], column, shares.get(attack) if subset == TEXTS else None)
    write_json(options.out / "manifest.json", manifest)
    say_holes(records, scores)
    return scores


def _read(options: ScoreOptions, size: str | None) -> dict[str, list[Record]]:
    if (options.benchmark is None) == (options.texts is None):
        raise UsageError("give either --benchmark DIR or --texts FILE")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit: expected a positive number of records, got {options.limit}")
    if options.token_budget < 1:
        raise UsageError(f"--token-budget: expected a positive number of tokens, got {options.token_budget}")
    if options.benchmark is not None:
        if options.reference is not None:
            raise UsageError("--reference goes with --texts; a benchmark has its own non-members")
        tree = tree_of(options.benchmark)
        subsets = tree.select(options.subsets)
        records = read_benchmark(
            options.benchmark, tree, subsets, split=options.split, variant=options.variant, size=size
        )
    else:
        if options.subsets:
            raise UsageError("--subsets goes with --benchmark")
        records = {TEXTS: read_records(options.texts, subset=TEXTS)}
        reference = _reference(options)
        if reference:
            records[REFERENCE] = reference
    return {name: _first(rs, options.limit) for name, rs in records.items()}


def _reference(options: ScoreOptions) -> list[Record]:
    """Non-members that a user's texts are held against: their file, or the sample's own with the sample's model."""
    if options.reference is not None:
        records = read_records(options.reference, subset=REFERENCE)
        for record in records:
            if record.label == MEMBER:
                raise DataError(f"{record}: labelled a member; --reference takes non-members only")
        return [dataclasses.replace(r, label=NON_MEMBER) for r in records]
    if options.model.resolve() != sample.model_directory().resolve():
        return []
    tree = tree_of(sample.benchmark_directory())
    found = read_benchmark(sample.benchmark_directory(), tree, tree.subsets, split="test", variant="matched", size=None)
    return [dataclasses.replace(r, subset=REFERENCE) for rs in found.values() for r in rs if r.label == NON_MEMBER]


def _first(records: list[Record], limit: int | None) -> list[Record]:
    """The first `limit` records of each class."""
    if limit is None:
        return records
    seen: dict[int | None, int] = {}
    kept = []
    for record in records:
        seen[record.label] = seen.get(record.label, 0) + 1
        if seen[record.label] <= limit:
            kept.append(record)
    return kept


def _engine(options: ScoreOptions, protocol: Protocol, tokenizer: Tokenizer) -> tuple[Engine, dict[str, Any], int]:
    """The engine, what the manifest says of the model, and the model's context."""
    from conversion import load_model_directory
    from olmodetect_jax.models.sharding import leaf_sharding, make_mesh, parse_mesh
    from olmodetect_jax.scoring.scorer import Scorer
    from olmodetect_jax.scoring.store import Provenance, Store

    mesh = make_mesh(parse_mesh(options.mesh) if options.mesh else None)
    loaded = load_model_directory(options.model, options.dtype, lambda path, shape: leaf_sharding(mesh, path, shape))
    if tokenizer.largest_id >= loaded.config.vocab_size:
        raise UsageError(
            f"{tokenizer.path}: its ids go up to {tokenizer.largest_id}, but the model has {loaded.config.vocab_size} "
            "embedding rows; this is another model's tokenizer"
        )
    provenance = Provenance(loaded.weights_digest, tokenizer.digest, options.dtype, protocol.score_dtype)
    store = Store(options.out / "statistics", provenance)
    scorer = Scorer(loaded.module(), mesh, store, logits_dtype=protocol.score_dtype, token_budget=options.token_budget)
    model = {
        "name": loaded.name,
        "path": str(options.model),
        "weights_digest": loaded.weights_digest,
        "tokenizer_digest": tokenizer.digest,
    }
    facts = {"model": model, "dtype": options.dtype, "mesh": dict(mesh.shape)}
    return scorer.answer, facts, loaded.config.max_position_embeddings


def _source(options: ScoreOptions) -> dict[str, Any]:
    if options.benchmark is None:
        return {"benchmark": None, "texts": str(options.texts), "split": None, "variant": None}
    benchmark = {"path": str(options.benchmark), "tree": tree_of(options.benchmark).name}
    return {"benchmark": benchmark, "texts": None, "split": options.split, "variant": options.variant}


def _records_digest(records: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """SHA-256 of each subset's ids, labels and texts in order."""
    return {
        name: hashlib.sha256(json.dumps([[r.record_id, r.label, r.text] for r in rs]).encode()).hexdigest()
        for name, rs in records.items()
    }


def _libraries() -> dict[str, str]:
    # Zlib's lengths, and with them its scores, depend on the build of zlib.
    names = ("jax", "flax", "numpy", "tokenizers")
    builds = {"zlib": zlib.ZLIB_RUNTIME_VERSION, "zlib-ng": getattr(zlib, "ZLIBNG_VERSION", None)}
    return {
        "python": platform.python_version(),
        **{n: version(n) for n in names},
        **{k: v for k, v in builds.items() if v},
    }


def _reference_shares(scores: Mapping[tuple[str, str], list[Score]], attack: str) -> list[float | None]:
    """For each text, the share of the reference's non-members that score at least as high; None without a score."""
    reference = [s.value for s in scores[attack, REFERENCE] if s.missing is None]
    if not reference:
        raise DataError(f"{attack}: no text of the reference has a score to compare with")
    return [None if s.missing else sum(r >= s.value for r in reference) / len(reference) for s in scores[attack, TEXTS]]
