"""One tritonserver child process: spawned, watched and ended with all its stubs.

It dies with its parent, is never reached by the terminal's Ctrl-C (it has its own session), and its output goes to
one log file. This file knows processes; it must not know what they serve.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hfx.errors import ServerError

STUB = "triton_python_backend_stub"
STUB_INSTANCE_ARGUMENT = 8  # the stub's argv: …, instance name such as NAME_tokenize_0_0, …
PR_SET_PDEATHSIG = 1


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
            preexec_fn=_die_with(os.getpid()),
        )


def _die_with(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL("libc.so.6").prctl  # looked up before the fork: after it only async-signal-safe calls are sure

    def demand() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the demand
            os._exit(1)

    return demand


def end(process: subprocess.Popen[bytes], grace: float) -> None:
    """Ask PROCESS to end, give it GRACE seconds, then kill what is left of its group."""
    if process.poll() is None and grace > 0:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # killed below, with its stubs
            process.wait(grace)
    with suppress(ProcessLookupError):  # nothing is left of the group
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
