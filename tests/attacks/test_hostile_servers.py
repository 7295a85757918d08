"""The client raises one of its own errors within the timeout, whatever listens at the address."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from hfx.client import AsyncClient, Client, grpc_transport, http_transport, session
from hfx.errors import ServerError, ServerUnreachable

pytestmark = pytest.mark.slow

# What a listener does with a connection: bytes to send at once, then whether it hangs up.
BEHAVIOURS = {
    "hangs up": (b"", True),
    "is silent": (b"", False),
    "speaks HTTP/1": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
    "speaks HTTP/1 and hangs up": (b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
    "speaks SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", False),
    "floods zeros": (bytes(1 << 20), False),
    "floods letters": (b"A" * (1 << 20), True),
    "settings only": (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", False),
    "settings, then goes away": (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\x00\x00\x08\x07" + bytes(13), True),
    "a huge frame": (b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", False),
}


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the request for a silent server's health, which follows a timeout."""
    for module in (grpc_transport, http_transport, session):
        monkeypatch.setattr(module, "PROBE_SECONDS", 0.2)


@contextmanager
def listener(sent: bytes, hangs_up: bool, trickles: bool = False) -> Iterator[str]:
    """Send `sent` to each connection, then hang up, send a byte each tenth of a second, or send nothing more."""
    connections: list[socket.socket] = []
    closing = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.sendall(sent)
            while trickles and not closing.wait(0.1):
                connection.sendall(b" ")
        if hangs_up:
            connection.close()

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        closing.set()
        server.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()


@contextmanager
def error_in_time() -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(ServerError) as caught:
        yield
    assert time.monotonic() - began < 6
    assert caught.value.fix


@pytest.mark.parametrize("scheme", ["", "http://"])
@pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=BEHAVIOURS)
def test_a_peer_that_is_not_triton_is_an_error_within_the_timeout(behaviour: tuple[bytes, bool], scheme: str) -> None:
    with listener(*behaviour) as address, Client(scheme + address, timeout=0.2, retries=1) as client, error_in_time():
        client.classify("name", "text")


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_a_stream_from_a_peer_that_is_not_triton_is_an_error(scheme: str) -> None:
    with listener(*BEHAVIOURS["speaks HTTP/1"]) as address, Client(scheme + address, timeout=0.2, retries=1) as client:
        stream = client.stream("name", "text")
        with pytest.raises(ServerError):
            next(stream)


@pytest.mark.parametrize("scheme", ["", "http://"])
@pytest.mark.parametrize("name", ["hangs up", "is silent", "speaks HTTP/1", "floods letters"])
def test_a_peer_that_is_not_triton_is_an_error_for_the_async_client(name: str, scheme: str) -> None:
    async def ask(address: str) -> None:
        async with AsyncClient(address, timeout=0.2, retries=0) as client:
            await client.classify("name", "text")

    with listener(*BEHAVIOURS[name]) as address, error_in_time():
        asyncio.run(ask(scheme + address))


# Bodies of an HTTP server about a model, which Triton would not send.
BODIES = {
    "no JSON": b"hello",
    "another JSON": b"[1, 2]",
    "a number": b"3",
    "half a model": b'{"inputs": [{"name": "text_input"}], "outputs": []}',
    "deep": b"[" * 100_000,
    "no UTF-8": b'{"inputs": "\xff"}',
    "words for numbers": b'{"inputs": [{"name": "a", "datatype": "INT32", "shape": ["x"]}], "outputs": []}',
    "an infinite shape": b'{"inputs": [{"name": "a", "datatype": "INT32", "shape": [Infinity]}], "outputs": []}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_triton_would_not_send_is_a_server_error(body: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with listener(answer, False) as address, Client(f"http://{address}", timeout=1, retries=0) as client:
        with pytest.raises(ServerError):
            client.classify("name", "text")
        with pytest.raises(ServerError):
            client.models()


def test_an_answer_that_arrives_byte_by_byte_ends_at_the_timeout() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    with (
        listener(answer, False, trickles=True) as address,
        Client(f"http://{address}", timeout=1, retries=0) as client,
        error_in_time(),
    ):
        client.models()


def test_a_host_without_an_address_is_unreachable() -> None:
    with pytest.raises(ServerUnreachable, match=r"nohost\.invalid"):
        Client("nohost.invalid:8001", timeout=5).models()
