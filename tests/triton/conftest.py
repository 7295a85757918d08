"""Fixtures of the generation tests on a real server: generators, each exported once, and a server of all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hfx.client import Client
from hfx.triton import EmbeddedServer
from tests.conftest import publish
from tests.rigs.checkpoints import chat_generator, reciting_generator, tiny_checkpoints, tiny_translators
from tests.rigs.checkpoints.published import export_random, export_zoo
from tests.rigs.clients.dialect_calls import (
    API_KEY,
    BOUNDED_KEY,
    CHAT_TEMPLATE,
    ENCODERS,
    EXACT,
    RANKER,
    TALKER,
    TIGHT_KEYS,
)
from tests.rigs.servers.generation_server import RECITAL, RUNTIMES, SLOTS, TRANSLATOR, WRITERS
from tests.rigs.servers.module_server import client, served  # noqa: F401 - fixtures
from tests.rigs.servers.perf_server import hfx, perf_models, perf_server  # noqa: F401 - fixtures
from tests.rigs.servers.serve_process import ServeProcess, serving
from tests.rigs.servers.short_servers import started

if TYPE_CHECKING:  # it takes two seconds to import
    import openai


@pytest.fixture(scope="session")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of WRITERS and a classifier, trained and int8, of RECITAL, and of TRANSLATOR, an mBART.

    The generators have few slots, so that requests have to wait.
    """
    folder = tmp_path_factory.mktemp("writers")
    for name, checkpoint in WRITERS.items():
        export_zoo(checkpoint, folder, name, "int8", RUNTIMES[name], slots=SLOTS[name])
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8")
    checkpoints = tmp_path_factory.mktemp("checkpoint")
    reciting_generator.save(checkpoints / RECITAL)
    tiny_translators.save(checkpoints / TRANSLATOR, "mbart")
    for name in (RECITAL, TRANSLATOR):
        export_random(checkpoints / name, folder, name=name, slots=SLOTS[name])
    return folder


@pytest.fixture(scope="session")
def writing_server(writers: Path) -> Iterator[EmbeddedServer]:
    """A real Triton that serves the models of `writers`; tests leave it unchanged."""
    with started(writers) as running:
        yield running


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder for this test and for the processes that it starts."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture(scope="session")
def recital() -> reciting_generator.Recital:
    """The expected texts of RECITAL."""
    return reciting_generator.Recital()


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of TALKER."""
    return chat_generator.save(tmp_path_factory.mktemp("checkpoint") / TALKER)


@pytest.fixture(scope="session")
def many_tasks(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model for nearly each task, RECITAL, and RANKER and TALKER, whose weights are random."""
    folder = tmp_path_factory.mktemp("many-tasks")
    for name in ENCODERS:
        publish(name, folder)
    for name in ("stories", "summaries"):
        export_zoo(WRITERS[name], folder, name, "int8", RUNTIMES[name], slots=SLOTS[name])
    export_zoo(WRITERS["summaries"], folder, EXACT, "fp32", "onnxruntime", slots=SLOTS["summaries"])
    ranker = tiny_checkpoints.save(tmp_path_factory.mktemp("checkpoint") / RANKER, tiny_checkpoints.cross_encoder())
    export_random(ranker, folder, name=RANKER)
    checkpoint = reciting_generator.save(tmp_path_factory.mktemp("checkpoint") / RECITAL)
    (checkpoint / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    export_random(checkpoint, folder, name=RECITAL, slots=SLOTS[RECITAL])
    export_random(talker, folder, name=TALKER)
    return folder


@pytest.fixture(scope="session")
def dialects(many_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """`hfx serve` of `many_tasks`, with API_KEY, BOUNDED_KEY and TIGHT_KEYS."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    bounded = [f"bounded:{BOUNDED_KEY} tokens_per_minute=40"]
    bounded += [f"{key}:{key} tokens_per_minute=3" for key in TIGHT_KEYS]
    keys.write_text("\n".join([API_KEY, *bounded]), encoding="utf-8")
    with serving(many_tasks, "--api-key-file", str(keys), "--access-log", "json") as running:
        yield running


@pytest.fixture(scope="session")
def openai_api(dialects: ServeProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the same server."""
    import openai

    with openai.OpenAI(base_url=f"{dialects.http_url}/v1", api_key=API_KEY, max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="session")
def grpc(dialects: ServeProcess) -> Iterator[Client]:
    """hfx's client of the same server, over gRPC."""
    with Client(dialects.ready["grpc_url"]) as opened:
        yield opened
