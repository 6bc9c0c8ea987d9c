"""Rows of local and hub files, streamed: JSON lines, parquet, Stack Exchange dumps (construction spec, section 3)."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import zstandard

from olmodetect_jax.construction.candidates import Row
from olmodetect_jax.construction.sources.posts_xml import read_xml_rows
from olmodetect_jax.errors import DataError, UsageError

_JSON = tuple(name + packed for name in (".jsonl", ".json") for packed in ("", ".gz", ".zst"))
_READABLE = (*_JSON, ".parquet", ".xml")
_ABOUT = re.compile(r"(readme|licen[cs]e|notice|copying|citation|changelog)(?![^\W_])", re.IGNORECASE)
_HUB = re.compile(r"hub:(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?/(?P<glob>.+)")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CHUNK = 1 << 14  # compressed bytes that are unpacked together
_BATCH = 1024  # rows of a parquet file in memory


def read_rows(paths: Sequence[Path | str]) -> Iterator[Row]:
    """Yields the rows of files in the given order, those of folders sorted by name; no file is held in memory.

    Args:
        paths: files (`.jsonl` and `.json` with one object a line, both also `.gz` and `.zst`; `.parquet`; `.xml` of a
            Stack Exchange dump), folders of such files, or `hub:REPO[@REVISION]/GLOB` for the files of a data set.

    Raises:
        DataError: a path is missing, a folder or repository has nothing to read or a file of another kind, or a file
            is damaged; names file and line.
        UsageError: a hub path is malformed, or the [hub] extra is missing.
    """
    for path in paths:
        if str(path).startswith("hub:"):
            for name, file in _hub_files(str(path)):
                yield from _file_rows(file, name)
        else:
            for file in row_files(Path(path)):
                yield from _file_rows(file, str(file))


def row_files(path: Path) -> list[Path]:
    """The files that `read_rows` reads of a local path: itself, or a folder's, sorted by name, folders within as well.

    Hidden files are left out, and those that tell about the data (README, LICENSE and the like).

    Raises:
        DataError: nothing is there, or a file of another kind.
    """
    if path.is_dir():
        found = list(_below(path, ()))
        if not found:
            raise DataError(f"{path}: no file to read below it; expected {', '.join(_READABLE)}")
        return found
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    _check_kind(path.name, str(path))
    return [path]


def _below(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    if (real := folder.resolve()) in above:
        raise DataError(f"{folder}: a link to a folder that it lies in; remove the link")
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None
    for entry in entries:
        if _is_data(entry.name):
            if entry.is_dir():
                yield from _below(entry, (*above, real))
            else:
                _check_kind(entry.name, str(entry))
                yield entry


def _is_data(name: str) -> bool:
    return not name.startswith(".") and (_readable(name) or not _ABOUT.match(name))


def _readable(name: str) -> bool:
    return name.lower().endswith(_READABLE)


def _check_kind(name: str, where: str) -> None:
    if not _readable(name):
        raise DataError(f"{where}: unknown kind of file; expected {', '.join(_READABLE)}; move it out, or convert it")


def _file_rows(path: Path, name: str) -> Iterator[Row]:
    suffixes = path.name.lower()
    if suffixes.endswith(".xml"):
        return read_xml_rows(path)
    return _parquet_rows(path, name) if suffixes.endswith(".parquet") else _json_rows(path, name)


def _json_rows(path: Path, name: str) -> Iterator[Row]:
    """Unlike `records.read_jsonl`, takes objects only, and streams what is compressed, in any number of frames."""
    number = 0
    try:
        for number, line in enumerate(_lines(path), 1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            if text.strip():
                yield Row(f"{name}, line {number}", _object(text))
    except UnicodeDecodeError as error:
        raise DataError(f"{name}, line {number}: not UTF-8: {error.reason} at byte {error.start + 1}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}, line {number}: expected one JSON object a line: {error}") from None
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{name}: cannot be read after line {number}: {reason}") from None


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"this one holds {type(value).__name__}")
    if _ESCAPED_SURROGATE.search(text):  # the only way to half a character: as UTF-8 it would not have been decoded
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise ValueError(f"lone surrogate U+{half:04X}, no valid Unicode; repair or remove the line") from None
    return value


def _lines(path: Path) -> Iterator[bytes]:
    name = path.name.lower()
    if name.endswith(".zst"):
        parts: list[bytes] = []
        for chunk in _decompressed(path):
            end, *starts = chunk.split(b"\n")
            parts.append(end)
            for start in starts:
                yield b"".join(parts)
                parts = [start]
        yield b"".join(parts)
    else:
        with gzip.open(path) if name.endswith(".gz") else path.open("rb") as file:
            yield from file


def _decompressed(path: Path) -> Iterator[bytes]:
    """The library's own stream takes a file that was cut off for a shorter one, and stops after the first frame."""
    frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            while chunk:
                if frame.eof:
                    frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
                yield frame.decompress(chunk)
                chunk = frame.unused_data
    if not frame.eof:
        raise EOFError("the compressed file is cut off")


def _parquet_rows(path: Path, name: str) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                for value in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    yield Row(f"{name}, row {number}", {k: _plain(v, k) for k, v in value.items()})
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        raise DataError(f"{name}: cannot be read after row {number}: {error}") from None


def _plain(value: Any, column: str) -> Any:
    """A value as JSON would hold it; dates in ISO 8601."""
    if isinstance(value, dict):
        return {k: _plain(v, column) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, column) for v in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"column {column!r} holds {type(value).__name__}, which is no JSON value; remove the column")


def _hub_files(path: str) -> Iterator[tuple[str, Path]]:
    """Yields name and local copy of each file of a data set that a glob names, sorted, all of one commit."""
    match = _HUB.fullmatch(path)
    if match is None:
        raise UsageError(f"{path}: expected hub:OWNER/NAME[@REVISION]/GLOB")
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ImportError:
        raise UsageError(f"{path}: needs the hub's client: pip install 'olmodetect-jax[hub]'") from None
    repo, revision, glob = match["repo"], match["revision"], match["glob"]
    try:
        info = HfApi().dataset_info(repo, revision=revision)
        names = sorted(s.rfilename for s in info.siblings or () if fnmatchcase(s.rfilename, glob))
        names = [n for n in names if all(map(_is_data, n.split("/")))]
        if not names:
            raise DataError(f"{path}: no such file; the data set has {len(info.siblings or ())} others")
        for name in names:
            _check_kind(name, f"{path}: {name}")
        for name in names:
            file = hf_hub_download(repo, name, repo_type="dataset", revision=info.sha)
            yield f"hub:{repo}@{info.sha}/{name}", Path(file)
    except DataError:
        raise
    except Exception as error:  # those of the hub's client, of its network library, of the disk: no common base
        raise DataError(f"{path}: cannot be fetched: {error}") from None
