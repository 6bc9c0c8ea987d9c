"""Model directories: their config, their name, the text files beside the weights, and making a new one in one step."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conversion.model import DTYPES
from olmodetect_jax.errors import UsageError
from olmodetect_jax.files import parse_json

CONFIG = "config.json"

# What scoring and generation read beside the weights; copied unedited from a model to what is made of it.
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "token_frequencies.safetensors",
)


def read_config(directory: Path) -> dict[str, Any]:
    """The `config.json` of a model directory.

    Raises:
        UsageError: it is missing, not JSON, or not an object.
    """
    file = directory / CONFIG
    try:
        config = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); a model directory needs it") from None
    except ValueError as error:
        raise UsageError(f"{file}: not a JSON file: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file}: expected a JSON object, found {type(config).__name__}")
    return config


def stored_dtype(directory: Path) -> str:
    """The dtype that a Hugging Face config.json gives its weights.

    Raises:
        UsageError: it says none, or one that the model does not compute in.
    """
    config = read_config(directory)
    name = config.get("dtype", config.get("torch_dtype"))
    if name not in DTYPES:
        raise UsageError(f"{directory / CONFIG}: torch_dtype is {name!r}; choose --dtype {' or --dtype '.join(DTYPES)}")
    return name


def model_name(directory: Path) -> str:
    """The name a model directory stands for: its own, or the repository's inside the Hugging Face cache.

    The cache keeps `models--ORG--NAME/snapshots/REVISION`, where the directory's own name is a commit.
    """
    directory = directory.resolve()
    cached = re.fullmatch(r"models--.+--(.+)", directory.parent.parent.name)
    return cached[1] if cached and directory.parent.name == "snapshots" else directory.name


def copy_companions(source: Path, target: Path) -> None:
    """Copies the `COMPANIONS` that a model directory has."""
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def require_new(path: Path) -> None:
    """Checks that a directory can be made, before hours of work go into it.

    Raises:
        UsageError: something is there already.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path}: exists already; choose another output directory, or remove it first")


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields a directory beside `path` to fill; renames it to `path` only when the block ends without an error.

    After a kill there is nothing at `path`, and the next attempt clears away what the killed one left.

    Raises:
        UsageError: `path` exists already.
    """
    require_new(path)
    unfinished = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
