"""DCLM's quality score, by the user's own copy of its fastText model."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

from olmodetect_jax.construction.boundary import fasttext_line, hq_probability
from olmodetect_jax.errors import UsageError

_MAGIC = 793712314
_DICTIONARY = struct.calcsize("<2i12id")  # begins after magic, version, twelve integers of settings and a float


def load_scorer(model: Path) -> Callable[[str], float]:
    """A function from a text to the model's probability of `__label__hq` (construction spec, section 3).

    Args:
        model: a fastText classifier, `.bin`, with two labels.

    Raises:
        UsageError: the file is missing or is no such model, or the extra that reads it is not installed.
    """
    try:
        import fasttext
    except ImportError:
        raise UsageError("DCLM's score needs fastText: pip install 'olmodetect-jax[fasttext]'") from None
    if not model.is_file():
        raise UsageError(f"{model}: no such fastText model; see option `model` of source dclm")
    try:
        _check_complete(model)
        loaded = fasttext.load_model(str(model))
        loaded.predict("a", k=2)  # word vectors load, too, but predict nothing
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"{model}: not a fastText classifier: {error}") from None

    def score(text: str) -> float:
        labels, probabilities = loaded.predict(fasttext_line(text), k=2)
        return hq_probability(labels, probabilities, str(model))

    return score


def _check_complete(model: Path) -> None:
    """Walks through the parts of a model file: fastText itself crashes on one that was cut off.

    Raises:
        ValueError: the file does not end where its last matrix does.
    """
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            (magic,) = struct.unpack_from("<i", content)
            if magic != _MAGIC:
                raise ValueError("it does not begin like one")
            n_entries, _, _, _, n_pruned = struct.unpack_from("<3i2q", content, _DICTIONARY)
            end = _DICTIONARY + struct.calcsize("<3i2q")
            for _ in range(n_entries):  # a name that ends with a zero, its count and its kind
                if (end := content.find(b"\0", end)) < 0:
                    break
                end += 1 + struct.calcsize("<qb")
            end += max(n_pruned, 0) * struct.calcsize("<2i")
            for _ in range(2):
                is_quantised, rows, columns = struct.unpack_from("<?2q", content, end)
                if is_quantised:
                    return
                end += struct.calcsize("<?2q") + 4 * rows * columns
        except struct.error:
            end = -1
        if end != len(content):
            raise ValueError("the file is cut off or damaged")
