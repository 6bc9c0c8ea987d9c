"""The text of a post's HTML (construction spec, section 2)."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_HEADINGS = tuple(f"h{level}" for level in range(1, 7))
_BLOCKS = frozenset(("p", "div", "pre", "blockquote", "ul", "ol", "li", "hr", "table", "tr", *_HEADINGS))
_SPACE = re.compile(r"[ \t\n\r\f\v]+")  # ASCII only: a no-break space stays


def html_to_text(html: str) -> str:
    """Blocks joined by one blank line; entities are decoded once, other tags and comments vanish without a space.

    White space is kept within `pre` alone; elsewhere its runs become one space. `br` is a line end, and a list item
    begins with `* `.

    Raises:
        ValueError: the HTML is beyond what the parser can read.
    """
    parser = _Blocks()
    try:
        parser.feed(html)
        parser.close()
    except AssertionError as error:  # of the library, for declarations it does not know
        raise ValueError(f"not HTML: {error}") from None
    return "\n\n".join(parser.finished())


class _Blocks(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._done: list[str] = []
        self._open: list[str] = []
        self._item, self._pre = "", 0

    def finished(self) -> list[str]:
        self._end_block()
        return self._done

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "br":
            self._open.append("\n")
        elif tag in _BLOCKS:
            self._end_block()
            self._item = "* " if tag == "li" else self._item
            self._pre += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_block()
            self._pre -= tag == "pre" and self._pre > 0
            self._item = "" if tag == "li" else self._item

    def handle_data(self, data: str) -> None:
        self._open.append(data if self._pre else _SPACE.sub(" ", data))

    def _end_block(self) -> None:
        text = "".join(self._open)
        self._open.clear()
        if self._pre:
            text = text.replace("\r\n", "\n").strip("\n")
        else:
            text = re.sub(" *\n *", "\n", re.sub(" +", " ", text)).strip(" \n")
        if text.strip():
            self._done.append(self._item + text)
            self._item = ""
