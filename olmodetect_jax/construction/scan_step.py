"""The one step of a corpus scan's pipeline; apart, for datatrove is an extra."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from olmodetect_jax.construction.corpus_scan import scan_share


class ScanStep(PipelineStep):
    """Reads a task's share of the corpus and counts in it."""

    name = "Count candidates' windows"
    type = "Scan"

    def __init__(self, folder: str):
        """Takes the folder of a planned scan; nothing else travels to the workers."""
        super().__init__()
        self.folder = folder

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Does the task of this rank; yields no documents."""
        scan_share(Path(self.folder), rank)
        self.stat_update("tasks")
        yield from ()
