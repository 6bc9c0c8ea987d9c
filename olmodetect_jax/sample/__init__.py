"""The embedded sample: a small model, its benchmark, and the source texts both are made from."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
MODEL = "olmo2-sample-2m"  # the model's folder, and so its name in tables
QUIZ = "quiz.jsonl.zst"


def directory() -> Path:
    """Where all of it lies, with the records of how it was made."""
    return _HERE


def model_directory() -> Path:
    """Where the embedded model lies: weights, configuration and tokenizer."""
    return _HERE / MODEL


def benchmark_directory() -> Path:
    """Where the embedded benchmark lies, in the released layout."""
    return _HERE / "benchmark"


def quiz_file() -> Path:
    """Where the quiz on the embedded benchmark lies, for DCQ."""
    return _HERE / QUIZ


def sources_directory() -> Path:
    """Where the compressed source texts lie, one file a subset."""
    return _HERE / "sources"
