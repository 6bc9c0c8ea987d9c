"""Progress with an ETA: a bar on a terminal, a plain line now and then elsewhere. Goes to standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PLAIN_EVERY = 10.0  # seconds between lines where there is no terminal


@contextmanager
def progress(title: str, total: int, *, unit: str) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how much more is done.

    Args:
        title: what is going on.
        total: how much there is to do; nothing is shown for 0.
        unit: what is counted, plural.
    """
    if total == 0 or sys.stderr is None:
        yield lambda done: None
    elif sys.stderr.isatty():
        with _bar(title, total) as advance:
            yield advance
    else:
        yield _lines(title, total, unit)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("ETA"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def _lines(title: str, total: int, unit: str) -> Callable[[int], None]:
    started = said = time.monotonic()
    count = 0

    def advance(done: int) -> None:
        nonlocal said, count
        count += done
        now = time.monotonic()
        if count >= total or now - said >= PLAIN_EVERY:
            said = now
            left = (now - started) / max(count, 1) * (total - count)
            print(
                f"{title}: {count}/{total} {unit}, {now - started:.0f} s, ETA {left:.0f} s", file=sys.stderr, flush=True
            )

    return advance
