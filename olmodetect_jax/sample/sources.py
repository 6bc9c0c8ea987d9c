"""The source documents of the sample, kept as compressed JSONL, one file a subset."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import zstandard

from olmodetect_jax.errors import DataError
from olmodetect_jax.files import atomic_path
from olmodetect_jax.records import read_jsonl

SUBSETS = ("speeches", "novel", "code", "gsm8k", "mbpp")
_LEVEL = 19


@dataclass(frozen=True)
class Document:
    """One speech, chapter, function or problem.

    Attributes:
        id: unique within its subset.
        source: where it was taken from, for the record's metadata.
        fields: its text, or its parts by name; all strings.
    """

    id: str
    source: str
    fields: Mapping[str, str]


def source_path(directory: Path, subset: str) -> Path:
    """The file of one subset's documents."""
    return directory / f"{subset}.jsonl.zst"


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """Writes documents sorted by id; the same documents give the same bytes under one version of zstd.

    Raises:
        DataError: two documents have the same id.
    """
    documents = sorted(documents, key=lambda d: d.id)
    _check_unique(path, documents)
    lines = (json.dumps({"id": d.id, **d.fields, "source": d.source}, ensure_ascii=False) for d in documents)
    content = "".join(line + "\n" for line in lines).encode("utf-8")
    with atomic_path(path) as temporary:
        temporary.write_bytes(zstandard.ZstdCompressor(level=_LEVEL).compress(content))


def read_documents(path: Path) -> tuple[Document, ...]:
    """Reads one subset's documents, sorted by id: the order of the lines has no effect on anything made from them.

    Raises:
        DataError: the file is missing, cannot be decompressed, or holds a line that is not a document.
    """
    documents = []
    for number, value in read_jsonl(path):
        try:
            documents.append(Document(value.pop("id"), value.pop("source"), value))
        except KeyError as error:
            raise DataError(f"{path}, line {number}: not a source document: it has no {error}") from None
    documents.sort(key=lambda d: d.id)
    _check_unique(path, documents)
    return tuple(documents)


def _check_unique(path: Path, documents: list[Document]) -> None:
    for first, second in zip(documents, documents[1:], strict=False):
        if first.id == second.id:
            raise DataError(f"{path}: two documents have the id {first.id!r}")
