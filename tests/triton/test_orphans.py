"""Stubs whose server and owner were killed: nothing but the next start can end them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer, process
from hfx.triton.workspace import sweep
from tests.triton.serve_process import wait_for
from tests.triton.toy_models import write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]
OWNER = """
import sys, time
from hfx.triton import EmbeddedServer
server = EmbeddedServer(sys.argv[1])
server.start()
print(server.pid, server.log.parent, flush=True)
time.sleep(600)
"""


def test_stubs_of_a_killed_server_end_with_the_next_start(tmp_path: Path, temporary: Path) -> None:
    repository = write_toy(tmp_path / "repository")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(repository)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    words = owner.stdout.readline().split()
    server, workspace = int(words[0]), Path(words[1])
    [[stub]] = process.stubs(server).values()
    os.kill(stub, signal.SIGSTOP)  # so that it can't have noticed
    os.kill(owner.pid, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    owner.communicate()
    wait_for(lambda: not process.is_running(server, server))
    assert process.is_running(stub, server)
    sweep()
    assert not process.is_running(stub, server)
    assert not workspace.exists()
    assert list(temporary.iterdir()) == []


def test_stubs_of_a_server_that_runs_are_no_orphans(tmp_path: Path) -> None:
    with EmbeddedServer(write_toy(tmp_path / "repository")) as server:
        assert not process.kill_orphans(server.log.parent)
        sweep()
        assert server.fault() == ""
