"""One tritonserver child process: spawned, watched and ended with all its stubs.

It dies with its parent, is never reached by the terminal's Ctrl-C (it has its own session), and its output goes to
one log file. This file knows processes; it must not know what they serve.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hfx.errors import ServerError

STUB = "triton_python_backend_stub"
STUB_INSTANCE_ARGUMENT = 8  # the stub's argv: …, instance name such as NAME_tokenize_0_0, …
POLL_SECONDS = 0.05
EXIT_CODE_FIELD = 52 - 3  # of proc(5)'s stat, counted from the state
CPU_FIELDS = slice(14 - 3, 16 - 3)  # user and system time
PR_SET_PDEATHSIG = 1
# Triton 2.51 parses the body of a POST that calls itself a form on a thread's stack: with the usual 8 MB a form of 8 MB
# kills it. The limit is the size of each thread's stack, of which only what is used takes memory.
STACK_BYTES = 512 << 20


def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path, inherit: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start COMMAND in FOLDER, with the descriptors INHERIT, its output appended to LOG.

    The kernel signals the child when the *thread* that forked it ends, hence the demand for the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ServerError("A Triton server must be started from the main thread.", "It would end with this thread.")
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
            pass_fds=inherit,
            preexec_fn=_before_exec(os.getpid()),
        )


def _before_exec(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL("libc.so.6").prctl  # looked up before the fork: after it only async-signal-safe calls are sure
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)

    def demand() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the demand
            os._exit(1)
        resource.setrlimit(resource.RLIMIT_STACK, (stack, most))

    return demand


def end(process: subprocess.Popen[bytes], grace: float, is_done: Callable[[], bool] = lambda: False) -> int:
    """Ask PROCESS to end, then kill what is left of its group: after GRACE seconds, or when IS_DONE says so.

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
    """Kill what is left of the group of PROCESS, without waiting."""
    with suppress(ProcessLookupError):  # nothing is left
        os.killpg(process.pid, signal.SIGKILL)


def stubs(group: int) -> dict[str, list[int]]:
    """The live Python stubs of the server with process id GROUP: instance name -> pids, oldest first."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        instance = _stub_instance(entry, group)
        if instance:
            found.setdefault(instance, []).append(int(entry.name))
    return {instance: sorted(pids) for instance, pids in sorted(found.items())}


def _stub_instance(entry: Path, group: int) -> str:
    try:
        if _stat(entry)[2] != str(group):  # field 5 of proc(5): the process group
            return ""
        arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""  # it ended while we looked
    is_stub = len(arguments) > STUB_INSTANCE_ARGUMENT and arguments[0].endswith(STUB)
    return arguments[STUB_INSTANCE_ARGUMENT] if is_stub else ""


def _stat(entry: Path) -> list[str]:
    return (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()


def is_running(pid: int, group: int) -> bool:
    """Whether PID still runs in GROUP (a killed child that nobody has waited for does not run)."""
    try:
        state, _, its_group = _stat(Path(f"/proc/{pid}"))[:3]
    except OSError:
        return False
    return its_group == str(group) and state not in "ZX"


def end_orphans(folder: Path) -> bool:
    """Kill the stubs that run from FOLDER and whose server is gone; whether there were any.

    Triton's stubs don't see that their server was killed, and SIGTERM is nothing to them: they keep their models.
    """
    found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_orphan(entry, folder)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _is_orphan(entry: Path, folder: Path) -> bool:
    try:
        program = (entry / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
        server = int(_stat(entry)[2])  # the leader of its group
    except OSError:
        return False  # it ended while we looked
    return program.startswith(f"{folder}/") and program.endswith(STUB) and not is_running(server, server)


def cpu_seconds(group: int) -> float:
    """CPU time that the living processes of GROUP have taken."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            fields = _stat(entry)
            ticks += sum(map(int, fields[CPU_FIELDS])) if fields[2] == str(group) else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def ending(pid: int) -> str:
    """How PID, a process that nobody has waited for, ended; an empty string when that is not to be seen."""
    try:
        fields = _stat(Path(f"/proc/{pid}"))
    except OSError:
        return ""
    return exit_reason(os.waitstatus_to_exitcode(int(fields[EXIT_CODE_FIELD]))) if fields[0] == "Z" else ""


def exit_reason(code: int) -> str:
    """How a process ended, from its return code."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def listens(pid: int, port: int) -> bool:
    """Whether the process PID itself listens for TCP connections at PORT."""
    try:
        inodes = [inode for name in ("tcp", "tcp6") for inode in _listening(Path(f"/proc/{pid}/net/{name}"), port)]
        own = {_link(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False  # it has ended
    return any(f"socket:[{inode}]" in own for inode in inodes)


def _listening(table: Path, port: int) -> list[str]:
    """The inodes of sockets in state LISTEN (0A) at PORT, of a table in the format of /proc/net/tcp."""
    rows = [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""  # closed while we looked
