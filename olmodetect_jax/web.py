"""What every client of a service over HTTP needs: no redirects, and how long a server asks to wait."""

from __future__ import annotations

import email.utils
import time
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler


class StayHere(HTTPRedirectHandler):
    """Follows no redirect: it would take what is sent (a key, a text) to another address."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """None: the redirect is an error then."""
        return None


def retry_after(header: str | None) -> float:
    """Seconds that a server asks to wait, given as such or as a date; 0 if it asks for none."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return 0.0


def is_address(url: str) -> bool:
    """Whether an address begins with http or https and has a host, and neither user name, query nor fragment."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        (parts.hostname or "").encode("idna")  # as the socket will: a name it cannot look up is a ValueError
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url and "@" not in url and not set("?#") & set(url)
    return bool(usable and plain)
