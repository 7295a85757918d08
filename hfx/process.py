"""Child processes: they die with what started them, are ended with all that they have started, and log to a file.

A JsonChild reads and writes lines of JSON; a LineChild does so in asyncio, and answers each line by one.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    import asyncio

POLL_SECONDS = 0.05
COLLECT_SECONDS = 2.0
QUICK_SECONDS, MOST_PAUSE_SECONDS = 10.0, 5.0
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


def ends_with_parent(
    command: Sequence[str],
    by: signal.Signals = signal.SIGKILL,
    stack: int | None = None,
    system_calls: tuple[str, str] = ("", ""),
) -> tuple[str, ...]:
    """`command`, sent the signal `by` when the thread that starts it ends; with stacks of up to `stack` bytes.

    `system_calls` are the number of seccomp(2) and a filter for it, in hexadecimal.

    A short Python program sets this up and becomes `command`. `preexec_fn` would run gRPC's fork handlers in the child,
    which ended 7 % of the children of a process with open channels (grpcio 1.85.1).
    """
    setup = (str(os.getpid()), str(by.value), str(stack or ""), *system_calls)
    return (sys.executable, "-I", "-S", "-c", BECOME, *setup, *command)


def spawn(command: Sequence[str], log: Path | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, which a terminal's Ctrl-C does not reach, its output appended to `log`.

    Without a `log`, its output goes where this process's goes. Its standard input is empty. `options` are those of
    subprocess.Popen, and come first.
    """
    with log.open("ab") if log else nullcontext() as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        process = subprocess.Popen(command, start_new_session=True, **streams | options)
    return cast("subprocess.Popen[bytes]", process)


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


def exit_reason(code: int) -> str:
    """Return how a process ended, from its return code."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def keep_running(run: Callable[[], str], stopping: threading.Event, report: Callable[[str], None]) -> None:
    """Call `run` again and again until `stopping` is set. It runs a process to its end, and returns how that ended.

    `report` gets the reason of each end but the last. A process that lived for less than QUICK_SECONDS delays the next
    one, the longer the more of them there were in a row.
    """
    quick_ends = 0
    while not stopping.is_set():
        began = time.monotonic()
        reason = run()
        if stopping.is_set():
            return
        report(reason)
        quick_ends = quick_ends + 1 if time.monotonic() - began < QUICK_SECONDS else 0
        stopping.wait(min(MOST_PAUSE_SECONDS, 0.1 * 2.0 ** min(quick_ends, 10)) if quick_ends else 0)


Messages = queue.SimpleQueue[tuple["JsonChild", dict[str, Any] | None]]


class JsonChild:
    """A child that reads and writes lines of JSON, and dies with the thread that starts it.

    What it writes goes to the queue `messages`, and None at its end. `options` are those of spawn.
    """

    def __init__(self, command: Sequence[str], messages: Messages, **options: Any) -> None:
        pipe = subprocess.PIPE
        self.process = spawn(ends_with_parent(command), stdin=pipe, stdout=pipe, **options)
        threading.Thread(target=self._read, args=(messages,), daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a child that has ended gets nothing."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Close the standard input of the process."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def kill(self) -> None:
        """End it with all that it has started."""
        self.close()
        kill(self.process)
        self.process.wait()

    def _read(self, messages: Messages) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # the last one of a process that was killed
                messages.put((self, json.loads(line)))
        self.process.wait()
        messages.put((self, None))


class LineChild:
    """A child for asyncio that answers each request by a line, and dies with the thread that starts it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], longest: int) -> Self:
        """Start `command`, whose lines have up to `longest` bytes."""
        import asyncio  # with which other users of this module need not start

        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(*ends_with_parent(command), stdin=pipe, stdout=pipe, limit=longest)
        )

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None

    async def answer(self, request: bytes) -> bytes:
        """The line that answers `request`; empty if the process has ended. Raises OSError and ValueError."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(request)
        await self._process.stdin.drain()
        return await self._process.stdout.readline()

    async def end_code(self) -> int:
        """The exit code, once the process has ended."""
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill the process, and wait for its end."""
        if not self.has_ended:
            self._process.kill()
        await self._process.wait()
