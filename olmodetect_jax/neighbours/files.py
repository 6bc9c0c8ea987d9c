"""Neighbours kept in a file: our own, or the cache of the released code (generative spec, section 1)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import DataError
from olmodetect_jax.files import atomic_path, parse_json
from olmodetect_jax.neighbours.masking import BUFFER, COPIES, HEAD_WORDS, SHARE, SPAN
from olmodetect_jax.records import read_jsonl, text_key

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of one text.

    Attributes:
        texts: at least one; some may be equal to each other or to the text itself.
        provenance: how they were made; empty if nobody wrote it down.
    """

    texts: tuple[str, ...]
    provenance: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class NeighbourFile:
    """The neighbours of many texts.

    Attributes:
        path: where they came from, for messages.
        by_key: by each text's key.
        key: of a text.
    """

    path: Path
    by_key: Mapping[str, Neighbours]
    key: Callable[[str], str] = text_key

    def of(self, text: str) -> Neighbours | None:
        """A text's neighbours; None if there are none of it."""
        return self.by_key.get(self.key(text))

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of the file, whatever its name and the order of its lines."""
        digest = hashlib.sha256()
        for key, own in sorted(self.by_key.items()):
            digest.update(json.dumps([key, own.texts]).encode())
        provenances = {_canonical(own.provenance): own.provenance for own in self.by_key.values()}
        return {
            "sha256": digest.hexdigest(),
            "texts": len(self.by_key),
            "provenances": [dict(provenances[name]) for name in sorted(provenances)],
        }


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)


def load_neighbours(path: Path, key: Callable[[str], str] | None = None) -> NeighbourFile:
    """Reads a file of neighbours, or the cache folder of the released code.

    Args:
        path: JSON lines with `text_sha256`, `neighbours` and `provenance`; or a folder of
            `<first two hex digits>/<sha256>.json`, each with `neighbours`.
        key: names a text in the folder; None takes `released_key` as it is.

    Raises:
        DataError: there is no such file, or something in it is no neighbours; names file and line.
    """
    if path.is_dir():
        return NeighbourFile(path, _read_cache(path), key or released_key)
    by_key: dict[str, Neighbours] = {}
    for number, value in read_jsonl(path):
        where, name = f"{path}, line {number}", value.get("text_sha256")
        if not isinstance(name, str) or not _HEX.fullmatch(name):
            raise DataError(f"{where}: text_sha256 is {name!r}; expected 64 hex digits")
        if name in by_key:
            raise DataError(f"{where}: the text {name} stands in the file already; remove one of the two lines")
        provenance = value.get("provenance")
        if not isinstance(provenance, dict):
            raise DataError(f"{where}: provenance is {provenance!r}; expected an object that says how they were made")
        by_key[name] = Neighbours(_texts(value, where), provenance)
    if not by_key:
        raise DataError(f"{path}: holds no neighbours; make them with `olmodetect neighbours`")
    return NeighbourFile(path, by_key)


def _texts(value: Mapping[str, Any], where: str) -> tuple[str, ...]:
    texts = value.get("neighbours")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: neighbours: expected a list of at least one text")
    try:
        "".join(texts).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where}: a neighbour holds a lone surrogate, which is not valid Unicode text") from None
    return tuple(texts)


def _read_cache(folder: Path) -> dict[str, Neighbours]:
    by_key = {}
    for path in sorted(folder.glob("[0-9a-f][0-9a-f]/*.json")):
        if not _HEX.fullmatch(path.stem) or path.parent.name != path.stem[:2]:
            raise DataError(f"{path}: expected a name of 64 hex digits, in a folder named by its first two")
        try:
            value = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: not a JSON file: {error}") from None
        by_key[path.stem] = Neighbours(_texts(value if isinstance(value, dict) else {}, str(path)), {})
    if not by_key:
        raise DataError(f"{folder}: holds no file <two hex digits>/<sha256>.json")
    return by_key


def released_key(text: str, *, filler: str = "t5-large", seed: int = 0) -> str:
    """The name of a text in the released code's cache: SHA-256 of its parts, joined by two colons.

    The parts and their order are known. Not known, and assumed here, is how the values are spelt: the text is the whole
    stripped text as it is, numbers are written as Python writes them (`pct=0.3`, `top_p=1.0`), the filler is the
    model's name on the hub. A cache made otherwise needs a key of its own in `load_neighbours`.

    Args:
        text: the whole stripped text.
        filler: what filled the gaps.
        seed: of the gaps.
    """
    parts = [
        f"text={text}", f"n={COPIES}", f"sp={SPAN}", f"pct={SHARE}", f"buf={BUFFER}", "top_p=1.0", f"mfm={filler}",
        f"seed={seed}",
    ]  # fmt: skip
    if len(text.split()) > HEAD_WORDS:
        parts.insert(0, f"win={HEAD_WORDS}")
    return hashlib.sha256("::".join(parts).encode("utf-8")).hexdigest()


def write_neighbours(path: Path, by_key: Mapping[str, Neighbours]) -> None:
    """Writes our own file atomically, in the mapping's order."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for key, own in by_key.items():
            line = {"text_sha256": key, "neighbours": list(own.texts), "provenance": dict(own.provenance)}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
