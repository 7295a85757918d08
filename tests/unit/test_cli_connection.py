"""How `hfx infer` reaches a server: what its options become, seen by a server that only listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.cli.connection import Connection, connect
from hfx.client.session import Limits


class Listener(BaseHTTPRequestHandler):
    """Notes the headers of every request, and knows no model."""

    def do_GET(self) -> None:
        self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
        self.send_error(404)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        server.seen = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def sent(server: ThreadingHTTPServer, *words: str) -> dict[str, str]:
    """The headers of the first request of `hfx infer`."""
    assert main(["infer", "m", "x", "--retries", "0", "--url", f"http://127.0.0.1:{server.server_port}", *words]) == 5
    return {name.lower(): value for name, value in server.seen[0].items()}  # type: ignore[attr-defined]


def test_headers_are_sent(listener: ThreadingHTTPServer) -> None:
    found = sent(listener, "--header", "x-tenant: blue", "--header", "X-Time:10:30")
    assert (found["x-tenant"], found["x-time"]) == ("blue", "10:30")
    assert "authorization" not in found


def test_the_token_of_the_environment_is_sent(listener: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFX_TOKEN", "secret\n")
    assert sent(listener)["authorization"] == "Bearer secret"


def test_a_token_s_file_goes_first(
    listener: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HFX_TOKEN", "other")
    (tmp_path / "token").write_text("mine\n")
    assert sent(listener, "--token-file", str(tmp_path / "token"))["authorization"] == "Bearer mine"


def test_limits_are_the_client_s() -> None:
    with connect(Connection(timeout=7, idle_timeout=3, max_in_flight=5, retries=4)) as client:
        assert client._session.limits == Limits(timeout=7, idle_timeout=3, max_in_flight=5)
        assert client._session.retries._policy.attempts == 5
