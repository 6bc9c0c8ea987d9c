"""`olmodetect frequencies`: counts tokens over reference texts, for DC-PDD."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from olmodetect_jax.attacks.frequencies import FrequencyTable, build_table
from olmodetect_jax.errors import UsageError
from olmodetect_jax.records import read_records
from olmodetect_jax.tokenization import Tokenizer


def frequencies(texts: Sequence[Path], model: Path, out: Path, *, max_tokens: int) -> FrequencyTable:
    """Counts the tokens of every text and writes the table.

    Args:
        texts: JSONL files of text in neither class.
        model: directory whose tokenizer.json makes the ids.
        out: file to write.
        max_tokens: tokens of each text that count.

    Raises:
        OlmoDetectError: a file cannot be read, or `max_tokens` is not positive.
    """
    if max_tokens < 1:
        raise UsageError(f"--max-tokens: expected a positive number, got {max_tokens}")
    records = [r for path in texts for r in read_records(path, subset="reference")]
    source = ", ".join(path.name for path in texts)
    table = build_table((r.text for r in records if r.text), Tokenizer(model), max_tokens=max_tokens, source=source)
    table.save(out)
    return table
