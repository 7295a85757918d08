"""Heads of requests: offers to upgrade, HEAD, wrong methods, and several requests on one connection."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hfx.triton.front import Front
from tests.rigs.servers.front_rig import (
    GENERATE,
    INFER,
    Seen,
    ask,
    connect,
    fronted,
    is_closed,
    post,
    read_answer,
    stderr_file,
    upstream,
)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Front, Seen]]:
    with upstream() as (port, seen), fronted(port) as front:
        yield front, seen


@pytest.fixture
def front(served: tuple[Front, Seen]) -> Front:
    return served[0]


@pytest.fixture
def seen(served: tuple[Front, Seen]) -> Seen:
    served[1].requests.clear()
    return served[1]


def answers(connection: socket.socket, count: int) -> list[Any]:
    """Return the JSON of the next `count` answers, which may have been sent together."""
    stream = connection.makefile("rb")
    contents = []
    for _ in range(count):
        length = 0
        while (line := stream.readline()) != b"\r\n":
            length = int(line.partition(b":")[2]) if line.lower().startswith(b"content-length") else length
        contents.append(json.loads(stream.read(length)))
    return contents


def framed(body: bytes, lines: Sequence[str], is_chunked: bool) -> bytes:
    framing = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"
    head = "\r\n".join([f"POST {GENERATE} HTTP/1.1", "Host: localhost", *lines, framing, "", ""]).encode()
    return head + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body)


OFFER = ["Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAEAAEAAAAIAAAAB", "Upgrade: h2c"]


@pytest.mark.parametrize(
    "lines",
    [
        OFFER,
        ["connection: keep-alive, upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA=="],
        ["Upgrade: TLS/1.0, HTTP/2.0", "Upgrade: irc", "Connection: upgrade", "X-Empty:"],
        ["Upgrade: h2c"],
        ["Connection: TE, keep-alive", "TE: trailers, deflate;q=0.5", "Keep-Alive: timeout=5"],
        ["Connection: trailer, x-unknown", "Trailer: X-Sum", "Proxy-Connection: keep-alive"],
        ["EXPECT: something-else", "Max-Forwards: 1", "If-None-Match: *", "Range: bytes=0-1"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [100, 1 << 19])
def test_headers_that_a_server_may_ignore_leave_body_and_next_request_as_they_are(
    front: Front, seen: Seen, lines: list[str], size: int
) -> None:
    kinds = [(lines, False), (lines, True), ([], False), (lines, True)]
    bodies = [post(b"%d" % number).ljust(size) for number in range(len(kinds))]  # as if requests were smuggled
    with connect(front) as connection:
        for body, (headers, is_chunked) in zip(bodies, kinds, strict=True):
            connection.sendall(framed(body, headers, is_chunked))
        assert [answer["bytes"] for answer in answers(connection, len(kinds))] == [size] * len(kinds)
    assert [body for _, _, body in seen.requests] == bodies


@pytest.mark.parametrize("lines", [OFFER, []])
def test_a_request_with_a_body_and_capital_expect_is_told_to_continue(front: Front, lines: list[str]) -> None:
    head, _, body = framed(b"{}", ["EXPECT: 100-CONTINUE", *lines], is_chunked=False).partition(b"\r\n\r\n")
    with connect(front) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert read_answer(connection)[0] == 200


@pytest.mark.parametrize("ending", ["HTTP/1.0", "HTTP/1.1\r\nConnection: close"])
def test_an_offer_to_upgrade_does_not_keep_a_connection_open(front: Front, ending: str) -> None:
    with connect(front) as connection:
        connection.sendall(framed(b"{}", OFFER, is_chunked=False).replace(b"HTTP/1.1", ending.encode(), 1))
        assert read_answer(connection)[0] == 200
        assert is_closed(connection)


@pytest.mark.parametrize("target", ["localhost:80", "/v2"])
def test_connect_is_refused_and_ends_the_connection(front: Front, target: str) -> None:
    with connect(front) as connection:
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() + post(b"{}"))
        assert read_answer(connection)[0] == 501
        assert is_closed(connection)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 200), ("/v2/health/live", 200), ("/v2/models/toy", 200), ("/metrics", 200), ("/", 200), (INFER, 405)],
)
def test_head_answers_like_get_without_a_body(front: Front, path: str, status: int) -> None:
    with connect(front) as connection:
        heads = []
        for method in ("HEAD", "GET"):  # a body after the first head would be read as the second one
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            answer = http.client.HTTPResponse(connection, method=method)
            answer.begin()
            heads.append((answer.status, answer.headers["content-type"], answer.headers["content-length"]))
            answer.read()
    assert heads[0] == heads[1] and heads[0][0] == status


@pytest.mark.parametrize(("path", "allowed"), [("/v2", {"GET", "HEAD"}), (GENERATE, {"POST"}), ("/embed", {"POST"})])
def test_a_wrong_method_is_answered_with_the_methods_of_the_path(front: Front, path: str, allowed: set[str]) -> None:
    status, headers, _ = ask(front, f"DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert status == 405 and set(headers["allow"].split(", ")) == allowed


def test_pipelined_requests_are_answered_in_order(front: Front) -> None:
    with connect(front) as connection:
        connection.sendall(b"".join(post(b" " * size) for size in range(1, 6)))
        assert [answer["bytes"] for answer in answers(connection, 5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("lines", [[], OFFER])
def test_a_pipeline_of_many_requests_is_cut_without_a_trace(tmp_path: Path, lines: list[str]) -> None:
    with upstream() as (port, seen), stderr_file(tmp_path / "log") as log, fronted(port) as front:
        for _ in range(3):
            with connect(front) as connection, suppress(ConnectionError):
                connection.sendall(framed(b'"hold"', [], False) + framed(b"{}", lines, False) * 1000)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
        seen.hold.set()
        assert ask(front, post(b"{}"))[0] == 200
        assert len(seen.requests) < 20
    assert log.read_text() == ""
