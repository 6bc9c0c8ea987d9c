"""The documents of a corpus that is indexed: what the model was trained on, as it was trained on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from olmodetect_jax.construction.candidates import Row
from olmodetect_jax.construction.readers import read_rows, row_files
from olmodetect_jax.construction.sources.messages import messages_of, render
from olmodetect_jax.errors import DataError

_BATCH = 256  # documents that are tokenised together


def document_text(row: Row) -> str:
    """The text of one document: its `text` or `content`, or its `messages` rendered as in a record.

    Raises:
        DataError: it has none of these.
    """
    for name in ("text", "content"):
        if isinstance(row.value.get(name), str):
            return row.value[name]
    if isinstance(row.value.get("messages"), list):
        return render(messages_of(row.value["messages"], row.where))
    raise DataError(f"{row.where}: expected a field text, content or messages; it has {', '.join(row.value)}")


def corpus_files(paths: Sequence[Path | str]) -> list[tuple[Path | str, int]]:
    """The files of a corpus with their sizes in bytes; a path of a hub counts as one file of unknown size (0).

    Raises:
        DataError: a path is missing, or holds nothing to read.
    """
    found: list[tuple[Path | str, int]] = []
    for path in paths:
        if str(path).startswith("hub:"):
            found.append((str(path), 0))
        else:
            found += [(file, file.stat().st_size) for file in row_files(Path(path))]
    return found


def documents(
    files: Sequence[tuple[Path | str, int]],
    encode: Callable[[Sequence[str]], list[np.ndarray]],
    report: Callable[[int], None],
) -> Iterator[np.ndarray]:
    """Token ids of every document: [T] uint32, streamed.

    Args:
        files: of `corpus_files`.
        encode: texts to ids.
        report: is told how many more bytes were read, after each file.

    Raises:
        DataError: a file cannot be read, or a row has no text.
    """
    for file, size in files:
        for texts in _batches(document_text(row) for row in read_rows([file])):
            yield from encode(texts)
        report(size)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch = []
    for text in texts:
        batch.append(text)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
