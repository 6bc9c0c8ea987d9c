"""What a build has finished, kept on disk, so that a killed one goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from olmodetect_jax.files import atomic_path

_FORMAT = 1  # of what the stages hold: a new one makes what older versions kept unread


class Stages:
    """Results of steps by name, each valid for one description of what it was made from.

    Attributes:
        folder: where they are kept.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, name: str, made_from: Any, compute: Callable[[], Any]) -> Any:
        """The kept result, or a new one, which is kept.

        Args:
            name: of the step; may hold `/`.
            made_from: everything the result depends on, as JSON values.
            compute: makes the result, of JSON values.
        """
        path = self.folder / f"{name}.json.zst"
        digest = hashlib.sha256(json.dumps([_FORMAT, made_from], sort_keys=True).encode("utf-8")).hexdigest()
        found = _read(path)
        if found.get("made_from") == digest:
            return found["result"]
        result = compute()
        content = json.dumps({"made_from": digest, "result": result}, ensure_ascii=False, allow_nan=False)
        with atomic_path(path) as temporary:
            temporary.write_bytes(zstandard.compress(content.encode("utf-8")))
        return result


def _read(path: Path) -> dict[str, Any]:
    """What was kept; nothing if there is none or it cannot be read, for it can be made again."""
    try:
        value = json.loads(zstandard.decompress(path.read_bytes()))
    except (OSError, ValueError, zstandard.ZstdError):
        return {}
    return value if isinstance(value, dict) else {}
