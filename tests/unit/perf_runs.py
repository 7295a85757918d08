"""Runs with known figures, for the tests of comparing and tuning."""

from __future__ import annotations

from typing import Any

from hfx.perf.results import Load, Machine, Requests, Result, Run, Subject
from hfx.perf.results.distribution import distribution

MACHINE = Machine(processor="Test CPU", cores=2, memory=8 << 30, system="Linux", load=0.1)


def run(label: str = "x", throughput: float = 100.0, *, p99: float = 10.0, **more: Any) -> Run:
    """A run of 100 requests, all within `p99` milliseconds, under `callers` or at an open `rate`."""
    rate, callers = more.pop("rate", None), more.pop("callers", 1)
    data, succeeded = more.pop("data", "texts"), more.pop("succeeded", 100)
    subject = {name: more.pop(name) for name in ("device", "settings") if name in more}
    return Run(
        subject=Subject(label=label, model="m", tool="builtin", **subject),
        load=Load("open" if rate else "closed", concurrency=None if rate else callers, rate=rate, data=data),
        began="2025-01-31T12:00:00Z",
        seconds=1.0,
        requests=Requests(100, succeeded),
        throughput=throughput,
        latency=distribution([p99 / 1e3] * 100),
        **more,
    )


def result(*runs: Run, machine: Machine = MACHINE, **more: Any) -> Result:
    more = {"kind": "run", "base": runs[0].subject.label} | more
    return Result(title="t", command="c", created="2025-01-31T12:00:00Z", machine=machine, runs=runs, **more)
