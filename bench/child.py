"""A runtime in a process of its own, idle until it gets work: threads of two runtimes in one process would compete."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from hfx.errors import HfxError

Run = Callable[[], object]
Prepare = Callable[[Any], Run]  # from a case to the function that is timed
END_SECONDS = 3.0
LONGEST_CALL = 900.0  # seconds


class PeerFailed(HfxError):
    """A way that is not installed, can't be opened, or failed; the message is a line for notes."""


@dataclass(frozen=True)
class Sample:
    """One turn: seconds of each call, processor seconds of all threads a call, peak bytes, the last call's value."""

    seconds: tuple[float, ...]
    processor: float
    memory: int
    value: Any


class Child:
    """`open_way(**arguments)`, a function of a module, in a fresh process; it returns a Prepare. A context manager."""

    def __init__(self, open_way: Callable[..., Prepare], **arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks without the threads that hold them
        self._pipe, theirs = context.Pipe()
        self._log = tempfile.NamedTemporaryFile(prefix="hfx-bench-")  # noqa: SIM115 - closed with the process
        self._process = context.Process(target=_serve, args=(theirs, self._log.name, open_way, arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._receive()
        except BaseException:
            self.close()
            raise

    def run(self, case: object, seconds: float = 0.0, warm: bool = True) -> Sample:
        """Run `case` (hashable) at least once and for about `seconds`; with `warm`, the first time after a call more.

        Raises PeerFailed.
        """
        try:
            self._pipe.send((case, seconds, warm))
        except OSError:
            raise PeerFailed("its process has ended") from None
        found = self._receive()
        assert isinstance(found, Sample)
        return found

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _receive(self) -> object:
        try:
            if not self._pipe.poll(LONGEST_CALL):
                self._process.kill()
                raise PeerFailed(f"no answer in {LONGEST_CALL:.0f} s")
            error, value = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
            words = f": {lines[-1].strip()}" if lines else ""
            raise PeerFailed(f"its process ended with code {self._process.exitcode}{words}") from None
        if error:
            raise PeerFailed(error)
        return value


def apart(function: Callable[..., Any], **arguments: Any) -> Any:
    """`function(**arguments)`, a function of a module, in a fresh process that ends with it. Raises PeerFailed."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(function, **arguments).result()
        except Exception as error:  # of other people's packages, of any type
            raise PeerFailed(_reason(error)) from error


def _serve(pipe: Connection, log: str, open_way: Callable[..., Prepare], arguments: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        prepare = open_way(**arguments)
    except Exception as error:  # of other people's packages, of any type
        pipe.send((_reason(error), None))
        return
    pipe.send(("", None))
    runs: dict[object, Run] = {}
    with suppress(EOFError):  # the parent closed its end
        while True:
            case, seconds, warm = pipe.recv()
            try:
                if case not in runs:
                    runs[case] = prepare(case)
                    if warm:
                        runs[case]()  # shapes are prepared at their first run
                pipe.send(("", timed(runs[case], seconds)))
            except Exception as error:
                pipe.send((_reason(error), None))
    os._exit(0)  # some runtimes take ten seconds to end their threads


def timed(run: Run, seconds: float) -> Sample:
    """Call `run` at least once and for about `seconds`."""
    times: list[float] = []
    begin, processor = time.perf_counter(), time.process_time()
    while not times or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        value = run()
        times.append(time.perf_counter() - start)
    return Sample(tuple(times), (time.process_time() - processor) / len(times), peak_bytes(), value)


def peak_bytes() -> int:
    """The most that this process held since it began. (getrusage would count its parent's at the fork.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
