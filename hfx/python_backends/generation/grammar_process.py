"""Compile callers' grammars in other processes (grammar_check.py), before this process compiles them itself.

All models of this process share these processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import QueueFull

SCRIPT = Path(__file__).with_name("grammar_check.py")
LONGEST = 15.0  # seconds to wait for a process and for its answer; only a busy machine takes so long
AT_ONCE = 2  # grammars that are compiled at a time
TOO_SLOW = "this one takes too long"
TOO_LARGE = "this one takes too much memory, or ends the process (%s)"


class GrammarProcess:
    """A process that compiles grammars, for one thread at a time.

    It starts with its first grammar, and ends when its stdin is closed, at the end of this process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def error(self, grammar: str, limits: Mapping[str, Any]) -> str:
        """Return why a grammar can't be compiled; empty if it can. Raises QueueFull, and OSError without a Python."""
        answer = self._ask(json.dumps(grammar), limits)
        if isinstance(answer, str):
            return answer
        return TOO_SLOW if answer == -signal.SIGPROF else TOO_LARGE % answer

    def _ask(self, line: str, limits: Mapping[str, Any]) -> str | int:
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            process = self._process = _started(limits)
            self._owner = os.getpid()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], LONGEST)[0]:
                answer: str | int = json.loads(process.stdout.readline())
                return answer
        except (OSError, ValueError):  # the process was killed; the next grammar starts another
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise _busy()


def _started(limits: Mapping[str, Any]) -> subprocess.Popen[str]:
    import llguidance

    folder = str(Path(llguidance.__file__).parent.parent)
    process = subprocess.Popen(
        [python(), "-I", "-S", str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps([folder, dict(limits)]) + "\n")
    return process


def _busy() -> QueueFull:
    return QueueFull(f"a structured output was not compiled within {LONGEST:g} s", "Try again later")


def python() -> str:
    """Return the path of a Python for the script, as Triton's own has no executable. Raises FileNotFoundError."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folders = (Path(sys.exec_prefix) / "bin", Path(sys.base_exec_prefix) / "bin")
    named = [Path(sys.executable)] if "python" in Path(sys.executable or "").name else []
    places = [*named, *(folder / name for folder in folders for name in (version, "python3"))]
    found = next((str(path) for path in places if os.access(path, os.X_OK) and path.is_file()), None)
    found = found or shutil.which(version) or shutil.which("python3")
    if found is None:
        raise FileNotFoundError("no python3")
    return found


# LIFO, so that the second process starts only when it is needed.
_FREE: queue.LifoQueue[GrammarProcess] = queue.LifoQueue()
for _ in range(AT_ONCE):
    _FREE.put(GrammarProcess())


def error_of(grammar: str, limits: Mapping[str, Any]) -> str:
    """Return why a grammar can't be compiled; empty if it can. For any thread. Raises QueueFull, and OSError."""
    try:
        process = _FREE.get(timeout=LONGEST)
    except queue.Empty:
        raise _busy() from None
    try:
        return process.error(grammar, limits)
    finally:
        _FREE.put(process)
