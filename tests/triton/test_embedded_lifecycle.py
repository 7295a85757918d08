"""Starting, watching and ending the real embedded server: ports, failures, faults, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.errors import RepositoryError, ServerError, UsageError
from hfx.triton import EmbeddedServer, embedded
from hfx.triton.process import is_running
from hfx.triton.server import Ports, choose_ports
from hfx.triton.workspace import PREFIX, SHARED_MEMORY, region_prefix
from tests.triton.serve_process import HFX, wait_for
from tests.triton.toy_models import MODEL, PYTHON, write_model, write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "repository")


def regions(workspace: str) -> list[str]:
    return [region.name for region in SHARED_MEMORY.glob(region_prefix(Path(workspace)) + "*")]


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


# Start and stop


def test_a_started_server_answers_and_a_stopped_one_leaves_nothing(repository: Path, temporary: Path) -> None:
    before = files(repository)
    lines: list[str] = []
    with EmbeddedServer(repository, progress=lines.append) as server, Client(server.grpc_url) as client:
        workspace, pid, stubs = str(server.log.parent), server.pid, server.stubs()
        assert client.is_ready()
        assert client.models() == ["toy"]
        assert client.classify("toy", "hello").label == "5 characters"
        wait_for(lambda: server.statistics()["toy_tokenize"]["inference_count"] == 1)
        assert list(stubs) == ["toy_tokenize_0_0"]
        assert regions(workspace)
    assert not is_running(pid, pid)
    assert not any(is_running(stub, pid) for pids in stubs.values() for stub in pids)
    assert regions(workspace) == []
    assert list(temporary.iterdir()) == []
    assert files(repository) == before
    assert lines[-1].endswith("(2 of 2)")


def test_only_this_machine_can_connect(repository: Path) -> None:
    with EmbeddedServer(repository) as server:
        assert server.exposure == ""
        for url in (server.http_url, server.grpc_url, server.metrics_url.removesuffix("/metrics")):
            assert listening_at(int(url.rsplit(":", 1)[1])) == {"127.0.0.1"}


def listening_at(port: int) -> set[str]:
    """The IPv4 addresses at which somebody listens for PORT, from /proc/net/tcp and tcp6 (mapped addresses)."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[3] == "0A"]  # 0A: LISTEN
    return {socket.inet_ntoa(bytes.fromhex(host[-8:])[::-1]) for host, number in local if int(number, 16) == port}


def test_listening_for_everyone_is_warned_about(repository: Path) -> None:
    assert "security fixes" in EmbeddedServer(repository, host="0.0.0.0").exposure


@pytest.mark.parametrize("host", ["example.com", "::1", "", "256.0.0.1"])
def test_an_address_that_can_not_be_listened_at_is_refused(repository: Path, host: str) -> None:
    with pytest.raises(UsageError):
        EmbeddedServer(repository, host=host)


def test_stopping_twice_is_harmless_and_starting_again_works(repository: Path) -> None:
    server = EmbeddedServer(repository)
    for _ in range(2):
        server.start()
        server.stop()
        server.stop()


def test_a_thread_that_may_end_early_can_not_own_a_server(repository: Path) -> None:
    caught: list[Exception] = []

    def start() -> None:
        try:
            EmbeddedServer(repository).start()
        except ServerError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_a_re_export_does_not_reach_a_running_server(repository: Path) -> None:
    large = repository / "toy_tokenize" / "1" / "large.bin"
    large.write_bytes(b"old" * (1 << 20))
    with EmbeddedServer(repository) as server:
        served = server.log.parent / "repository" / "toy_tokenize" / "1"
        large.unlink()
        large.write_bytes(b"new")
        (repository / "toy_tokenize" / "1" / "model.py").write_text("raise SystemExit")
        assert (served / "large.bin").stat().st_size == 3 << 20
        server.restart()
        with Client(server.grpc_url) as client:
            assert client.classify("toy", "x").label == "1 characters"


def test_hidden_folders_and_folders_without_a_configuration_are_not_served(repository: Path) -> None:
    (repository / ".staging" / "x").mkdir(parents=True)
    (repository / "notes").mkdir()
    with EmbeddedServer(repository) as server:
        assert set(server.statistics()) == {"toy", "toy_tokenize"}


def test_chosen_models_bring_their_members_and_nothing_else(repository: Path) -> None:
    write_toy(repository, "other")
    with EmbeddedServer(repository, models=["other"]) as server:
        assert set(server.statistics()) == {"other", "other_tokenize"}


def test_a_chosen_model_that_is_not_there_is_refused_with_those_that_are(repository: Path) -> None:
    with pytest.raises(RepositoryError) as caught:
        EmbeddedServer(repository, models=["nope"]).start()
    assert "toy" in caught.value.fix


@pytest.mark.parametrize("make", [False, True])
def test_a_repository_without_models_is_refused(tmp_path: Path, make: bool) -> None:
    if make:
        (tmp_path / "empty").mkdir()
    with pytest.raises(RepositoryError):
        EmbeddedServer(tmp_path / "empty").start()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_device_picks_the_configuration(repository: Path, device: str) -> None:
    folder = repository / "toy_tokenize"
    (folder / "configs").mkdir()
    for name, rows in (("cpu", 3), ("gpu", 5)):
        config = (folder / "config.pbtxt").read_text().replace("max_batch_size: 8", f"max_batch_size: {rows}")
        (folder / "configs" / f"{name}.pbtxt").write_text(config)
    write_model(repository, "unused", PYTHON, MODEL)
    with (
        EmbeddedServer(repository, device=device, models=["toy_tokenize"]) as server,
        urllib.request.urlopen(f"{server.http_url}/v2/models/toy_tokenize/config") as answer,
    ):
        assert json.load(answer)["max_batch_size"] == (3 if device == "cpu" else 5)


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
        monkeypatch.setattr(embedded, "choose_ports", lose(use, taken, always=True))
    server = EmbeddedServer(repository, **{f"{use}_port": taken})  # type: ignore[arg-type]
    with pytest.raises(ServerError) as caught:
        server.start()
    assert f":{taken}" in caught.value.message
    assert f"--{use}-port" in caught.value.fix
    assert not early or list(temporary.iterdir()) == []


@pytest.mark.parametrize("use", ["http", "grpc", "metrics"])
def test_a_free_port_that_is_lost_while_triton_starts_is_replaced(
    repository: Path, taken: int, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "choose_ports", lose(use, taken, always=False))
    with EmbeddedServer(repository) as server, Client(server.grpc_url) as client:
        assert client.is_ready()
        assert str(taken) not in (server.http_url + server.grpc_url + server.metrics_url)


def lose(use: str, port: int, always: bool) -> Callable[..., object]:
    """`choose_ports` as if another process had taken PORT right after the look (the first time, or always)."""
    calls: list[Ports] = []

    def choose(wanted: Ports, host: str) -> Ports:
        found = choose_ports(replace(wanted, **{use: 0}), host)
        calls.append(found)
        return replace(found, **{use: port}) if always or len(calls) == 1 else found

    return choose


def test_one_port_for_two_uses_is_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="--http-port and --grpc-port"):
        EmbeddedServer(repository, http_port=9000, grpc_port=9000).start()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_refused(repository: Path, port: int) -> None:
    with pytest.raises(UsageError):
        EmbeddedServer(repository, http_port=port).start()


# Models that do not load

BROKEN = MODEL.replace(
    "    def execute", "    def initialize(self, args):\n        raise ValueError('no tokenizer')\n\n    def execute", 1
)


def failure(repository: Path) -> ServerError:
    with pytest.raises(ServerError) as caught:
        EmbeddedServer(repository).start()
    return caught.value


def test_a_python_error_is_shown_with_its_model_and_line(repository: Path) -> None:
    write_model(repository, "broken", PYTHON, BROKEN)
    error = failure(repository)
    assert "can't load broken" in error.message
    assert "ValueError: no tokenizer" in error.message
    assert f"{repository}/broken/1/model.py(8): initialize" in error.message


def test_every_model_that_does_not_load_is_named_with_its_reason(repository: Path) -> None:
    write_model(repository, "backless", PYTHON.replace('"python"', '"nonesuch"'), MODEL)
    write_model(repository, "gpu", PYTHON.replace("KIND_CPU", "KIND_GPU"), MODEL)
    (write_model(repository, "versionless", PYTHON, MODEL) / "1").rename(repository / "versionless" / "one")
    message = failure(repository).message
    assert "backless: Invalid argument: unable to find backend library" in message
    assert "versionless: at least one version must be available" in message
    if "gpu:" in message:  # a machine without one
        assert "kind KIND_GPU but no GPUs are available" in message


def test_a_missing_member_is_named(repository: Path) -> None:
    import shutil

    shutil.rmtree(repository / "toy_tokenize")
    assert "toy_tokenize" in failure(repository).message


def test_a_configuration_with_a_typing_error_is_named_with_its_line(repository: Path) -> None:
    write_model(repository, "typo", "max_batch_sise: 3", MODEL)
    assert "typo: " in (message := failure(repository).message)
    assert "max_batch_sise" in message


def test_the_log_of_a_failed_start_is_kept_where_the_error_says(repository: Path, temporary: Path) -> None:
    write_model(repository, "broken", PYTHON, BROKEN)
    log = Path(failure(repository).fix.split("Its log: ")[1])
    assert "no tokenizer" in log.read_text()
    assert list(temporary.iterdir()) == [log.parent]
    assert list(log.parent.iterdir()) == [log]
    assert regions(str(log.parent)) == []


def test_models_that_take_too_long_are_given_up(repository: Path) -> None:
    slow = BROKEN.replace("raise ValueError('no tokenizer')", "time.sleep(60)")
    write_model(repository, "slow", PYTHON, slow)
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"not ready after 1\.5 s"):
        EmbeddedServer(repository, timeout=1.5).start()
    assert time.monotonic() - began < 10


# Faults


def test_a_killed_stub_is_a_fault_and_a_restart_cures_it(repository: Path) -> None:
    with EmbeddedServer(repository) as server, Client(server.grpc_url) as client:
        assert server.fault() == ""
        address, [stub] = server.grpc_url, server.stubs()["toy_tokenize_0_0"]
        os.kill(stub, signal.SIGKILL)
        wait_for(server.fault)
        assert server.fault() == "the Python process of toy_tokenize died (killed by signal 9)"
        began = time.monotonic()
        server.restart()
        assert time.monotonic() - began < 5  # 0.2 s on an idle machine
        assert server.fault() == ""
        assert server.grpc_url == address
        assert client.classify("toy", "x").label == "1 characters"


def test_a_killed_server_is_a_fault_and_a_restart_cures_it(repository: Path) -> None:
    with EmbeddedServer(repository) as server, Client(server.grpc_url) as client:
        os.kill(server.pid, signal.SIGKILL)
        wait_for(server.fault)
        assert "killed by signal 9" in server.fault()
        server.restart()
        wait_for(client.is_ready)


OWNER = """
import sys, time
from hfx.triton import EmbeddedServer
server = EmbeddedServer(sys.argv[1])
server.start()
print(server.pid, server.log.parent, flush=True)
time.sleep(600)
"""


def test_a_server_dies_with_its_owner_and_the_next_start_sweeps_its_folder(repository: Path, temporary: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(repository)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, workspace = owner.stdout.readline().split()
    assert is_running(int(pid), int(pid))
    owner.kill()
    owner.communicate()
    wait_for(lambda: not is_running(int(pid), int(pid)))
    wait_for(lambda: not regions(workspace))
    assert Path(workspace).exists()
    wait_for(lambda: swept(repository, workspace))
    assert not list(temporary.glob(f"{PREFIX}*"))


def swept(repository: Path, workspace: str) -> bool:
    with EmbeddedServer(repository):
        return not Path(workspace).exists()


def test_a_sweep_spares_the_folder_of_a_running_server(repository: Path) -> None:
    with EmbeddedServer(repository) as first:
        with EmbeddedServer(repository):
            assert first.log.exists()
        assert first.fault() == ""


# hfx serve


def serve(repository: Path, *words: str) -> subprocess.Popen[str]:
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    return subprocess.Popen(
        [*HFX, "serve", str(repository), *ports, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_and_stops_on_a_signal(repository: Path, number: int, temporary: Path) -> None:
    process = serve(repository, "--json")
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["ready"] is True
    assert ready["models"] == ["toy"]
    with Client(ready["grpc_url"]) as client:
        assert client.is_ready()
    [workspace] = temporary.iterdir()
    process.send_signal(number)
    out, words = process.communicate(timeout=30)
    assert process.returncode == 0, words
    assert out == ""
    assert "Traceback" not in words
    assert list(temporary.iterdir()) == []
    assert regions(str(workspace)) == []


def test_serve_tells_why_a_model_does_not_load(repository: Path) -> None:
    write_model(repository, "broken", PYTHON, BROKEN)
    process = serve(repository, "--json")
    out, words = process.communicate(timeout=60)
    error = json.loads(out)["error"]
    assert (process.returncode, error["type"]) == (5, "ServerError")
    assert "ValueError: no tokenizer" in error["message"]
    assert "ValueError: no tokenizer" in words


def test_a_signal_while_the_models_load_leaves_nothing(repository: Path, temporary: Path) -> None:
    write_model(repository, "slow", PYTHON, BROKEN.replace("raise ValueError('no tokenizer')", "time.sleep(60)"))
    process = serve(repository)
    wait_for(lambda: list(temporary.glob("*/triton.log")))
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=30)
    assert process.returncode == 130, words
    assert list(temporary.iterdir()) == []


def test_infer_asks_a_served_model(repository: Path) -> None:
    with EmbeddedServer(repository) as server:
        done = subprocess.run(
            [*HFX, "infer", "toy", "-", "--url", server.grpc_url, "--json"],
            input="one\n\nfour\n",
            capture_output=True,
            text=True,
            check=True,
        )
    answer = json.loads(done.stdout)
    assert set(answer) == {"model", "results", "latency_ms"}
    assert [result["label"] for result in answer["results"]] == [["3 characters"], ["0 characters"], ["4 characters"]]
    assert answer["results"][0]["truncated_tokens"] == 0
