"""Fixtures that serve a module's own `repository` by `hfx serve` and connect a client of each protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.client import Client
from tests.rigs.servers.serve_process import ServeProcess, serving


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[ServeProcess]:
    """`hfx serve` of `repository`."""
    with serving(repository) as running:
        yield running


@pytest.fixture(params=["grpc_url", "http_url"])
def client(request: pytest.FixtureRequest, served: ServeProcess) -> Iterator[Client]:
    """A client of the server, over gRPC and over HTTP."""
    with Client(served.ready[request.param]) as opened:
        yield opened
