"""Starting and ending the real embedded server: ports, models, failures, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc

from hfx.client import Client
from hfx.errors import RepositoryError, ServerError, UsageError
from hfx.triton import EmbeddedServer, models, process, triton_process
from hfx.triton.process import is_running
from hfx.triton.server import Ports, choose_ports
from hfx.triton.workspace import KEPT_LOGS, SHARED_MEMORY, region_prefix, sweep
from tests.triton.serve_process import FREE_PORTS, HFX, infer, left_behind, serving
from tests.triton.toy_models import MODEL, PYTHON, ensemble, loading, write_model, write_toy
from tests.waiting import wait_until

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]
NO_TOKENIZER = loading("raise ValueError('no tokenizer')")
SLOW = loading("time.sleep(60)")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "repository")


@contextmanager
def started(repository: Path, **options: Any) -> Iterator[EmbeddedServer]:
    """A server that is killed at the end: a graceful stop takes seconds."""
    with EmbeddedServer(repository, **options) as server:
        try:
            yield server
        finally:
            server.kill()


def regions(workspace: Path) -> list[Path]:
    return list(SHARED_MEMORY.glob(region_prefix(workspace) + "*"))


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


# What other users of the machine can do


def test_shared_memory_is_open_to_this_user_only(repository: Path) -> None:
    umask = os.umask(0o022)
    try:
        with started(repository) as server:
            modes = {stat.S_IMODE(region.stat().st_mode) for region in regions(server.log.parent)}
    finally:
        os.umask(umask)
    assert modes == {0o600}


def test_closed_apis_stay_closed_to_readers_of_the_arguments(repository: Path) -> None:
    with started(repository) as server, grpc.InferenceServerClient(server.grpc_url) as client:
        arguments = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
        key, value = next(each for each in arguments if "restricted-api" in each).rsplit(":", 2)[1:]
        name, value = f"{key}:{value.partition('=')[0]}", value.partition("=")[2]
        for header in (f"{name}: {value}", f"{name}:{value}", f"{key}: {value}"):
            assert b" 403 " in http_answer(
                server.ports.http, f"GET /v2/logging HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n"
            )
        with pytest.raises(grpc.InferenceServerException, match="restricted"):
            client.get_log_settings()
        assert b"restricted" in grpc_answer(server.ports.grpc)
        assert b"restricted" not in grpc_answer(server.ports.grpc, ("x", "y"), "ServerLive")
        refused = grpc_answer(server.ports.grpc, (f"triton-grpc-protocol-{name}", value))
        assert b"grpc-status" in refused and b"log_file" not in refused


def http_answer(port: int, request: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request.encode())
        return connection.recv(4096)


def grpc_answer(port: int, header: tuple[str, str] = ("x", "y"), call: str = "LogSettings") -> bytes:
    """The bytes that come back for a call with a header that no client library sends."""
    path = f"/inference.GRPCInferenceService/{call}"
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    pairs = [*headers.items(), ("content-type", "application/grpc"), header]
    block = b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in pair) for pair in pairs)
    frames = [(4, 0, 0, b""), (1, 4, 1, block), (0, 1, 1, bytes(5))]  # settings, headers, an empty message
    sent = [struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body
            for kind, flags, stream, body in frames]  # fmt: skip
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(sent))
        while b"grpc-status" not in answer and (part := connection.recv(4096)):
            answer += part
    return answer


# Start and stop


def test_a_started_server_answers_and_a_stopped_one_leaves_nothing_and_can_start_again(
    repository: Path, temporary: Path
) -> None:
    before = files(repository)
    lines: list[str] = []
    with EmbeddedServer(repository, progress=lines.append) as server, Client(server.grpc_url) as client:
        workspace, pid, stubs = server.log.parent, server.pid, server.stubs()
        assert client.is_ready()
        assert client.models() == ["toy"]
        assert client.classify("toy", "hello").label == "5 characters"
        wait_until(lambda: server.statistics()["toy_tokenize"]["inference_count"] == 1)
        assert list(stubs) == ["toy_tokenize_0_0"]
        assert regions(workspace)
        assert server.exposure == ""
        for url in (server.http_url, server.grpc_url, server.metrics_url.removesuffix("/metrics")):
            assert listening_at(int(url.rsplit(":", 1)[1])) == {"127.0.0.1"}
        assert not process.kill_orphans(workspace)
        sweep()
        assert server.fault() == "" and server.log.exists()
    assert not is_running(pid, pid)
    assert not any(is_running(stub, pid) for pids in stubs.values() for stub in pids)
    assert regions(workspace) == []
    assert list(temporary.iterdir()) == []
    assert files(repository) == before
    assert lines[-1].endswith("(2 of 2)")
    server.stop()
    with server:
        assert server.fault() == ""
        server.kill()


def listening_at(port: int) -> set[str]:
    """The IPv4 addresses of the sockets that listen at `port`, from /proc/net/tcp and tcp6 (mapped addresses)."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[3] == "0A"]  # 0A: LISTEN
    return {socket.inet_ntoa(bytes.fromhex(host[-8:])[::-1]) for host, number in local if int(number, 16) == port}


@pytest.mark.parametrize("host", ["example.com", "::1", "", "256.0.0.1"])
def test_an_address_that_can_not_be_listened_at_is_refused_and_that_of_everyone_warned_about(
    repository: Path, host: str
) -> None:
    with pytest.raises(UsageError):
        EmbeddedServer(repository, host=host)
    assert "security fixes" in EmbeddedServer(repository, host="0.0.0.0").exposure


def test_a_thread_that_may_end_early_can_not_own_a_server(repository: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ServerError, match="main thread"):
        pool.submit(EmbeddedServer(repository).start).result()


def test_a_re_export_does_not_reach_a_running_server(repository: Path) -> None:
    large = repository / "toy_tokenize" / "1" / "large.bin"
    large.write_bytes(b"old" * (1 << 20))
    with started(repository) as server:
        served = server.log.parent / "repository" / "toy_tokenize" / "1"
        large.unlink()
        large.write_bytes(b"new")
        (repository / "toy_tokenize" / "1" / "model.py").write_text("raise SystemExit")
        assert (served / "large.bin").stat().st_size == 3 << 20
        server.restart()
        assert infer(server.http_url, "toy", "x") == "1 characters"


@pytest.mark.parametrize(("device", "rows"), [("cpu", 8), ("gpu", 9)])
def test_chosen_models_bring_their_members_alone_and_the_device_picks_the_configuration(
    repository: Path, device: str, rows: int
) -> None:
    write_toy(repository, "other")
    (repository / ".staging" / "x").mkdir(parents=True)
    (repository / "notes").mkdir()
    folder = repository / "other_tokenize"
    (folder / "configs").mkdir()
    config = (folder / "config.pbtxt").read_text()
    (folder / "configs" / "gpu.pbtxt").write_text(config.replace("max_batch_size: 8", "max_batch_size: 9"))
    with (
        started(repository, device=device, models=["other"]) as server,
        urllib.request.urlopen(f"{server.http_url}/v2/models/other_tokenize/config") as answer,
    ):
        assert set(server.statistics()) == {"other", "other_tokenize"}
        assert json.load(answer)["max_batch_size"] == rows


def test_models_that_are_not_there_are_refused_with_those_that_are(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError) as caught:
        EmbeddedServer(repository, models=["nope"]).start()
    assert "toy" in caught.value.fix
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "missing"):
        with pytest.raises(RepositoryError):
            EmbeddedServer(tmp_path / folder).start()


# Ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("early", [True, False], ids=["before the start", "while Triton starts"])
@pytest.mark.parametrize("use", ["http", "grpc", "metrics"])
def test_a_taken_port_is_named_with_its_option(
    repository: Path, taken: int, use: str, early: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not early:
        monkeypatch.setattr(triton_process, "choose_ports", lose(use, taken, always=True))
    server = EmbeddedServer(repository, **{f"{use}_port": taken})  # type: ignore[arg-type]
    with pytest.raises(ServerError) as caught:
        server.start()
    assert f":{taken}" in caught.value.message
    assert f"--{use}-port" in caught.value.fix
    assert not early or list(temporary.iterdir()) == []


def test_a_free_port_that_is_lost_while_triton_starts_is_replaced(
    repository: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_process, "choose_ports", lose("metrics", taken, always=False))
    with started(repository) as server:
        assert infer(server.http_url, "toy", "x") == "1 characters"
        assert str(taken) not in server.metrics_url


def lose(use: str, port: int, always: bool) -> Callable[..., object]:
    """`choose_ports` as if another process had taken `port` right after the look (the first time, or always)."""
    calls: list[Ports] = []

    def choose(wanted: Ports, host: str) -> Ports:
        free = choose_ports(replace(wanted, **{use: 0}), host)
        calls.append(free)
        return replace(free, **{use: port}) if always or len(calls) == 1 else free

    return choose


def test_ports_that_can_not_be_are_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="--http-port and --grpc-port"):
        EmbeddedServer(repository, http_port=9000, grpc_port=9000).start()
    for port in (-1, 65536):
        with pytest.raises(UsageError):
            EmbeddedServer(repository, http_port=port).start()


# Models that do not load


def test_every_model_that_does_not_load_is_named_with_its_reason(repository: Path) -> None:
    write_model(repository, "backless", PYTHON.replace('"python"', '"nonesuch"'), MODEL)
    write_model(repository, "gpu", PYTHON.replace("KIND_CPU", "KIND_GPU"), MODEL)
    (write_model(repository, "versionless", PYTHON, MODEL) / "1").rename(repository / "versionless" / "one")
    write_model(repository, "typo", "max_batch_sise: 3", MODEL)
    write_model(repository, "alone", ensemble("missing"))
    with pytest.raises(ServerError) as caught:
        EmbeddedServer(repository).start()
    message = caught.value.message
    assert "backless: Invalid argument: unable to find backend library" in message
    assert "versionless: at least one version must be available" in message
    assert "typo: " in message and "max_batch_sise" in message
    assert "alone: " in message and "missing" in message
    if "gpu:" in message:  # a machine without one
        assert "kind KIND_GPU but no GPUs are available" in message


def test_models_that_take_too_long_are_given_up(repository: Path) -> None:
    write_model(repository, "slow", PYTHON, SLOW)
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"not ready after 1\.5 s"):
        EmbeddedServer(repository, timeout=1.5).start()
    assert time.monotonic() - began < 10


# What a killed owner leaves

OWNER = """
import sys, time
from hfx.triton import EmbeddedServer
server = EmbeddedServer(sys.argv[1])
server.start()
print(server.pid, server.log.parent, flush=True)
time.sleep(600)
"""


def test_stubs_of_a_killed_server_end_with_the_next_start(repository: Path, temporary: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(repository)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, workspace = owner.stdout.readline().split()
    server = int(pid)
    [[stub]] = process.stubs(server).values()
    os.kill(stub, signal.SIGSTOP)  # so that it can't have noticed
    os.kill(owner.pid, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: not is_running(server, server))
    assert is_running(stub, server)
    sweep()
    assert not is_running(stub, server)
    assert not Path(workspace).exists()
    assert list(temporary.iterdir()) == []


# hfx serve


def test_serve_says_when_it_is_ready_and_stops_on_a_signal(repository: Path) -> None:
    with serving(repository) as served:
        assert served.ready["models"] == ["toy"]
        with Client(served.ready["grpc_url"]) as client:
            assert client.is_ready()
        served.running.send_signal(signal.SIGINT)
        assert served.end() == 0, served.words
        assert served.running.stdout is not None
        assert served.running.stdout.read() == ""
    assert "Traceback" not in served.words
    assert left_behind() == []


def serve(repository: Path, *options: str) -> subprocess.Popen[str]:
    command = [*HFX, "serve", str(repository), *FREE_PORTS, *options, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_serve_tells_why_a_model_does_not_load_and_keeps_the_log(repository: Path, temporary: Path) -> None:
    write_model(repository, "broken", PYTHON, NO_TOKENIZER)
    running = serve(repository, "--strict")
    out, messages = running.communicate(timeout=60)
    error = json.loads(out)["error"]
    assert (running.returncode, error["type"]) == (5, "ServerError")
    assert "can't load broken" in error["message"]
    assert "ValueError: no tokenizer" in error["message"]
    assert f"{repository}/broken/1/model.py(8): initialize" in error["message"]
    assert "ValueError: no tokenizer" in messages
    log = Path(error["fix"].split("Its log: ")[1])
    assert "no tokenizer" in log.read_text()
    assert list(temporary.iterdir()) == [log.parent]
    assert list(log.parent.iterdir()) == [log]
    assert regions(log.parent) == []


def test_a_signal_while_the_models_load_leaves_nothing(repository: Path, temporary: Path) -> None:
    write_model(repository, "slow", PYTHON, SLOW)
    running = serve(repository)
    [log] = wait_until(lambda: list(temporary.glob("*/triton.log")))
    wait_until(lambda: "loading: slow" in log.read_text())
    running.send_signal(signal.SIGINT)
    _, messages = running.communicate(timeout=30)
    assert running.returncode == 130, messages
    assert list(temporary.iterdir()) == []


def test_a_model_for_a_gpu_is_refused_before_the_start_where_there_is_none(
    repository: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "GPU_DEVICES", ("nonesuch",))
    (repository / "toy_tokenize" / "configs").mkdir()
    config = (repository / "toy_tokenize" / "config.pbtxt").read_text()
    (repository / "toy_tokenize" / "configs" / "gpu.pbtxt").write_text(config.replace("KIND_CPU", "KIND_GPU"))
    with pytest.raises(UsageError) as caught:
        EmbeddedServer(repository, device="gpu").start()
    assert "toy_tokenize" in caught.value.message and "--device cpu" in caught.value.fix
    assert list(temporary.iterdir()) == []


def test_the_logs_of_failed_starts_are_bounded(repository: Path, temporary: Path) -> None:
    write_model(repository, "broken", PYTHON, NO_TOKENIZER)
    logs: list[Path] = []
    for _ in range(KEPT_LOGS + 2):
        with pytest.raises(ServerError) as caught:
            EmbeddedServer(repository).start()
        logs.append(Path(caught.value.fix.split("Its log: ")[1]))
        assert logs[-1].exists()
    sweep()
    assert [log.exists() for log in logs] == [False, False] + [True] * KEPT_LOGS


def test_models_that_are_broken_are_left_out_with_a_warning_and_the_others_served(repository: Path) -> None:
    write_model(repository, "broken", PYTHON, NO_TOKENIZER)
    write_model(repository, "alone", ensemble("broken"))
    write_model(repository, "damaged", PYTHON, MODEL)
    (repository / "damaged" / "hfx.json").write_text("{")
    with serving(repository) as served:
        assert served.ready["models"] == ["toy"]
        assert infer(served.http_url, "toy", "four") == "4 characters"
        assert "ValueError: no tokenizer" in served.words and "damaged" in served.words
        assert served.words.count("The other models are served.") >= 2
        with Client(served.ready["grpc_url"]) as client:
            assert client.is_ready()
        served.running.terminate()
        assert served.end() == 0, served.words
