"""The built-in n-gram index: speed of building and looking up, size on disk, and memory against the setting."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from olmodetect_jax.construction.index.base import windows
from olmodetect_jax.construction.index.build_builtin import build_index
from olmodetect_jax.construction.index.builtin import open_index

N = 13
LENGTH = 1000  # tokens of a document


def corpus(tokens: int) -> Iterator[np.ndarray]:
    """Documents of Zipf-distributed ids up to 100,277, one after the other."""
    rng = np.random.default_rng(0)
    for _ in range(tokens // LENGTH):
        yield (rng.zipf(1.15, LENGTH) % 100_278).astype(np.uint32)


def queries(count: int, tokens: int) -> np.ndarray:
    """[count, 13]: half of them windows of the corpus, half with one token changed."""
    found, rows = [], 0
    for document in corpus(tokens):
        found.append(windows(document, N))
        rows += len(found[-1])
        if rows >= count:
            break
    asked = np.concatenate(found)[:count].copy()
    asked[::2, 6] ^= 1 << 20
    return asked[np.random.default_rng(1).permutation(len(asked))]


def _kib(name: str) -> int:
    """A number of this process's memory. The peak of getrusage would be no use: a child's starts at its parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _measured(task: str, folder: Path, asked: Path, tokens: int, memory: int, results: Any) -> None:
    """One task in a process of its own, whose memory nothing else has used."""
    queries_asked = np.load(asked) if task == "look_up" else None
    before = _kib("VmRSS")
    started = time.perf_counter()
    if task == "build":
        build_index(corpus(tokens), folder, n=N, tokenizer_digest="bench", memory=memory)
        done, present = tokens, 0
    else:
        counts = open_index(folder, tokenizer_digest="bench", memory=memory).count(queries_asked)
        done, present = len(counts), int((counts > 0).sum())
    seconds = time.perf_counter() - started
    results.put((done / seconds, (_kib("VmHWM") - before) * 1024, present))


def _in_process(task: str, folder: Path, asked: Path, tokens: int, memory: int) -> tuple[float, int, int]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_measured, args=(task, folder, asked, tokens, memory, results))
    process.start()
    found = results.get(timeout=600)
    process.join()
    return found


def bench_index(tokens: int = 8_000_000, memory: int = 96 * 2**20) -> dict[str, Any]:
    """Builds an index within a bound of memory that is less than its files, and looks windows up, half of them there.

    A million windows are looked up, whose pages neighbours share, and twenty thousand, which share few.
    """
    generated = time.perf_counter()
    for _ in corpus(tokens):
        pass
    generated = time.perf_counter() - generated
    with tempfile.TemporaryDirectory() as parent:
        folder, many, few = Path(parent) / "index", Path(parent) / "many.npy", Path(parent) / "few.npy"
        asked = queries(1_000_000, tokens)
        np.save(many, asked)
        np.save(few, asked[:20_000])
        built, held_building, _ = _in_process("build", folder, many, tokens, memory)
        looked_up, held_looking, present = _in_process("look_up", folder, many, tokens, memory)
        few_looked_up, few_held, _ = _in_process("look_up", folder, few, tokens, memory)
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    return {
        "tokens": tokens,
        "memory_setting": memory,
        "build_tokens_per_second": round(1 / (1 / built - generated / tokens)),  # without making the corpus
        "build_memory_ratio": round(held_building / memory, 3),
        "look_ups_per_second": round(looked_up),
        "look_up_memory_ratio": round(held_looking / memory, 3),
        "few_look_ups_per_second": round(few_looked_up),
        "few_look_ups_memory_ratio": round(few_held / memory, 3),
        "found": present,
        "disk_to_u32_tokens": round(size / (4 * tokens), 3),
    }
