"""Where the package's own data lies, and how files are written so that a kill never leaves half of one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from olmodetect_jax.errors import OlmoDetectError, UsageError

TEMPORARY = ".tmp"  # ends the name of a file that is being written
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

    Raises:
        UsageError: `path` is a directory, a device or a pipe.
        OSError: the file cannot be written; names `path`.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is not a regular file, and is not replaced by one; choose another name")
    target = path.resolve()  # a link stays one, what it points to is replaced
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:99]}.", suffix=TEMPORARY)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp made it private; give it the mode any other new file has
        temporary.replace(target)
    except OSError as error:  # the user knows the file, not its temporary name
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


@contextmanager
def folder_lock(folder: Path, writer: str) -> Iterator[None]:
    """Holds a folder for one process, and makes it if need be.

    Args:
        folder: to be written to.
        writer: who may be writing there, for messages.

    Raises:
        OlmoDetectError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OlmoDetectError(f"{folder}: another {writer} is writing there; wait for it to end") from None
        yield


def remove_temporaries(folder: Path) -> None:
    """Removes what killed processes were writing below a folder; the caller knows that nobody writes there now."""
    for left in folder.rglob(f".*{TEMPORARY}"):
        left.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Writes numpy arrays as one safetensors file, atomically.

    Raises:
        OSError: the file cannot be written (safetensors has an exception of its own for that).
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    with atomic_path(path) as temporary:
        try:
            save_file(dict(tensors), temporary, metadata=dict(metadata) if metadata else None)
        except SafetensorError as error:
            raise disk_error(error, path) from None


def disk_error(error: Exception, path: Path) -> OSError:
    """The operating system's error that a library wrapped in one of its own while it wrote to `path`."""
    full = any(words in str(error) for words in ("os error 28", "No space left", "RESOURCE_EXHAUSTED"))
    number = errno.ENOSPC if full else errno.EIO
    return OSError(number, os.strerror(number) if full else str(error), str(path))


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically, in UTF-8, with line feeds as they are in `text`."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically; NaN and infinities are refused (they are not JSON).

    Keys keep their order. A file name that is not valid Unicode is written with JSON's own escapes.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))


def parse_json(text: str) -> Any:
    """`json.loads`, with a ValueError for text that is nested too deeply as for any other that is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
