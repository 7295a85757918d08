"""What many tests share: published models of trained checkpoints, and one real server that serves them all."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.exporter.pipeline import export
from hfx.exporter.plan import ExportOptions, make_plan
from hfx.exporter.runtime import weight_levels
from hfx.exporter.source import open_checkpoint
from hfx.manifest import Manifest
from hfx.triton import EmbeddedServer
from tests import zoo

VNNI = weight_levels() == 127

# Published name -> (checkpoint, precision, runtime). Both precisions of every task, and both runtimes of one. Without
# VNNI the last bits of OpenVINO's int8 encoders often depend on the batch, and an export that asks for them is refused;
# where they don't, OpenVINO has 8-bit weights all the same, and `entities` and `answers` lose too much with 7 bits.
PUBLISHED = {
    "sentiment-fp32": ("sentiment-distilbert", "fp32", "onnxruntime"),
    "sentiment-fp32-openvino": ("sentiment-distilbert", "fp32", "openvino"),
    "sentiment-int8": ("sentiment-distilbert", "int8", "openvino" if VNNI else "auto"),
    "sentiment-int8-rows": ("sentiment-distilbert", "int8", "onnxruntime"),
    "topics-fp32": ("topics-roberta", "fp32", "auto"),
    "topics-int8": ("topics-roberta", "int8", "auto"),
    "entities-fp32": ("entities-bert", "fp32", "auto"),
    "entities-int8": ("entities-bert", "int8", "auto" if VNNI else "openvino"),
    "answers-fp32": ("answers-bert", "fp32", "auto"),
    "answers-int8": ("answers-bert", "int8", "auto" if VNNI else "openvino"),
    "nli-fp32": ("nli-bart", "fp32", "auto"),
    "nli-int8": ("nli-bart", "int8", "auto"),
    "similar-fp32": ("similar-mpnet", "fp32", "auto"),
    "similar-int8": ("similar-mpnet", "int8", "auto"),
    "electra-int8": ("sentiment-electra", "int8", "auto"),
    "albert-int8": ("sentiment-albert", "int8", "auto"),
    "deberta-int8": ("sentiment-deberta", "int8", "auto"),
    "xlm-roberta-int8": ("sentiment-xlm-roberta", "int8", "auto"),
    "bert-int8": ("sentiment-bert", "int8", "auto"),
}


# Tests that import openvino themselves report as little to its maker as the product does.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

# A shell that starts the tests in the background makes them, and all that they start, deaf to SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


def export_zoo(
    checkpoint: str, repository: Path, name: str, precision: str, runtime: str = "auto", **options: object
) -> Manifest:
    """Export a zoo checkpoint for CPU into `repository`.

    7-bit weights, as a processor without VNNI takes them, cost stories-gpt2 1.1 % of its tokens: there 2 % may change.
    """
    if checkpoint == "stories-gpt2" and precision == "int8" and not VNNI:
        options = {"max_drop": 0.02, **options}
    chosen = ExportOptions(
        name=name,
        precision=precision,
        device="cpu",
        cpu_runtime=runtime,  # type: ignore[arg-type]
        repository=repository,
        **options,  # type: ignore[arg-type]
    )
    return export(make_plan(open_checkpoint(str(zoo.checkpoint(checkpoint))), chosen), lambda title: nullcontext())


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with everything in PUBLISHED."""
    folder = tmp_path_factory.mktemp("repository")
    for name, (checkpoint, precision, runtime) in PUBLISHED.items():
        export_zoo(checkpoint, folder, name, precision, runtime)
    return folder


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[EmbeddedServer]:
    """A real Triton that serves `repository`."""
    with EmbeddedServer(repository) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    """A client of `server`."""
    with Client(server.grpc_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def pipe() -> Callable[..., object]:
    """transformers' own pipeline on a zoo checkpoint, made once for each task and checkpoint."""

    @cache
    def make(task: str, checkpoint: str, **options: object) -> object:
        from transformers import pipeline

        return pipeline(task, model=str(zoo.checkpoint(checkpoint)), device="cpu", **options)  # type: ignore[call-overload]

    return make
