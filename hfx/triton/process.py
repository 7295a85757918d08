"""One tritonserver child process: started, inspected and killed with all its stubs.

It dies with its parent, is never reached by the terminal's Ctrl-C (it has its own session), and its output goes to
one log file.
"""

from __future__ import annotations

import os
import platform
import signal
import struct
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
COLLECT_SECONDS = 2.0
EXIT_CODE_FIELD = 52 - 3  # of proc(5)'s stat, counted from the state
# Triton 2.51 parses the body of a POST that calls itself a form on a thread's stack: with the usual 8 MB a form of 8 MB
# kills it. The limit is the size of each thread's stack, of which only what is used takes memory.
STACK_BYTES = 512 << 20
BECOME = """
import ctypes, os, resource, signal, sys
parent, by, stack, call, rules, *command = sys.argv[1:]
libc = ctypes.CDLL(None)
libc.prctl(1, int(by))  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):
    sys.exit(1)  # the parent ended before the call
if stack:
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    size = int(stack) if most == resource.RLIM_INFINITY else min(int(stack), most)
    resource.setrlimit(resource.RLIMIT_STACK, (size, most))
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
most = min(most, 1 << 20)  # of which each connection takes some
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
if rules:
    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_char_p)]
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which only root may filter
    rules = bytes.fromhex(rules)
    # SECCOMP_SET_MODE_FILTER; SECCOMP_FILTER_FLAG_SPEC_ALLOW, without which older kernels slow down what is filtered
    libc.syscall(int(call), 1, 4, ctypes.byref(Filter(len(rules) // 8, rules)))
for name in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
    signal.signal(name, signal.SIG_DFL)
os.execvp(command[0], command)
"""


# The Python backend's shared memory, which holds callers' texts, would be open to every user: boost.interprocess sets
# the mode 0644 past the umask. Machine -> its number for the kernel, that of seccomp(2), that of fchmod(2).
MACHINES = {"x86_64": (0xC000003E, 317, 91), "aarch64": (0xC00000B7, 277, 52)}


def _keep_modes() -> tuple[str, str]:
    """The number of seccomp(2) and, in hexadecimal, a filter by which fchmod(…, 0644) succeeds and does nothing.

    Both are empty for a machine that is not in MACHINES.
    """
    if platform.machine() not in MACHINES:
        return "", ""
    machine, seccomp, fchmod = MACHINES[platform.machine()]
    load, skip_unless, finish = 0x20, 0x15, 0x06
    rules = (
        (load, 0, 0, 4), (skip_unless, 0, 5, machine),
        (load, 0, 0, 0), (skip_unless, 0, 3, fchmod),
        (load, 0, 0, 24), (skip_unless, 0, 1, 0o644),  # the second argument
        (finish, 0, 0, 0x00050000),  # SECCOMP_RET_ERRNO with no error
        (finish, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    )  # fmt: skip
    return str(seccomp), b"".join(struct.pack("=HBBI", *rule) for rule in rules).hex()


def spawn(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    folder: Path,
    inherit: Sequence[int] = (),
    keep_modes: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `command` in `folder`, with the descriptors `inherit`, its output appended to `log`.

    What it creates only this user can open; with `keep_modes` its shared memory too.

    The kernel signals the child when the *thread* that forked it ends, hence only the main thread may start one.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ServerError("A Triton server must be started from the main thread.", "It would end with this thread.")
    with log.open("ab") as output:
        return subprocess.Popen(
            ends_with_parent(command, signal.SIGTERM, STACK_BYTES, _keep_modes() if keep_modes else ("", "")),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
            pass_fds=inherit,
            umask=0o077,
        )


def ends_with_parent(
    command: Sequence[str], by: signal.Signals, stack: int | None = None, system_calls: tuple[str, str] = ("", "")
) -> tuple[str, ...]:
    """`command`, sent the signal `by` when the thread that starts it ends; with stacks of up to `stack` bytes.

    `system_calls` are the number of seccomp(2) and a filter for it, in hexadecimal.

    A short Python program sets this up and becomes `command`. `preexec_fn` would run gRPC's fork handlers in the child,
    which ended 7 % of the children of a process with open channels (grpcio 1.85.1).
    """
    setup = (str(os.getpid()), str(by.value), str(stack or ""), *system_calls)
    return (sys.executable, "-I", "-S", "-c", BECOME, *setup, *command)


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
        _collect(process.pid)
    return process.returncode


def _collect(group: int) -> None:
    """Wait for the ended processes of `group` that this process has inherited, as process 1 of a container does."""
    deadline = time.monotonic() + COLLECT_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG) == (0, 0):
                time.sleep(POLL_SECONDS)


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
