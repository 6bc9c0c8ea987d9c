"""Quizzes kept in a file: our own, and what others' caches and tables hold (generative spec, section 3)."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from olmodetect_jax.errors import DataError
from olmodetect_jax.files import atomic_path, parse_json
from olmodetect_jax.quiz.options import Options, parse_reply
from olmodetect_jax.records import read_jsonl, text_key

_HEX = re.compile(r"[0-9a-f]{64}")
_FIELDS = ("a", "b", "c", "d", "generator", "created")
# Tokens the released code allowed a reply: first these, then, where an option was missing, those.
CACHED_TOKENS = (4_000, 16_000)


@dataclass(frozen=True)
class Quiz:
    """The options of one text.

    Attributes:
        options: as they were made; `options.problem` says whether they make a quiz.
        generator: what made them.
        created: when; empty if that is not known.
    """

    options: Options
    generator: str
    created: str


@dataclass(frozen=True, eq=False)
class Quizzes:
    """The quizzes of many texts.

    Attributes:
        path: where they came from, for messages.
        by_key: by `text_key` of each text.
    """

    path: Path
    by_key: Mapping[str, Quiz]

    def of(self, text: str) -> Quiz | None:
        """A text's quiz; None if there is none of it."""
        return self.by_key.get(text_key(text))

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of them, whatever the file's name, its compression and the order of its lines."""
        digest = hashlib.sha256()
        for key, quiz in sorted(self.by_key.items()):
            digest.update(json.dumps([key, quiz.options.texts]).encode())
        generators = sorted({quiz.generator for quiz in self.by_key.values()})
        return {"sha256": digest.hexdigest(), "texts": len(self.by_key), "generator": ", ".join(generators)}


def load_quizzes(path: Path) -> Quizzes:
    """Reads JSON lines with `text_sha256`, `a` to `d`, `generator` and `created`; `.gz` and `.zst` are unpacked.

    Raises:
        DataError: there is no such file, it holds nothing, or a line is no quiz; names file and line. Options that are
            empty or identical are no reason: they cost their own text its score, and no other's.
    """
    by_key: dict[str, Quiz] = {}
    for number, value in read_jsonl(path):
        where, key = f"{path}, line {number}", value.get("text_sha256")
        if not isinstance(key, str) or not _HEX.fullmatch(key):
            raise DataError(f"{where}: text_sha256 is {key!r}; expected 64 hex digits, lower case")
        if key in by_key:
            raise DataError(f"{where}: the text {key} stands in the file already; remove one of the two lines")
        for field in _FIELDS:
            if not isinstance(value.get(field), str):
                raise DataError(f"{where}: {field} is {value.get(field)!r}; expected a text")
        a, b, c, d, generator, created = (value[field] for field in _FIELDS)
        by_key[key] = Quiz(Options(a, b, c, d), generator, created)
    if not by_key:
        raise DataError(f"{path}: holds no quiz; make some with `olmodetect quiz`")
    return Quizzes(path, by_key)


def write_quizzes(path: Path, by_key: Mapping[str, Quiz]) -> None:
    """Writes the file atomically, in the mapping's order, packed as its name ends (`.gz`, `.zst`).

    The same quizzes give the same bytes under one version of the packing library.
    """
    lines = []
    for key, quiz in by_key.items():
        texts = dict(zip("abcd", quiz.options.texts, strict=True))
        line = {"text_sha256": key, **texts, "generator": quiz.generator, "created": quiz.created}
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    content = "".join(lines).encode("utf-8")
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    elif path.suffix == ".zst":
        content = zstandard.ZstdCompressor(level=19).compress(content)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def cache_path(folder: Path, model: str, max_tokens: int, prompt: str) -> Path:
    """Where the released code keeps a reply."""
    parts = ("generate_text", model, str(max_tokens), "1.0", prompt)
    name = hashlib.sha256("\n---\n".join(parts).encode("utf-8")).hexdigest()
    return folder / name[:2] / f"{name}.json"


def read_cache(folder: Path, model: str, prompt_of: Callable[[str], str], texts: Iterable[str]) -> dict[str, Options]:
    """What the released code's cache holds of some texts.

    Args:
        folder: of the cache.
        model: name of the judge, as it was asked.
        prompt_of: a text to the whole prompt: the names of the files follow from its exact wording.
        texts: stripped.

    Returns:
        Options by text, incomplete ones too; a text that the cache does not know has none.

    Raises:
        DataError: there is no such folder, or a file of it is no reply.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of cached replies")
    found: dict[str, Options] = {}
    for text in texts:
        for max_tokens in CACHED_TOKENS:
            path = cache_path(folder, model, max_tokens, prompt_of(text))
            if path.is_file():
                options = parse_reply(_reply(path))
                if text not in found or options.count >= found[text].count:
                    found[text] = options
    return found


def _reply(path: Path) -> str:
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a JSON file: {error}") from None
    reply = value.get("text") if isinstance(value, dict) else None
    if not isinstance(reply, str):
        raise DataError(f"{path}: expected one object with a field text")
    return reply


def read_table(path: Path) -> dict[str, Options]:
    """Options by text from a CSV file as the original DCQ writes it: `instance`, and `option_a` to `option_d`.

    Where the four columns are missing, they are read out of `generated_options`, the judge's reply.

    Raises:
        DataError: the file cannot be read, or lacks the columns; names file and line.
    """
    columns = [f"option_{letter}" for letter in "abcd"]
    found = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            names = rows.fieldnames or ()
            parsed = set(columns) <= set(names)
            if "instance" not in names or not (parsed or "generated_options" in names):
                raise DataError(f"{path}: expected the columns instance, and option_a to option_d or generated_options")
            for row in rows:
                if row["instance"] and row["instance"].strip():
                    own = Options(*(row[c] or "" for c in columns)) if parsed else None
                    found[row["instance"].strip()] = own or parse_reply(row["generated_options"] or "")
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.reader.line_num}: not a line of a CSV file: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a CSV file: {getattr(error, 'strerror', None) or error}") from None
    return found
