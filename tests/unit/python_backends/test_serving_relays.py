"""The connection of a relay to its engine: frames, access, and calls when either end dies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hfx.python_backends.serving import ipc
from hfx.python_backends.serving.ipc import FramedSocket, address, bytes_of, connect, text_of
from hfx.python_backends.serving.relay_server import RelayServer
from hfx.python_backends.serving.request import Channel
from tests.rigs.servers.serving_channels import outputs

SECONDS = 10


class Engine:
    """An engine that keeps the requests and cancellations of relays."""

    def __init__(self, name: str) -> None:
        self.asked: list[tuple[dict[str, list[Any]], Channel, str]] = []
        self.cancelled: list[str] = []
        self.parameters = ""
        self.news = threading.Semaphore(0)
        self.refused = 0
        self.relays = RelayServer(name, self._take, self._cancel, lambda: 7, self._count)

    def _take(self, tensors: Any, parameters: str, channel: Channel, request_id: str, trace: str) -> None:
        self.parameters = parameters
        self.asked.append((dict(tensors), channel, request_id))
        self.news.release()

    def _count(self, refused: int) -> None:
        self.refused += refused

    def _cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self.news.release()

    def wait(self) -> None:
        assert self.news.acquire(timeout=SECONDS)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = Engine(request.node.name)
    yield opened
    opened.relays.close()


@pytest.fixture
def connection(engine: Engine, request: pytest.FixtureRequest) -> Iterator[FramedSocket]:
    """A relay's connection to `engine`."""
    opened = connect(request.node.name)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "raw", [b"", b"plain", "Grüße 👩‍👩‍👧".encode(), b"\xff\x00\xed\xa0\x80half", bytes(range(256))]
)
def test_arbitrary_bytes_pass_the_relay_unchanged(raw: bytes, engine: Engine, connection: FramedSocket) -> None:
    others: dict[str, list[Any]] = {"seed": [2**64 - 1], "top_p": [0.25], "stream": [False]}
    connection.send({"id": 1, "inputs": {"text_input": [text_of(raw)], **others}, "parameters": '{"a":1}'})
    engine.wait()
    assert engine.asked[0][0] == {"text_input": [raw], **others} and engine.parameters == '{"a":1}'
    assert bytes_of(text_of(raw)) == raw


def test_answers_and_errors_come_back_with_their_numbers(engine: Engine, connection: FramedSocket) -> None:
    for number in (7, 8):
        connection.send({"refused": 2})
        connection.send({"id": number, "inputs": {"text_input": [str(number)]}})
        engine.wait()
    engine.asked[1][1].fail("[hfx:QUEUE_FULL] 9 requests wait", "UNAVAILABLE")
    sent = outputs("a 🦊", finish_reason="stop", input_tokens=3, output_tokens=2, log_probs=(-0.5,))
    engine.asked[0][1].send(sent, final=True)
    refusal = {"error": "[hfx:QUEUE_FULL] 9 requests wait", "code": "UNAVAILABLE"}
    assert connection.receive() == {"id": 8, "most_open": 7, **refusal}
    assert connection.receive() == {"id": 7, "most_open": 7, "outputs": {**sent, "output_log_probs": [-0.5]}}
    assert engine.refused == 4


def test_a_relay_cancels_its_own_requests_only(
    engine: Engine, connection: FramedSocket, request: pytest.FixtureRequest
) -> None:
    other = connect(request.node.name)
    for relay in (connection, other):
        relay.send({"id": 1, "inputs": {"text_input": ["a"]}})
        engine.wait()
    other.send({"cancel": 1})
    engine.wait()
    other.close()
    assert engine.cancelled == [engine.asked[1][2]]
    assert engine.asked[0][2] != engine.asked[1][2]


def test_the_requests_of_a_dead_relay_are_cancelled(engine: Engine, connection: FramedSocket) -> None:
    connection.send({"id": 1, "inputs": {"text_input": ["a"]}})
    engine.wait()
    channel = engine.asked[0][1]
    assert not channel.is_cancelled()
    connection.close()
    channel.send(outputs("has no reader"), final=True)
    assert channel.is_cancelled()


def test_a_request_that_meets_a_bug_is_refused_and_others_go_on(
    engine: Engine, connection: FramedSocket, capfd: pytest.CaptureFixture[str]
) -> None:
    connection.send({"id": 1, "inputs": {"text_input": 5}})  # no relay sends such a thing
    message = "[hfx:FAILED] an unexpected TypeError ended the request. The server's log says more"
    assert connection.receive() == {"id": 1, "most_open": 7, "error": message, "code": "INTERNAL"}
    assert capfd.readouterr().err.count("'int' object is not iterable") == 1
    connection.send({"id": 2, "inputs": {"text_input": ["a"]}})
    engine.wait()


def test_an_engine_that_closes_ends_the_connection(
    engine: Engine, connection: FramedSocket, request: pytest.FixtureRequest
) -> None:
    engine.relays.close()
    assert connection.receive() is None and connection.closed
    with pytest.raises(OSError, match="refused"):
        connect(request.node.name)


def test_a_truncated_frame_ends_the_connection() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(ipc.HEADER.pack(100) + b'{"id": 1')
    theirs.close()
    assert FramedSocket(ours).receive() is None


def test_a_reloaded_engine_listens_after_the_old_one_has_closed(request: pytest.FixtureRequest) -> None:
    before = Engine(request.node.name)
    after = Engine(request.node.name)
    connection = connect(request.node.name)
    connection.send({"id": 1, "inputs": {}})
    before.wait()
    before.relays.close()
    assert connection.receive() is None
    for _ in range(100):
        try:
            connection = connect(request.node.name)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
    connection.send({"id": 2, "inputs": {}})
    after.wait()
    connection.close()
    after.relays.close()


def test_a_connection_from_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ipc.check_peer(ours)
        monkeypatch.setattr(ipc.os, "getuid", lambda: 4_000_000)
        with pytest.raises(PermissionError, match="at the other end"):
            ipc.check_peer(ours)


def test_engines_have_addresses_of_their_own() -> None:
    names = ["a_stream", "b_stream", "x" * 200]
    assert len({address(name) for name in names}) == 3
    assert all(address(name).startswith("\0") and len(address(name)) < 108 for name in names)
