"""Ports of an embedded server: chosen, already taken, or lost while Triton starts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hfx.errors import ServerError, UsageError
from hfx.triton import EmbeddedServer, triton_process
from hfx.triton.server import Ports, choose_ports
from tests.rigs.servers.serve_process import infer
from tests.rigs.servers.short_servers import started
from tests.rigs.servers.toy_models import write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "repository")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("early", [True, False], ids=["before the start", "while Triton starts"])
@pytest.mark.parametrize("use", ["http", "grpc", "metrics"])
def test_a_taken_port_is_named_with_its_option(
    repository: Path, taken: int, use: str, early: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not early:
        monkeypatch.setattr(triton_process, "choose_ports", lose(use, taken, always=True))
    server = EmbeddedServer(repository, **{f"{use}_port": taken})  # type: ignore[arg-type]
    with pytest.raises(ServerError) as caught:
        server.start()
    assert f":{taken}" in caught.value.message
    assert f"--{use}-port" in caught.value.fix
    assert not early or list(temporary.iterdir()) == []


def test_a_free_port_that_is_lost_while_triton_starts_is_replaced(
    repository: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_process, "choose_ports", lose("metrics", taken, always=False))
    with started(repository) as server:
        assert infer(server.http_url, "toy", "x") == "1 characters"
        assert str(taken) not in server.metrics_url


def lose(use: str, port: int, always: bool) -> Callable[..., object]:
    """Return `choose_ports` as if another process took `port` right after the check (the first time, or always)."""
    calls: list[Ports] = []

    def choose(wanted: Ports, host: str) -> Ports:
        free = choose_ports(replace(wanted, **{use: 0}), host)
        calls.append(free)
        return replace(free, **{use: port}) if always or len(calls) == 1 else free

    return choose


def test_equal_or_out_of_range_ports_are_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="--http-port and --grpc-port"):
        EmbeddedServer(repository, http_port=9000, grpc_port=9000).start()
    for port in (-1, 65536):
        with pytest.raises(UsageError):
            EmbeddedServer(repository, http_port=port).start()
