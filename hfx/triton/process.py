"""Starting a tritonserver child process, and inspecting it and its stubs through the kernel.

The process dies with its parent. The terminal's Ctrl-C never reaches it, as it has its own session. Its output goes to
one log file.
"""

from __future__ import annotations

import os
import platform
import signal
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hfx import process as child
from hfx.errors import ServerError
from hfx.process import ends_with_parent, exit_reason
from hfx.triton.liveness import STUB, processes, read_process

# Known causes of Triton's end: by a signal, or with the code of hfx/native/backend/device_runner.cpp.
CAUSES = {
    86: "as its GPU has failed",
    -signal.SIGFPE: "as by a gRPC request with the parameter classification on an output of texts; HTTP refuses it",
    -signal.SIGSEGV: "as by gRPC streams with the header triton_grpc_error, or by requests that are cancelled at once",
}
EXIT_CODE_FIELD = 52 - 3  # in the stat file of proc(5), counted from the state
# Triton 2.51 parses the body of a POST with the content type of a form on a thread's stack. With the usual stack of
# 8 MB, a form of 8 MB kills it. The limit is the size of each thread's stack, of which only the used part takes memory.
STACK_BYTES = 512 << 20
# The Python backend's shared memory, which holds callers' texts, would be open to every user, because
# boost.interprocess sets the mode 0644 in spite of the umask. The values are the machine's number for the kernel, and
# the numbers of the system calls seccomp(2) and fchmod(2).
MACHINES = {"x86_64": (0xC000003E, 317, 91), "aarch64": (0xC00000B7, 277, 52)}


def _keep_modes() -> tuple[str, str]:
    """Return the number of seccomp(2), and a filter in hexadecimal that makes fchmod(…, 0644) succeed and do nothing.

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
    """Start `command` in `folder`, with the descriptors `inherit`, and append its output to `log`.

    Only this user can open the files that the command creates; with `keep_modes`, this is also true of its shared
    memory.

    The kernel signals the child when the *thread* that forked it ends, so only the main thread may start one.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ServerError("A Triton server must be started from the main thread.", "It would end with this thread.")
    mortal = ends_with_parent(command, signal.SIGTERM, STACK_BYTES, _keep_modes() if keep_modes else ("", ""))
    return child.spawn(mortal, log, env=environment, cwd=folder, pass_fds=inherit, umask=0o077)


def stubs(group: int) -> dict[str, list[int]]:
    """Return the live Python stubs of the server with process id `group`: instance name -> pids, oldest first."""
    pids: dict[str, list[int]] = {}
    for process in sorted(processes(), key=lambda each: each.started):
        if process.group == group and (instance := process.instance):
            pids.setdefault(instance, []).append(process.pid)
    return dict(sorted(pids.items()))


def memory(group: int) -> int:
    """Return the bytes of memory that the processes of `group` take, including their share of shared memory (Pss)."""
    return sum(_proportional_bytes(each.pid) for each in processes() if each.group == group)


def _proportional_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0  # the process has ended
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def is_running(pid: int, group: int) -> bool:
    """Return whether `pid` still runs in `group` (a killed child that its parent has not waited for does not run)."""
    process = read_process(pid)
    return process is not None and process.group == group and process.stat[0] not in "ZX"


def kill_orphans(folder: Path) -> bool:
    """Kill the stubs that run from `folder` without a server, and return whether there were any.

    Triton's stubs don't notice that their server was killed, and ignore SIGTERM. They would keep their models in
    memory.
    """
    programs = ((process, process.arguments[0]) for process in processes())
    stubs_here = [process for process, path in programs if path.startswith(f"{folder}/") and path.endswith(STUB)]
    orphans = [process.pid for process in stubs_here if not is_running(process.group, process.group)]
    for pid in orphans:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(orphans)


def server_death(code: int) -> str:
    """Return a description of how tritonserver ended, from its return code, with the known cause if there is one."""
    cause = f", {CAUSES[code]}" if code in CAUSES else ""
    return f"tritonserver died ({exit_reason(code)}{cause})"


def ending(pid: int) -> str:
    """Return how the process `pid`, which its parent has not waited for, ended; empty if that is not visible."""
    process = read_process(pid)
    if process is None or process.stat[0] != "Z":
        return ""
    return exit_reason(os.waitstatus_to_exitcode(int(process.stat[EXIT_CODE_FIELD])))


def listens(pid: int, port: int) -> bool:
    """Return whether the process `pid` itself listens for TCP connections at `port`."""
    try:
        inodes = [inode for name in ("tcp", "tcp6") for inode in _listening(Path(f"/proc/{pid}/net/{name}"), port)]
        own = {_link(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return False  # the process has ended
    return any(f"socket:[{inode}]" in own for inode in inodes)


def _listening(table: Path, port: int) -> list[str]:
    """Return the inodes of sockets in state LISTEN (0A) at `port`, from a table in the format of /proc/net/tcp."""
    rows = [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""  # it has been closed in the meantime
