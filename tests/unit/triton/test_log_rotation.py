"""A log that grows without end stays within its limit, keeps the newest lines, and is still read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hfx.triton.log import LogRotation, ServerLog
from tests.rigs.machine.waiting import wait_until

FILE_BYTES = 100_000
WRITER = """
import os, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for number in range(20_000):
    os.write(out, b"line %06d of what a server says while something is wrong\\n" % number)
    time.sleep(0.0001)
while True:
    os.write(out, b"the end\\n")
    time.sleep(0.1)
"""


def test_a_log_without_end_is_bounded_and_its_newest_lines_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "triton.log"
    path.touch()
    log = ServerLog(path)
    rotation = LogRotation(path, FILE_BYTES)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as writer:
        try:
            wait_until(lambda: (tmp_path / "triton.log.2").exists())

            def has_ended() -> bool:
                log.read()
                return "the end" in log.text

            wait_until(has_ended)
            assert sorted(file.name for file in tmp_path.iterdir()) == ["triton.log", "triton.log.1", "triton.log.2"]
            wait_until(lambda: path.stat().st_size <= FILE_BYTES)
        finally:
            writer.kill()
    rotation.stop()
    assert [file.name for file in tmp_path.iterdir()] == ["triton.log"]
