"""What words on the command line stand for."""

from __future__ import annotations

from pathlib import Path


def model_folder(path: Path) -> Path:
    """The word `sample` stands for the embedded model, unless there is a folder of that name."""
    from olmodetect_jax import sample

    return sample.model_directory() if _is_sample(path) else path


def benchmark_folder(path: Path | None) -> Path | None:
    """The word `sample` stands for the embedded benchmark, unless there is a folder of that name."""
    from olmodetect_jax import sample

    return sample.benchmark_directory() if path is not None and _is_sample(path) else path


def ids(text: str | None) -> list[str] | None:
    """What stands between commas; None for None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _is_sample(path: Path) -> bool:
    return str(path) == "sample" and not path.exists()
