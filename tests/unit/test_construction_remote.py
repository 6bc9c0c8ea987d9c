"""The client of infini-gram's web interface against a server on this machine."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from olmodetect_jax.construction.index.remote import TRIES, URL_VARIABLE, RemoteIndex
from olmodetect_jax.errors import DataError, OlmoDetectError, UsageError


@pytest.fixture
def server():
    """Answers with what is in `replies` ((status, headers, body)), else with the length of the query."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.asked.append(body)
            query = body.get("query", body.get("query_ids"))
            default = (200, {}, json.dumps({"count": len(query), "approx": False}))
            status, headers, content = served.replies.pop(0) if served.replies else default
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content.encode())))
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *arguments):
            pass

    served = HTTPServer(("127.0.0.1", 0), Handler)
    served.asked, served.replies = [], []
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def open_index(server, tmp_path, waits):
    now = [0.0]

    def sleep(seconds):
        waits.append(seconds)
        now[0] += seconds

    def make(asked_with="ids", url=None, **options):
        url = url or f"http://127.0.0.1:{server.server_port}/"
        return RemoteIndex(
            "v4_toy", asked_with=asked_with, cache=tmp_path / "cache" / "remote.jsonl",
            environment={URL_VARIABLE: url}, clock=lambda: now[0], sleep=sleep, **options,
        )  # fmt: skip

    return make


def test_ids_and_text_are_asked_as_the_interface_wants(open_index, server):
    assert open_index().count(np.array([[70_000, 2, 3], [4, 5, 6]], np.uint32)).tolist() == [3, 3]
    assert open_index("text").count(["naïve", "ab"]).tolist() == [5, 2]
    assert server.asked[0] == {"index": "v4_toy", "query_type": "count", "query_ids": [70_000, 2, 3]}
    assert server.asked[2] == {"index": "v4_toy", "query_type": "count", "query": "naïve"}


def test_nothing_is_asked_twice(open_index, server, tmp_path):
    assert open_index("text").count(["ab", "ab", "abc"]).tolist() == [2, 2, 3]
    assert open_index("text").count(["abc", "ab"]).tolist() == [3, 2]
    assert len(server.asked) == 2
    cache = tmp_path / "cache" / "remote.jsonl"
    cache.write_text(cache.read_text()[:-4])  # killed while it wrote
    assert open_index("text").count(["abc", "ab"]).tolist() == [3, 2]
    assert len(server.asked) == 3
    assert open_index("text").count(["abc"]).tolist() == [3] and len(server.asked) == 3
    cache.write_text("{}\n")
    with pytest.raises(DataError, match=r"remote\.jsonl, line 1: not a kept answer"):
        open_index()


def test_queries_keep_to_the_rate(open_index, waits):
    open_index("text", rate=4.0).count(["a", "bb", "ccc"])
    assert waits == [0.25, 0.25]


def test_a_busy_server_is_asked_again_later(open_index, server, waits):
    server.replies += [(429, {"Retry-After": "7"}, ""), (503, {}, "later"), (500, {}, "")]
    assert open_index("text", rate=1e9).count(["abc"]).tolist() == [3]
    assert [round(w) for w in waits if w > 0.5] == [7, 2, 4]


def test_a_server_that_stays_busy_is_an_error(open_index, server, waits):
    server.replies += [(503, {}, "")] * TRIES
    index = open_index("text", rate=1e9)
    with pytest.raises(OlmoDetectError, match=rf"HTTP 503 \({TRIES} tries\); answers so far are kept"):
        index.count(["abc"])
    server.replies[:] = [(429, {"Retry-After": "3600"}, "")]
    with pytest.raises(OlmoDetectError, match=r"HTTP 429 \(1 tries\)"):
        index.count(["abcd"])
    assert index.count(["abc"]).tolist() == [3]


@pytest.mark.parametrize(
    "reply, message",
    [
        ((200, {}, '{"error": "index not found"}'), "index v4_toy: index not found"),
        ((200, {}, '{"count": null}'), "answered"),
        ((200, {}, '{"count": -1}'), "answered"),
        ((200, {}, "<html>"), "no JSON object: <html>"),
        ((200, {}, "[]"), "no JSON object"),
        ((404, {}, "gone"), r"HTTP 404 \(gone\)"),
        ((302, {"Location": "http://127.0.0.1:1/"}, ""), "HTTP 302"),
    ],
)
def test_what_is_no_count_is_an_error(open_index, server, reply, message):
    server.replies.append(reply)
    with pytest.raises(DataError, match=message):
        open_index("text").count(["abc"])
    assert len(server.asked) == 1


def test_a_server_that_is_not_there(open_index):
    with pytest.raises(OlmoDetectError, match="cannot be reached"):
        open_index(url="http://127.0.0.1:1/").count(np.array([[1]]))


@pytest.mark.parametrize("url", [" ", "ftp://x/", "http://", "http://u:p@x/", "http://x/?a=b", "no address"])
def test_an_address_that_cannot_be_used(open_index, url):
    with pytest.raises(UsageError, match=URL_VARIABLE):
        open_index(url=url)
