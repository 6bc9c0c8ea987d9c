"""`olmodetect score`: a model and records in; one score a record and attack out, with all that is behind it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from olmodetect_jax import __version__, sample
from olmodetect_jax.attacks.base import Attack, Score
from olmodetect_jax.attacks.dc_pdd import DcPdd
from olmodetect_jax.attacks.frequencies import FILE_NAME
from olmodetect_jax.attacks.registry import attack_ids, build_attacks
from olmodetect_jax.attacks.rounds import Engine, run_attacks
from olmodetect_jax.benchmark import SIZES, SPLITS, VARIANTS, read_benchmark, tree_of
from olmodetect_jax.commands.options import check_dtype, choices
from olmodetect_jax.commands.run_folder import join_run, run_lock, say_holes, write_scores
from olmodetect_jax.errors import DataError, UsageError, one_of
from olmodetect_jax.evaluation.runs import MANIFEST_FORMAT, REFERENCE, TEXTS
from olmodetect_jax.files import write_json
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, read_records
from olmodetect_jax.tokenization import Tokenizer


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
    from conversion import model_directory_name
    from olmodetect_jax.models.registry import model_size

    ids = attack_ids(options.attacks)
    _check(options, ids)
    name = model_directory_name(options.model)
    size = options.size or model_size(name)
    protocol, hyperparameters = choices(options.protocol, options.settings, name)
    records = _read(options, size)
    _say_reference(options, records)
    tokenizer = Tokenizer(options.model)
    if tokenizer.adds_tokens:
        print(
            f"warning: {tokenizer.path} puts tokens of its own around every text; they are scored too", file=sys.stderr
        )
    attacks = build_attacks(ids, hyperparameters, options.frequencies or options.model / FILE_NAME)
    with run_lock(options.out):
        engine, facts, context = _engine(options, protocol, tokenizer)
        facts["model"]["size"] = size
        capped = dataclasses.replace(protocol, max_tokens=min(protocol.max_tokens, context))
        manifest = {
            **_about(protocol, hyperparameters, attacks, records),
            **facts,
            **_source(options),
            "limit": options.limit,
            "max_tokens_used": capped.max_tokens,
        }
        finished = join_run(options.out / "manifest.json", manifest)
        scores = run_attacks(attacks, records, tokenizer, capped, engine)
        shares = {a: _reference_shares(scores, a) for a in ids} if REFERENCE in records else {}
        for (attack, subset), column in scores.items():
            path = options.out / "scores" / attack / f"{subset}.jsonl"
            write_scores(path, records[subset], column, shares.get(attack) if subset == TEXTS else None)
        write_json(options.out / "manifest.json", finished)
    say_holes(records, scores)
    if all(s.missing for (_, subset), column in scores.items() if subset != REFERENCE for s in column):
        raise DataError(f"{options.out}: no record has a score; the score files say why")
    return scores


def _check(options: ScoreOptions, attacks: Sequence[str]) -> None:
    """Refuses options that are outside their range or do not go together, before anything is read."""
    check_dtype(options.dtype)
    closed = (("--size", options.size, (None, *SIZES)), ("--split", options.split, SPLITS),
              ("--variant", options.variant, VARIANTS))  # fmt: skip
    for field, value, allowed in closed:
        if value not in allowed:
            raise one_of(field, value, [a for a in allowed if a])
    if (options.benchmark is None) == (options.texts is None):
        raise UsageError("give either --benchmark DIR or --texts FILE")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit: expected a positive number of records, got {options.limit}")
    if options.token_budget < 1:
        raise UsageError(f"--token-budget: expected a positive number of tokens, got {options.token_budget}")
    if options.frequencies is not None and "dc_pdd" not in attacks:
        raise UsageError("--frequencies goes with the attack dc_pdd")
    if options.texts is not None and options.subsets is not None:
        raise UsageError("--subsets goes with --benchmark")
    if options.subsets == []:
        raise UsageError("--subsets: none named")
    if options.benchmark is not None and options.reference is not None:
        raise UsageError("--reference goes with --texts; a benchmark has its own non-members")


def _read(options: ScoreOptions, size: str | None) -> dict[str, list[Record]]:
    if options.benchmark is not None:
        tree = tree_of(options.benchmark)
        subsets = tree.select(options.subsets)
        records = read_benchmark(
            options.benchmark, tree, subsets, split=options.split, variant=options.variant, size=size
        )
    else:
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


def _say_reference(options: ScoreOptions, records: Mapping[str, Sequence[Record]]) -> None:
    if REFERENCE in records:
        origin = options.reference or "the embedded benchmark; give --reference for texts more like yours"
        print(f"reference: {len(records[REFERENCE])} non-members of {origin}")
    elif TEXTS in records:
        print("no reference: give --reference FILE, texts the model cannot have seen, to hold the scores against")


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

    mesh = make_mesh(parse_mesh(options.mesh) if options.mesh is not None else None)
    loaded = load_model_directory(options.model, options.dtype, lambda path, shape: leaf_sharding(mesh, path, shape))
    if tokenizer.largest_id >= loaded.config.vocab_size:
        raise UsageError(
            f"{tokenizer.path}: its ids go up to {tokenizer.largest_id}, but the model has {loaded.config.vocab_size} "
            "embedding rows; this is another model's tokenizer"
        )
    config = json.dumps(dataclasses.asdict(loaded.config), sort_keys=True)
    provenance = Provenance(loaded.weights_digest, tokenizer.digest, config, options.dtype, protocol.score_dtype)
    store = Store(options.out / "statistics", provenance)
    scorer = Scorer(loaded.module(), mesh, store, logits_dtype=protocol.score_dtype, token_budget=options.token_budget)
    model = {
        "name": loaded.name,
        "path": str(options.model),
        "weights_digest": loaded.weights_digest,
        "tokenizer_digest": tokenizer.digest,
        "eos_id": tokenizer.eos_id,
        "config": dataclasses.asdict(loaded.config),
    }
    facts = {"model": model, "dtype": options.dtype, "mesh": dict(mesh.shape)}
    return scorer.answer, facts, loaded.config.max_position_embeddings


def _source(options: ScoreOptions) -> dict[str, Any]:
    if options.benchmark is None:
        files = {"texts": str(options.texts), "reference": str(options.reference or "") or None}
        return {"benchmark": None, **files, "split": None, "variant": None}
    benchmark = {"path": str(options.benchmark), "tree": tree_of(options.benchmark).name}
    return {"benchmark": benchmark, "texts": None, "split": options.split, "variant": options.variant}


def _about(
    protocol: Protocol,
    hyperparameters: Mapping[str, float],
    attacks: Sequence[Attack],
    records: Mapping[str, Sequence[Record]],
) -> dict[str, Any]:
    """What the manifest says of the choices, the attacks and the records."""
    # SHA-256 of each subset's ids, labels and texts in order: a run goes on with the very same records only.
    content = {name: json.dumps([[r.record_id, r.label, r.text] for r in rs]) for name, rs in records.items()}
    return {
        "format": MANIFEST_FORMAT,
        "command": "score",
        "version": __version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "records": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in content.items()},
        "record_counts": {name: len(rs) for name, rs in records.items()},
        "protocol": {"preset": protocol.preset, "fields": protocol.fields(), "changed": protocol.changed()},
        "hyperparameters": dict(hyperparameters),
        "frequencies": next((a.table.facts() for a in attacks if isinstance(a, DcPdd)), None),
        "attacks": [a.id for a in attacks],
        "subsets": [name for name in records if name != REFERENCE],
        "libraries": {name: version(name) for name in ("jax", "flax", "numpy", "tokenizers")},
        "zlib": _zlib_build(),
    }


def _zlib_build() -> dict[str, str]:
    """Zlib's lengths, and with them its scores, depend on the build: a run does not go on with another."""
    builds = {"zlib": zlib.ZLIB_RUNTIME_VERSION, "zlib-ng": getattr(zlib, "ZLIBNG_VERSION", None)}
    return {name: build for name, build in builds.items() if build}


def _reference_shares(scores: Mapping[tuple[str, str], list[Score]], attack: str) -> list[float | None]:
    """For each text, the share of the reference's non-members that score at least as high; None without a score."""
    reference = [s.value for s in scores[attack, REFERENCE] if s.missing is None]
    if not reference:
        raise DataError(f"{attack}: no text of the reference has a score to compare with")
    return [None if s.missing else sum(r >= s.value for r in reference) / len(reference) for s in scores[attack, TEXTS]]
