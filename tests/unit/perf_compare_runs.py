"""Runs with known figures, for the tests of comparisons."""

from __future__ import annotations

from typing import Any

from hfx.perf.results import Load, Machine, Requests, Result, Run, Subject, Tokens, distribution

MACHINE = Machine(processor="Test CPU", cores=2, memory=8 << 30, system="Linux", load=0.1)


def run(
    label: str,
    throughput: float,
    *,
    callers: int = 1,
    round: int = 0,
    data: str = "texts",
    tool: Any = "builtin",
    device: Any = "",
    peer: str = "",
    written: tuple[int, ...] = (),
    **more: Any,
) -> Run:
    return Run(
        subject=Subject(label=label, model="m", tool=tool, device=device, peer=peer),
        load=Load(kind="closed", concurrency=callers, data=data),
        began="2025-01-31T12:00:00Z",
        seconds=1.0,
        requests=Requests(10, 10),
        throughput=throughput,
        latency=distribution([0.01] * 10),
        round=round,
        tokens=Tokens(0, sum(written), written) if written else None,
        **more,
    )


def result(*runs: Run, machine: Machine = MACHINE, **more: Any) -> Result:
    return Result(
        kind="run", title="t", command="c", created="2025-01-31T12:00:00Z", machine=machine, runs=runs, **more
    )
