"""A tool's process under way: what it says, the processor time that it takes, and that nothing of it is left behind.

It must not know which tool it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PR_SET_PDEATHSIG = 1


class Running:
    """COMMAND, what it says in the file OUTPUT; a context manager. Its input is a pipe that says nothing."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=_ended_with(os.getpid()),
                process_group=0,  # a terminal's Ctrl-C is for hfx, which passes it on in its own time
            )

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def processor_seconds(self) -> float:
        """Of all its threads; 0 when it has ended."""
        import psutil

        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def words(self) -> str:
        """What it has said so far."""
        return self._output.read_bytes().decode(errors="replace")

    def interrupt(self) -> None:
        """Send it SIGINT."""
        if self.alive:
            self._process.send_signal(signal.SIGINT)

    def end_input(self) -> None:
        """Close its input, as our death would."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Until it has ended, or for so long."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self.end_input()


def _ended_with(parent: int) -> Callable[[], None]:
    """Called in the child before its program: whoever ends us without a word must not leave a load behind."""
    prctl = ctypes.CDLL(None).prctl

    def demand() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the demand
            os._exit(1)

    return demand
