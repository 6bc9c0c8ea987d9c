"""`olmodetect report`: the page about runs, with single records token by token where their statistics are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from olmodetect_jax.commands.token_views import token_views
from olmodetect_jax.report.page import write_report


def report_runs(runs: Sequence[Path], out: Path) -> None:
    """Writes the page.

    Args:
        runs: run folders.
        out: HTML file to write.

    Raises:
        UsageError: `out` is a folder.
        DataError: a folder that is no run, or a file of it cannot be used.
        StoreError: kept statistics are damaged.
    """
    write_report(runs, out, views_of=token_views)
