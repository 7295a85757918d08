"""Runs and results with known figures, for tests of comparison, tuning, tables and files."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hfx.perf.results import Load, Machine, Requests, Result, Run, Subject, distribution

BEGAN = "2026-01-31T12:00:00Z"
MACHINE = Machine(processor="Test CPU", cores=2, memory=8 << 30, system="Linux", load=0.1)


def run(label: str = "x", throughput: float = 100.0, *, p99: float = 10.0, callers: int = 1, **more: Any) -> Run:
    """Return a run of 100 requests within `p99` milliseconds, under `callers` or at an open `rate`.

    `more` are fields of Subject, Load and Run by their names, and how many requests `succeeded`.
    """
    known: dict[str, Any] = {"model": "m", "tool": "builtin", "data": "texts", **more, "label": label}
    known |= {"kind": "open"} if "rate" in more else {"kind": "closed", "concurrency": callers}
    subject, load = (
        {field.name: known.pop(field.name) for field in fields(part) if field.name in known} for part in (Subject, Load)
    )
    whole = {
        "began": BEGAN,
        "seconds": 1.0,
        "requests": Requests(100, known.pop("succeeded", 100)),
        "latency": distribution([p99 / 1e3] * 100),
    }
    return Run(Subject(**subject), Load(**load), throughput=throughput, **(whole | known))


def result(*runs: Run, machine: Machine = MACHINE, **more: Any) -> Result:
    known: dict[str, Any] = {"kind": "run", "title": "t", "command": "c", "base": runs[0].subject.label, **more}
    return Result(created=BEGAN, machine=machine, runs=runs, **known)
