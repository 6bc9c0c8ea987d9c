"""The embedded sample: a small model, its benchmark, and the source texts both are made from."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
MODEL = "olmo2-sample-2m"  # the model's folder, and so its name in tables


def model_directory() -> Path:
    """Where the embedded model lies: weights, configuration and tokenizer."""
    return _HERE / MODEL


def benchmark_directory() -> Path:
    """Where the embedded benchmark lies, in the released layout."""
    return _HERE / "benchmark"


def sources_directory() -> Path:
    """Where the compressed source texts lie, one file a subset."""
    return _HERE / "sources"
