"""A client of infini-gram's web interface: counts from an index that lies elsewhere."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener

import numpy as np

from olmodetect_jax.errors import DataError, OlmoDetectError, UsageError
from olmodetect_jax.files import parse_json
from olmodetect_jax.web import StayHere, is_address, retry_after

URL_VARIABLE = "INFINI_GRAM_URL"
TRIES = 6
TIMEOUT = 60.0  # seconds
LONGEST_WAIT = 600.0  # seconds
_AGAIN = (408, 425, 429)  # and 500 or more
_SHOWN = 200  # characters of a server's message


class RemoteIndex:
    """An index behind the address in `INFINI_GRAM_URL`; each answer is kept, so that nothing is asked twice.

    Attributes:
        asked_with: ids or text, as the index wants it.
        block: windows that are asked before a text is looked at again.
        description: name of the index and digest of the address.
    """

    block: int | None = 16

    def __init__(
        self,
        name: str,
        *,
        asked_with: Literal["ids", "text"],
        cache: Path,
        rate: float = 5.0,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """See the attributes.

        Args:
            name: of the index at the service.
            asked_with: how it is asked.
            cache: file that answers are appended to.
            rate: queries a second, at most.
            environment: has the address.
            clock: seconds that go by.
            sleep: is told how many seconds to wait.

        Raises:
            UsageError: no address, or one that cannot be used.
            DataError: the file of answers is damaged.
        """
        url = environment.get(URL_VARIABLE, "").strip()
        if not is_address(url):
            raise UsageError(
                f"{URL_VARIABLE}: {'not set' if not url else 'not an address'}; set it to the address of an "
                f"infini-gram service (http or https, without user name, query or fragment) to ask for the index {name}"
            )
        self._url, self._name, self.asked_with = url, name, asked_with
        self.description: dict[str, Any] = {
            "backend": "remote", "index": name, "asked_with": asked_with,
            "address": hashlib.sha256(url.encode()).hexdigest(),
        }  # fmt: skip
        self._cache, self._known = cache, _read_answers(cache)
        self._pause, self._clock, self._sleep, self._next = 1 / rate, clock, sleep, 0.0

    def count(self, queries: np.ndarray | Sequence[str]) -> np.ndarray:
        """Occurrences of each n-gram or text: [Q] int64.

        Raises:
            DataError: the service refuses a query, or its answer is no count.
            OlmoDetectError: it cannot be reached, or is too busy; what was answered is kept.
        """
        asked = [q if isinstance(q, str) else [int(i) for i in q] for q in queries]
        return np.array([self._count(q) for q in asked], np.int64)

    def _count(self, query: str | list[int]) -> int:
        key = hashlib.sha256(json.dumps([self._url, self._name, query]).encode()).hexdigest()
        if key not in self._known:
            self._known[key] = self._ask(query)
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            with self._cache.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "count": self._known[key]}) + "\n")
        return self._known[key]

    def _ask(self, query: str | list[int]) -> int:
        body = {"index": self._name, "query_type": "count", "query" if isinstance(query, str) else "query_ids": query}
        answer = self._post(json.dumps(body).encode())
        count = answer.get("count")
        if "error" in answer or type(count) is not int or count < 0:
            said = answer.get("error", f"answered {json.dumps(answer)}")
            raise DataError(f"{URL_VARIABLE}, index {self._name}: {str(said)[:_SHOWN]} (query {query!r:.{_SHOWN}})")
        return count

    def _post(self, body: bytes) -> dict[str, Any]:
        """The service's answer, after up to `TRIES` tries."""
        for number in range(TRIES):
            wait = 2.0**number
            self._wait_for_turn()
            try:
                request = Request(self._url, body, {"Content-Type": "application/json"})
                with build_opener(StayHere).open(request, timeout=TIMEOUT) as response:
                    return self._object(response.read())
            except HTTPError as error:
                with error:
                    message = f"HTTP {error.code}"
                    if error.code not in _AGAIN and error.code < 500:
                        said = error.read(_SHOWN).decode("utf-8", "replace")
                        raise DataError(f"{URL_VARIABLE}, index {self._name}: {message} ({said})") from None
                    wait = max(wait, retry_after(error.headers.get("Retry-After")))
            except URLError as error:
                message = f"cannot be reached: {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                message = f"the connection broke off: {error or type(error).__name__}"
            if wait > LONGEST_WAIT or number + 1 == TRIES:
                break
            self._sleep(wait)
        raise OlmoDetectError(
            f"{URL_VARIABLE}, index {self._name}: {message} ({number + 1} tries); answers so far are kept, "
            "run the same command again later"
        )

    def _wait_for_turn(self) -> None:
        now = self._clock()
        if now < self._next:
            self._sleep(self._next - now)
        self._next = max(now, self._next) + self._pause

    def _object(self, content: bytes) -> dict[str, Any]:
        try:
            value = parse_json(content.decode("utf-8", "replace"))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            shown = content[:_SHOWN].decode("utf-8", "replace")
            raise DataError(f"{URL_VARIABLE}: the answer is no JSON object: {shown}; check the address")
        return value


def _read_answers(path: Path) -> dict[str, int]:
    """Answers that were kept; a last line without its end was being written when the process was killed."""
    if not path.exists():
        return {}
    found, content = {}, path.read_text(encoding="utf-8")
    whole, _, rest = content.rpartition("\n")
    if rest:
        with path.open("r+", encoding="utf-8") as file:
            file.truncate(len(content.encode()) - len(rest.encode()))
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            value = json.loads(line)
            found[value["key"]] = int(value["count"])
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path}, line {number}: not a kept answer; remove the line or the file") from None
    return found
