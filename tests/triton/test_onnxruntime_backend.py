"""Encoders in NVIDIA's onnxruntime backend, which pads batches: answers are the same alone and in a batch.

HFX_TEST_ONNXRUNTIME_BACKEND names the folder of an installation of it, such as backends/onnxruntime of NVIDIA's images;
no package registry has one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hfx.client import Client
from hfx.local.encoder import LocalModel
from hfx.process import end
from hfx.triton import process
from hfx.triton.server import Ports, choose_ports, is_ready
from tests import zoo
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers import installed_triton

BACKEND = os.environ.get("HFX_TEST_ONNXRUNTIME_BACKEND", "")
pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(not BACKEND, reason="HFX_TEST_ONNXRUNTIME_BACKEND names no installation of NVIDIA's backend"),
]
MODELS = {
    "sentiment": "sentiment-distilbert",
    "entities": "entities-bert",
    "answers": "answers-bert",
    "topics": "topics-roberta",
    "nli": "nli-bart",
    "similar": "similar-mpnet",
}
SENTENCES = [example.text for example in zoo.heldout("sentiment", 40)]
TEXTS = [" ".join(SENTENCES[at : at + 1 + at % 9]) for at in range(30)]
LABELS = ["good", "bad", "about sports", "a much longer label", "weather"]
CALLS: dict[str, Callable[[Client, int], Any]] = {
    "sentiment": lambda client, at: client.classify("sentiment", TEXTS[at]),
    "topics": lambda client, at: client.classify("topics", TEXTS[at]),
    "entities": lambda client, at: client.label_tokens("entities", TEXTS[at]),
    "answers": lambda client, at: client.answer("answers", "Who was it?" * (1 + at % 3), TEXTS[at]),
    "nli": lambda client, at: client.zero_shot("nli", TEXTS[at], LABELS[: 1 + at % len(LABELS)]),
    "similar": lambda client, at: client.embed("similar", TEXTS[at]).tolist(),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name, checkpoint in MODELS.items():
        export_zoo(checkpoint, folder, name, "int8", "onnxruntime")
    return folder


@pytest.fixture(scope="module")
def client(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a plain tritonserver."""
    place = tmp_path_factory.mktemp("plain")
    wheel, ports = installed_triton.find(), choose_ports(Ports(), "127.0.0.1")
    backends = wheel.backend_directory(place / "backends")
    shutil.rmtree(backends / "onnxruntime")
    (backends / "onnxruntime").symlink_to(BACKEND)
    addresses = [f"--{use}-address=127.0.0.1" for use in ("http", "grpc", "metrics")]
    numbers = [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
    prefix = f"--backend-config=python,shm-region-prefix-name=onnxruntime_test_{os.getpid()}_"
    folders = [f"--model-repository={repository}", f"--backend-directory={backends}"]
    running = process.spawn(
        [str(wheel.binary), *folders, *addresses, *numbers, prefix], place / "log", wheel.environment, place
    )
    try:
        wait_until(lambda: running.poll() is not None or is_ready(f"http://127.0.0.1:{ports.http}"), "ready")
        assert running.poll() is None, (place / "log").read_text()[-4000:]
        with Client(f"127.0.0.1:{ports.grpc}") as connected:
            yield connected
    finally:
        end(running, grace=20)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:A text is longer")
def test_a_request_has_the_same_answer_alone_and_in_a_padded_batch(client: Client, name: str) -> None:
    alone = [CALLS[name](client, at) for at in range(len(TEXTS))]
    with ThreadPoolExecutor(24) as callers:
        in_company = list(callers.map(lambda at: CALLS[name](client, at), range(len(TEXTS))))
    assert in_company == alone


def test_answers_are_those_of_the_session_in_this_process(client: Client, repository: Path) -> None:
    here = LocalModel.open(repository, "sentiment")
    for text in SENTENCES:
        expected, answer = here.infer({"text_input": text}), client.classify("sentiment", text)
        assert [each.label for each in answer.predictions] == expected["label"]
        assert [each.score for each in answer.predictions] == expected["score"]
