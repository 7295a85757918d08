"""A way of answering, opened in a process of its own and silent until it is asked to run.

Runtimes keep threads that spin and pin themselves; two of them in one process would be measured against each other.
Owns processes and clocks. It must not know what is measured.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

Run = Callable[[], object]
Prepare = Callable[[Any], Run]  # a case -> what is timed
Open = Callable[..., Prepare]  # a module's function: it travels to the process by its name

FEWEST_CALLS = 2


class OpenFailed(Exception):
    """A way that can't be opened here; the text says why."""


@dataclass(frozen=True)
class Sample:
    """One round: the seconds of each call, and the processor seconds of all threads, per call."""

    seconds: tuple[float, ...]
    cpu_seconds: float


class Resident:
    """`open(**arguments)` in a fresh process, which prepares a case at its first `measure`. A context manager."""

    def __init__(self, open_way: Open, **arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks without the threads
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, open_way, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def measure(self, case: object, seconds: float) -> Sample:
        """Run `case` (a value that can be hashed and pickled) again and again for about `seconds`."""
        self._pipe.send((case, seconds))
        sample = self._receive()
        assert isinstance(sample, Sample)
        return sample

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self) -> object:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise OpenFailed(f"its process ended with code {self._process.exitcode}") from None
        if isinstance(answer, str):
            self.close()
            raise OpenFailed(answer)
        return answer


def _serve(pipe: Connection, open_way: Open, arguments: dict[str, Any]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.dup2(2, 1)  # what libraries print is no result
    try:
        prepare = open_way(**arguments)
    except Exception as error:  # of other people's packages, of any type: told to whoever asked
        pipe.send(f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}")
        return
    pipe.send(None)
    runs: dict[object, Run] = {}
    with suppress(EOFError):  # the asker closed: the end
        while True:
            case, seconds = pipe.recv()
            if case not in runs:
                runs[case] = prepare(case)
                runs[case]()  # shapes are prepared at their first run
            pipe.send(_time(runs[case], seconds))


def _time(run: Run, seconds: float) -> Sample:
    run()  # caches and clocks wake up
    times: list[float] = []
    begin, cpu = time.perf_counter(), time.process_time()
    while len(times) < FEWEST_CALLS or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return Sample(tuple(times), (time.process_time() - cpu) / len(times))
