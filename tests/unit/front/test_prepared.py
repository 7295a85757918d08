"""A front that is started while Triton starts: it serves nothing before Triton is ready."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from hfx.errors import ServerError
from hfx.front.settings import Settings
from hfx.triton.front import Front
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import SECONDS, ask, connect, post, upstream


@pytest.fixture
def prepared() -> Iterator[Front]:
    front = Front("127.0.0.1", 0, Settings())
    front.prepare()
    wait_until(lambda: front.pid)
    yield front
    front.kill()


def test_it_refuses_connections_until_it_is_started(prepared: Front) -> None:
    first = prepared.pid
    with pytest.raises(ConnectionRefusedError):
        connect(prepared)
    with upstream() as (port, _):
        prepared.start(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}")
        assert ask(prepared, post(b"{}"))[0] == 200
    assert prepared.pid == first


def test_it_ends_if_it_is_never_started(prepared: Front) -> None:
    assert prepared.stop(SECONDS)
    prepared._thread.join(SECONDS)
    assert not prepared._thread.is_alive()


def test_its_death_is_reported_by_the_start(prepared: Front) -> None:
    os.kill(prepared.pid, signal.SIGKILL)
    with pytest.raises(ServerError, match="The HTTP front died"):
        prepared.start("http://127.0.0.1:1", "http://127.0.0.1:1")
