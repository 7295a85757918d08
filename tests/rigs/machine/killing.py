"""Work that is killed before its n-th change of the file system, in forks of one small process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parents[3]
SERVER = """
import json, os, signal, sys, traceback

def mortal(call):
    def step(*arguments, **options):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return step

def arm():
    for name in ("rename", "replace", "fsync", "mkdir", "unlink", "rmdir", "open", "link"):
        setattr(os, name, mortal(getattr(os, name)))

exec(sys.argv[1])
for line in sys.stdin:
    at, *arguments = json.loads(line)
    child = os.fork()
    if not child:
        count = 0
        try:
            work(arm, *arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        print(json.dumps([0, count]), flush=True)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print(json.dumps([status, 0]), flush=True)
"""


class Killer:
    """Runs `work(arm, *arguments)`, defined in `source`, and counts the file changes after `arm()`, from 1."""

    def __init__(self, source: str) -> None:
        command = [sys.executable, "-c", SERVER, source]
        self._process = subprocess.Popen(command, cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, at: int, *arguments: str) -> int | None:
        """Kill the work before change number `at` (0: never); return its number of changes if it ended, else None."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([at, *arguments]) + "\n")
        self._process.stdin.flush()
        code, count = json.loads(self._process.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return count if code == 0 else None

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()
