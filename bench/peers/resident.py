"""A way of answering, opened in a process of its own and silent until it is asked to run.

Runtimes keep threads that spin and pin themselves; two of them in one process would be measured against each other.
Owns processes and clocks. It must not know what is measured.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.errors import CaseFailed, OpenFailed

Run = Callable[[], object]
Prepare = Callable[[Any], Run]  # a case -> what is timed
Open = Callable[..., Prepare]  # a module's function: it travels to the process by its name

FEWEST_CALLS = 2
END_SECONDS = 3.0  # of a process that is told to end; one that is in a long call is killed
LONGEST_ANSWER = 900.0  # seconds: a way that is silent for longer is ended


@dataclass(frozen=True)
class Pace:
    """How a case is timed: for about `seconds` and at least `fewest` calls.

    An uncounted call comes first: always before the first time if `prepare`, else where the case is not known to take
    longer than `wake_below` seconds.
    """

    seconds: float
    fewest: int = FEWEST_CALLS
    wake_below: float = math.inf
    prepare: bool = True


@dataclass(frozen=True)
class Sample:
    """One round: the seconds of each call, processor seconds of all threads per call, and the last call's result."""

    seconds: tuple[float, ...]
    cpu_seconds: float
    value: Any = None


class Resident:
    """`open(**arguments)` in a fresh process, which prepares a case at its first `measure`. A context manager."""

    def __init__(self, open_way: Open, **arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks without the threads
        self._pipe, theirs = context.Pipe()
        self._log = tempfile.NamedTemporaryFile(prefix="hfx-peer-")  # noqa: SIM115 - closed with the process
        self._process = context.Process(target=_serve, args=(theirs, self._log.name, open_way, arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            answer = self._receive()
        except BaseException:
            self.close()
            raise
        if isinstance(answer, _Failure):
            self.close()
            raise OpenFailed(answer.reason)

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process.pid is not None
        return self._process.pid

    def measure(self, case: object, pace: float | Pace) -> Sample:
        """Run `case` (a value that can be hashed and pickled) again and again for about `pace` seconds.

        Raises CaseFailed, and OpenFailed where the process has ended.
        """
        sample = self._ask((case, pace if isinstance(pace, Pace) else Pace(pace)))
        assert isinstance(sample, Sample)
        return sample

    def answer(self, case: object) -> Any:
        """Run `case` once, without a clock, for its result (a value that can be pickled). Raises as `measure`."""
        return self._ask((case, None))

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: object) -> object:
        try:
            self._pipe.send(question)
        except OSError:
            raise OpenFailed("its process has ended") from None
        answer = self._receive()
        if isinstance(answer, _Failure):
            raise CaseFailed(answer.reason)
        return answer

    def _receive(self) -> Any:
        try:
            if not self._pipe.poll(LONGEST_ANSWER):
                self._process.kill()
                raise OpenFailed(f"no answer in {LONGEST_ANSWER:.0f} s")
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise OpenFailed(f"its process ended with code {self._process.exitcode}{self._last_words()}") from None

    def _last_words(self) -> str:
        lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()}" if lines else ""


def _serve(pipe: Connection, log: str, open_way: Open, arguments: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the asker decides what it means
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    words = os.open(log, os.O_WRONLY | os.O_APPEND)  # what libraries print is no result
    os.dup2(words, 1)
    os.dup2(words, 2)
    try:
        prepare = open_way(**arguments)
    except Exception as error:  # of other people's packages, of any type: told to whoever asked
        pipe.send(_Failure(_reason(error)))
        return
    pipe.send(None)
    runs: dict[object, Run] = {}
    known: dict[object, float] = {}
    with suppress(EOFError):  # the asker closed: the end
        while True:
            case, pace = pipe.recv()
            try:
                if pace is None:
                    pipe.send(prepare(case)())
                    continue
                if case not in runs:
                    runs[case], known[case] = prepare(case), math.inf
                    if pace.prepare:  # shapes are prepared at their first run
                        known[case] = _time(runs[case], Pace(0, 1, 0)).seconds[0]
                sample = _time(runs[case], pace, known[case])
                known[case] = min(sample.seconds)
                pipe.send(sample)
            except Exception as error:
                pipe.send(_Failure(_reason(error)))
    os._exit(0)  # some runtimes take ten seconds to end their threads


@dataclass(frozen=True)
class _Failure:
    reason: str


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"


def _time(run: Run, pace: Pace, known: float = math.inf) -> Sample:
    if known <= pace.wake_below and known < math.inf:
        run()  # caches and clocks wake up
    times: list[float] = []
    value: object = None
    begin, cpu = time.perf_counter(), time.process_time()
    while len(times) < pace.fewest or time.perf_counter() - begin < pace.seconds:
        start = time.perf_counter()
        value = run()
        times.append(time.perf_counter() - start)
    return Sample(tuple(times), (time.process_time() - cpu) / len(times), value)


def apart(function: Callable[..., Any], **arguments: Any) -> Any:
    """`function(**arguments)`, a module's function, in a fresh process that ends with it. Raises OpenFailed."""
    with Resident(_called, function=function, arguments=arguments) as once:
        return once.answer(None)


def _called(function: Callable[..., Any], arguments: dict[str, Any]) -> Prepare:
    result = function(**arguments)
    return lambda case: lambda: result
