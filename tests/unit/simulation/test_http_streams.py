"""Streams of requests by a seed through the front: what it forwards is what two independent readers read.

`--seed N` repeats a seed, `--seeds N` tries more. tests/triton/test_http_streams.py has the same with a real Triton.
"""

from __future__ import annotations

import h11
import pytest

from tests.rigs.clients.http_streams import Reader, stream
from tests.rigs.machine.tiers import chosen_seeds, full
from tests.unit.simulation.http_port import check, served

SEEDS = 1500
# Where h11 refuses what the front may accept, by h11's message, and why that frames no request otherwise.
STRICTER = {
    "illegal request line": "llhttp takes two spaces before the version, and RTSP for HTTP",
    "no request line received": "llhttp skips all empty lines before a request (RFC 9112, 2.2: at least one)",
    "Missing mandatory Host: header": "the front refuses it, and the connection stays open (access.py)",
    "Found multiple Host: headers": "likewise (request.py)",
    "bad Content-Length": "of a trailer, which the front ignores (connection.py)",
    "Only Transfer-Encoding: chunked is supported": "likewise",
}


def read_by_h11(content: bytes) -> tuple[list[tuple[bytes, bytes, bytes]], str]:
    """Return the methods, targets and bodies of the requests in `content`, and why h11 refuses what follows."""
    connection, requests = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20), []
    connection.receive_data(content)
    try:
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                requests.append((request.method, request.target, body))
                connection.send(h11.Response(status_code=400, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    break
                connection.start_next_cycle()
    except h11.RemoteProtocolError as error:
        return requests, str(error)
    return requests, ""


def run(seed: int) -> int:
    """Send the stream of a seed, check it, and return how many of its requests were forwarded."""
    content = stream(seed)
    strict = [(request.method, request.target, request.body) for request in Reader(content).requests]
    lenient, refusal = read_by_h11(content)
    assert strict[: len(lenient)] == lenient[: len(strict)]
    assert len(strict) <= len(lenient) or any(refusal.startswith(message) for message in STRICTER), refusal
    return check(content, served(content, seed))


@pytest.mark.parametrize("count", [SEEDS, full(10 * SEEDS)])
def test_a_stream_is_refused_or_forwarded_as_other_readers_read_it(count: int, pytestconfig: pytest.Config) -> None:
    seeds, forwarded = chosen_seeds(pytestconfig, count), 0
    for seed in seeds:
        try:
            forwarded += run(seed)
        except BaseException as error:
            error.add_note(f"pytest {__file__} --seed {seed}")
            raise
    assert forwarded >= len(seeds) // 3, "most requests are refused: the streams try little"


POST = b"POST /v2/models/echo/generate HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("content", "statuses"),
    [
        (b"POST /nowhere HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\n", [400]),
        (CHUNKED + b"Expect: 100-continue\r\n\r\n\r\n5\r\n", [400]),
        (b"GET /v2 HTTP/0.9\r\n\r\n", [505]),
        (b"GET /v2 HTTP/2.0\r\nHost: a\r\n\r\n", [505]),
        (CHUNKED.replace(b"1.1", b"1.0") + b"\r\n2\r\n{}\r\n0\r\n\r\n", [400]),
        (2 * (POST + b"Content-Length: 2\r\n\r\n{}") + b"GET http:///v2 HTTP/1.1\r\nHost: a\r\n\r\n", [200, 200]),
        (b"HEAD /v2 HTTP/1.1\r\nHost: a\r\n\r\nGET http:///v2 HTTP/1.1\r\n" + 5000 * b"X: x\r\n", [200]),
    ],
    ids=["begun", "continue", "0.9", "2.0", "chunks in 1.0", "no path", "behind HEAD"],
)
def test_a_stream_that_was_answered_wrongly(
    content: bytes, statuses: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    for seed in range(20):
        assert [status for status, _ in served(content, seed).answers] == statuses
    assert "Traceback" not in capfd.readouterr().err
