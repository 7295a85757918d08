"""`hfx serve` recovers from killed and stopped processes, prints a line about it, and leaves nothing behind."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from grpc import RpcError, insecure_channel
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from hfx.errors import ServerError
from hfx.triton import process, recovery, supervisor
from hfx.triton.liveness import call
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import ServeProcess, infer, left_behind, post, running_in, serving
from tests.rigs.servers.short_servers import started
from tests.rigs.servers.toy_models import PYTHON, loading, write_flaky, write_model, write_ticks, write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of `served`."""
    return tmp_path_factory.mktemp("tmp")


@pytest.fixture(scope="module")
def served(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A server of an encoder `toy`, a generator `stories` and a slow stream `ticks`, whose processes are killed."""
    folder = write_ticks(write_toy(tmp_path_factory.mktemp("repository")))
    export_zoo("stories-gpt2", folder, "stories", "int8", "onnxruntime", slots=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(workspace))
        with serving(folder) as running:
            yield running


@pytest.fixture
def flaky(tmp_path: Path) -> tuple[Path, Path]:
    """A repository whose model does not load while a file exists, and that file."""
    flag = tmp_path / "flag"
    return write_flaky(tmp_path / "repository", flag), flag


def answers(http_url: str) -> bool:
    """Return whether every model answers: the encoder, and the generator through its relay and directly."""
    try:
        assert infer(http_url, "toy", "four") == "4 characters"
        assert infer(http_url, "stories", "Once upon a time", max_tokens=3)
        status, answer = post(f"{http_url}/v2/models/stories_stream/generate", {"text_input": "Once", "max_tokens": 3})
    except (OSError, AssertionError):
        return False
    return status == 200 and "text_output" in answer


def stop(served: ServeProcess) -> None:
    group = served.server
    served.running.terminate()
    assert served.end() == 0, served.words
    assert running_in(group) == []
    assert left_behind() == []


def test_each_killed_process_is_replaced_and_its_open_stream_broken(served: ServeProcess) -> None:
    restarts = served.words.count("serving again")
    with urllib.request.urlopen(
        f"{served.http_url}/v2/models/ticks/generate_stream", b'{"text_input": "100000"}', timeout=60
    ) as stream:
        assert stream.readline().startswith(b"data: ")
        os.kill(served.stub("ticks"), signal.SIGKILL)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            stream.read()
    served.wait_for_words("the Python process of ticks died (killed by signal 9); serving again after")
    for model in ("toy_tokenize", "stories_stream", ""):
        before = served.server
        os.kill(served.stub(model) if model else before, signal.SIGKILL)
        died = f"the Python process of {model} died" if model else "tritonserver died"
        served.wait_for_words(f"{died} (killed by signal 9); serving again after")
        wait_until(lambda: answers(served.http_url))
        if model == "toy_tokenize":
            assert served.server == before
        if not model:
            assert running_in(before) == []
    assert served.words.count("serving again") == restarts + 4
    lines = call(f"{served.http_url}/metrics").decode().splitlines()
    values = dict(line.split() for line in lines if line.startswith(("hfx_restarts", "hfx_start_time")))
    assert len(values) == 2 and float(values["hfx_restarts_total"]) > 0


def test_a_stopped_engine_is_found_while_streams_come_in(served: ServeProcess) -> None:
    """Each failed stream changes Triton's statistics, which is not progress; the relay hangs and must not hide it."""
    ended = threading.Event()

    def keep_streaming(url: str) -> None:
        while not ended.is_set():
            with suppress(OSError, http.client.HTTPException):
                post(f"{url}/v2/models/stories_stream/generate", {"text_input": "Once", "max_tokens": 20}, 5.0)

    streams = [threading.Thread(target=keep_streaming, args=(served.http_url,)) for _ in range(4)]
    for stream in streams:
        stream.start()
    try:
        wait_until(lambda: answers(served.http_url))
        restarts = served.words.count("serving again after")
        os.kill(served.stub("stories_stream"), signal.SIGSTOP)
        # It takes 6 to 10 s with three processes for each core.
        wait_until(lambda: served.words.count("serving again after") > restarts, "a restart", 40)
        wait_until(lambda: answers(served.http_url))
    finally:
        ended.set()
        for stream in streams:
            stream.join()
    assert "stories_stream can't answer" in served.words or "requests failed and none succeeded" in served.words


def test_an_engine_that_triton_keeps_loaded_is_no_lost_request(
    served: ServeProcess, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton 2.51, a request that fails with its stopped engine keeps the engine loaded; `ticks` counts none."""
    monkeypatch.setattr(tempfile, "tempdir", str(workspace))
    stream = f"{served.http_url}/v2/models/stories_stream/generate"
    wait_until(lambda: answers(served.http_url))
    engine, restarts = served.stub("stories_stream"), served.words.count("serving again after")
    [count] = workspace.glob(f"hfx-triton-*/open_requests/{engine}")
    wait_until(lambda: not any(count.read_bytes()))
    os.kill(engine, signal.SIGSTOP)
    assert "not healthy" in post(stream, {"text_input": "Once", "max_tokens": 2})[1]["error"]
    wait_until(lambda: served.words.count("serving again after") > restarts)
    stop(served)
    assert "no accepted request was lost" in served.words


def test_a_crash_while_the_models_load_is_no_failed_start(tmp_path: Path, temporary: Path) -> None:
    write_model(tmp_path / "repository", "slow", PYTHON, loading("time.sleep(0.5)"))
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")  # servers are started by the main thread
    others = set(own.read_text().split())  # those of the session

    def kill() -> None:
        fresh = wait_until(
            lambda: [int(child) for child in {*own.read_text().split()} - others if process.stubs(int(child))]
        )
        os.kill(fresh[0], signal.SIGSEGV)

    killer = threading.Thread(target=kill)
    killer.start()
    with started(tmp_path / "repository") as server:
        killer.join()
        assert infer(server.http_url, "slow", "four") == "4 characters"
    assert left_behind() == []


def test_too_many_failed_restarts_in_a_row_end_the_server(
    flaky: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    repository, flag = flaky
    monkeypatch.setattr(recovery, "MAX_RESTARTS", 2)
    said: list[str] = []
    with started(repository) as server:
        flag.touch()
        os.kill(server.stubs()["flaky_0_0"][0], signal.SIGKILL)
        with pytest.raises(ServerError) as caught:
            supervisor.keep_serving(server, said.append)
    assert "2 restarts in a row" in caught.value.message
    assert "ValueError: the flag is set" in caught.value.message
    assert len(said) == 2
    [log] = [path for path in temporary.rglob("*") if path.is_file()]
    assert str(log) in caught.value.fix
    assert "the flag is set" in log.read_text()


def test_a_server_that_requests_end_again_and_again_is_started_again_each_time(
    flaky: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr(recovery, "MAX_RESTARTS", 2)
    monkeypatch.setattr(recovery, "MAX_PAUSE_SECONDS", 0.1)
    said: list[str] = []

    class Enough(Exception):
        pass

    with started(flaky[0]) as server:

        def divide_by_zero() -> None:
            request = service_pb2.ModelInferRequest(model_name="flaky")
            text = request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
            text.contents.bytes_contents.append(b"four")
            request.outputs.add(name="label").parameters["classification"].int64_param = 1
            with insecure_channel(server.grpc_url) as channel, pytest.raises(RpcError):
                GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)

        def report(line: str) -> None:
            said.append(line)
            if len(said) == 4:
                raise Enough
            divide_by_zero()

        divide_by_zero()
        with pytest.raises(Enough):
            supervisor.keep_serving(server, report)
    assert all("signal 8, as by a gRPC request" in line for line in said)
    assert ["in a row" in line for line in said] == [False, True, True, True]


def test_a_server_that_is_ended_as_it_starts_is_started_again_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr(recovery, "MAX_RESTARTS", 2)
    monkeypatch.setattr(recovery, "MAX_PAUSE_SECONDS", 0.1)
    flag, starts = tmp_path / "flag", tmp_path / "starts"
    model = loading(
        "import os, signal",
        f"open({str(starts)!r}, 'a').write('x')",
        f"if os.path.exists({str(flag)!r}):",
        "    os.kill(os.getppid(), signal.SIGFPE)",
        "    time.sleep(60)",
    )
    write_model(tmp_path / "repository", "deadly", PYTHON, model)

    class Enough(Exception):
        pass

    def report(line: str) -> None:
        if "serving again" in line:
            raise Enough

    def remove_flag() -> None:
        wait_until(lambda: len(starts.read_text()) > 5)
        flag.unlink()

    with started(tmp_path / "repository") as server:
        flag.touch()
        threading.Thread(target=remove_flag).start()
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(Enough):
            supervisor.keep_serving(server, report)
        assert infer(server.http_url, "deadly", "four") == "4 characters"


def test_a_port_that_is_lost_meanwhile_is_named_and_a_later_restart_takes_it_back(flaky: tuple[Path, Path]) -> None:
    with started(flaky[0]) as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(server.fault)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = int(server.http_url.rsplit(":", 1)[1])
            other.bind(("127.0.0.1", port))
            other.listen()
            with pytest.raises(ServerError, match=f":{port}"):
                server.restart()
        server.restart()
        assert infer(server.http_url, "flaky", "four") == "4 characters"


def test_a_killed_hfx_serve_ends_triton_and_the_next_start_cleans_up(flaky: tuple[Path, Path]) -> None:
    with serving(flaky[0]) as served:
        group = served.server
        served.running.kill()
        wait_until(lambda: not running_in(group))
    assert left_behind()
    with started(flaky[0]):
        assert len(left_behind()) <= 3  # its own folder and regions
    assert left_behind() == []
