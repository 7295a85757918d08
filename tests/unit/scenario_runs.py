"""Runs and results of scenarios with figures that tests choose, for what follows from runs."""

from __future__ import annotations

from collections.abc import Sequence

from bench.goals import Goal
from bench.scenarios import SCENARIOS, Case, Scenario, verdicts
from hfx.perf.load import Closed
from hfx.perf.results import Load, Machine, Requests, Result, Run, Subject, Tokens, distribution

MACHINE = Machine("Test CPU", 2, 8 << 30, "Linux", 0.1, versions={"hfx": "0.1.0"})


def run(case: Case, label: str, rate: float, turn: int = 0, latency: float = 0.1, tokens: Sequence[int] = ()) -> Run:
    """RATE requests a second and LATENCY seconds each, of hfx as callers ask it, of a peer as a batch."""
    ours = label.startswith("hfx") and not label.endswith("in process")
    if ours:
        load = case.plan.load("texts", "1 s", case.name)
        if load.rate is None and load.concurrency is None:
            load = Load("open", case.rows, arrivals=load.arrivals, case=case.name)
    else:
        load = Load("batch", case.rows, case=case.name)
    subject = Subject(label, "m", "builtin" if ours else "peer", peer="" if ours else label.split()[0])
    return Run(
        subject=subject,
        load=load,
        began="2026-01-01T00:00:00+00:00",
        seconds=100 / rate,
        requests=Requests(100, 100),
        throughput=rate,
        latency=distribution([latency] * 100),
        round=turn,
        tokens_per_second=50 * rate if case.new_tokens else None,
        tokens=Tokens(7, sum(tokens), tuple(tokens)) if tokens else None,
        goodput=0.97 if case.slo else None,
    )


def rounds(case: Case, label: str, rates: Sequence[float], latency: float = 0.1) -> list[Run]:
    """A run for each of RATES."""
    return [run(case, label, rate, turn, latency) for turn, rate in enumerate(rates)]


def everything(scenario: Scenario) -> list[Run]:
    """hfx at 30 requests a second and each of its peers at 10, in three rounds of every case."""
    found = []
    for case in scenario.cases:
        found += rounds(case, scenario.label, (28.0, 30.0, 33.0))
        for way in scenario.peers:
            if way.takes(case):
                found += rounds(case, way.label, (10.0, 10.0, 10.0), latency=0.3)
    return found


def result(name: str, runs: Sequence[Run] | None = None) -> Result:
    """The result of the scenario NAME."""
    scenario = SCENARIOS[name]
    found = tuple(everything(scenario) if runs is None else runs)
    goals: tuple[Goal, ...] = verdicts(scenario, found)
    return Result(
        kind="scenario",
        title=f"{name}: {scenario.title}",
        command="python -m bench.scenarios",
        created="2026-01-01T00:00:00+00:00",
        machine=MACHINE,
        runs=found,
        base=scenario.label,
        published=scenario.published,
        details={
            "scenario": name, "quick": False, "model": "", **{f"goal: {goal.words}": goal.detail() for goal in goals},
        },
    )  # fmt: skip


def callers(case: Case) -> int:
    """How many there are."""
    assert isinstance(case.plan, Closed)
    return case.plan.callers
