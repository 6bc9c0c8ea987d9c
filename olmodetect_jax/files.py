"""Where the package's own data lies, and how files are written so that a kill never leaves half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent


def config_path(*parts: str) -> Path:
    """Path below `configs/`: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / "configs"
    root = inside if inside.is_dir() else _PACKAGE.parent / "configs"
    return root.joinpath(*parts)


def load_yaml(path: Path) -> Any:
    """Parses one YAML file.

    Raises:
        UsageError: the file is missing or is not YAML.
    """
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such configuration file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a YAML file: {error}") from None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; renames it onto `path` only when the block ends without an error.

    The file is flushed to disk before the rename, so after a power cut there is the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp made it private; give it the mode any other new file has
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically, in UTF-8, with line feeds as they are in `text`."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically; NaN and infinities are refused (they are not JSON).

    Keys keep their order.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
