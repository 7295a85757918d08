"""The front process: restarts, drain, TLS, keys, and answers that end where Triton's do."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import ServerError
from hfx.front.settings import Settings, Tls
from hfx.front.upstream import Upstream, request_head
from hfx.triton import front as front_module
from hfx.triton.front import Front
from tests.rigs.clients.certificates import make_certificate
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import (
    LARGE,
    SECONDS,
    Seen,
    ask,
    connect,
    fronted,
    post,
    read_answer,
    upstream,
)

SMALL = post(b"{}")
STREAM = "/v2/models/toy/generate_stream"


@pytest.fixture
def triton() -> Iterator[tuple[int, Seen]]:
    with upstream() as running:
        yield running


@dataclass
class Answering:
    """A server that answers each request with the bytes `answer`, and closes the connection."""

    port: int
    answer: bytes = b""


def answer_all(listener: socket.socket, server: Answering) -> None:
    with suppress(OSError):  # the listener is closed
        while True:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(server.answer)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Front, Seen]]:
    """A front with default settings, and what its server has seen."""
    with upstream() as (port, seen), fronted(port) as front:
        yield front, seen


@pytest.fixture(scope="module")
def alone() -> Iterator[Front]:
    """A front of a server that does not run."""
    with fronted(free_port()) as front:
        yield front


@pytest.fixture(scope="module")
def answering() -> Iterator[tuple[Front, Answering]]:
    """A front, and its server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Answering(listener.getsockname()[1])
        threading.Thread(target=answer_all, args=(listener, server), daemon=True).start()
        with fronted(server.port) as front:
            yield front, server


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_a_client_that_reads_slowly_gets_the_whole_answer(pause: float, shared: tuple[Front, Seen]) -> None:
    with connect(shared[0]) as connection:
        connection.sendall(post(b"large"))
        answer = http.client.HTTPResponse(connection, method="POST")
        answer.begin()
        parts = []
        while part := answer.read(1 << 18):
            parts.append(part)
            time.sleep(pause)
    assert len(json.loads(b"".join(parts))["filling"]) == LARGE


async def _read_beside_what_comes_in(port: int) -> tuple[bytes, bytes]:
    """Return the results of two calls of `read` when most of the answer arrives between them."""
    connection = await Upstream(f"http://127.0.0.1:{port}").connect()
    connection.send(request_head(b"POST", b"/", 0, ()), b"")
    first = await connection.read()
    while not connection.complete:
        await asyncio.sleep(0.01)
    assert not connection.is_read
    return first, await connection.read()


def test_what_comes_in_while_a_part_is_used_is_not_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(asyncio.run, _read_beside_what_comes_in(server.getsockname()[1]))
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc")
        time.sleep(0.2)  # more than the reader takes
        connection.sendall(b"def")
        assert reading.result(SECONDS) == (b"abc", b"def")


def test_a_killed_front_is_replaced_and_connections_meanwhile_are_answered(triton: tuple[int, Seen]) -> None:
    said: list[str] = []
    with fronted(triton[0], report=said.append) as front:
        for _ in range(2):
            os.kill(front.pid, signal.SIGKILL)
            assert ask(front, SMALL)[0] == 200
    assert [line.partition(";")[0] for line in said] == ["the HTTP front died (killed by signal 9)"] * 2


def test_a_front_is_started_again_after_a_start_that_failed(
    triton: tuple[int, Seen], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    with fronted(triton[0], report=said.append) as front:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(tmp_path / "missing"))
            os.kill(front.pid, signal.SIGKILL)
            wait_until(lambda: len(said) >= 2)
        assert ask(front, SMALL)[0] == 200
    assert said[:2] == [
        "the HTTP front died (killed by signal 9); starting another one.",
        "the HTTP front did not start: No such file or directory; starting another one.",
    ]


@pytest.mark.slow
def test_a_front_that_hangs_is_replaced(triton: tuple[int, Seen], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "SILENCE_SECONDS", 3.0)
    said: list[str] = []
    with fronted(triton[0], report=said.append) as front:
        before = front.pid
        os.kill(before, signal.SIGSTOP)
        wait_until(lambda: said)
        assert ask(front, SMALL)[0] == 200
        assert front.pid != before
    assert [line.partition(";")[0] for line in said] == ["the HTTP front gave no sign for 3 s"]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "seconds"), [("while True: pass", 6), ("import time; time.sleep(99)", 1)])
def test_a_front_without_heartbeats_is_given_more_time_while_it_computes(
    program: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "SILENCE_SECONDS", 1.0)
    own, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, control, subprocess.Popen([sys.executable, "-c", program]) as running:
        control.send(b".")
        front = Front("127.0.0.1", 0, Settings())
        assert front._watch(running, own) == f"gave no sign for {seconds} s"
        front.kill()


def test_a_front_that_stops_finishes_what_it_has_and_takes_nothing_new(triton: tuple[int, Seen]) -> None:
    port, seen = triton
    with fronted(port) as front, connect(front) as busy, connect(front) as kept:
        kept.sendall(SMALL)
        assert read_answer(kept)[0] == 200
        busy.sendall(post(b"hold"))
        assert seen.entered.acquire(timeout=60)
        drained: list[bool] = []
        stopping = threading.Thread(target=lambda: drained.append(front.stop(60)))
        stopping.start()
        assert kept.recv(1) == b""
        with pytest.raises(ConnectionError):
            connect(front)
        seen.hold.set()
        assert read_answer(busy)[0] == 200
        stopping.join()
        assert drained == [True]


def test_a_request_that_outlasts_the_drain_is_reported_as_lost(triton: tuple[int, Seen]) -> None:
    port, seen = triton
    with fronted(port) as front, connect(front) as busy:
        busy.sendall(post(b"hold"))
        assert seen.entered.acquire(timeout=60)
        assert not front.stop(0.5)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            read_answer(busy)


def test_a_front_that_cannot_start_says_so(alone: Front, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="front died"), fronted(free_port(), key_file=str(tmp_path / "missing")):
        pass
    with pytest.raises(ServerError, match="--http-port"):
        Front("127.0.0.1", int(alone.url.rpartition(":")[2]), Settings())


# Triton's side


def test_connections_to_triton_are_kept_except_those_of_streams(triton: tuple[int, Seen]) -> None:
    port, seen = triton
    with fronted(port) as front:
        for _ in range(20):
            assert ask(front, SMALL)[0] == 200
        assert seen.connections == 1
        with connect(front) as connection:
            connection.sendall(post(b"{}", STREAM))
            connection.recv(1 << 16)
        assert seen.left.acquire(timeout=SECONDS)
        assert seen.requests[-1][1]["connection"] == "close"
        assert ask(front, SMALL)[0] == 200
        assert seen.connections == 2


@pytest.mark.parametrize("size", [2, 70_000, 150_000, 250_000, 1_000_000])  # in one piece, or in several
def test_a_client_that_leaves_takes_its_request_from_triton(size: int, shared: tuple[Front, Seen]) -> None:
    front, seen = shared
    with connect(front) as connection:
        connection.sendall(post(b"{}".ljust(size), STREAM))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.close()
        assert seen.left.acquire(timeout=SECONDS)


@pytest.mark.parametrize("path", ["infer", "generate"])
def test_a_server_that_breaks_before_its_answer_is_a_502_and_none_at_all_a_503(
    shared: tuple[Front, Seen], alone: Front, path: str
) -> None:
    status, headers, _ = ask(shared[0], post(b'{"id": "break", "inputs": []}', f"/v2/models/toy/{path}"))
    assert (status, headers["retry-after"]) == (502, "1")
    assert ask(shared[0], SMALL)[0] == 200
    status, headers, _ = ask(alone, SMALL)
    assert (status, headers["retry-after"]) == (503, "1")


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def reason(front: Front) -> str:
    """Return the reason of the 503 at /health."""
    status, headers, body = ask(front, HEALTH)
    assert (status, headers["content-type"], headers["retry-after"]) == (503, "application/json", "1")
    return str(json.loads(body)["error"])


def test_health_is_a_503_with_a_reason_while_triton_is_not_ready(
    shared: tuple[Front, Seen], alone: Front, answering: tuple[Front, Answering]
) -> None:
    front, seen = shared
    assert ask(front, HEALTH)[0] == 200
    seen.refused.add("/v2/health/ready")  # Triton 26.01 and later, when a process of a model has died
    assert "not all of its models" in reason(front)
    seen.refused.clear()
    assert ask(front, HEALTH)[0] == 200
    assert "it is being started again" in reason(alone)
    answering[1].answer = b""
    assert "started again" in reason(answering[0])


def test_an_overloaded_model_is_a_503_that_says_when_to_try_again(answering: tuple[Front, Answering]) -> None:
    front, server = answering
    server.answer = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    status, headers, body = ask(front, SMALL)
    assert (status, headers["retry-after"], body) == (503, "1", b"{}")


def test_an_answer_that_breaks_has_no_end_for_the_client_either(answering: tuple[Front, Answering]) -> None:
    front, server = answering
    server.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    with pytest.raises(http.client.IncompleteRead):
        ask(front, post(b"{}", STREAM))


# Keys and certificates


def test_every_path_except_health_needs_a_key(triton: tuple[int, Seen], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# of the laptop\nfirst-key-of-tests\n\nsecond-key-of-tests\n")
    with fronted(triton[0], key_file=str(keys)) as front:
        for header in (
            "",
            "Bearer wrong",
            "Bearer",
            "Basic first-key-of-tests",
            "first-key-of-tests",
            "Bearer # of the laptop",
            "Bearer first-key-of-tests second-key-of-tests",
        ):
            status, headers, _ = ask(front, post(b"{}", Authorization=header))
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert ask(front, SMALL)[0] == 401
        assert ask(front, post(b"{}", "/v2/logging"))[0] == 401
        assert ask(front, post(b"{}", Authorization="Bearer first-key-of-tests"))[0] == 200
        assert ask(front, post(b"{}", Authorization="bearer second-key-of-tests"))[0] == 200
        assert ask(front, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200


def test_the_port_for_scrapes_has_metrics_and_health_alone_without_a_key_or_tls(
    triton: tuple[int, Seen], tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("first-key-of-tests\n")
    port = free_port()
    secured: dict[str, Any] = {"key_file": str(tmp_path / "keys"), "tls": Tls(*make_certificate(tmp_path, "server"))}
    with fronted(triton[0], scrape_port=port, hosts=["models.example"], **secured):

        def status(path: str, method: str = "GET") -> int:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request(method, path, headers={"Host": "10.0.0.7"})  # of a pod
                return connection.getresponse().status

        assert (status("/metrics"), status("/health")) == (200, 200)
        paths = ("/", "/v2/health/ready", "/v2/models/toy/infer", "/metrics/x", "/openapi.json", "/v1/models")
        assert [status(path) for path in paths] == [404] * len(paths)
        assert status("/v2/models/toy/infer", "POST") == 404
    assert triton[1].requests == []


def test_a_server_with_tls_refuses_plain_requests_and_unknown_clients(triton: tuple[int, Seen], tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    client = make_certificate(tmp_path, "client")

    def status(front: Front, context: ssl.SSLContext) -> int:
        connection = http.client.HTTPSConnection(front.url.removeprefix("https://"), context=context, timeout=60)
        connection.request("GET", "/v2")
        return connection.getresponse().status

    known = ssl.create_default_context(cafile=certificate)
    with fronted(triton[0], tls=Tls(certificate, key)) as front:
        assert front.url.startswith("https://127.0.0.1:")
        assert status(front, known) == 200
        with pytest.raises(ssl.SSLError):
            status(front, ssl.create_default_context())
        with pytest.raises(http.client.HTTPException):
            ask(front, SMALL)
    with fronted(triton[0], tls=Tls(certificate, key, client[0])) as front:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            status(front, known)
        known.load_cert_chain(*client)
        assert status(front, known) == 200


def test_a_client_that_never_ends_tls_holds_no_stop_up(triton: tuple[int, Seen], tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    context = ssl.create_default_context(cafile=certificate)
    with (
        fronted(triton[0], tls=Tls(certificate, key)) as front,
        context.wrap_socket(connect(front), server_hostname="127.0.0.1") as idle,
    ):
        idle.sendall(SMALL)
        assert read_answer(idle)[0] == 200
        assert front.stop(10)
