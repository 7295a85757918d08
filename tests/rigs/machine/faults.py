"""Work in which the n-th system call on files below a folder fails, or kills it, in forks of one small process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.unit.native.libraries import shared_library

TREE = Path(__file__).parents[3]
LIBRARY = Path(__file__).with_name("faults.cpp")
ERRORS = {"EIO": 1, "ENOSPC": 2, "EMFILE": 4, "ENOMEM": 8, "EINTR": 16, "short": 32, "kill": 64}  # as in faults.cpp
STAYING = ("EIO", "ENOSPC", "EMFILE", "ENOMEM", "short")  # Python repeats calls for as long as they end with EINTR
FAULTS = tuple(
    (error, stays) for error in ERRORS if error != "kill" for stays in (False, True)[: 1 + (error in STAYING)]
)
SERVER = """
import ctypes, gc, json, os, signal, sys, time, traceback

library = ctypes.CDLL(None)

def open_files():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink("/proc/self/fd/" + name)))
        except FileNotFoundError:  # of the listing itself
            pass
    return found

def disarm():
    library.faults_disarm()

def fired():
    return ctypes.c_long.in_dll(library, "faults_fired").value

def run(root, error, at, stays, *arguments):
    from hfx.errors import HfxError
    before = open_files()
    ended = {"error": "", "is_own": True, "message": "", "trace": ""}
    try:
        work(lambda: library.faults_arm(os.fsencode(root), error, at, stays), *arguments)
    except BaseException as raised:
        ended = {"error": type(raised).__name__, "is_own": isinstance(raised, HfxError), "message": str(raised)}
        ended["trace"] = traceback.format_exc()
    disarm()
    count = ctypes.c_long.in_dll(library, "faults_count").value
    call = (ctypes.c_char * 4200).in_dll(library, "faults_call").value.decode()
    for _ in range(100):  # threads may still be ending, and generators may still be open
        if open_files() <= before:
            break
        gc.collect()
        time.sleep(0.01)
    leaked = sorted(target for _, target in open_files() - before)
    return {"count": count, "fired": fired(), "call": call, "leaked": leaked, **ended}

exec(sys.argv[1])
for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            print(json.dumps(run(*json.loads(line))), flush=True)
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print(json.dumps(status), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How work has ended: the name of its exception, if any, and whether it is an HfxError.

    `count` calls could have failed, `fired` did, the first of which is `call`. `leaked` are files left open.
    """

    count: int
    fired: int
    call: str
    leaked: list[str]
    error: str
    is_own: bool
    message: str
    trace: str


class Faults:
    """Runs `work(arm, *arguments)`, defined in `source`. Calls are counted after `arm()`, from 1."""

    def __init__(self, source: str) -> None:
        library = shared_library("faults", ["-O2", "-fPIC", "-std=c++17"], [LIBRARY], [])
        command = [sys.executable, "-c", SERVER, source]
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        self._process = subprocess.Popen(
            command, cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, *question: Any) -> Any:
        """Return the answer of the process to one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def run(self, root: Path | str, error: str, at: int, stays: bool, *arguments: str) -> Ended:
        """Let the call number `at` below `root` fail with `error`, and all later ones if it `stays` (0: none)."""
        return Ended(**self.ask(str(root), ERRORS[error], at, stays, *arguments))

    def sweep(
        self,
        prepare: Callable[[], tuple[str, ...]],
        check: Callable[[Ended], None],
        root: Path | str,
        step: int = 1,
        faults: Iterable[tuple[str, bool]] = FAULTS,
    ) -> int:
        """Let every `step`-th call fail in each way until a run ends without the fault, and return the number of runs.

        `prepare` returns the arguments of a run. `check` gets its end.
        """
        tried, failures = 0, list[str]()
        for number, (error, stays) in enumerate(faults):
            for at in count(1 + number % step, step):
                ended = self.run(root, error, at, stays, *prepare())
                try:
                    check(ended)
                    assert ended.is_own, "no HfxError"
                    assert not ended.leaked, ended.leaked
                except Exception as failed:
                    how = f"{error}{' from then on' * stays} at call {at} ({ended.call}): {ended.error} {ended.message}"
                    failures.append(f"{how}\n{failed!r:.1000}\n{ended.trace}")
                if not ended.fired:
                    break
                tried += 1
        assert not failures, f"{len(failures)} of {tried} faults:\n" + "\n\n".join(failures)
        return tried

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()


class Killer(Faults):
    """Runs work that is killed before one of its file changes."""

    def kill(self, at: int, *arguments: str) -> int | None:
        """Kill the work before change number `at` (0: never); return its number of changes if it ended, else None."""
        ended = self.ask("/", ERRORS["kill"], at, False, *arguments)
        if ended == -signal.SIGKILL:
            return None
        assert not ended["error"], ended["trace"]
        return int(ended["count"])
