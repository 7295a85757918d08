"""Connections to the front that are slow, silent, or too many."""

from __future__ import annotations

import json
import select
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hfx.front.connection import LINGER_BYTES
from hfx.front.settings import BODIES_AT_ONCE, Limits
from hfx.triton.front import Front
from tests.rigs.servers.front_rig import (
    GENERATE,
    INFER,
    SECONDS,
    Seen,
    ask,
    connect,
    fronted,
    is_closed,
    post,
    read_answer,
    upstream,
)

BODY = 1 << 20


@pytest.fixture(scope="module")
def impatient() -> Iterator[Front]:
    hasty = Limits(body=BODY, head_seconds=1, pause_seconds=1, body_seconds=3, idle_seconds=1)
    with upstream() as (port, _), fronted(port, hasty) as front:
        yield front


@pytest.fixture(scope="module")
def bounded() -> Iterator[tuple[Front, Seen]]:
    """A front with a bound for bodies, and what its server has seen."""
    with upstream() as (port, seen), fronted(port, Limits(body=BODY)) as front:
        yield front, seen


@pytest.mark.slow
@pytest.mark.parametrize("start", [b"POST / HT", post(b"x" * 10)[:-5], b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"])
def test_an_incomplete_request_is_answered_408(impatient: Front, start: bytes) -> None:
    assert ask(impatient, start)[0] == 408


@pytest.mark.slow
def test_a_body_sent_byte_by_byte_ends_at_the_total_time_limit(impatient: Front) -> None:
    with connect(impatient) as connection:
        connection.sendall(post(b"x" * 1000)[:-1000])
        sent = 0
        while not select.select([connection], [], [], 0.2)[0]:
            connection.sendall(b"x")
            sent += 1
        assert read_answer(connection)[0] == 408
    assert sent < 1000


@pytest.mark.slow
def test_a_connection_that_says_nothing_is_closed(impatient: Front) -> None:
    with connect(impatient) as silent, connect(impatient) as kept, connect(impatient) as blank:
        kept.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(kept)[0] == 200
        blank.sendall(b"\r\n")
        assert is_closed(silent)
        assert is_closed(kept)
        blank.recv(1 << 16)


@pytest.mark.slow
def test_idle_connections_give_way_to_new_ones() -> None:
    with upstream() as (port, _), fronted(port, Limits(connections=2, head_seconds=60)) as front:
        idle = [connect(front) for _ in range(2)]
        time.sleep(1.5)  # longer than they are left alone
        assert ask(front, post(b"{}"))[0] == 200
        [closed] = select.select(idle, [], [], 5)[0]  # one of them; the other one stays
        assert is_closed(closed)
        for connection in idle:
            connection.close()


def test_bodies_that_come_slowly_keep_no_other_request_out() -> None:
    with upstream() as (port, _), fronted(port, Limits(connections=8, requests=2)) as front:
        slow = [connect(front) for _ in range(4)]
        for connection in slow:
            connection.sendall(post(b"{}")[:-1])
        assert [ask(front, post(b"{}"))[0] for _ in range(3)] == [200] * 3
        for connection in slow[:2]:
            connection.sendall(b"}")
            assert read_answer(connection)[0] == 200
        for connection in slow:
            connection.close()


@pytest.mark.slow
def test_bodies_that_stop_before_their_ends_keep_no_memory_from_others() -> None:
    with upstream() as (port, _), fronted(port, Limits(body=BODY)) as front:
        slow = [connect(front) for _ in range(BODIES_AT_ONCE + 1)]
        for connection in slow:
            connection.sendall(post(b" " * BODY)[:-1])
        time.sleep(1.5)  # longer than they are left alone
        assert [ask(front, post(b" " * BODY))[0] for _ in range(3)] == [200] * 3
        assert select.select(slow, [], [], 5)[0]
        for connection in slow:
            connection.close()


@pytest.mark.slow
def test_the_slowest_incomplete_request_gives_way_to_a_new_connection() -> None:
    with upstream() as (port, _), fronted(port, Limits(connections=3, head_seconds=60)) as front:
        new = []
        head, body, fast = (connect(front) for _ in range(3))
        head.sendall(b"POST /")
        body.sendall(post(b"{}" + b" " * 100)[:-100])
        fast.sendall(post(b"{}" + b" " * 99_999)[:-1])
        time.sleep(1.5)  # longer than they are left alone
        for slowest in (head, body):
            assert ask(front, post(b"{}"))[0] == 200
            assert read_answer(slowest)[0] == 408
            slowest.close()
            new.append(connect(front))
        fast.sendall(b" ")
        assert read_answer(fast)[0] == 200
        for connection in (fast, *new):
            connection.close()


def test_requests_and_connections_have_a_limit() -> None:
    with upstream() as (port, seen), fronted(port, Limits(connections=4, requests=2)) as front:
        busy = [connect(front) for _ in range(4)]
        for connection in busy[:2]:
            connection.sendall(post(b"hold"))
            assert seen.entered.acquire(timeout=60)
        for connection in busy[2:]:
            connection.sendall(post(b"{}"))
            status, headers, _ = read_answer(connection)
            assert (status, headers["retry-after"]) == (503, "1")
            connection.sendall(b"POST %b HTTP/1.1\r\n" % GENERATE.encode())  # begun just now: it does not give way
        status, headers, _ = ask(front, post(b"{}"))
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        seen.hold.set()
        assert [read_answer(connection)[0] for connection in busy[:2]] == [200, 200]
        for connection in busy:
            connection.close()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (INFER, {}, 413), ("/v1/completions", {}, 413), ("/nowhere", {}, 404), ("/v2/logging", {}, 403),
        ("/v2/health/live", {}, 405), (INFER, {"X-Long": "x" * 70_000}, 431),
        (f"/{'x' * 9000}", {}, 414), (INFER, {"Transfer-Encoding": "gzip, chunked"}, 400),
    ],
)  # fmt: skip
def test_a_refusal_is_read_by_clients_that_send_their_whole_body_first(
    path: str, headers: dict[str, str], status: int, bounded: tuple[Front, Seen]
) -> None:
    front, seen = bounded
    body = b"x" * (8 * BODY)
    before = len(seen.requests)
    for _ in range(5):
        request = urllib.request.Request(front.url + path, body, headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=SECONDS)
        assert refused.value.code == status
        assert json.loads(refused.value.read())["error"]
    assert len(seen.requests) == before
    assert ask(front, post(b"{}"))[0] == 200


def test_a_body_without_end_is_read_up_to_a_bound_behind_a_refusal(bounded: tuple[Front, Seen]) -> None:
    with connect(bounded[0]) as connection:
        head = b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n"
        connection.sendall(head)
        assert read_answer(connection)[0] == 404
        sent = 0
        with suppress(ConnectionError):
            while sent < 1 << 30:
                sent += connection.send(b"x" * (1 << 20))
        assert LINGER_BYTES <= sent < LINGER_BYTES + (64 << 20)
