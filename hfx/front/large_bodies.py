"""Reads large JSON in a thread or in a separate process, because Python answers nothing else while it parses 10 MB.

Run as a module, this file is that process. It calls functions that the front, and nothing else, sends pickled to its
standard input.
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from hfx.front.refusals import Refusal, overloaded
from hfx.front.response import log_line
from hfx.process import ends_with_parent, exit_reason, kill, spawn

Result = TypeVar("Result")
LARGE_JSON = 1 << 14  # bytes, which take up to 4 ms to read; 200,000 values take 250 ms
LARGEST_JSON = 1 << 18  # bytes; larger JSON is read in the other process
PATIENCE_SECONDS = 10.0  # for the other process to read a body, and a second more for each BYTES_A_SECOND of the body
BYTES_A_SECOND = 1 << 20  # a tenth of what a busy core reads
COMMAND = (sys.executable, "-P", "-m", "hfx.front.large_bodies")


class LargeBodies:
    """The process for large bodies, which starts with the first one. Calls take turns, each kind in a thread.

    A call that is cancelled loses its turn. If it has begun, it ends before the next call, and its result is dropped.
    A process that does not answer within `patience` seconds, and the time for the size of the body, is replaced.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._reads_here = ThreadPoolExecutor(1)
        self._reads_there = ThreadPoolExecutor(1)

    async def read(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a module-level `function`, which reads JSON of `size` bytes.

        Depending on `size`, it runs directly, in a thread, or in the process. Raises Refusal (from the function; 503 if
        the process ends or hangs).
        """
        if size <= LARGE_JSON:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        if size <= LARGEST_JSON:
            return await loop.run_in_executor(self._reads_here, function, *arguments)
        result, refused = await loop.run_in_executor(self._reads_there, self._exchange, size, (function, arguments))
        if refused is not None:
            raise refused
        return result  # type: ignore[no-any-return]

    def _exchange(self, size: int, call: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        """Return what the process answers to `call`. This runs in the thread with which the process ends."""
        try:
            if self._process is None:
                self._process = spawn(ends_with_parent(COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:  # for example, if the machine has no memory left
            raise _broken(f"did not start: {error.strerror}") from None
        process, seconds = self._process, self._patience + size / BYTES_A_SECOND
        began, overdue = time.monotonic(), threading.Timer(seconds, kill, [process])
        overdue.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            pickle.dump(call, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (OSError, EOFError, MemoryError, pickle.UnpicklingError):
            self.close()
            is_late = time.monotonic() - began >= seconds
            end = f"gave no answer for {seconds:.1f} s" if is_late else f"died ({exit_reason(process.wait())})"
            raise _broken(end) from None
        finally:
            overdue.cancel()

    def close(self) -> None:
        """End the process. The next call starts another one."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:  # which closes its pipes, also with data in them, and waits for its end
                kill(process)


def _broken(fault: str) -> Refusal:
    """Log that the process had a `fault`, and return the refusal of the request that it was for."""
    log_line(f"the process that reads large bodies {fault}; the next large body starts another one.")
    return overloaded("The process that reads large bodies has ended, or did not start.")


def main() -> None:
    """Call the functions that arrive on standard input until it ends."""
    with suppress(EOFError):
        while True:
            pickle.dump(_answer(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
            sys.stdout.buffer.flush()


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Refusal | None]:
    try:
        return function(*arguments), None
    except Refusal as refusal:
        return None, refusal


if __name__ == "__main__":
    main()
