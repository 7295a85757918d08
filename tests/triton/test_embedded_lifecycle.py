"""Start and stop of the real embedded server: its models, its addresses, and no leftovers."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.errors import RepositoryError, ServerError, UsageError
from hfx.triton import EmbeddedServer, process
from hfx.triton.process import is_running
from hfx.triton.workspace import sweep
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.installed_triton import needs_wheel
from tests.rigs.servers.serve_process import infer, left_behind, serving
from tests.rigs.servers.short_servers import regions, started
from tests.rigs.servers.toy_models import write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "repository")


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_server_starts_answers_stops_without_leftovers_and_starts_again(repository: Path, temporary: Path) -> None:
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
    assert lines[-1] == "loaded toy (2 of 2)"
    server.stop()
    with server:
        assert server.fault() == ""
        server.kill()


def listening_at(port: int) -> set[str]:
    """Return the IPv4 addresses of the sockets that listen at `port`, by /proc/net/tcp and tcp6 (mapped addresses)."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[3] == "0A"]  # 0A: LISTEN
    return {socket.inet_ntoa(bytes.fromhex(host[-8:])[::-1]) for host, number in local if int(number, 16) == port}


@needs_wheel
@pytest.mark.parametrize("host", ["example.com", "::1", "", "256.0.0.1"])
def test_an_invalid_host_is_refused_and_a_public_one_warned_of(repository: Path, host: str) -> None:
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
def test_models_and_device_choose_the_folders_and_configurations_to_serve(
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


def test_the_error_for_a_missing_model_lists_the_published_ones(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError) as caught:
        EmbeddedServer(repository, models=["nope"]).start()
    assert "toy" in caught.value.fix
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "missing"):
        with pytest.raises(RepositoryError):
            EmbeddedServer(tmp_path / folder).start()


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


def test_process_1_of_a_container_collects_the_stubs_of_a_dead_server(repository: Path) -> None:
    become_subreaper = partial(ctypes.CDLL(None).prctl, 36)  # PR_SET_CHILD_SUBREAPER: orphans become children
    become_subreaper(1)
    try:
        with started(repository) as server:
            stubs = [pid for pids in server.stubs().values() for pid in pids]
            os.kill(server.pid, signal.SIGKILL)
            wait_until(server.fault)
            server.restart()
            assert stubs and not any(Path(f"/proc/{pid}").exists() for pid in stubs)
    finally:
        become_subreaper(0)


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
