"""How `hfx infer` connects to a server: the effect of its options, as the server sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.cli.connection import Connection, connect
from hfx.client.session import Limits
from tests.rigs.clients.client_servers import Script

Sent = Callable[..., dict[str, str]]


@pytest.fixture
def sent(url: str, script: Script) -> Sent:
    """A function that returns the headers of the request of `hfx infer` with the given options."""

    def infer(*options: str) -> dict[str, str]:
        assert main(["infer", "writer", "write 1", "--url", url, *options]) == 0
        return script.headers[0]

    return infer


def test_header_options_are_sent_as_headers(sent: Sent) -> None:
    found = sent("--header", "x-tenant: blue", "--header", "X-Time:10:30")
    assert (found["x-tenant"], found["x-time"]) == ("blue", "10:30")
    assert "authorization" not in found


def test_the_token_of_the_environment_is_sent(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFX_TOKEN", "secret\n")
    assert sent()["authorization"] == "Bearer secret"


def test_a_token_file_wins_over_the_environment(sent: Sent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFX_TOKEN", "other")
    (tmp_path / "token").write_text("mine\n")
    assert sent("--token-file", str(tmp_path / "token"))["authorization"] == "Bearer mine"


def test_timeout_and_retry_options_become_limits_of_the_client() -> None:
    with connect(Connection(timeout=7, idle_timeout=3, max_in_flight=5, retries=4)) as client:
        assert client._session.limits == Limits(timeout=7, idle_timeout=3, max_in_flight=5)
        assert client._session.retries._policy.attempts == 5
