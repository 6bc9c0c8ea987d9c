"""Reading a run folder: its manifest and its score files, checked line by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.attacks.base import TITLES
from olmodetect_jax.attacks.em_mia import FROM
from olmodetect_jax.attacks.generative import GENERATIVE
from olmodetect_jax.attacks.supervised import MIA_TUNER_EPOCHS, parts_of
from olmodetect_jax.benchmark import Tree, tree_from
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.evaluation.aggregate import attack_domains, is_representative
from olmodetect_jax.evaluation.json_fields import read_object, require_unicode, short
from olmodetect_jax.evaluation.metrics import ClassScores, is_valid_score
from olmodetect_jax.records import MEMBER, NON_MEMBER, read_jsonl

MANIFEST_FORMAT = 1
TEXTS = "texts"  # the one subset of a run of a user's own texts
REFERENCE = "reference"  # the non-members it may be held against; no subset, so no metric sees them

_NoneType = type(None)
_REQUIRED: dict[str, tuple[type, ...]] = {
    "model": (dict,), "model.name": (str,), "benchmark": (dict, _NoneType), "split": (str, _NoneType),
    "variant": (str, _NoneType), "protocol": (dict,), "protocol.preset": (str,), "protocol.fields": (dict,),
    "protocol.changed": (dict,), "attacks": (list,), "subsets": (list,), "record_counts": (dict,),
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """One line of a score file.

    Attributes:
        record_id: the record's id; unique within a side of a subset only.
        text_sha1: hash of the stripped text.
        label: 1 member, 0 non-member, None unknown.
        value: the score, finite, higher = more likely a member; None if there is no usable one.
        missing: why there is no score; None if there is one.
        truncated: whether only the start of the text was read.
        n_tokens: tokens of the whole text; None if the line does not say.
        reference_share: share of the reference's non-members that score at least as high; None without one.
        note: what a reader should know of the score; None if nothing.
        base_value: the base score from which FSD's is a deviation; None if the line has none.
        side: which of a subset's files the record is from; empty where there is one only.
        choices: EMMIA's scores from each of its four base scores, where the best was chosen on the labels; else empty.
    """

    record_id: str
    text_sha1: str
    label: int | None
    value: float | None
    missing: str | None
    truncated: bool
    n_tokens: int | None = None
    reference_share: float | None = None
    note: str | None = None
    base_value: float | None = None
    choices: tuple[float, ...] = ()
    side: str = ""


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        path: the folder.
        manifest: its manifest as read.
        tree: the benchmark's tree; None for a user's own texts.
        attacks: attack ids, in the manifest's order.
        subsets: subset ids, in the tree's order.
        scores: attack id to subset id to the lines of its score file. An attack that is not defined on a subset's
            domain may lack it.
        reference: attack id to the lines of the reference that a user's own texts are held against; empty without one.
    """

    path: Path
    manifest: Mapping[str, Any]
    tree: Tree | None
    attacks: tuple[str, ...]
    subsets: tuple[str, ...]
    scores: Mapping[str, Mapping[str, tuple[Score, ...]]]
    reference: Mapping[str, tuple[Score, ...]]

    @property
    def model(self) -> str:
        """Name of the model that was scored."""
        return self.manifest["model"]["name"]

    def attack_title(self, attack: str) -> str:
        """Title of an attack, with what makes its row another one than the whole attack's.

        That is how many records of each class it took, how many tokens it generated and how many epochs it trained,
        where one of them was limited, and whether EMMIA saw the labels.
        """
        protocol = self.manifest["protocol"]
        title, limit = TITLES[attack], None
        if attack in ("em_mia", "em_mia_best_of_four"):
            if protocol["fields"].get("em_mia_choice") == "best_of_four":
                title = TITLES["em_mia_best_of_four"]
            limit = self.manifest.get("em_mia_limit")
        elif attack in GENERATIVE:
            limit = _inside(self.manifest, "generation", "limit")
        tokens = protocol["changed"].get(f"{attack}_new_tokens")
        if attack == "cdd" and type(limit) is int:
            tokens = _inside(self.manifest, "hyperparameters", "cdd_length")
        row, epochs = parts_of(attack), None
        if row and row[0] == "mia_tuner":
            epochs = _inside(self.manifest, "hyperparameters", "mia_tuner_epochs")
            epochs = None if epochs == MIA_TUNER_EPOCHS else epochs
        limits = ((limit, "a class"), (tokens, "tokens"), (epochs, "epochs"))
        known = [f"{n} {what}" for n, what in limits if type(n) is int]
        return f"{title} ({', '.join(known)})" if known else title

    def subset_title(self, subset: str) -> str:
        """Title of a subset."""
        return next((s.title for s in self.tree.subsets if s.id == subset), subset) if self.tree else "Texts"

    def lines(self, attack: str, subset: str) -> tuple[Score, ...]:
        """The score lines that count: all, or those of the files that stand for the domain where one leaf has to."""
        lines = self.scores[attack][subset]
        fields = self.manifest["protocol"]["fields"]
        if self.tree is None or not is_representative(attack, fields.get("lodo_subsets")):
            return lines
        own = next(s for s in self.tree.subsets if s.id == subset)
        return tuple(line for line in lines if own.stands_for_domain(line.side, self.tree.size_pairs))

    def class_scores(self, attack: str, subset: str) -> ClassScores:
        """The valid scores of both classes.

        Raises:
            DataError: a class has no score; names attack and subset.
        """
        by_label: dict[int | None, list[float]] = {MEMBER: [], NON_MEMBER: [], None: []}
        for score in self.lines(attack, subset):
            if score.value is not None:
                by_label[score.label].append(score.value)
        return ClassScores(by_label[MEMBER], by_label[NON_MEMBER], f"{attack} on {subset}")  # type: ignore[arg-type]


def _inside(manifest: Mapping[str, Any], field: str, name: str) -> Any:
    """A value of an object in the manifest; None where either is absent."""
    value = manifest.get(field)
    return value.get(name) if isinstance(value, dict) else None


def read_run(path: Path) -> Run:
    """Reads one run folder.

    Raises:
        DataError: no manifest, or one that does not describe a run; a score file is missing or a line of it cannot
            be used. Names file, line, record and field.
    """
    manifest_path = path / "manifest.json"
    manifest = read_manifest(manifest_path)
    tree = _tree_of(manifest, manifest_path)
    if not manifest["attacks"]:
        raise DataError(
            f"{manifest_path}: no attack has finished in this run; run the same olmodetect score command again"
        )
    attacks = _known_ids(manifest, "attacks", list(TITLES), manifest_path)
    subsets = _known_ids(manifest, "subsets", [s.id for s in tree.subsets] if tree else [TEXTS], manifest_path)
    absent = manifest.get("absent", {})  # what whoever made the scores did not score
    if not isinstance(absent, dict) or not all(isinstance(names, list) for names in absent.values()):
        raise DataError(f"{manifest_path}: field absent: expected lists of subsets by attack, got {short(absent)}")
    scores: dict[str, dict[str, tuple[Score, ...]]] = {}
    for attack in attacks:
        scores[attack] = {}
        for subset in subsets:
            file = path / "scores" / attack / f"{subset}.jsonl"
            if file.is_file():
                scores[attack][subset] = read_scores(file)
                wanted, found = manifest["record_counts"].get(subset, 0), len(scores[attack][subset])
                if wanted is not None and found != wanted:  # scores of others may be of a file of another day
                    raise DataError(
                        f"{file}: {found} lines, but {manifest_path} says {wanted} records; "
                        "run the same `olmodetect score` command again to write it anew"
                    )
            elif tree is None or _defined_on(attack, subset, tree) and subset not in absent.get(attack, ()):
                raise DataError(
                    f"{file}: no such file, but {manifest_path} lists attack {attack} and subset {subset}; "
                    "run the same `olmodetect score` command again to complete the run"
                )
    reference = _reference(path, attacks) if tree is None else {}
    return Run(path, manifest, tree, attacks, subsets, scores, reference)


def _reference(path: Path, attacks: Sequence[str]) -> dict[str, tuple[Score, ...]]:
    """The reference's scores under every attack; empty if the run had none."""
    files = {attack: path / "scores" / attack / f"{REFERENCE}.jsonl" for attack in attacks}
    if not any(file.is_file() for file in files.values()):
        return {}
    return {attack: read_scores(file) for attack, file in files.items()}


def read_scores(path: Path) -> tuple[Score, ...]:
    """Reads one score file.

    Raises:
        DataError: the file cannot be read, is empty, or a line misses a field; names file, line, record and field.
    """
    scores = tuple(_score(value, f"{path}, line {number}") for number, value in read_jsonl(path))
    if not scores:
        raise DataError(f"{path}: holds no score; expected one JSON object a record")
    return scores


def _score(line: dict[str, Any], source: str) -> Score:
    record_id = line.get("record_id")
    if not isinstance(record_id, str):
        raise DataError(f"{source}: field record_id: expected a string, got {record_id!r}")
    where = f"{source} (record {record_id!a})"
    for field in ("score", "label"):
        if field not in line:
            raise DataError(f"{where}: field {field} is missing")
    if not isinstance(line.get("text_sha1"), str):
        raise DataError(f"{where}: field text_sha1: expected a string, got {line.get('text_sha1')!r}")
    label = line["label"]
    if isinstance(label, (bool, float)) or label not in (MEMBER, NON_MEMBER, None):
        raise DataError(f"{where}: field label: expected 1, 0 or null, got {label!r}")
    value, missing = line["score"], None
    if value is None:
        missing = str(line.get("missing") or "no score, no reason given")
    elif not is_valid_score(value):
        missing = f"not a finite number: {short(value)}"
    n_tokens, share, note = line.get("n_tokens"), line.get("reference_share"), line.get("note")
    base = line.get("base_score")
    side = line.get("side", "")
    if not isinstance(side, str):
        raise DataError(f"{where}: field side: expected a string, got {short(side)}")
    require_unicode([record_id, line["text_sha1"], missing, note, side], where)
    if n_tokens is not None and type(n_tokens) is not int:
        raise DataError(f"{where}: field n_tokens: expected an integer, got {short(n_tokens)}")
    if share is not None and not (is_valid_score(share) and 0 <= share <= 1):
        raise DataError(f"{where}: field reference_share: expected a number from 0 to 1 or null, got {short(share)}")
    if note is not None and not isinstance(note, str):
        raise DataError(f"{where}: field note: expected a string, got {short(note)}")
    if base is not None and not is_valid_score(base):
        raise DataError(f"{where}: field base_score: expected a finite number or null, got {short(base)}")
    choices = tuple(line[field] for field in FROM if field in line)
    if choices and not (len(choices) == len(FROM) and all(map(is_valid_score, choices))):
        raise DataError(f"{where}: fields {', '.join(FROM)}: expected a finite number in each, got {short(choices)}")
    score = float(value) if missing is None else None
    truncated = line.get("truncated") is True
    base = None if base is None else float(base)
    sha1 = line["text_sha1"]
    return Score(record_id, sha1, label, score, missing, truncated, n_tokens, share, note, base, choices, side)


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads and checks the manifest of a run folder.

    Raises:
        DataError: it is missing, or a field of it is; names file and field.
    """
    try:
        manifest = read_object(path, MANIFEST_FORMAT)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file, so {path.parent} is not a run folder; `olmodetect score --out RUN` makes one"
        ) from None
    require_fields(manifest, _REQUIRED, path)
    return manifest


def require_fields(manifest: Mapping[str, Any], required: Mapping[str, tuple[type, ...]], path: Path) -> None:
    """Checks that fields are there and have one of their types.

    Args:
        manifest: a run's.
        required: field to types; what holds a dotted field stands before it, or was checked to be an object already.
        path: the manifest's file, for messages.

    Raises:
        DataError: names file and field.
    """
    for field, types in required.items():
        *outer, name = field.split(".")
        holder = manifest[outer[0]] if outer else manifest
        if name not in holder:
            raise DataError(f"{path}: field {field} is missing")
        value = holder[name]
        if not isinstance(value, types) or isinstance(value, bool):
            names = " or ".join("null" if t is _NoneType else t.__name__ for t in types)
            raise DataError(f"{path}: field {field}: expected {names}, got {short(value)}")


def _tree_of(manifest: dict[str, Any], path: Path) -> Tree | None:
    if manifest["benchmark"] is None:
        return None
    try:
        return tree_from(manifest["benchmark"].get("tree"), path)
    except UsageError as error:
        raise DataError(f"{path}: field benchmark.tree: {error}") from None


def _known_ids(manifest: dict[str, Any], field: str, known: list[str], path: Path) -> tuple[str, ...]:
    """The ids of a manifest's list. They become folder names, so only known ones pass."""
    ids = manifest[field]
    if not ids:
        raise DataError(f"{path}: field {field}: the list is empty")
    for name in ids:
        if name not in known:
            raise DataError(f"{path}: field {field}: unknown value {name!r}; allowed are: {', '.join(known)}")
    if len(set(ids)) != len(ids):
        raise DataError(f"{path}: field {field}: an id stands there twice: {', '.join(ids)}")
    return tuple(ids) if field == "attacks" else tuple(name for name in known if name in ids)


def _defined_on(attack: str, subset: str, tree: Tree) -> bool:
    return next(s.domain for s in tree.subsets if s.id == subset) in attack_domains(attack, tree)
