"""The documents of a corpus that is indexed: what the model was trained on, as it was trained on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from olmodetect_jax.construction.candidates import Row
from olmodetect_jax.construction.readers import read_rows
from olmodetect_jax.construction.sources.messages import render
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
        return render(row.value["messages"], row.where)
    raise DataError(f"{row.where}: expected a field text, content or messages; it has {', '.join(row.value)}")


def documents(
    paths: Sequence[Path | str], encode: Callable[[Sequence[str]], list[np.ndarray]], report: Callable[[int], None]
) -> Iterator[np.ndarray]:
    """Token ids of every document: [T] uint32, streamed.

    Args:
        paths: files and folders.
        encode: texts to ids.
        report: is told how many more documents were read.

    Raises:
        DataError: a file cannot be read, or a row has no text.
    """
    for texts in _batches(document_text(row) for row in read_rows(paths)):
        yield from encode(texts)
        report(len(texts))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch = []
    for text in texts:
        batch.append(text)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
