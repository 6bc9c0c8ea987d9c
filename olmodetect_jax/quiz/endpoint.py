"""A judge behind an OpenAI-compatible endpoint makes the options (generative spec, section 3)."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, build_opener

from olmodetect_jax.errors import OlmoDetectError, UsageError
from olmodetect_jax.files import parse_json
from olmodetect_jax.quiz.options import Options, parse_reply
from olmodetect_jax.web import StayHere, is_address, retry_after

URL_VARIABLE, KEY_VARIABLE = "OPENAI_BASE_URL", "OPENAI_API_KEY"
TEMPERATURE = 1.0
REPLY_TOKENS = (4_000, 16_000)  # the second where the first reply lacks an option
TRIES = 5
TIMEOUT = 60.0  # seconds
LONGEST_WAIT = 600.0  # seconds; an endpoint that asks for more is left alone

_DENIED = (401, 403)
_AGAIN = (408, 409, 429)  # and 500 or more
_SECRET = 16  # characters; a shorter key is a placeholder, as local servers take one, and may be a word of a text
_SHOWN = 200  # characters of a server's own message

Sleep = Callable[[float], None]


class EndpointError(OlmoDetectError):
    """No text will fare better: the endpoint cannot be reached, or refuses the key."""


class NoReply(Exception):
    """One text has no reply; its message says why."""


@dataclass(frozen=True)
class Endpoint:
    """Whom to ask.

    Attributes:
        url: of the interface, as the OpenAI client takes it: what comes before `/chat/completions`.
        key: is sent to that address, and goes nowhere else.
        model: name of the judge.
    """

    url: str
    key: str = field(repr=False)
    model: str

    @classmethod
    def from_environment(cls, model: str, environment: Mapping[str, str] = os.environ) -> Endpoint:
        """Takes address and key from `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

        Raises:
            UsageError: one is missing or cannot be used. The message holds neither.
        """
        url, key = (environment.get(name, "").strip() for name in (URL_VARIABLE, KEY_VARIABLE))
        if not url:
            raise UsageError(
                f"{URL_VARIABLE}: not set; set it to the address of an OpenAI-compatible interface, up to and with "
                "/v1, or make the quiz with --from-model or --perturber"
            )
        if not key:
            raise UsageError(
                f"{KEY_VARIABLE}: not set; set it to the key for the endpoint in {URL_VARIABLE}, or to any word if "
                "that needs none"
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise UsageError(f"{KEY_VARIABLE}: holds a character that no key has; copy it again")
        if not is_address(url):
            raise UsageError(
                f"{URL_VARIABLE}: expected an address that begins with http or https, without user name, query or "
                "fragment"
            )
        return cls(url.rstrip("/"), key, model)

    @property
    def host(self) -> str:
        """Whom the texts go to: host, and port if one is named."""
        return urlsplit(self.url).netloc

    @property
    def is_open(self) -> bool:
        """Whether texts and key travel where others can read them."""
        parts = urlsplit(self.url)
        return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")

    def options(self, prompt: str, sleep: Sleep = time.sleep) -> Options:
        """Asks for the options of one text; once more, with room for a longer reply, if some are missing.

        Args:
            prompt: the whole request.
            sleep: is told how many seconds to wait between tries.

        Raises:
            NoReply: there is no usable reply.
            EndpointError: nothing will be replied to anything.
        """
        first, longer = REPLY_TOKENS
        options = parse_reply(self._reply(prompt, first, sleep))
        if options.count == 4:
            return options
        try:
            again = parse_reply(self._reply(prompt, longer, sleep))
        except NoReply:  # many a judge cannot write as much
            return options
        return again if again.count >= options.count else options

    def _reply(self, prompt: str, max_tokens: int, sleep: Sleep) -> str:
        """One reply, after up to `TRIES` tries."""
        unreachable = True
        for number in range(TRIES):
            wait = 2.0**number
            try:
                return self._content(self._post(prompt, max_tokens))
            except HTTPError as error:
                with error:
                    message = f"HTTP {error.code}{self._said(error)}"
                if error.code in _DENIED:
                    raise EndpointError(
                        f"{self.host}: HTTP {error.code}, the key is not accepted; check {KEY_VARIABLE}, and "
                        f"whether it may use the model {self.model}"
                    ) from None
                if error.code not in _AGAIN and error.code < 500:
                    raise NoReply(f"{self.host}: {message}") from None
                unreachable = False
                wait = max(wait, retry_after(error.headers.get("Retry-After")))
            except URLError as error:
                message = f"cannot be reached: {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                unreachable = False
                message = f"the connection broke off: {error or type(error).__name__}"
            if wait > LONGEST_WAIT:
                raise EndpointError(f"{self.host}: {message}; it asks to wait {wait:.0f} seconds: run this again then")
            if number + 1 < TRIES:
                sleep(wait)
        message = f"{self.host}: {message} ({TRIES} tries)"
        if unreachable:
            raise EndpointError(f"{message}; check {URL_VARIABLE}")
        raise NoReply(message)

    def _post(self, prompt: str, max_tokens: int) -> str:
        body = {
            "model": self.model, "messages": [{"role": "user", "content": prompt}], "temperature": TEMPERATURE,
            "max_tokens": max_tokens,
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers)
        with build_opener(StayHere).open(request, timeout=TIMEOUT) as response:
            return response.read().decode("utf-8", "replace")

    def _content(self, body: str) -> str:
        """The text of the first choice.

        Raises:
            NoReply: the body is none that this interface sends.
        """
        try:
            value = parse_json(body)
        except ValueError:
            kind = "HTML" if body.lstrip()[:1] == "<" else "no JSON"
            raise NoReply(
                f"{self.host}: the reply is {kind}{self._shown(body)}; check that {URL_VARIABLE} ends where "
                "/chat/completions begins"
            ) from None
        content = _at(value, "choices", 0, "message", "content")
        if not isinstance(content, str):
            raise NoReply(f"{self.host}: the reply has no choices[0].message.content{self._shown(body)}")
        if len(self.key) >= _SECRET and self.key in content:
            raise NoReply(f"{self.host}: the reply repeats the key, and is thrown away")
        return content

    def _said(self, error: HTTPError) -> str:
        """What the server says of its error."""
        try:
            body = error.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            return ""
        try:
            said = _at(parse_json(body), "error", "message")
        except ValueError:
            said = None
        return self._shown(said if isinstance(said, str) else body)

    def _shown(self, text: str) -> str:
        """The beginning of what a server sent, on one line and without the key."""
        for spelt in (self.key, self.key.replace("/", "\\/")):  # JSON may write a slash either way
            text = text.replace(spelt, "[key]")
        line = " ".join(text.split())
        return f" ({line[:_SHOWN]}{'…' if len(line) > _SHOWN else ''})" if line else ""


def _at(value: Any, *path: str | int) -> Any:
    """What lies at a path of keys and places; None if there is nothing."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value
