"""What the sources share: rows with a text, the fields a record keeps, exact de-duplication."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from olmodetect_jax.construction.candidates import Candidate, Row, Steps
from olmodetect_jax.errors import DataError


def with_text(rows: Iterable[Row], steps: Steps, name: str = "text") -> Iterator[tuple[Row, str]]:
    """Yields each row with its text, unstripped; drops those whose text is blank (step "rows").

    Raises:
        DataError: a row has no such field, or it is no string.
    """
    for row in rows:
        text = row.field(name)
        if text.strip():
            steps.keep("rows")
            yield row, text
        else:
            steps.drop("rows", "no text")


def kept_fields(row: Row, names: Iterable[str]) -> dict[str, object]:
    """Those of the named fields that the row has, unchanged (construction spec, section 2)."""
    return {name: row.value[name] for name in names if name in row.value}


def date_of(row: Row, name: str) -> str | None:
    """The date in a field of the row, as it stands there; None if the row is undated.

    Args:
        row: of a source.
        name: of the field; dots lead into objects, as in `metadata.WARC-Date`.

    Raises:
        DataError: the date is no string.
    """
    value: object = row.value
    for part in name.split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise DataError(f"{row.where}: field {name!r} leads into {type(value).__name__}; expected an object")
        value = value.get(part)
    if value is None or isinstance(value, str):
        return value
    raise DataError(f"{row.where}: field {name!r} is {type(value).__name__}; expected an ISO 8601 date as str, or null")


def unique(candidates: Iterable[Candidate], steps: Steps) -> Iterator[Candidate]:
    """The first candidate of every text, or pair of texts: exact de-duplication (construction spec, section 3)."""
    seen: set[bytes] = set()
    for candidate in candidates:
        digest = bytes.fromhex(candidate.key)  # half the memory of the key itself
        if digest in seen:
            steps.drop("duplicates", "its text came before")
            continue
        seen.add(digest)
        steps.keep("duplicates")
        yield candidate
