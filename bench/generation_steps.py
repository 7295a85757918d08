"""What the engine adds to a step: its time beside the runtime's runs in it, and beside these runs alone.

Measured inside one process, in the engine itself: runs are timed where the engine calls its runtime, steps where it
tells its observer. Knows no tables.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.generation_cases import THREADS, Batch, Model
from bench.generation_ours import open_engine, requests
from bench.peers.resident import Prepare


@dataclass(frozen=True)
class Overhead:
    """Medians of a decode step, in milliseconds.

    `step` of the engine from end to end, `inside` the runtime in it, `added` the rest, `bare` the same runs in a loop
    with nothing else in the process.
    """

    step: float
    inside: float
    added: float
    bare: float | None


@dataclass
class _Clock:
    """Seconds spent in runs since it was last read, and for each decode step (seconds in all, seconds in runs)."""

    inside: float = 0.0
    last: float | None = None
    steps: list[tuple[float, float]] = field(default_factory=list)

    def observe(self, plan: Any, scheduler: object) -> None:
        """After each step of the engine: keep it if it is a decode step after another."""
        now = time.perf_counter()
        decodes = type(plan).__name__ == "Decode"
        if decodes and self.last is not None:
            self.steps.append((now - self.last, self.inside))
        self.last, self.inside = now if decodes else None, 0.0

    def time_runs(self) -> None:
        """From now on count the runs of both runtimes."""
        from hfx.python_backends.engine.memory import Binding
        from hfx.python_backends.engine.openvino_model import InferRequest

        for kind in (Binding, InferRequest):
            setattr(kind, "run", self._timed(kind.run))  # noqa: B010 - a method is replaced, which types don't allow

    def _timed(self, run: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed(bound: Any) -> None:
            begin = time.perf_counter()
            run(bound)
            self.inside += time.perf_counter() - begin

        return timed


def open_way(model: Model, folder: str, fetched: str, precision: str, runtime: str) -> Prepare:
    """Cases are batches, answered with Overhead."""
    clock = _Clock()
    clock.time_runs()

    def prepare(case: Batch) -> Any:
        return lambda: _overhead(model, folder, runtime, case, clock)

    return prepare


def _overhead(model: Model, folder: str, runtime: str, case: Batch, clock: _Clock) -> Overhead:
    with open_engine(folder, case.rows * case.beams, case.rows, runtime, clock.observe) as engine:
        asyncio.run(_consume(engine, requests(case, model.start)))  # shapes are prepared at their first run
        clock.steps.clear()
        clock.last = None
        asyncio.run(_consume(engine, requests(case, model.start)))
    step, inside, added = (
        1e3 * statistics.median(values)
        for values in zip(*((wall, runs, wall - runs) for wall, runs in clock.steps), strict=True)
    )
    return Overhead(step, inside, added, _bare(folder, runtime, case, clock) if model.start is None else None)


async def _consume(engine: Any, wanted: Sequence[Any]) -> None:
    """All events of all requests in one event loop, as a server reads them."""

    async def read(handle: Any) -> None:
        async for _ in handle:
            pass

    await asyncio.gather(*(read(engine.submit(request)) for request in wanted))


def _bare(folder: str, runtime: str, case: Batch, clock: _Clock) -> float:
    """Median milliseconds of the engine's own runs over the same lengths."""
    from hfx.python_backends.engine.runners import open_runner
    from hfx.python_backends.engine.scheduler import Limits
    from hfx.python_backends.engine.sessions import SessionSettings
    from hfx.python_backends.engine.spec import read_spec

    settings = SessionSettings(threads=THREADS, runtime=runtime)
    runner = open_runner(read_spec(Path(folder)), case.rows, settings, Limits())
    times: list[float] = []
    for _ in range(2):
        runner.prefill(0, [tuple(prompt) for prompt in case.prompts()], False)
        times = []
        for _ in range(case.new - 1):
            clock.inside = 0.0
            runner.step(1, case.rows, False)
            times.append(clock.inside)
    runner.close()
    return 1e3 * statistics.median(times)
