"""`olmodetect frequencies`: counts tokens over reference texts, for DC-PDD."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from olmodetect_jax.attacks.frequencies import FrequencyTable, build_table
from olmodetect_jax.errors import UsageError
from olmodetect_jax.records import read_jsonl, scored_text
from olmodetect_jax.runtime.progress import progress
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
    if out.is_file():
        raise UsageError(f"--out {out}: exists already; choose another file, or remove it first")
    tokenizer = Tokenizer(model)
    source = ", ".join(path.name for path in texts)
    size = sum(path.stat().st_size for path in texts if path.is_file())
    with progress("Counting", size, unit="bytes") as advance:
        table = build_table(_texts(texts, advance), tokenizer, max_tokens=max_tokens, source=source)
    table.save(out)
    return table


def _texts(paths: Sequence[Path], advance: Callable[[int], None]) -> Iterator[str]:
    """Every text of the files; says after each file how many bytes of it are done."""
    for path in paths:
        yield from (text for _, value in read_jsonl(path) if (text := scored_text(value)))
        advance(path.stat().st_size)
