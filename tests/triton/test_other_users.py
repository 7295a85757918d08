"""Access of the machine's other users to an embedded server."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

import pytest
import tritonclient.grpc as grpc

from tests.rigs.servers.short_servers import regions, started
from tests.rigs.servers.toy_models import write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "repository")


def test_shared_memory_is_open_to_this_user_only(repository: Path) -> None:
    umask = os.umask(0o022)
    try:
        with started(repository) as server:
            modes = {stat.S_IMODE(region.stat().st_mode) for region in regions(server.log.parent)}
    finally:
        os.umask(umask)
    assert modes == {0o600}


def test_closed_apis_stay_closed_to_readers_of_the_arguments(repository: Path) -> None:
    with started(repository) as server:
        before = closing(server.pid)
        server.restart()
        assert len(before) == 2 and not before & closing(server.pid)  # callers can't know the value of another start
    with started(repository) as server, grpc.InferenceServerClient(server.grpc_url) as client:
        arguments = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
        key, value = next(each for each in arguments if "restricted-api" in each).rsplit(":", 2)[1:]
        name, value = f"{key}:{value.partition('=')[0]}", value.partition("=")[2]
        for header in (f"{name}: {value}", f"{name}:{value}", f"{key}: {value}"):
            assert b" 403 " in http_answer(
                server.ports.http, f"GET /v2/logging HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n"
            )
        with pytest.raises(grpc.InferenceServerException, match="restricted"):
            client.get_log_settings()
        assert b"restricted" in grpc_answer(server.ports.grpc)
        assert b"restricted" not in grpc_answer(server.ports.grpc, ("x", "y"), "ServerLive")
        refused = grpc_answer(server.ports.grpc, (f"triton-grpc-protocol-{name}", value))
        assert b"grpc-status" in refused and b"log_file" not in refused


def closing(pid: int) -> set[str]:
    """Return the arguments of a server that close APIs."""
    return {each for each in Path(f"/proc/{pid}/cmdline").read_text().split("\0") if "restricted" in each}


def http_answer(port: int, request: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request.encode())
        return connection.recv(4096)


def grpc_answer(port: int, header: tuple[str, str] = ("x", "y"), call: str = "LogSettings") -> bytes:
    """Return the bytes that answer a call with a header that no client library sends."""
    path = f"/inference.GRPCInferenceService/{call}"
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    pairs = [*headers.items(), ("content-type", "application/grpc"), header]
    block = b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in pair) for pair in pairs)
    frames = [(4, 0, 0, b""), (1, 4, 1, block), (0, 1, 1, bytes(5))]  # settings, headers, an empty message
    sent = [struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body
            for kind, flags, stream, body in frames]  # fmt: skip
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(sent))
        while b"grpc-status" not in answer and (part := connection.recv(4096)):
            answer += part
    return answer
