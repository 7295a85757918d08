"""Fixtures of the `hfx perf` tests on a real server: a small classifier, a small generator, and a Triton for both.

conftest.py gives the fixtures to all tests, which leave them unchanged.
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
    """A real Triton that serves the models."""
    with EmbeddedServer(perf_models) as running:
        yield running


@pytest.fixture
def hfx(tmp_path: Path) -> Callable[..., Ended]:
    """A function that runs `hfx WORDS` as a separate process in a separate folder."""

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
