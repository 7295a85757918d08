"""A tool's process: heard, and never left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from hfx.perf.tools.running import Running

ORPHAN = """
import os, sys
from pathlib import Path
from hfx.perf.tools.running import Running
SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
with Running([sys.executable, "-c", SLEEPER], Path(sys.argv[1])):
    while not Path(sys.argv[1]).read_text().strip():
        pass
    os.kill(os.getpid(), 9)
"""


def test_leaving_ends_it(tmp_path: Path) -> None:
    with Running(
        [sys.executable, "-c", "sum(range(3000000)); print('up', flush=True); input()"], tmp_path / "o"
    ) as tool:
        while not tool.words():
            time.sleep(0.01)
        assert tool.alive and tool.words() == "up\n" and tool.processor_seconds > 0
    assert not tool.alive and tool.processor_seconds == 0


def test_it_is_told_the_end_by_its_input(tmp_path: Path) -> None:
    with Running([sys.executable, "-c", "import sys; sys.stdin.read(); print('told')"], tmp_path / "o") as tool:
        tool.end_input()
        tool.wait(30)
        assert tool.words() == "told\n" and not tool.alive


def test_it_does_not_outlive_a_starter_that_is_killed(tmp_path: Path) -> None:
    output = tmp_path / "o"
    subprocess.run([sys.executable, "-c", ORPHAN, str(output)], check=False, timeout=60)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(output.read_text())).wait(10)
    assert not psutil.pid_exists(int(output.read_text()))
