"""A judge behind an endpoint: what is sent, what is made of each kind of answer, and that the key stays secret."""

import email.utils
import json
import socket
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.errors import UsageError
from olmodetect_jax.quiz.endpoint import LONGEST_WAIT, Endpoint, EndpointError, NoReply
from olmodetect_jax.quiz.options import Options
from olmodetect_jax.web import retry_after

KEY = "sk-secret-0123456789-abcdefghijklmnop"
GOOD = "A) one\nB) two\nC) three\nD) four"


def chat(content):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]})


class Judge:
    """A server on loopback that sends its replies one after the other, the last one for ever.

    A reply is (status, body) or (status, body, headers); None closes the connection without one.
    """

    def __init__(self):
        self.replies, self.seen, self.waits = [chat(GOOD)], [], []
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                judge.seen.append((self.command, self.path, dict(self.headers), body))
                reply = judge.replies.pop(0) if len(judge.replies) > 1 else judge.replies[0]
                if reply is None:
                    return
                status, body, *headers = reply
                self.send_response(status)
                for name, value in dict(*headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())

            def do_GET(self):
                judge.seen.append((self.command, self.path, dict(self.headers), b""))
                self.send_error(404)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def host(self):
        return f"127.0.0.1:{self.server.server_port}"

    def ask(self, *replies, key=KEY):
        """The options, or the error that came instead."""
        self.replies = list(replies)
        environment = {"OPENAI_BASE_URL": f" http://{self.host}/v1/\n", "OPENAI_API_KEY": key}
        return Endpoint.from_environment("judge-1", environment).options("Reword é", self.waits.append)

    def fails(self, error, *replies):
        """The message, which holds no key and names whom it is about."""
        with pytest.raises(error) as caught:
            self.ask(*replies)
        message = str(caught.value)
        assert message.startswith(f"{self.host}: ")
        assert_secret(message, repr(caught.value), "".join(traceback.format_exception(caught.value)))
        return message

    def bodies(self):
        return [json.loads(body) for _, _, _, body in self.seen]


def assert_secret(*texts):
    assert not [text for text in texts if KEY[:12] in text or KEY[-12:] in text]


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    judge = Judge()
    judge.thread.start()
    yield judge
    judge.server.shutdown()
    judge.thread.join()
    judge.server.server_close()


def test_what_is_sent_and_what_comes_back(judge):
    assert judge.ask(chat(GOOD)) == Options("one", "two", "three", "four")
    ((command, path, headers, body),) = judge.seen
    assert (command, path) == ("POST", "/v1/chat/completions")
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == {
        "model": "judge-1",
        "messages": [{"role": "user", "content": "Reword é"}],
        "temperature": 1.0,
        "max_tokens": 4000,
    }
    assert judge.waits == []


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ("A) a\nB) b\nC) c", GOOD, Options("one", "two", "three", "four")),
        ("A) a\nB) b", "A) longer", Options("a", "b", "", "")),
        ("A) a", "B) longer", Options("", "longer", "", "")),  # at least as many
        ("", "", Options("", "", "", "")),
    ],
)
def test_an_incomplete_reply_is_asked_for_again_with_more_room(judge, first, second, taken):
    assert judge.ask(chat(first), chat(second)) == taken
    assert [body["max_tokens"] for body in judge.bodies()] == [4000, 16000]
    assert judge.waits == []


def test_a_judge_that_cannot_write_as_much_has_said_what_it_can(judge):
    assert judge.ask(chat("A) a\nB) b"), (400, "max_tokens is too large")) == Options("a", "b", "", "")
    assert len(judge.seen) == 2


def test_a_key_refused_at_the_second_call_ends_it_too(judge):
    judge.fails(EndpointError, chat("A) a"), (401, ""))


def test_it_waits_as_long_as_it_is_asked_to(judge):
    soon = email.utils.formatdate(time.time() + 100, usegmt=True)
    past = email.utils.formatdate(time.time() - 100, usegmt=True)
    busy = [(429, "slow down", {"Retry-After": after}) for after in ("7.5", soon, past, "soon")]
    assert judge.ask(*busy, chat(GOOD)).count == 4
    assert judge.waits == [7.5, pytest.approx(100, abs=60), 4.0, 8.0]
    assert len(judge.seen) == 5


@pytest.mark.parametrize("after", ["601", "inf", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_it_does_not_wait_for_hours(judge, after):
    message = judge.fails(EndpointError, (429, "quota", {"Retry-After": after}))
    assert "HTTP 429 (quota); it asks to wait" in message and "run this again" in message
    assert judge.waits == [] and len(judge.seen) == 1


@given(
    st.one_of(st.none(), st.text(alphabet=st.characters(max_codepoint=255)), st.floats().map(str), st.dates().map(str))
)
def test_any_wait_is_read(header):
    assert retry_after(header) >= 0


def test_a_minute_is_not_too_long(judge):
    judge.ask((503, "", {"Retry-After": f"{LONGEST_WAIT:.0f}"}), chat(GOOD))
    assert judge.waits == [LONGEST_WAIT]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_five_tries(judge, status):
    message = judge.fails(NoReply, (status, json.dumps({"error": {"message": f"overloaded {KEY}"}})))
    assert message == f"{judge.host}: HTTP {status} (overloaded [key]) (5 tries)"
    assert judge.waits == [1, 2, 4, 8] and len(judge.seen) == 5


def test_a_connection_that_breaks_off(judge):
    assert judge.ask(None, chat(GOOD)).count == 4
    assert judge.waits == [1]
    short = (200, '{"choi', {"Content-Length": "500"})
    assert "the connection broke off" in judge.fails(NoReply, None, short)
    assert judge.waits == [1, 1, 2, 4, 8]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_it_at_once(judge, status):
    message = judge.fails(EndpointError, (status, json.dumps({"error": {"message": f"Incorrect key: {KEY}"}})))
    assert f"HTTP {status}" in message and "OPENAI_API_KEY" in message and "judge-1" in message
    assert judge.waits == [] and len(judge.seen) == 1


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((400, json.dumps({"error": {"message": "no such\n model"}})), "HTTP 400 (no such model)"),
        ((400, json.dumps({"error": KEY})), 'HTTP 400 ({"error": "[key]"})'),
        ((404, ""), "HTTP 404"),
        ((422, "x" * 190 + KEY), f"HTTP 422 ({'x' * 190}[key])"),
        ((422, "x" * 198 + KEY), f"HTTP 422 ({'x' * 198}[k…)"),
        ((200, f"\n<html>{KEY}</html>"), "the reply is HTML (<html>[key]</html>); check that OPENAI_BASE_URL ends"),
        ((200, "busy"), "the reply is no JSON (busy); check that OPENAI_BASE_URL ends"),
        ((200, ""), "the reply is no JSON; check"),
        ((200, "[" * 100_000), "the reply is no JSON"),
        ((200, json.dumps({"error": {"message": KEY}})), "the reply has no choices[0].message.content"),
        ((200, json.dumps({"choices": []})), "the reply has no choices[0].message.content"),
        ((200, json.dumps({"choices": "none"})), "the reply has no choices[0].message.content"),
        ((200, "3"), "the reply has no choices[0].message.content (3)"),
        (chat(None), "the reply has no choices[0].message.content"),
        (chat([{"text": GOOD}]), "the reply has no choices[0].message.content"),
        (chat(f"{GOOD} {KEY}"), "the reply repeats the key, and is thrown away"),
    ],
)
def test_a_reply_that_is_none_costs_one_text(judge, reply, said):
    assert said in judge.fails(NoReply, reply)
    assert judge.waits == [] and len(judge.seen) == 1


def test_a_short_key_is_a_placeholder_and_may_stand_in_a_text(judge):
    assert judge.ask(chat(GOOD), key="one").a == "one"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(judge, status):
    message = judge.fails(NoReply, (status, "", {"Location": f"http://{judge.host}/elsewhere"}), chat(GOOD))
    assert f"HTTP {status}" in message
    assert [path for _, path, _, _ in judge.seen] == ["/v1/chat/completions"]


def refused():
    """The address of a port where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_nobody_there(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    host, waits = refused(), []
    with pytest.raises(EndpointError) as caught:
        Endpoint(f"http://{host}", KEY, "m").options("p", waits.append)
    message = str(caught.value)
    assert message.startswith(f"{host}: cannot be reached: ")
    assert "(5 tries); check OPENAI_BASE_URL" in message and waits == [1, 2, 4, 8]
    assert_secret(message)


def environment(url="http://localhost/v1", key=KEY):
    return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_KEY"])
@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_missing_variable(name, value):
    given = {k: v for k, v in (environment() | {name: value}).items() if v is not None}
    with pytest.raises(UsageError, match=f"^{name}: not set") as caught:
        Endpoint.from_environment("m", given)
    assert_secret(str(caught.value))


@pytest.mark.parametrize("key", [KEY + "é", KEY + "\n" + KEY, KEY + " " + KEY, KEY + "\0"])
def test_a_key_that_cannot_be_sent(key):
    with pytest.raises(UsageError, match="^OPENAI_API_KEY: holds a character") as caught:
        Endpoint.from_environment("m", environment(key=key))
    assert_secret(str(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000/v1",
        "ftp://localhost/v1",
        "file:///etc/hosts",
        "http://",
        "http:///v1",
        "http://host:port/v1",
        "http://host:70000/v1",
        "http://[::1/v1",
        "http://user:word@host/v1",
        "http://host/v1?key=1",
        "http://host/v1#top",
        "http://host/a b",
        "http://hôte/v1",
        "http://host..name/v1",
        f"http://{'x' * 64}.name/v1",
    ],
)
def test_an_address_that_cannot_be_used(url):
    with pytest.raises(UsageError, match="^OPENAI_BASE_URL: expected an address") as caught:
        Endpoint.from_environment("m", environment(url))
    assert url not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "host", "is_open"),
    [
        ("https://judge.example/v1/", "judge.example", False),
        ("http://judge.example:80", "judge.example:80", True),
        ("HTTP://LOCALHOST:8000/v1", "LOCALHOST:8000", False),
        ("http://[::1]:8000/v1", "[::1]:8000", False),
        ("http://127.0.0.1", "127.0.0.1", False),
        ("http://localhost.example", "localhost.example", True),
    ],
)
def test_whom_the_texts_go_to(url, host, is_open):
    endpoint = Endpoint.from_environment("m", environment(url))
    assert (endpoint.host, endpoint.is_open) == (host, is_open)


def test_the_key_is_not_printed():
    endpoint = Endpoint.from_environment("m", environment())
    assert endpoint.key == KEY
    assert_secret(repr(endpoint), str(endpoint), f"{endpoint}")
