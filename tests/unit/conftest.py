"""Servers in this process that answer by a script: one for clients, over gRPC and HTTP, and one for loads."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hfx.client import Client
from hfx.exporter import gate_texts
from hfx.exporter.parity_texts import bundled_texts
from tests.rigs.checkpoints import published
from tests.rigs.clients.client_servers import Script, grpc_server, http_server
from tests.rigs.files.batch_jobs import batch, batch_repository, classifier, generator, memory  # noqa: F401 - fixtures
from tests.rigs.servers.perf_fake_server import FakeServer


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Keep what a slow test has imported out of garbage collections, as tests/conftest.py does at the end of a file."""
    if item.get_closest_marker("slow"):
        gc.collect()
        gc.freeze()


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


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def few_ordinary_texts(pytestconfig: pytest.Config) -> Iterator[None]:
    """Compare encoders of this test on a quarter of the ordinary texts, few made ones, and all edge cases.

    make test-full compares them on all texts. For tests that compare the answers with a library's themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "not full" in pytestconfig.option.markexpr:
            patch.setattr(gate_texts, "bundled_texts", lambda: bundled_texts()[::4])
            patch.setattr(gate_texts, "WHOLE", 128)
            patch.setattr(gate_texts, "MADE", 16)
            patch.setattr(gate_texts, "LONG", 1)
        yield


@pytest.fixture
def few_texts() -> Iterator[None]:
    """Compare exports of this test on few texts."""
    with published.few_texts():
        yield


@pytest.fixture
def least_texts() -> Iterator[None]:
    """Compare exports of this test on as few texts as the largest checkpoint."""
    with published.few_texts(2):
        yield
