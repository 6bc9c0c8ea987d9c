"""`olmodetect index`: n-gram indices of what a model was trained on; and opening those a configuration names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olmodetect_jax.construction.config import BuildConfig, Index
from olmodetect_jax.construction.corpus import corpus_files, documents
from olmodetect_jax.construction.index.base import NgramIndex
from olmodetect_jax.construction.index.build_builtin import build_index
from olmodetect_jax.construction.index.builtin import open_index, read_description
from olmodetect_jax.construction.pools import made_from, resolved
from olmodetect_jax.construction.stages import Stages
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.runtime.progress import progress
from olmodetect_jax.tokenization import Tokenizer

BACKENDS = ("builtin", "infini-gram")


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
    if backend not in BACKENDS:
        raise one_of("--backend", backend, BACKENDS)
    if out.exists():
        raise UsageError(f"{out}: exists already; choose another folder, or remove it first")
    files = corpus_files(corpus)
    with progress(f"{name}: indexing", sum(size for _, size in files), unit="bytes") as advance:
        ids = documents(files, tokenizer.bare_ids, advance)
        if backend == "builtin":
            memory = int(memory_gb * 2**30)
            return build_index(ids, out, n=n, tokenizer_digest=tokenizer.digest, memory=memory)
        from olmodetect_jax.construction.index.infini_gram import build_infini_gram

        separator = tokenizer.pad_id if tokenizer.pad_id is not None else tokenizer.eos_id
        if separator is None:
            raise UsageError(f"{tokenizer.path}: no padding or end-of-text token to put between documents")
        return build_infini_gram(
            ids, out, separator=separator, tokenizer_digest=tokenizer.digest, memory_gb=memory_gb,
            cpus=os.cpu_count() or 1,
        )  # fmt: skip


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
    return {name: _open(name, index, config, folder, tokenizer, stages) for name, index in config.indices.items()}


def _open(
    name: str, index: Index, config: BuildConfig, folder: Path, tokenizer: Tokenizer, stages: Stages
) -> NgramIndex:
    if index.remote is not None:
        from olmodetect_jax.construction.index.remote import RemoteIndex

        cache = stages.folder / "remote.jsonl"
        return RemoteIndex(index.remote, asked_with=index.asked_with, cache=cache, rate=index.rate)
    if index.scan is not None:
        from olmodetect_jax.construction.corpus_scan import merge, read_plan

        if read_plan(folder / index.scan)["tokenizer"] != tokenizer.digest:
            raise UsageError(f"{folder / index.scan}: is a scan with another tokenizer; scan with this one")
        return merge(folder / index.scan)
    if index.prepared is not None:
        from olmodetect_jax.construction.index.infini_gram import open_prepared

        given = index.prepared
        return open_prepared(
            folder / given.path, token_dtype=given.token_dtype, eos=given.eos, vocabulary=given.vocabulary,
            tokenizer=tokenizer.digest,
        )  # fmt: skip
    path = _of_corpus(name, index, config, folder, tokenizer, stages) if index.corpus else folder / str(index.path)
    return open_any(path, tokenizer, n=config.overlap.n, memory_gb=config.memory_gb)


def _of_corpus(
    name: str, index: Index, config: BuildConfig, folder: Path, tokenizer: Tokenizer, stages: Stages
) -> Path:
    """The index of a corpus in the folder of a build, made anew if the corpus is another than it was."""
    described = [index.backend, made_from(index.corpus, folder), tokenizer.digest, config.overlap.n]
    path = stages.folder / f"index-{name}"

    def build() -> bool:
        shutil.rmtree(path, ignore_errors=True)
        corpus = resolved(index.corpus, folder)
        _build(
            corpus, path, tokenizer, backend=index.backend, n=config.overlap.n, memory_gb=config.memory_gb, name=name
        )
        return True

    stages.get(f"index-{name}-made", described, build)
    return path


def open_any(path: Path, tokenizer: Tokenizer, *, n: int, memory_gb: float) -> NgramIndex:
    """Opens an index of any backend.

    Args:
        path: its folder.
        tokenizer: that it has to be of.
        n: tokens of the n-grams it will be asked.
        memory_gb: bound of what look-ups hold.

    Raises:
        UsageError: it is no index, of another tokenizer, or of n-grams of another length.
        DataError: its files are damaged.
    """
    description = read_description(path)
    if description.get("backend") == "infini-gram":
        from olmodetect_jax.construction.index.infini_gram import open_infini_gram

        return open_infini_gram(path, tokenizer_digest=tokenizer.digest)
    index = open_index(path, tokenizer_digest=tokenizer.digest, memory=int(memory_gb * 2**30))
    if index.n != n:
        raise UsageError(f"{path}: is an index of {index.n}-grams, {n}-grams are asked for; make it anew with --n {n}")
    return index
