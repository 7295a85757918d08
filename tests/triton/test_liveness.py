"""The liveness probe on a real server: the models it covers, busy against dead, and the package alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer, liveness
from hfx.triton.liveness import Target
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import infer
from tests.rigs.servers.short_servers import started
from tests.rigs.servers.toy_models import MODEL, PYTHON, write_model, write_ticks, write_toy

pytestmark = pytest.mark.triton
PATIENCE = 1.0
# Burns CPU for S seconds, as a large batch does, at the order `burn S`.
BURNING = MODEL.replace(
    '        if order == "sleep":',
    '        if order == "burn":\n'
    "            end = time.monotonic() + float(rest)\n"
    "            while time.monotonic() < end:\n"
    "                pass\n"
    '        if order == "sleep":',
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = write_ticks(write_toy(tmp_path_factory.mktemp("repository")))
    write_model(folder, "burning", PYTHON, BURNING)
    with started(folder) as running:
        yield running


@pytest.fixture
def target(server: EmbeddedServer) -> Target:
    return Target(server.http_url, server.metrics_url)


def test_every_entry_point_has_a_probe_and_answers(target: Target) -> None:
    probes = liveness.probes(target)
    assert [probe.model for probe in probes] == ["burning", "ticks", "toy"]
    assert [liveness.send(target, probe, PATIENCE) for probe in probes] == [None, None, None]


@pytest.mark.parametrize(
    ("texts", "verdict"),
    [
        (["sleep 0.6"] * 5, ""),  # one at a time
        (["burn 3"], ""),
        (["sleep 3"], "burning gave no answer for 2 s and did nothing meanwhile"),
    ],
    ids=["a queue that moves on", "one long computation", "no work at all"],
)
def test_a_busy_model_is_alive_and_one_that_does_nothing_is_dead(
    server: EmbeddedServer, target: Target, texts: list[str], verdict: str
) -> None:
    threads = [threading.Thread(target=infer, args=(server.http_url, "burning", text)) for text in texts]
    for thread in threads:
        thread.start()
    time.sleep(0.3)  # until all are accepted
    probe = next(probe for probe in liveness.probes(target) if probe.model == "burning")
    death = liveness.send(target, probe, PATIENCE)
    assert (death.reason if death else "") == verdict
    for thread in threads:
        thread.join()


def test_the_liveness_package_runs_alone_as_a_health_check(server: EmbeddedServer, tmp_path: Path) -> None:
    shutil.copytree(Path(liveness.__file__).parent, tmp_path / "liveness")

    def check() -> tuple[int, str]:
        command = [sys.executable, "-B", "-S", "-m", "liveness", server.http_url, server.metrics_url]
        alone = {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    assert check() == (0, "healthy: burning, ticks, toy\n")
    os.kill(server.stubs()["ticks_0_0"][0], signal.SIGKILL)
    wait_until(server.fault)
    code, line = check()
    assert code == 1
    assert "'ticks_0_0'" in line
    server.restart()
    assert check()[0] == 0
