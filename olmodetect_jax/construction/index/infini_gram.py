"""The `infini-gram` backend: suffix arrays built and asked by its own engine, for corpora beyond the built-in index.

Version 2.6.0 reads 32-bit ids as big-endian numbers and keeps a table of as many entries as the largest of them, so ids
are stored and asked with bytes swapped, and documents are set apart by an id of the vocabulary that no text holds.
Its builder is wrong for small corpora on several processors, without a word; so is its engine for a damaged index. Each
index is therefore compared with brute force once it is built, and its files' sizes are checked when it is opened.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from olmodetect_jax.construction.index.base import windows
from olmodetect_jax.construction.index.build_builtin import DESCRIPTION, checked_ids
from olmodetect_jax.construction.index.builtin import read_description
from olmodetect_jax.errors import DataError, OlmoDetectError, UsageError
from olmodetect_jax.files import write_json

FORMAT = 1
TOKENS, TABLE, OFFSETS = "tokenized.0", "table.0", "offset.0"
_WIDTH = 4
_MANY = 1 << 26  # bytes of tokens from which on several processors are safe
_OPEN_FILES = 4096  # asking for more fails where the system's limit is lower
_CHECKED = 200  # n-grams that are compared with brute force
_CHECKED_TOKENS = 1 << 22  # of the corpus they are counted in; a larger one is checked for presence only
_LENGTH = 13


def _package() -> Any:
    try:
        import infini_gram.engine
    except ImportError:
        raise UsageError(
            "the infini-gram backend needs the package infini-gram: pip install 'olmodetect-jax[infini-gram]' "
            "(Linux x86_64 or macOS), or choose --backend builtin"
        ) from None
    return infini_gram


def build_infini_gram(
    documents: Iterable[np.ndarray],
    folder: Path,
    *,
    separator: int,
    tokenizer_digest: str,
    memory_gb: float,
    cpus: int,
) -> dict[str, Any]:
    """Builds an index and compares its counts with brute force.

    Args:
        documents: token ids of each, streamed.
        folder: to make; it appears when all is done.
        separator: an id of the vocabulary that stands in no text.
        tokenizer_digest: of the tokenizer that made the ids.
        memory_gb: that its builder may use.
        cpus: processors; small corpora are built on one.

    Returns:
        What `index.json` says.

    Raises:
        UsageError: the package is missing, or the folder exists.
        DataError: the corpus is empty, or holds the separator.
        OlmoDetectError: the builder failed, or its index counts wrongly.
    """
    _package()
    if folder.exists():
        raise UsageError(f"{folder}: exists already; choose another folder, or remove it first")
    partial = folder.absolute().with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    n_documents, n_tokens = _write_tokens(documents, partial, separator)
    if not n_documents:
        shutil.rmtree(partial)
        raise DataError(f"{folder}: the corpus holds no document")
    size = (partial / TOKENS).stat().st_size
    _run_builder(partial, memory_gb, cpus if size >= _MANY else 1)
    description = {
        "format": FORMAT,
        "backend": "infini-gram",
        "tokenizer": tokenizer_digest,
        "separator": separator,
        "documents": n_documents,
        "tokens": n_tokens,
        "bytes": size,
        "table_bytes": (partial / TABLE).stat().st_size,
    }
    write_json(partial / DESCRIPTION, description)
    _check(partial, separator, tokenizer_digest)
    partial.rename(folder)
    return description


def _write_tokens(documents: Iterable[np.ndarray], folder: Path, separator: int) -> tuple[int, int]:
    """Writes the separator and the ids of each document, big-endian, and where each begins."""
    mark, offsets, n_tokens, place = np.array([separator], ">u4").tobytes(), [], 0, 0
    with (folder / TOKENS).open("wb") as tokens:
        for number, ids in enumerate(documents):
            ids = checked_ids(ids, f"document {number + 1}")
            if (ids == separator).any():
                raise DataError(f"document {number + 1}: holds the id {separator}, which sets documents apart")
            content = mark + ids.astype(">u4").tobytes()
            tokens.write(content)
            offsets.append(place)
            place += len(content)
            n_tokens += len(ids)
    np.asarray(offsets, "<u8").tofile(folder / OFFSETS)
    return len(offsets), n_tokens


def _run_builder(folder: Path, memory_gb: float, cpus: int) -> None:
    command = [
        sys.executable, "-m", "infini_gram.indexing", "--data_dir", str(folder), "--save_dir", str(folder),
        "--token_dtype", "u32", "--shards", "1", "--cpus", str(cpus), "--mem", str(max(1, round(memory_gb))),
        "--ulimit", str(_OPEN_FILES),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    table = folder / TABLE
    if done.returncode or not table.is_file():
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise OlmoDetectError(f"{folder}: infini-gram's builder failed:\n{last}")
    n = (folder / TOKENS).stat().st_size // _WIDTH
    if table.stat().st_size % n:
        raise OlmoDetectError(
            f"{table}: has {table.stat().st_size} bytes, which is no whole number for each of {n} tokens; the builder "
            "cannot split so small a corpus: build it on one processor"
        )


def _check(folder: Path, separator: int, tokenizer_digest: str) -> None:
    """Compares counts of windows of the corpus, and of windows with one id changed, with brute force."""
    tokens = np.memmap(folder / TOKENS, ">u4", mode="r")
    whole = len(tokens) <= _CHECKED_TOKENS
    part = np.asarray(tokens[:_CHECKED_TOKENS], np.uint32)
    present = windows(part, _LENGTH)
    present = present[(present != separator).all(axis=1)]
    rng = np.random.default_rng(0)
    asked = present[rng.permutation(len(present))[:_CHECKED]].copy()
    changed = asked.copy()
    changed[:, _LENGTH // 2] = rng.permutation(changed[:, _LENGTH // 2])
    queries = np.concatenate([asked, changed])
    found = open_infini_gram(folder, tokenizer_digest=tokenizer_digest).count(queries)
    for query, count in zip(queries, found.tolist(), strict=True):
        true = int((present == query).all(axis=1).sum())
        if count != true if whole else count < true:
            raise OlmoDetectError(
                f"{folder}: infini-gram counts {count} where {'' if whole else 'at least '}{true} are right; "
                "build on one processor, or choose --backend builtin"
            )


class InfiniGramIndex:
    """An index opened for counting.

    Attributes:
        asked_with: ids.
        block: windows that are asked at once: each query takes a fraction of a millisecond.
        description: of the corpus.
    """

    asked_with: Literal["ids", "text"] = "ids"
    block: int | None = 64

    def __init__(self, engine: Any, description: dict[str, Any], prepared: Callable[[np.ndarray], np.ndarray]):
        """See `open_infini_gram` and `open_prepared`.

        Args:
            engine: of the package.
            description: of the corpus.
            prepared: ids to the numbers that the engine knows them by.
        """
        self.description = description
        self._engine, self._prepared = engine, prepared

    def count(self, queries: np.ndarray) -> np.ndarray:
        """Occurrences of each n-gram, of any length: [Q] int64.

        Raises:
            DataError: the engine refuses a query, or an id is not one of the index's.
        """
        found = np.empty(len(queries), np.int64)
        for i, query in enumerate(queries):
            answer = self._engine.count(input_ids=self._prepared(query).tolist())
            if "error" in answer:
                raise DataError(f"infini-gram: {answer['error']} (query {query.tolist()})")
            found[i] = answer["count"]
        return found


def open_infini_gram(folder: Path, *, tokenizer_digest: str) -> InfiniGramIndex:
    """Opens an index of `build_infini_gram`.

    Raises:
        UsageError: it is no such index, of another tokenizer, or the package is missing.
        DataError: files are missing or cut off.
    """
    description = read_description(folder)
    if description.get("backend") != "infini-gram" or description.get("format") != FORMAT:
        raise UsageError(f"{folder}: is no infini-gram index of format {FORMAT}")
    if description["tokenizer"] != tokenizer_digest:
        raise UsageError(
            f"{folder}: is of another tokenizer ({description['tokenizer'][:12]}, not {tokenizer_digest[:12]}), so "
            "its ids mean other words: make it anew with this tokenizer"
        )
    for name, size in ((TOKENS, description["bytes"]), (TABLE, description["table_bytes"])):
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise DataError(f"{path}: has {found} bytes, expected {size}; copy the index again, or make it anew")
    engine = _engine(folder, "u32", eos=description["separator"], vocabulary=2**32 - 1)
    return InfiniGramIndex(engine, description, lambda query: np.asarray(query, np.uint32).byteswap())


def open_prepared(
    folder: Path, *, token_dtype: Literal["u16", "u32"], eos: int, vocabulary: int, tokenizer: str
) -> InfiniGramIndex:
    """Opens an index that others made, as infini-gram's own documentation has it (ids not swapped).

    Args:
        folder: of the index.
        token_dtype: of its tokens.
        eos: id that ends a document.
        vocabulary: number of ids.
        tokenizer: digest of the tokenizer that it is said to be of.

    Raises:
        UsageError: the vocabulary does not fit into the type: such an index cannot tell ids above 65,535 apart.
    """
    if token_dtype == "u16" and vocabulary > 2**16:
        raise UsageError(f"{folder}: {vocabulary:,} ids do not fit into 16 bits; the index needs u32 tokens")
    engine = _engine(folder, token_dtype, eos=eos, vocabulary=vocabulary)
    limit = 2**16 if token_dtype == "u16" else 2**32

    def checked(query: np.ndarray) -> np.ndarray:
        if int(query.max()) >= limit:
            raise DataError(f"{folder}: id {int(query.max())} does not fit into {token_dtype} tokens")
        return query

    description = {"backend": "infini-gram", "folder": folder.name, "token_dtype": token_dtype, "tokenizer": tokenizer}
    return InfiniGramIndex(engine, description, checked)


def _engine(folder: Path, token_dtype: str, *, eos: int, vocabulary: int) -> Any:
    return _package().engine.InfiniGramEngine(
        index_dir=str(folder.absolute()), eos_token_id=eos, vocab_size=vocabulary, version=4, token_dtype=token_dtype
    )
