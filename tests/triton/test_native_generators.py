"""A generator on native operators in a real Triton loads its own library, or falls back to ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.local.generator import LocalGenerator
from hfx.native.build import LIBRARY
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.processors import HAS_NATIVE
from tests.rigs.servers.generation_server import RUNTIMES, WRITERS
from tests.rigs.servers.short_servers import started

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(not HAS_NATIVE, reason="native operators are not built, or don't run here"),
]
NAME = "summaries"
TEXTS = [example.prompt + example.continuation for example in zoo.heldout(NAME, 4)]


def libraries(server: EmbeddedServer) -> set[str]:
    """Return the libraries of native operators that the engine's stub has loaded."""
    ((engine,),) = (pids for name, pids in server.stubs().items() if name.startswith(f"{NAME}_stream"))
    return set(re.findall(rf"(/\S+{LIBRARY})$", Path(f"/proc/{engine}/maps").read_text(), re.MULTILINE))


def answers(server: EmbeddedServer) -> list[str]:
    with Client(server.grpc_url) as client:
        return [client.generate(NAME, text, num_beams=beams, max_tokens=12).text for text in TEXTS for beams in (1, 4)]


def test_the_engine_has_loaded_its_own_library(writing_server: EmbeddedServer) -> None:
    assert RUNTIMES[NAME] == "native"
    (loaded,) = libraries(writing_server)
    assert loaded.endswith(f"/{NAME}_stream/1/cpu/{LIBRARY}")


def test_a_server_without_kernels_is_served_by_onnxruntime_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_zoo(WRITERS[NAME], tmp_path, NAME, "int8", "native", slots=8)
    with LocalGenerator.open(tmp_path, NAME, cpu_runtime="onnxruntime") as generator:
        asked = [{"text_input": text, "num_beams": beams, "max_tokens": 12} for text in TEXTS for beams in (1, 4)]
        expected = [each["text_output"] for each in generator.infer_all(asked)]
    monkeypatch.setenv("HFX_NATIVE_KERNELS", "none")
    with started(tmp_path) as server:
        assert answers(server) == expected
        said = [line for line in server.log.read_text().splitlines() if "ONNX Runtime serves in the place" in line]
    (line,) = said
    assert "no AVX2" in line
