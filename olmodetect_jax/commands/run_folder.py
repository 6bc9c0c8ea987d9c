"""What `olmodetect score` leaves in a run folder: the manifest and a file of scores for each attack and subset."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.base import TITLES, Score
from olmodetect_jax.attacks.registry import ATTACKS
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import atomic_path, folder_lock, parse_json, remove_temporaries, write_json
from olmodetect_jax.records import Record

# May differ when a run goes on; of a model, a benchmark and texts their digests count, not their paths.
_FREE = {"created_at", "command", "attacks", "libraries", "mesh", "version", "texts", "reference", "dev",
         "token_budget", "adapters"}  # fmt: skip

_TEXTS = ("records", "record_counts", "dev_records")  # held against each other last: an option says more than a digest
_TRAINING = "training_records."  # before the name of each of their parts, which are of that kind too


def join_run(path: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Starts a run, or goes on with the one that is there if it is the same but for its attacks.

    The manifest on disk names only attacks whose scores are there.

    Returns:
        The manifest to write when the scores are there too: it names the attacks of both.

    Raises:
        UsageError: the folder holds a run of something else; names the field.
        DataError: what is there is not a manifest.
    """
    remove_temporaries(path.parent)
    there: dict[str, Any] = {"attacks": [], "created_at": manifest["created_at"]}
    if path.exists():
        there = _read(path)
        manifest, there = _completed(manifest, there), _completed(there, manifest)
        before, after = _fields(there), _fields(manifest)
        for name in sorted(before.keys() | after.keys(), key=lambda field: (_is_of_texts(field), field)):
            if without_path(before.get(name)) != without_path(after.get(name)):
                was, now = _short(before.get(name)), _short(after.get(name))
                what = "other texts" if _is_of_texts(name) else f"another {name} ({was}, now {now})"
                raise UsageError(f"{path.parent}: holds a run with {what}; choose another --out")
    manifest = {**manifest, "created_at": there["created_at"]}
    write_json(path, {**manifest, "attacks": there["attacks"]})
    return {**manifest, "attacks": [a for a in ATTACKS if a in {*there["attacks"], *manifest["attacks"]}]}


def _is_of_texts(field: str) -> bool:
    return field in _TEXTS or field.startswith(_TRAINING)


def _completed(manifest: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A manifest with the facts of attacks that only the other run has: a run states those of its own attacks."""
    own, more = manifest.get("generation") or {}, other.get("generation") or {}
    generation = {**more, **own}
    if "prompts" in generation:
        generation["prompts"] = {**more.get("prompts", {}), **own.get("prompts", {})}
    frequencies = manifest.get("frequencies") or other.get("frequencies")
    training = {**(other.get("training_records") or {}), **(manifest.get("training_records") or {})}
    return {**manifest, "frequencies": frequencies, "generation": generation, "training_records": training}


def _fields(manifest: dict[str, Any]) -> dict[str, Any]:
    """What must be the same when a run goes on, by name: each fact that some attacks only have for itself."""
    fields = {name: value for name, value in manifest.items() if name not in _FREE}
    facts = fields.pop("generation")
    training = fields.pop("training_records")
    for prefix, parts in (("generation.", facts), ("prompt ", facts.get("prompts", {})), (_TRAINING, training)):
        fields |= {prefix + name: value for name, value in parts.items() if name != "prompts"}
    return fields


def records_digest(records: Sequence[Record]) -> str:
    """SHA-256 of ids, labels and texts in order: a run goes on with the very same records only."""
    return hashlib.sha256(json.dumps([[r.record_id, r.label, r.text] for r in records]).encode()).hexdigest()


def run_lock(folder: Path) -> AbstractContextManager[None]:
    """Holds a run folder for one process: two would remove each other's unfinished files.

    Raises:
        OlmoDetectError: another process holds it.
    """
    return folder_lock(folder, "`olmodetect score`")


def _read(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
        facts = value.get("generation") or {}
        training = value.get("training_records") or {}
        objects = isinstance(facts, dict) and isinstance(facts.get("prompts", {}), dict) and isinstance(training, dict)
        if objects and isinstance(value["attacks"], list) and isinstance(value["created_at"], str):
            return value
        problem = "attacks, created_at, generation or training_records has another type"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = repr(error)
    raise DataError(f"{path}: not a run's manifest ({problem}); delete it or choose another --out")


def without_path(value: Any) -> Any:
    """A fact without where its files lie: a run may go on with a file that was moved."""
    return {k: without_path(v) for k, v in value.items() if k != "path"} if isinstance(value, dict) else value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "…"


def write_scores(
    path: Path, records: Sequence[Record], scores: Sequence[Score], shares: Sequence[float | None] | None
) -> None:
    """Writes one score file, a line a record.

    Args:
        path: the file.
        records: of one subset.
        scores: of one attack, in the records' order.
        shares: for each record, the share of the reference that scores at least as high; None without a reference.
    """
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for i, (record, s) in enumerate(zip(records, scores, strict=True)):
            line = {
                "record_id": record.record_id,
                "text_sha1": record.text_sha1,
                "label": record.label,
                "score": None if s.missing else s.value,
                "n_tokens": s.n_tokens,
                "n_scored": s.n_scored,
                "truncated": s.truncated,
            }
            if record.side:
                line["side"] = record.side
            if s.special_ids:
                line["special_ids"] = s.special_ids
            if s.missing:
                line["missing"] = s.missing
            if s.note:
                line["note"] = s.note
            line |= s.details
            if shares is not None:
                line["reference_share"] = shares[i]
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def say_holes(records: Mapping[str, Sequence[Record]], scores: Mapping[tuple[str, str], Sequence[Score]]) -> None:
    """Says on standard error which records have no score though they should, or hold special tokens; and the notes."""
    for (attack, subset), column in scores.items():
        for note in dict.fromkeys(s.note for s in column if s.note):
            print(f"note: {TITLES[attack]} on {subset}: {note}", file=sys.stderr)
        holes = [(r, s) for r, s in zip(records[subset], column, strict=True) if s.missing and not s.left_out]
        for record, s in holes[:5]:
            print(f"warning: {TITLES[attack]}: no score for {record}: {s.missing}", file=sys.stderr)
        if len(holes) > 5:
            print(f"warning: {TITLES[attack]}: {len(holes)} records of {subset} have no score in all", file=sys.stderr)
    flagged = {
        str(record)
        for (_, subset), column in scores.items()
        for record, s in zip(records[subset], column, strict=True)
        if s.special_ids
    }
    if flagged:
        print(
            f"warning: {len(flagged)} texts hold special tokens, such as {min(flagged)}; "
            "special_ids in their score lines counts them",
            file=sys.stderr,
        )
