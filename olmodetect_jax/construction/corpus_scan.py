"""Counting candidates' windows in a corpus too large to index: one pass over its files, in parallel (spec, section 4).

The windows of all candidates are written down first; then each task of a `datatrove` pipeline reads its share of the
files and writes one file of counts. Which executor runs the tasks (processes here, Slurm, Ray) is datatrove's
business, and so is which tasks are done: a run that was killed goes on with the others. The counts of all tasks are
added up at the end, so nothing depends on how many workers there were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from olmodetect_jax.construction.corpus import corpus_files, documents
from olmodetect_jax.construction.index import hashing
from olmodetect_jax.construction.index.base import window_places, windows
from olmodetect_jax.construction.index.build_builtin import checked_ids
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.files import parse_json, write_json, write_tensors
from olmodetect_jax.tokenization import Tokenizer

FORMAT = 1
PLAN, WINDOWS, COUNTS, LOGS = "scan.json", "windows.safetensors", "counts", "logs"
_TABLE_BITS = 24  # of a hash: most windows of a corpus are told apart by these alone
_TOGETHER = 1 << 18  # tokens whose windows are looked up together

Executor = Literal["local", "slurm", "ray"]


def plan_scan(
    texts: Iterable[np.ndarray],
    corpus: Sequence[Path],
    folder: Path,
    tokenizer: Path,
    *,
    n: int = 13,
    tasks: int | None = None,
    first_tokens: Sequence[tuple[int, int]] = (),
) -> None:
    """Writes down what is to be counted, and where.

    Args:
        texts: ids of the candidates.
        corpus: files and folders of documents.
        folder: of the scan, to make; an equal plan that is there is left as it is.
        tokenizer: folder of the tokenizer.json.
        n: tokens of a window.
        tasks: that the files are shared out among; as many as there are files if left out.
        first_tokens: partners for the first-token variant: windows that begin with the first are also counted with the
            second.

    Raises:
        DataError: a file is missing, or there is no window to count.
        UsageError: the folder holds another scan.
    """
    files = [str(path) for path, _ in corpus_files(corpus)]
    found = _distinct(texts, n, dict(first_tokens))
    plan = {
        "format": FORMAT,
        "n": n,
        "tokenizer": Tokenizer(tokenizer).digest,
        "tokenizer_folder": str(tokenizer.absolute()),
        "files": files,
        "tasks": min(tasks or len(files), len(files)),
        "windows": len(found),
    }
    if (folder / PLAN).exists():
        known = np.array_equal(_windows(folder), found) and read_plan(folder) == plan
        if not known:
            raise UsageError(f"{folder}: holds another scan; choose another folder, or remove it first")
        return
    write_tensors(folder / WINDOWS, {"windows": found})
    write_json(folder / PLAN, plan)


def _distinct(texts: Iterable[np.ndarray], n: int, partners: dict[int, int]) -> np.ndarray:
    """All windows and their variants, each once, in the order of their ids: [W, n] uint32."""
    parts = [windows(checked_ids(ids, f"text {i + 1}"), n) for i, ids in enumerate(texts)]
    found = np.concatenate([np.zeros((0, n), np.uint32), *parts])
    first = np.array([partners.get(int(i), -1) for i in found[:, 0]], np.int64)
    changed = found[first >= 0].copy()
    changed[:, 0] = first[first >= 0]
    found = np.unique(np.concatenate([found, changed]), axis=0)
    if not len(found):
        raise DataError(f"no text has {n} tokens, so there is nothing to count")
    return found


def read_plan(folder: Path) -> dict[str, Any]:
    """What `plan_scan` wrote.

    Raises:
        UsageError: the folder holds no scan.
    """
    try:
        plan = parse_json((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / PLAN}: no plan of a corpus scan: {error}") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        raise UsageError(f"{folder / PLAN}: not a plan of a corpus scan of format {FORMAT}")
    return plan


def _windows(folder: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    return load_file(folder / WINDOWS)["windows"]


class WindowTable:
    """Finds which of some windows stand where in a stream of ids; exact, for each hash that is found is compared."""

    def __init__(self, known: np.ndarray):
        """Sorts the windows by their hashes.

        Args:
            known: [W, n] uint32, each once.
        """
        self.n = known.shape[1]
        hashes = hashing.of_windows(known)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes, self._known = hashes[self._order], known[self._order]
        self._maybe = np.zeros(1 << _TABLE_BITS, bool)
        self._maybe[self._short(self._hashes)] = True
        # Windows with equal hashes are compared one after the other; nearly always there is one.
        self._longest = int(np.unique(self._hashes, return_counts=True)[1].max(initial=0))

    @staticmethod
    def _short(hashes: np.ndarray) -> np.ndarray:
        return hashes >> np.uint64(64 - _TABLE_BITS)

    def find(self, queries: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """The place of each query among the windows: [Q] int64, -1 for one that is not there."""
        found = np.full(len(queries), -1, np.int64)
        open_queries = np.flatnonzero(self._maybe[self._short(hashes)])
        place = np.searchsorted(self._hashes, hashes[open_queries])
        for step in range(self._longest):
            entry = np.minimum(place + step, len(self._hashes) - 1)
            same = (self._known[entry] == queries[open_queries]).all(axis=1)
            found[open_queries[same]] = self._order[entry[same]]
        return found

    def count(self, texts: Iterable[np.ndarray]) -> np.ndarray:
        """How often each window stands in documents: [W] int64."""
        counts = np.zeros(len(self._order), np.int64)
        for ids, lengths in _together(texts):
            places = window_places(lengths, self.n)
            if len(places):
                hashes = hashing.rolling(ids, self.n)[places]
                kept = self._maybe[self._short(hashes)]
                found = self.find(windows(ids, self.n)[places[kept]], hashes[kept])
                counts += np.bincount(found[found >= 0], minlength=len(counts))
        return counts


def _together(texts: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    waiting: list[np.ndarray] = []
    for ids in texts:
        waiting.append(np.asarray(ids, np.uint32))
        if sum(map(len, waiting)) >= _TOGETHER:
            yield np.concatenate(waiting), np.array([len(w) for w in waiting], np.int64)
            waiting = []
    if waiting:
        yield np.concatenate(waiting), np.array([len(w) for w in waiting], np.int64)


def scan_share(folder: Path, rank: int) -> None:
    """Does one task: reads its files and writes its counts.

    Args:
        folder: of the scan.
        rank: of the task.

    Raises:
        DataError: a file cannot be read.
        UsageError: the tokenizer is no longer the one of the plan.
    """
    plan = read_plan(folder)
    tokenizer = Tokenizer(Path(plan["tokenizer_folder"]))
    if tokenizer.digest != plan["tokenizer"]:
        raise UsageError(f"{tokenizer.path}: is another tokenizer than when the scan was planned")
    share = [(Path(file), 0) for file in plan["files"][rank :: plan["tasks"]]]
    counts = WindowTable(_windows(folder)).count(documents(share, tokenizer.bare_ids, lambda done: None))
    write_tensors(_counts_path(folder, rank), {"counts": counts})


def _counts_path(folder: Path, rank: int) -> Path:
    return folder / COUNTS / f"{rank:05d}.safetensors"


def executor(folder: Path, kind: Executor, **options: Any) -> Any:
    """A datatrove executor for a planned scan; its `run()` does the tasks that are not done.

    Args:
        folder: of the scan.
        kind: processes of this machine, Slurm, or Ray.
        options: of datatrove's executor: `workers` of all; `time`, `partition` and more of Slurm.

    Raises:
        UsageError: the extra is missing, or there is no such executor.
    """
    try:
        from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor

        from olmodetect_jax.construction.scan_step import ScanStep
    except ImportError as error:
        raise UsageError(f"corpus scans need datatrove ({error}): pip install 'olmodetect-jax[corpora]'") from None
    kinds = {"local": LocalPipelineExecutor, "slurm": SlurmPipelineExecutor, "ray": RayPipelineExecutor}
    if kind not in kinds:
        raise UsageError(f"executor: unknown value {kind!r}; allowed are: {', '.join(kinds)}")
    tasks, logs = read_plan(folder)["tasks"], str((folder / LOGS).absolute())
    return kinds[kind](pipeline=[ScanStep(str(folder.absolute()))], tasks=tasks, logging_dir=logs, **options)


def merge(folder: Path) -> ScannedCounts:
    """Adds up the counts of all tasks.

    Raises:
        DataError: tasks are not done; names them.
    """
    from safetensors.numpy import load_file

    plan = read_plan(folder)
    missing = [rank for rank in range(plan["tasks"]) if not _counts_path(folder, rank).is_file()]
    if missing:
        raise DataError(
            f"{folder}: {len(missing)} of {plan['tasks']} tasks are not done ({', '.join(map(str, missing[:10]))}"
            f"{', ...' if len(missing) > 10 else ''}); run the scan again, it goes on with these"
        )
    known = _windows(folder)
    total = np.zeros(len(known), np.int64)
    for rank in range(plan["tasks"]):
        total += load_file(_counts_path(folder, rank))["counts"]
    return ScannedCounts(
        known, total, {"backend": "scan", **{k: v for k, v in plan.items() if k != "tokenizer_folder"}}
    )


class ScannedCounts:
    """The counts of a scan as an index, for exactly the windows that were scanned for.

    Attributes:
        asked_with: ids.
        block: None.
        description: of the scan.
    """

    asked_with: Literal["ids", "text"] = "ids"
    block: int | None = None

    def __init__(self, known: np.ndarray, counts: np.ndarray, description: dict[str, Any]):
        """See `merge`."""
        self._table, self._counts, self.description = WindowTable(known), counts, description

    def count(self, queries: np.ndarray) -> np.ndarray:
        """Occurrences in the scanned corpus: [Q] int64.

        Raises:
            DataError: a window was not scanned for.
        """
        found = self._table.find(queries, hashing.of_windows(queries))
        if (found < 0).any():
            window = queries[int(np.argmax(found < 0))].tolist()
            raise DataError(
                f"{int((found < 0).sum())} windows were not scanned for, the first is {window}; plan the scan with all "
                "candidates that are to be filtered"
            )
        return self._counts[found]
