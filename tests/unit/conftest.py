"""A client of a server in this process that answers as it is told, over gRPC and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hfx.client import Client
from tests.unit.client_servers import Script, grpc_server, http_server


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture(params=[grpc_server, http_server])
def url(request: pytest.FixtureRequest, script: Script) -> Iterator[str]:
    with request.param(script) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, timeout=15, retries=0) as opened:
        yield opened
