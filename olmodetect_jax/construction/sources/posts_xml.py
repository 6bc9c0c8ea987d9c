"""Rows of a Stack Exchange dump: the attributes of each `row` element of `Posts.xml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from olmodetect_jax.construction.candidates import Row
from olmodetect_jax.errors import DataError


def read_xml_rows(path: Path) -> Iterator[Row]:
    """Yields the rows one after the other; no more than one is held.

    Raises:
        DataError: the file is damaged or not XML, or declares entities (a dump has none).
    """
    number = 0
    try:
        with path.open("rb") as file:
            parser = ElementTree.XMLPullParser(events=("start", "end"))
            depth = 0
            root = None
            while chunk := file.read(1 << 16):
                if b"<!ENTITY" in chunk:
                    raise DataError(f"{path}: declares entities, which no Stack Exchange dump does")
                parser.feed(chunk)
                for event, element in parser.read_events():
                    depth += 1 if event == "start" else -1
                    root = element if event == "start" and depth == 1 else root
                    if event == "end" and element.tag == "row":
                        number += 1
                        yield Row(f"{path}, row {number}", dict(element.attrib))
                        root.clear()
            parser.close()
    except ElementTree.ParseError as error:
        raise DataError(f"{path}: after row {number}: not valid XML: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
