"""Connections that are late, closed, encrypted, forked or absent, over gRPC and HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest

from hfx import errors
from hfx.cli.connection import TOKEN_VARIABLE
from hfx.client import AsyncClient, Client, RetryPolicy, Tls
from tests.rigs.clients.client_servers import Script, asked, grpc_server, http_server


def free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])


def test_the_async_client_is_answered(url: str) -> None:
    async def ask(client: AsyncClient) -> list[int]:
        await client.wait_ready(5)
        assert await client.models() == ["writer"]
        return [each.output_tokens for each in await client.generate("writer", ["write 2", "write 5"])]

    assert asked(url, ask) == [2, 5]


def test_metadata_is_requested_once_and_has_the_task(client: Client, script: Script) -> None:
    client.generate("writer", "write 1")
    client.generate("writer", ["write 1"] * 5)
    assert client.metadata("writer").task == "summarization"
    assert script.asked == 1


def test_a_model_that_does_not_summarize_is_not_asked_to(client: Client, script: Script) -> None:
    script.task = "text-generation"
    with pytest.raises(errors.UsageError, match="does not summarize: it is for text-generation"):
        client.summarize("writer", "write 2")
    assert script.texts == []


def test_each_request_has_an_id_of_its_own_that_errors_tell(client: Client, script: Script) -> None:
    orders = ["write 1", "fail INTERNAL the step failed"]
    _, error = client.each(partial(client.generate, "writer"), orders)
    assert isinstance(error, errors.ServerError)
    assert type(error) is errors.ServerError and "the step failed" in error.message
    assert error.model == "writer" and error.request_id in script.ids and len(set(script.ids)) == 2
    assert f"request {error.request_id}" in str(error)


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        ("INVALID_ARGUMENT the text is too blue", errors.RequestRefused),
        ("UNAVAILABLE Exceeds maximum queue size", errors.ServerBusy),
        ("UNAVAILABLE [hfx:QUEUE_FULL] 5 requests wait, of 5 that may. Try again later", errors.ServerBusy),
        ("INVALID_ARGUMENT [hfx:DRAINING] the engine takes no new requests", errors.ServerBusy),
        ("NOT_FOUND Request for unknown model: 'x' is not found", errors.ModelUnknown),
        ("INTERNAL Stub process 'x_0_0' is not healthy.", errors.ServerError),
        (
            "INVALID_ARGUMENT [hfx:DEADLINE_EXCEEDED] the deadline has passed",
            errors.RequestTimeout,
        ),
        ("UNAUTHENTICATED who are you", errors.RequestRefused),
    ],
)
def test_each_failure_raises_its_own_error_class(order: str, kind: type[errors.ServerError], client: Client) -> None:
    with pytest.raises(kind) as caught:
        client.generate("writer", f"fail {order}")
    assert type(caught.value) is kind
    assert caught.value.status and "[hfx:" not in caught.value.message
    assert caught.value.fix or kind is errors.RequestRefused


def test_the_fix_for_a_refused_key_names_option_variable_and_argument(client: Client) -> None:
    with pytest.raises(errors.RequestRefused) as caught:
        client.generate("writer", "fail UNAUTHENTICATED who are you")
    assert all(word in caught.value.fix for word in ("--token-file", TOKEN_VARIABLE, "Client(..., token=...)"))


def test_the_timeout_ends_the_call_and_is_sent_to_the_server(client: Client, script: Script) -> None:
    client.metadata("writer")
    began = time.monotonic()
    with pytest.raises(errors.RequestTimeout, match=r"within 0\.5 s"):
        client.generate("writer", "sleep 2", timeout=0.5)
    assert time.monotonic() - began < 1.9
    assert 0 < script.values[0]["timeout_ms"] <= 500


def test_the_blocking_client_works_inside_a_running_event_loop(client: Client) -> None:
    async def ask() -> list[str]:
        return [generation.text for generation in client.generate("writer", ["write 1"] * 3)]

    assert asyncio.run(ask()) == ["a0 "] * 3


def test_a_cancelled_task_cancels_its_request_on_the_server(script: Script) -> None:
    async def leave(client: AsyncClient) -> None:
        task = asyncio.create_task(client.generate("writer", "sleep 2"))
        await asyncio.to_thread(script.wait_asked, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(script.wait_left)

    with grpc_server(script) as url:
        asked(url, leave)


def test_ctrl_c_cancels_the_request_on_the_server(script: Script) -> None:
    with grpc_server(script) as url, Client(url) as client:
        asks = (lambda: client.generate("writer", "sleep 2"), lambda: client.generate("writer", ["sleep 2"] * 2))
        for count, ask in zip((1, 3), asks, strict=True):
            interrupt = script.when_asked(count, lambda: os.kill(os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                ask()
            assert script.wait_left()
            interrupt.join()


def test_the_failure_of_one_cancels_the_others_on_the_server(script: Script) -> None:
    with grpc_server(script) as url, Client(url) as client:
        began = time.monotonic()
        with pytest.raises(errors.RequestRefused, match="At index 1: too blue"):
            client.generate("writer", ["sleep 3", "sleep 0.3 fail INVALID_ARGUMENT too blue", "sleep 3"])
        assert time.monotonic() - began < 2.5
        assert script.wait_left()


def test_closing_the_client_cancels_calls_of_other_threads(url: str, script: Script) -> None:
    client = Client(url, retries=0)
    script.when_asked(1, client.close)
    began = time.monotonic()
    with pytest.raises(errors.RequestCancelled, match="closed before the answer"):
        client.generate("writer", "sleep 3")
    assert time.monotonic() - began < 2.5


def test_closing_the_client_cancels_calls_of_other_tasks(url: str, script: Script) -> None:
    async def ask(client: AsyncClient) -> None:
        task = asyncio.create_task(client.generate("writer", "sleep 3"))
        await asyncio.to_thread(script.wait_asked, 1)
        await client.close()
        await task

    with pytest.raises(errors.RequestCancelled, match="closed before the answer"):
        asked(url, ask, retries=0)


def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    client.close()
    asks = (
        lambda: client.generate("writer", "write 1"),
        lambda: client.generate("writer", ["write 1"]),
        lambda: next(client.stream("writer", "write 1")),
        lambda: next(client.infer_each("writer", [])),
        lambda: client.metadata("writer"),
        client.models,
        client.is_ready,
    )
    for ask in asks:
        with pytest.raises(errors.UsageError, match="is closed"):
            ask()


FORKED = """
import os, signal, sys
from hfx.client import Client
from hfx.errors import UsageError
with Client(sys.argv[1], timeout=15) as client:
    client.generate("writer", ["write 1"] * 4)
    child = os.fork()
    if not child:
        signal.alarm(15)
        try:
            client.generate("writer", "write 1")
        except UsageError as error:
            assert "another process" in error.message
            with Client(sys.argv[1], timeout=10) as own:
                os._exit(len(own.generate("writer", ["write 1"] * 4)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client.generate("writer", "write 1").text)
"""


def test_a_forked_process_needs_and_may_make_a_client_of_its_own(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, url], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["4", "a0"], done.stderr[-1000:]


def test_threads_may_share_a_client(client: Client) -> None:
    def ask(length: int) -> list[int]:
        return [each.output_tokens for each in client.generate("writer", [f"write {length}"] * 20)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(1, 9))) == [[length] * 20 for length in range(1, 9)]


def test_a_busy_server_is_asked_again_also_for_a_stream(url: str, script: Script) -> None:
    with Client(url, retries=RetryPolicy(attempts=3, shortest=0.01)) as client:
        script.busy = 2
        assert client.generate("writer", "write 2").text == "a0 a1 "
        script.busy = 2
        assert [piece.text for piece in client.stream("writer", "write 2")] == ["a0 ", "a1 "]
    assert script.texts == ["write 2"] * 6


def test_a_server_that_comes_up_late_is_found(script: Script) -> None:
    port = free_port()
    policy = RetryPolicy(attempts=100, budget=1, shortest=0.05, longest=0.3)
    with ExitStack() as stack, Client(f"127.0.0.1:{port}", retries=policy, timeout=15) as client:
        starting = threading.Timer(1, lambda: stack.enter_context(grpc_server(script, port)))
        starting.start()
        assert client.generate("writer", "write 1").text == "a0 "
        client.wait_ready(5)
        starting.join()


def test_an_unreachable_server_fails_at_once_and_wait_ready_in_time() -> None:
    for scheme in ("", "http://"):
        with Client(f"{scheme}127.0.0.1:{free_port()}", retries=0) as client:
            with pytest.raises(errors.ServerUnreachable, match="can't be reached") as caught:
                client.generate("writer", "write 1")
            assert "hfx serve" in caught.value.fix
            assert not client.is_ready()
            with pytest.raises(errors.ServerUnreachable, match="Nothing answers"):
                client.wait_ready(0.3)


def test_the_error_at_the_other_protocols_port_says_so(script: Script) -> None:
    with grpc_server(script) as grpc_url, http_server(script) as http_url:
        cases = {http_url.removeprefix("http://"): "does not speak gRPC", f"http://{grpc_url}": "does not speak HTTP/1"}
        for url, fix in cases.items():
            with Client(url, retries=0) as client, pytest.raises(errors.ServerUnreachable) as caught:
                client.generate("writer", "write 1")
            assert fix in caught.value.fix


# Run where localhost is ::1, at which an HTTP server listens, and 127.0.0.1, at which nothing does.
OF_TWO_ADDRESSES = """
import socket, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from hfx.client import Client
from hfx.errors import ServerUnreachable
HTTPServer.address_family = socket.AF_INET6
server = HTTPServer(("::1", 0), BaseHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    with Client(f"localhost:{server.server_port}", retries=0) as client:
        client.models()
except ServerUnreachable as error:
    print(error.fix)
"""
OWN_HOSTS = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


@pytest.mark.skipif(subprocess.run([*OWN_HOSTS, "true"], capture_output=True).returncode != 0, reason="no namespaces")
def test_the_error_at_the_other_protocols_port_says_so_for_two_addresses(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("::1 localhost\n127.0.0.1 localhost\n")
    command = f"mount --bind {hosts} /etc/hosts && exec {sys.executable} -"
    found = subprocess.run([*OWN_HOSTS, command], input=OF_TWO_ADDRESSES, text=True, capture_output=True, timeout=60)
    assert "does not speak gRPC" in found.stdout, found.stderr


def test_headers_and_the_token_are_sent_with_every_request(url: str, script: Script) -> None:
    with Client(url, headers={"X-Team": "blue"}, token="s3cret") as client:
        client.generate("writer", "write 1")
        list(client.stream("writer", "write 1"))
    for headers in script.headers:
        assert headers["x-team"] == "blue" and headers["authorization"] == "Bearer s3cret"


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    with Client(url) as client:
        assert client.generate("writer", "write 1").text == "a0 "


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "certificate.pem", folder / "key.pem"
    line = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*line.split(), "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths


def test_grpc_is_encrypted_by_tls(script: Script, certificate: tuple[Path, Path]) -> None:
    signed, key = certificate
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), signed.read_bytes())])
    with grpc_server(script, credentials=credentials) as address:
        check_encryption(f"grpcs://{address}", Tls(ca=signed))


def test_http_is_encrypted_by_tls_and_both_sides_may_be_known(script: Script, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate[0])
    context.load_cert_chain(*certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with http_server(script, context) as url:
        check_encryption(url, Tls(certificate[0], *certificate))


def check_encryption(url: str, tls: Tls) -> None:
    with Client(url, tls=tls, token="s3cret") as client:
        assert client.generate("writer", "write 2").text == "a0 a1 "
        assert len(list(client.stream("writer", "write 2"))) == 2
    assert asked(url, lambda client: client.generate("writer", "write 1"), tls=tls).text == "a0 "
    with Client(url, retries=0) as client, pytest.raises(errors.ServerUnreachable) as caught:
        client.models()
    assert "TLS" in caught.value.fix
