"""Triton's log: the advice for models that do not load, and the end of a stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.triton.log import SENT_SECONDS, ServerLog, end_server, load_error
from tests.rigs.machine.waiting import wait_until

FAILED = "E1124 20:00:00 1 model_lifecycle.cc:1] \"failed to load 'net' version 1: Invalid argument: {reason}\"\n"


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("instance group net_0 of model net has kind KIND_GPU but no GPUs are available", "--device cpu"),
        ("instance group net_0 of model net has kind KIND_GPU but server does not support GPUs", "--device cpu"),
        ("unable to find backend library for backend 'x', try specifying runtime", "Install the backend"),
        ("Unable to initialize shared memory key 'k' to requested size", "--shm-size"),
        ("something else", "Export the model again"),
    ],
)
def test_a_model_that_does_not_load_comes_with_what_helps(tmp_path: Path, reason: str, advice: str) -> None:
    path = tmp_path / "triton.log"
    path.touch()
    log = ServerLog(path)
    path.write_text(FAILED.format(reason=reason))
    log.read()
    error = load_error(log, {}, None)
    assert f"net: Invalid argument: {reason}" in error.message
    assert advice in error.fix and ("Export" in error.fix) == advice.startswith("Export")


def test_each_loaded_model_is_counted_among_all(tmp_path: Path) -> None:
    path = tmp_path / "triton.log"
    path.touch()
    log, lines = ServerLog(path, 3), list[str]()
    for names in (["net", "tokenize"], [], ["whole"]):
        with path.open("a") as written:
            written.writelines(f"I1124 1 model_lifecycle.cc:1] \"successfully loaded '{name}'\"\n" for name in names)
        log.read()
        lines += log.progress()
    assert lines == ["loaded net (1 of 3)", "loaded tokenize (2 of 3)", "loaded whole (3 of 3)"]


# Of a server of 26.07 with an open gRPC stream: at SIGTERM it says so once a second, until its exit timeout.
HELD = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print('I1124 main.cc:1] "Timeout 30: Found 1 gRPC service connections '
                                               'and inference handlers"', flush=True))
print("ready", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], ServerLog]]:
    path = tmp_path / "triton.log"
    path.touch()
    log = ServerLog(path)
    with path.open("ab") as output:
        running = subprocess.Popen([sys.executable, "-c", HELD], stdout=output, start_new_session=True)
    wait_until(lambda: "ready" in path.read_text())
    yield running, log
    running.kill()
    running.wait()


def test_an_open_stream_does_not_hold_a_stop_once_all_requests_are_answered(
    held: tuple[subprocess.Popen[bytes], ServerLog],
) -> None:
    running, log = held
    asked: list[tuple[bool, float]] = []

    def all_answered(by_triton: bool) -> bool:  # one request has run for a second, another one has just arrived
        asked.append((by_triton, time.monotonic()))
        return not 0.2 < asked[-1][1] - asked[0][1] < 1.0

    assert end_server(running, log, 60.0, all_answered)
    assert running.returncode == -signal.SIGKILL
    assert {by_triton for by_triton, _ in asked} == {False}
    assert asked[-1][1] - asked[0][1] >= 1.0 + SENT_SECONDS


def test_a_server_that_has_not_answered_all_is_waited_for(held: tuple[subprocess.Popen[bytes], ServerLog]) -> None:
    assert not end_server(*held, 1.0, lambda by_triton: False)
