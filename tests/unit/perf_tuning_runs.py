"""Made-up runs and a made-up server for the tests of tuning: throughput follows from the settings by a formula."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hfx.errors import ServerError
from hfx.perf.results import Load, Requests, Run, Subject, distribution
from hfx.perf.tuning.pace import Clock, Pace
from hfx.perf.tuning.space import Dimension, Settings, Space

FOREVER = 1e12
PACE = Pace(seconds=9.0, loads=1, rounds=3, overhead=1.0, margin=0.1)


def run(label: str = "x", throughput: float = 100.0, p99: float = 10.0, *, round: int = 0, **more: Any) -> Run:
    """A run of 100 requests under 4 callers (`rate`: an open load); `p99` in milliseconds."""
    rate = more.pop("rate", None)
    kind: Any = "open" if rate else "closed"
    succeeded = more.pop("succeeded", 100)
    return Run(
        subject=Subject(label=label, model="m", tool="builtin", settings=more.pop("settings", {})),
        load=Load(kind=kind, concurrency=None if rate else more.pop("callers", 4), rate=rate),
        began="2025-01-31T12:00:00Z",
        seconds=1.0,
        requests=Requests(100, succeeded),
        throughput=throughput,
        latency=distribution([p99 / 1e3] * 100),
        round=round,
        **more,
    )


def made_space(**values: tuple[int, ...]) -> Space:
    """A dimension for each name; the first value is the published one."""
    dimensions = tuple(Dimension(name, {f"{name}={n}": {name: n} for n in numbers}) for name, numbers in values.items())
    return Space(dimensions, {name: numbers[0] for name, numbers in values.items()})


SPACE = made_space(instances=(1, 2, 4, 8), threads=(8, 4, 2, 1), delay=(0, 100, 500, 1000), batch=(64, 128, 256))


def capacity(settings: Settings) -> float:
    """Requests a second: best at 4 instances of 2 threads without a delay, 200 at the published settings."""
    instances, threads, delay = (int(settings[name]) for name in ("instances", "threads", "delay"))
    return 400.0 - 40 * abs(instances - 4) - 20 * abs(threads - 2) - delay / 10 + int(settings["batch"]) / 64


@dataclass
class MadeUp:
    """Opens trials; `measured` has (label, settings, seconds) of each measurement. Some settings fail to start."""

    broken: Settings = field(default_factory=dict)
    measured: list[tuple[str, Settings, float]] = field(default_factory=list)

    @contextmanager
    def opened(self, label: str, settings: Settings) -> Iterator[Any]:
        if self.broken and self.broken.items() <= settings.items():
            raise ServerError("the model does not load:\nno room")

        def measure(seconds: float) -> tuple[Run, ...]:
            self.measured.append((label, settings, seconds))
            wrong = 1 + 0.02 / seconds * (-1 if len(self.measured) % 2 else 1)  # short measurements are less exact
            return (run(label, capacity(settings) * wrong, settings=dict(settings)),)

        yield measure

    @property
    def clock(self) -> Clock:
        """One that never ends."""
        return Clock(PACE, FOREVER)
