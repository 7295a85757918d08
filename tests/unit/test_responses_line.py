"""The line between a relay and its engine: frames, who is let in, and what becomes of calls when an end dies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hfx.python_backends.engine.errors import QueueFull
from hfx.python_backends.generation.results import Piece
from hfx.python_backends.responses import line as lines
from hfx.python_backends.responses.exchange import Exchange
from hfx.python_backends.responses.line import Line, address, bytes_of, connected, text_of
from hfx.python_backends.responses.outbox import Channel

SECONDS = 10


class Engine:
    """Keeps what relays ask and cancel."""

    def __init__(self, name: str) -> None:
        self.asked: list[tuple[dict[str, list[Any]], Channel, str]] = []
        self.cancelled: list[str] = []
        self.news = threading.Semaphore(0)
        self.exchange = Exchange(name, self._take, self._cancel)

    def _take(self, values: Any, channel: Channel, request_id: str) -> None:
        self.asked.append((dict(values), channel, request_id))
        self.news.release()

    def _cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.news.release()

    def wait(self) -> None:
        assert self.news.acquire(timeout=SECONDS)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = Engine(request.node.name)
    yield opened
    opened.exchange.close()


def line_to(request: pytest.FixtureRequest) -> Line:
    return connected(request.node.name)


@pytest.mark.parametrize(
    "raw", [b"", b"plain", "Grüße 👩‍👩‍👧".encode(), b"\xff\x00\xed\xa0\x80half", bytes(range(256))]
)
def test_bytes_of_any_kind_travel(raw: bytes, engine: Engine, request: pytest.FixtureRequest) -> None:
    line = line_to(request)
    line.send({"id": 1, "ask": {"text_input": [text_of(raw)], "seed": [2**64 - 1], "top_p": [0.25], "stream": [False]}})
    engine.wait()
    values = engine.asked[0][0]
    assert values == {"text_input": [raw], "seed": [2**64 - 1], "top_p": [0.25], "stream": [False]}
    assert bytes_of(text_of(raw)) == raw
    line.close()


def test_answers_and_errors_come_back_with_their_numbers(engine: Engine, request: pytest.FixtureRequest) -> None:
    line = line_to(request)
    for number in (7, 8):
        line.send({"id": number, "ask": {"text_input": [str(number)]}})
        engine.wait()
    engine.asked[1][1].refuse(QueueFull("9 requests wait"))
    engine.asked[0][1].send(Piece("a 🦊", finish_reason="stop", input_tokens=3, output_tokens=2, log_probs=(-0.5,)))
    assert line.receive() == {"id": 8, "error": "[hfx:QUEUE_FULL] 9 requests wait", "code": "UNAVAILABLE"}
    assert line.receive() == {
        "id": 7,
        "outputs": {
            "text_output": "a 🦊",
            "finish_reason": "stop",
            "input_tokens": 3,
            "output_tokens": 2,
            "truncated_tokens": 0,
            "output_log_probs": [-0.5],
        },
    }
    line.close()


def test_a_relay_cancels_its_own_requests_only(engine: Engine, request: pytest.FixtureRequest) -> None:
    first, second = line_to(request), line_to(request)
    for line in (first, second):
        line.send({"id": 1, "ask": {"text_input": ["a"]}})
        engine.wait()
    second.send({"cancel": 1})
    engine.wait()
    assert engine.cancelled == [engine.asked[1][2]]
    assert engine.asked[0][2] != engine.asked[1][2]
    for line in (first, second):
        line.close()


def test_a_relay_that_dies_leaves_all_its_requests(engine: Engine, request: pytest.FixtureRequest) -> None:
    line = line_to(request)
    line.send({"id": 1, "ask": {"text_input": ["a"]}})
    engine.wait()
    channel = engine.asked[0][1]
    assert not channel.left()
    line.close()
    channel.send(Piece("nobody reads this"))
    assert channel.left()


def test_a_request_that_meets_a_bug_is_refused_and_others_go_on(engine: Engine, request: pytest.FixtureRequest) -> None:
    line = line_to(request)
    line.send({"id": 1, "ask": {"text_input": 5}})  # no relay sends such a thing
    assert line.receive() == {"id": 1, "error": "[hfx:FAILED] 'int' object is not iterable", "code": "INTERNAL"}
    line.send({"id": 2, "ask": {"text_input": ["a"]}})
    engine.wait()
    line.close()


def test_an_engine_that_closes_ends_the_line(engine: Engine, request: pytest.FixtureRequest) -> None:
    line = line_to(request)
    engine.exchange.close()
    assert line.receive() is None and line.closed
    with pytest.raises(OSError, match="refused"):
        line_to(request)


def test_a_frame_that_is_cut_off_ends_the_line() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(lines.HEADER.pack(100) + b'{"id": 1')
    theirs.close()
    assert Line(ours).receive() is None


def test_an_engine_that_is_loaded_again_listens_once_the_one_before_has_gone(request: pytest.FixtureRequest) -> None:
    before = Engine(request.node.name)
    after = Engine(request.node.name)
    line = line_to(request)
    line.send({"id": 1, "ask": {}})
    before.wait()
    before.exchange.close()
    assert line.receive() is None
    for _ in range(100):
        try:
            line = line_to(request)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
    line.send({"id": 2, "ask": {}})
    after.wait()
    line.close()
    after.exchange.close()


def test_a_process_of_another_user_is_not_let_in(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lines.check_peer(ours)
        monkeypatch.setattr(lines.os, "getuid", lambda: 4_000_000)
        with pytest.raises(PermissionError, match="at the other end"):
            lines.check_peer(ours)


def test_engines_have_addresses_of_their_own() -> None:
    names = ["a_stream", "b_stream", "x" * 200]
    assert len({address(name) for name in names}) == 3
    assert all(address(name).startswith("\0") and len(address(name)) < 108 for name in names)
