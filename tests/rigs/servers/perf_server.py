"""What the tests of hfx perf on a real server share: a small classifier, a small generator, and a Triton of both.

conftest.py hands the fixtures to all tests, which leave them as they were found.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.servers.serve_process import HFX

CLASSIFIER, GENERATOR = "sentiment", "stories"
SLOTS = 8
PATIENCE = 120  # seconds until a test gives up; nothing should take as long

Ended = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def perf_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of CLASSIFIER and GENERATOR, both trained and int8."""
    folder = tmp_path_factory.mktemp("perf")
    export_zoo("sentiment-distilbert", folder, CLASSIFIER, "int8")
    export_zoo("stories-gpt2", folder, GENERATOR, "int8", "onnxruntime", slots=SLOTS)
    return folder


@pytest.fixture(scope="session")
def perf_server(perf_models: Path) -> Iterator[EmbeddedServer]:
    """A real Triton that serves them."""
    with EmbeddedServer(perf_models) as running:
        yield running


@pytest.fixture
def hfx(tmp_path: Path) -> Callable[..., Ended]:
    """`hfx WORDS` as a process of its own, in a folder of its own."""

    def run(*words: str, **environment: str) -> Ended:
        return subprocess.run(
            [*HFX, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, **environment},
        )

    return run
