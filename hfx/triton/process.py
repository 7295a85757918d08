"""One tritonserver child process: started, inspected and killed with all its stubs.

It dies with its parent, is never reached by the terminal's Ctrl-C (it has its own session), and its output goes to
one log file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hfx.errors import ServerError
from hfx.triton.liveness import STUB, processes, read_process

POLL_SECONDS = 0.05
EXIT_CODE_FIELD = 52 - 3  # of proc(5)'s stat, counted from the state
# Triton 2.51 parses the body of a POST that calls itself a form on a thread's stack: with the usual 8 MB a form of 8 MB
# kills it. The limit is the size of each thread's stack, of which only what is used takes memory.
STACK_BYTES = 512 << 20
BECOME = """
import ctypes, os, resource, signal, sys
parent, by, stack, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, int(by))  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):
    sys.exit(1)  # the parent ended before the call
if stack:
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    size = int(stack) if most == resource.RLIM_INFINITY else min(int(stack), most)
    resource.setrlimit(resource.RLIMIT_STACK, (size, most))
for name in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
    signal.signal(name, signal.SIG_DFL)
os.execvp(command[0], command)
"""


def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path, inherit: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start `command` in `folder`, with the descriptors `inherit`, its output appended to `log`.

    The kernel signals the child when the *thread* that forked it ends, hence only the main thread may start one.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ServerError("A Triton server must be started from the main thread.", "It would end with this thread.")
    with log.open("ab") as output:
        return subprocess.Popen(
            ends_with_parent(command, signal.SIGTERM, STACK_BYTES),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
            pass_fds=inherit,
        )


def ends_with_parent(command: Sequence[str], by: signal.Signals, stack: int | None = None) -> tuple[str, ...]:
    """`command`, sent the signal `by` when the thread that starts it ends; with stacks of up to `stack` bytes.

    A short Python program sets this up and becomes `command`. `preexec_fn` would run gRPC's fork handlers in the child,
    which ended 7 % of the children of a process with open channels (grpcio 1.85.1).
    """
    return (sys.executable, "-I", "-S", "-c", BECOME, str(os.getpid()), str(by.value), str(stack or ""), *command)


def end(process: subprocess.Popen[bytes], grace: float, is_done: Callable[[], bool] = lambda: False) -> int:
    """Send SIGTERM to `process`, then kill what is left of its group: after `grace` seconds, or once `is_done()`.

    Returns its exit code. Whatever interrupts the wait, nothing of the group is left.
    """
    try:
        if process.poll() is None and grace > 0:
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + grace
            while process.poll() is None and time.monotonic() < deadline and not is_done():
                time.sleep(POLL_SECONDS)
    finally:
        kill(process)
        process.wait()
    return process.returncode


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group of `process`, without waiting."""
    with suppress(ProcessLookupError):  # nothing is left
        os.killpg(process.pid, signal.SIGKILL)


def stubs(group: int) -> dict[str, list[int]]:
    """The live Python stubs of the server with process id `group`: instance name -> pids, oldest first."""
    pids: dict[str, list[int]] = {}
    for process in processes():
        if process.group == group and (instance := process.instance):
            pids.setdefault(instance, []).append(process.pid)
    return {instance: sorted(ids) for instance, ids in sorted(pids.items())}


def is_running(pid: int, group: int) -> bool:
    """Whether `pid` still runs in `group` (a killed child that its parent has not waited for does not run)."""
    process = read_process(pid)
    return process is not None and process.group == group and process.stat[0] not in "ZX"


def kill_orphans(folder: Path) -> bool:
    """Kill the stubs that run from `folder` and whose server is gone; whether there were any.

    Triton's stubs don't notice that their server was killed, and ignore SIGTERM: they keep their models.
    """
    programs = ((process, process.arguments[0]) for process in processes())
    stubs_here = [process for process, path in programs if path.startswith(f"{folder}/") and path.endswith(STUB)]
    orphans = [process.pid for process in stubs_here if not is_running(process.group, process.group)]
    for pid in orphans:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(orphans)


def ending(pid: int) -> str:
    """How `pid`, a process that its parent has not waited for, ended; an empty string when that is not visible."""
    process = read_process(pid)
    if process is None or process.stat[0] != "Z":
        return ""
    return exit_reason(os.waitstatus_to_exitcode(int(process.stat[EXIT_CODE_FIELD])))


def exit_reason(code: int) -> str:
    """How a process ended, from its return code."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def listens(pid: int, port: int) -> bool:
    """Whether the process `pid` itself listens for TCP connections at `port`."""
    try:
        inodes = [inode for name in ("tcp", "tcp6") for inode in _listening(Path(f"/proc/{pid}/net/{name}"), port)]
        own = {_link(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False  # it has ended
    return any(f"socket:[{inode}]" in own for inode in inodes)


def _listening(table: Path, port: int) -> list[str]:
    """The inodes of sockets in state LISTEN (0A) at `port`, of a table in the format of /proc/net/tcp."""
    rows = [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""  # closed while we looked
