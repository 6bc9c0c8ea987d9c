"""`olmodetect index`: n-gram indices of what a model was trained on; and opening those a configuration names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmodetect_jax.construction.config import BuildConfig, Index
from olmodetect_jax.construction.corpus import documents
from olmodetect_jax.construction.index.base import NgramIndex
from olmodetect_jax.construction.index.builtin import build_index, open_index
from olmodetect_jax.construction.index.infini_gram import build_infini_gram, open_infini_gram
from olmodetect_jax.construction.index.remote import RemoteIndex
from olmodetect_jax.construction.pools import made_from, resolved
from olmodetect_jax.construction.stages import Stages
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.files import parse_json
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.tokenization import Tokenizer

BACKENDS = ("builtin", "infini-gram")
DESCRIPTION = "index.json"  # in every index's folder; names its backend


def make_index(
    corpus: Sequence[Path], out: Path, tokenizer: Path, *, backend: str, n: int, memory_gb: float
) -> dict[str, Any]:
    """Indexes a corpus.

    Args:
        corpus: files and folders of documents.
        out: folder to make.
        tokenizer: folder of the tokenizer.json.
        backend: builtin or infini-gram.
        n: tokens of an n-gram.
        memory_gb: bound of what is held.

    Returns:
        What `index.json` says: numbers of documents and tokens, digests.

    Raises:
        OlmoDetectError: a file cannot be read, a document has no text, or `out` holds another index.
    """
    if n < 2:
        raise UsageError(f"--n {n}: expected at least 2")
    return _build(corpus, out, Tokenizer(tokenizer), backend=backend, n=n, memory_gb=memory_gb, name=out.name)


def _build(
    corpus: Sequence[Path | str], out: Path, tokenizer: Tokenizer, *, backend: str, n: int, memory_gb: float, name: str
) -> dict[str, Any]:
    with _counting(f"{name}: indexing") as report:
        ids = documents(corpus, tokenizer.bare_ids, report)
        if backend == "builtin":
            memory = int(memory_gb * 2**30)
            return build_index(ids, out, n=n, tokenizer_digest=tokenizer.digest, memory=memory)
        if backend == "infini-gram":
            separator = tokenizer.pad_id if tokenizer.pad_id is not None else tokenizer.eos_id
            if separator is None:
                raise UsageError(f"{tokenizer.path}: no padding or end-of-text token to put between documents")
            return build_infini_gram(
                ids, out, separator=separator, tokenizer_digest=tokenizer.digest, memory_gb=memory_gb,
                cpus=os.cpu_count() or 1,
            )  # fmt: skip
    raise one_of("--backend", backend, BACKENDS)


def open_indices(config: BuildConfig, folder: Path, tokenizer: Tokenizer, stages: Stages) -> dict[str, NgramIndex]:
    """The indices of a configuration; those of a corpus are built first, unless they are there.

    Args:
        config: the configuration.
        folder: that its paths start from.
        tokenizer: that token indices have to be of.
        stages: of the build; its folder gets the indices.

    Raises:
        OlmoDetectError: an index is missing or of another tokenizer, or a corpus cannot be read.
    """
    found = {}
    for name, index in config.indices.items():
        if index.remote is not None:
            found[name] = RemoteIndex(index.remote, asked_with=index.asked_with, cache=stages.folder / "remote.jsonl")
            continue
        path = folder / index.path if index.path is not None else _of_corpus(name, index, config, folder, tokenizer, stages)
        found[name] = open_any(path, tokenizer, n=config.overlap.n, memory_gb=config.memory_gb)
    return found


def _of_corpus(
    name: str, index: Index, config: BuildConfig, folder: Path, tokenizer: Tokenizer, stages: Stages
) -> Path:
    described = [index.backend, made_from(index.corpus, folder), tokenizer.digest, config.overlap.n]

    def build() -> str:
        ...

    return Path(stages.get(f"indices/{name}", described, build))


def open_any(path: Path, tokenizer: Tokenizer, *, n: int, memory_gb: float) -> NgramIndex:
    """Opens an index of either backend."""
    description = path / DESCRIPTION
    ...
