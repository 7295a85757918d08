"""Models that are published again while served: no request fails, and each answer is of the old or new model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.errors import ModelMissing, ServerError
from hfx.triton import EmbeddedServer
from hfx.triton.loaded_models import entry_points
from tests.rigs.clients.repeated_calls import calling
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.toy_models import MODEL, PYTHON, TENSORS, loading, write_model, write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]
STEP = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb.get_input_tensor_by_name(request, "text_input").as_numpy()[0, 0].decode()
        return pb.InferenceResponse([pb.Tensor("text_output", np.array([[f"{text} GENERATION".encode()]], np.object_))])
"""
STEP_CONFIG = """
backend: "python"
max_batch_size: 8
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "echo_tokenize" model_version: -1
    input_map { key: "text_input" value: "text_input" } output_map { key: "text_output" value: "between" } },
  { model_name: "echo_net" model_version: -1
    input_map { key: "text_input" value: "between" } output_map { key: "text_output" value: "text_output" } }
] }
"""


def write_echo(repository: Path, generation: str, broken: bool = False) -> None:
    """Write an ensemble of two steps that each add `generation` to the text; with `broken` the second does not load."""
    for step in ("echo_tokenize", "echo_net"):
        model = STEP.replace("GENERATION", generation)
        if broken and step == "echo_net":
            model = "raise ValueError('no net')"
        for old in repository.glob(f"{step}/1/*"):
            old.unlink()
        write_folder(repository / step, STEP_CONFIG, model)
    write_folder(repository / "echo", ENSEMBLE)


def write_folder(folder: Path, config: str, model: str = "") -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / ("model.py" if model else ".keep")).write_text(model)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = write_toy(tmp_path / "repository", "other")
    write_echo(folder, "old")
    return folder


@contextmanager
def started(repository: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(repository, private=True) as server:
        try:
            yield server
        finally:
            server.kill()


def echo(client: Client) -> str:
    [[answer]] = client.infer("echo", {"text_input": ["x"]})["text_output"].tolist()
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def test_each_answer_under_load_is_wholly_of_one_publication_and_a_broken_one_is_left_out(repository: Path) -> None:
    with started(repository) as server:
        before, pid = server.stubs(), server.pid
        with calling(server.grpc_url, [echo] * 2) as outcomes:
            for generation, last in (("new", "old"), ("newer", "new")):
                wait_until(lambda last=last: outcomes[f"x {last} {last}"] >= 20)  # type: ignore[misc]
                write_echo(repository, generation)
                server.loaded.reload("echo")
                with Client(server.grpc_url) as client:
                    assert echo(client) == f"x {generation} {generation}"
            assert server.pid == pid and server.fault() == ""
            wait_until(lambda: all(len(pids) == 1 for pids in server.stubs().values()), "the old processes end")
            wait_until(lambda: set(server.stubs()) == set(before), "those of the time between end")
            assert not {pid for pids in server.stubs().values() for pid in pids} & {*before["echo_net_0_0"]}
            assert entry_points(server.http_url) == ["echo", "other"]
            assert set(outcomes) == {"x old old", "x new new", "x newer newer"}
            write_echo(repository, "torn", broken=True)
            with pytest.raises(ServerError, match="no net"):
                server.loaded.reload("echo")
            answered = outcomes["x newer newer"]
            wait_until(lambda: outcomes["x newer newer"] >= answered + 20)
            assert set(server.statistics()) == {"echo", "echo_net", "echo_tokenize", "other", "other_tokenize"}
            assert server.fault() == ""
            server.restart()  # from the same files as before
            answered = outcomes["x newer newer"]
            wait_until(lambda: outcomes["x newer newer"] >= answered + 20)
        assert not [outcome for outcome in outcomes if "torn" in outcome]
        assert set(server.stubs()) == set(before)


def test_models_are_added_taken_out_and_reloaded_whatever_they_are_made_of(repository: Path) -> None:
    write_model(repository, "single", PYTHON, MODEL)
    with started(repository) as server:
        write_toy(repository, "added")
        server.loaded.reload("added")
        server.loaded.unload("other")
        assert entry_points(server.http_url) == ["added", "echo", "single"]
        with Client(server.grpc_url) as client:
            assert client.classify("added", "four").label == "4 characters"
        wait_until(lambda: "other_tokenize_0_0" not in server.stubs())
        server.restart()
        assert entry_points(server.http_url) == ["added", "echo", "single"]
        with pytest.raises(ModelMissing):
            server.loaded.reload("nonesuch")
        with Client(server.grpc_url) as client:
            write_folder(repository / "single", PYTHON, MODEL.replace("characters", "letters"))
            server.loaded.reload("single")
            assert client.classify("single", "four").label == "4 letters"
            write_folder(repository / "single", PYTHON, loading("raise ValueError('what')"))
            with pytest.raises(ServerError, match="what"):
                server.loaded.reload("single")
            assert client.classify("single", "four").label == "4 letters"
            (repository / "echo" / "1" / ".keep").unlink()
            write_folder(repository / "echo", 'backend: "python"' + TENSORS, MODEL)
            server.loaded.reload("echo")
            assert client.classify("echo", "four").label == "4 characters"
