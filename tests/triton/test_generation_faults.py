"""Crowds, slow readers and huge texts: every accepted request is answered, and others are not disturbed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from hfx.python_backends.errors import QUEUE_FULL, QueueFull, with_reason
from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import ENDLESS, Recital
from tests.rigs.clients.generation_grpc import grpc_pieces
from tests.rigs.clients.generation_http import post
from tests.rigs.clients.generation_requests import Ask, AskFailed
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import DOORS, QUEUED_A_SLOT, RECITAL, SLOTS, all_free, metrics

pytestmark = pytest.mark.triton

TAKEN = SLOTS[RECITAL] * (1 + QUEUED_A_SLOT)  # requests that the engine takes at a time
CROWD = TAKEN + 60
AT_ONCE = 2.0  # seconds; a request that waited for a slot would need longer
SHORT = 10.0  # seconds
MEGABYTE = 2**20
# What each door says of a full queue; Triton's generate endpoints know no other status for an error of a model.
# The same, whether the engine refuses, or the process that hands requests on to it. The HTTP front knows it, too.
FULL = with_reason(QUEUE_FULL, QueueFull())
BUSY = {
    "HTTP infer": 503,
    "gRPC infer": "UNAVAILABLE",
    "/generate": 400,
    "/generate of the engine": 400,
    "sse": 400,
    "gRPC stream, whole": "",
    "grpc stream": "",
}


@contextmanager
def full_engine(server: EmbeddedServer) -> Iterator[None]:
    """Fill every slot and every place in the queue with streams that end with the block."""
    with ExitStack() as streams:
        for _ in range(TAKEN):
            streams.enter_context(grpc_pieces(server, Ask(RECITAL, "a", ENDLESS)))
        wait_until(lambda: metrics(server, RECITAL)["hfx_queue_length"] == TAKEN - SLOTS[RECITAL], "the queue is full")
        yield
    wait_until(lambda: all_free(server, RECITAL), "the engine is free again", 10)


def test_a_full_queue_refuses_at_once(writing_server: EmbeddedServer) -> None:
    with full_engine(writing_server):
        for name, door in DOORS.items():
            begin = time.monotonic()
            with pytest.raises(AskFailed, match=re.escape(FULL)) as refused:
                door(writing_server, Ask(RECITAL, "a", ENDLESS))
            assert time.monotonic() - begin < AT_ONCE, name
            assert refused.value.status == BUSY[name]


def test_a_full_queue_refuses_plain_calls_without_the_engine(writing_server: EmbeddedServer) -> None:
    def refuses(_: int = 0) -> bool:
        try:
            DOORS["gRPC infer"](writing_server, Ask(RECITAL, "a", {"max_tokens": 1}))
        except AskFailed as refused:
            return FULL in str(refused)
        return False

    with full_engine(writing_server), ThreadPoolExecutor(CROWD) as pool:
        assert refuses()  # the answer says how many may be under way
        engine = writing_server.stubs()[f"{RECITAL}_stream_0_0"][0]
        before = metrics(writing_server, RECITAL)["hfx_requests_refused_total"]
        os.kill(engine, signal.SIGSTOP)
        try:
            calls = [pool.submit(refuses) for _ in range(CROWD)]
            wait_until(lambda: sum(call.done() for call in calls) >= CROWD - 4, "refused while the engine stands", 5)
        finally:
            os.kill(engine, signal.SIGCONT)
        assert all(call.result(SHORT) for call in calls)
        refused = before + CROWD
        wait_until(lambda: metrics(writing_server, RECITAL)["hfx_requests_refused_total"] >= refused, "counted", 5)


@pytest.mark.parametrize("door", ["gRPC infer", "HTTP infer", "grpc stream"])
def test_each_of_a_crowd_of_requests_is_answered_or_refused(
    door: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    ask = Ask(RECITAL, "a", {"max_tokens": 60})

    def call(_: int) -> str:
        try:
            return DOORS[door](writing_server, ask).text
        except AskFailed as refused:
            return str(refused)

    with ThreadPoolExecutor(CROWD) as pool:
        outcomes = Counter(pool.map(call, range(CROWD)))
    assert outcomes.pop(recital.text("a", 60)) >= TAKEN
    assert all("Try again later" in refusal for refusal in outcomes)
    wait_until(lambda: all_free(writing_server, RECITAL), "all slots are free", 5)


def test_an_unread_grpc_stream_does_not_slow_other_requests(writing_server: EmbeddedServer, recital: Recital) -> None:
    slow = Ask(RECITAL, "a", {"max_tokens": 4000})
    with grpc_pieces(writing_server, slow) as events:
        others_go_on(writing_server, recital)
        text = "".join(event["text_output"] for event in events)
    assert text == recital.text("a", 4000)


def test_an_unread_sse_socket_does_not_slow_other_requests(writing_server: EmbeddedServer, recital: Recital) -> None:
    host, _, port = writing_server.http_url.removeprefix("http://").rpartition(":")
    body = b'{"text_input": "a", "stream": true, "max_tokens": 4000}'
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect((host, int(port)))
        path = f"/v2/models/{RECITAL}_stream/generate_stream"
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        others_go_on(writing_server, recital)
        received = b""
        while b'"finish_reason":"length"' not in received.replace(b" ", b""):
            part = connection.recv(65536)
            assert part, "the connection ended early"
            received += part
    assert received.count(b"text_output") > 100


def others_go_on(server: EmbeddedServer, recital: Recital) -> None:
    """Check that short requests are answered during and after the request whose stream is not read."""
    short_requests(server, recital)
    wait_until(lambda: all_free(server, RECITAL), "the engine is done with it", 30)
    short_requests(server, recital)


def short_requests(server: EmbeddedServer, recital: Recital) -> None:
    """Send three short requests, which take some milliseconds each."""
    begin = time.monotonic()
    for door in ("gRPC infer", "sse", "HTTP infer"):
        assert DOORS[door](server, Ask(RECITAL, "aa", {"max_tokens": 50})).text == recital.text("aa", 50)
    assert time.monotonic() - begin < SHORT


@pytest.mark.parametrize("door", ["HTTP infer", "gRPC infer", "/generate of the engine", "grpc stream"])
def test_a_text_of_65_megabytes_is_refused_with_the_numbers(
    door: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    with ThreadPoolExecutor(1) as pool:
        monster = pool.submit(DOORS[door], writing_server, Ask(RECITAL, "word " * (13 * MEGABYTE)))
        short_requests(writing_server, recital)
        with pytest.raises(AskFailed, match="16777216"):
            monster.result(timeout=60)


def test_a_text_of_65_megabytes_as_curl_sends_it_is_refused_too(
    writing_server: EmbeddedServer, recital: Recital
) -> None:
    """Triton would parse a body of this content type as a form, with its whole stack."""
    body = json.dumps({"text_input": "word " * (13 * MEGABYTE)}).encode()
    with pytest.raises(AskFailed, match="16777216"):
        post(writing_server, f"{RECITAL}/generate", body, content="application/x-www-form-urlencoded")
    short_requests(writing_server, recital)


def test_a_text_of_16_megabytes_is_cut_where_that_is_allowed(writing_server: EmbeddedServer) -> None:
    text = "Anna went to Paris. "
    long, short = (Ask("summaries", text * count, {"max_tokens": 10}) for count in (3 * MEGABYTE // 4, 3000))
    answer = DOORS["HTTP infer"](writing_server, long)
    assert answer.truncated_tokens > 0
    assert answer.text == DOORS["HTTP infer"](writing_server, short).text != ""
