"""Records: one text with its label, read from JSONL by the rules of the released benchmark (likelihood spec, 1.1)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import zstandard

from olmodetect_jax.errors import DataError

MEMBER, NON_MEMBER = 1, 0
_LABELS: dict[Any, int] = {  # true and false equal 1 and 0
    1: MEMBER, 0: NON_MEMBER, "1": MEMBER, "0": NON_MEMBER, "member": MEMBER, "non-member": NON_MEMBER,
}  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One text of one subset.

    Attributes:
        record_id: the file's own `id`, else `sample_<index>`; unique within a side of a subset only.
        text: the scored text, stripped; empty if the record has none (it then gets no score).
        label: 1 member, 0 non-member, None unknown.
        subset: id of the subset it belongs to.
        source: file and line it was read from, for messages.
        side: which of a subset's file pairs it belongs to (chosen or rejected); empty where there is one only.
    """

    record_id: str
    text: str
    label: int | None
    subset: str
    source: str
    side: str = ""

    @property
    def text_sha1(self) -> str:
        """First 20 hex digits of SHA-1 of the stripped text: the key that joins released scores."""
        return hashlib.sha1(self.text.encode("utf-8")).hexdigest()[:20]

    def __str__(self) -> str:
        return f"{self.source} (record {self.record_id!r})"


def text_hash(text: str) -> bytes:
    """SHA-256 of a text: what is drawn or kept by it is the same whatever the order of a file."""
    return hashlib.sha256(text.encode("utf-8")).digest()


def text_key(text: str) -> str:
    """The name of a text in files of neighbours and of quizzes: its SHA-256, hex."""
    return text_hash(text).hex()


def text_seed(text: str) -> int:
    """The seed of what is sampled for a text, below 2**64."""
    return int.from_bytes(text_hash(text)[:8], "big")


def scored_text(value: dict[str, Any]) -> str | None:
    """The first non-blank string among `text`, `value` and `metadata.text`, stripped; None if there is none."""
    metadata = value.get("metadata")
    candidates = (value.get("text"), value.get("value"), metadata.get("text") if isinstance(metadata, dict) else None)
    return next((c.strip() for c in candidates if isinstance(c, str) and c.strip()), None)


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, object) of a JSONL file, which may be compressed (`.gz`, `.zst`).

    Lines end at LF, CR LF or CR only: U+2028 and U+0085 may stand inside a text. Blank lines are skipped; a JSON
    value that is not an object comes wrapped under the key `value`.

    Raises:
        DataError: the file is missing, is not UTF-8, or a line is not JSON; names file and line.
    """
    number = 0
    try:
        with _open(path) as file:
            for line in file:
                number += 1
                # Python's strip would take U+2028 too, but outside a string that is no JSON anyway.
                if not line.strip():
                    continue
                value = json.loads(line)
                yield number, value if isinstance(value, dict) else {"value": value}
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 near line {number + 1}: {error.reason}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not a JSON value: {error}") from None
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _open(path: Path) -> TextIO:
    """A text file, compressed or not; the default newline handling knows LF, CR LF and CR, and no other line end."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    if path.suffix == ".zst":
        content, rest = [], path.read_bytes()
        while rest:  # tools that work in parallel write one frame after the other
            stream = zstandard.ZstdDecompressor().decompressobj()
            content.append(stream.decompress(rest))
            if not stream.eof:  # zstandard's own file reader takes a file that was cut off for a shorter one
                raise EOFError("the compressed file is cut off")
            rest = stream.unused_data
        return io.TextIOWrapper(io.BytesIO(b"".join(content)), encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def read_records(path: Path, *, subset: str, label: int | None = None, side: str = "") -> list[Record]:
    """Reads one file of records.

    Args:
        path: a JSONL file.
        subset: id of the subset the records belong to.
        label: the class of the whole file; None takes each record's own optional `label`.
        side: of the whole file.

    Raises:
        DataError: the file holds no record or no text at all, a text cannot be encoded, or a label is not one of
            1, 0, true, false, "member", "non-member"; names file, line and record.
    """
    records, first = [], (0, "")
    for number, value in read_jsonl(path):
        first = first if records else (number, ", ".join(value) or "no field")
        own_id = value.get("id")
        record_id = own_id.strip() if isinstance(own_id, str) and own_id.strip() else f"sample_{len(records)}"
        source = f"{path}, line {number}"
        text = scored_text(value) or ""
        for name, string in (("text", text), ("id", record_id)):
            try:
                string.encode("utf-8")
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{source} (record {record_id!a}): {name} holds a lone surrogate "
                    f"U+{ord(string[error.start]):04X} at character {error.start}, which is not valid Unicode text; "
                    "repair or remove the record"
                ) from None
        own_label = _own_label(value.get("label"), source, record_id) if label is None else label
        records.append(Record(record_id, text, own_label, subset, source, side))
    if not records:
        raise DataError(f"{path}: holds no record; expected one JSON object a line with a `text`")
    if not any(r.text for r in records):
        raise DataError(f"{path}: no record has a text; expected a field `text`, line {first[0]} has {first[1]}")
    return records


def _own_label(value: Any, source: str, record_id: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, (str, int)) and value in _LABELS:
        return _LABELS[value]
    raise DataError(
        f'{source} (record {record_id!r}): label {value!r}; expected 1, 0, true, false, "member" or "non-member"'
    )
