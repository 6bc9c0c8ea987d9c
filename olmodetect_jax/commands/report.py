"""`olmodetect report`: the page about runs, with single records token by token where their statistics are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from olmodetect_jax.commands.token_views import token_views
from olmodetect_jax.errors import one_of
from olmodetect_jax.report.page import write_report


def report_runs(runs: Sequence[Path], out: Path, *, against: str | None = None) -> None:
    """Writes the page.

    Args:
        runs: run folders.
        out: HTML file to write.
        against: `paper` to hold the runs against the published tables.

    Raises:
        UsageError: `out` is a folder, or the runs cannot be held against the paper.
        DataError: a folder that is no run, or a file of it cannot be used.
        StoreError: kept statistics are damaged.
    """
    if against not in (None, "paper"):
        raise one_of("--against", str(against), ["paper"])
    write_report(runs, out, views_of=token_views, against_paper=against is not None)
