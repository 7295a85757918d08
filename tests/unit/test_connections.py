"""What the kernel tells about the connections of a port."""

from __future__ import annotations

import socket
import time

import pytest

from hfx.triton.connections import connections

TICK = 0.05  # well beyond the kernel's


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_connection_owes_from_a_request_to_its_answer(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert connections(port) == []
        with socket.create_connection((address, port)) as client, listener.accept()[0] as server:
            assert not connections(port)[0].owes
            client.send(b"first request")
            time.sleep(TICK)
            [asked] = connections(port)
            assert asked.owes
            server.send(b"answer")
            time.sleep(TICK)
            [answered] = connections(port)
            assert not answered.owes
            assert answered.sent < answered.received
            client.send(b"second request")
            time.sleep(TICK)
            assert connections(port)[0].owes
    assert connections(port) == []


def test_an_answer_within_a_tick_is_one() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        client.send(b"request")
        server.send(server.recv(100))
        time.sleep(TICK)
        assert not connections(listener.getsockname()[1])[0].owes
