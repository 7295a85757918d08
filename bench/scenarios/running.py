"""A scenario from its checkpoint to its Result: export, server, peers, warm-up, interleaved rounds, roofline.

Owns the order of the work. How a way is asked is ways.py's, what follows from the runs verdicts.py's.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from bench.checkpoints import BY_NAME, cached, smaller
from bench.limit import against_limit
from bench.machine import machine
from bench.peers.ours import exported
from bench.scenarios import texts
from bench.scenarios.scenario import Case, Model, Scenario, quick
from bench.scenarios.texts import Count, Data
from bench.scenarios.verdicts import verdicts
from bench.scenarios.ways import OpenedWay, peers, served, warm
from bench.turns import Way, interleave
from hfx.errors import LoadFailed, UsageError
from hfx.names import default_name
from hfx.perf.load import RequestSet
from hfx.perf.measuring import Target, server_target
from hfx.perf.results import Machine, Rates, Result, Run
from hfx.triton import EmbeddedServer

MOST_TEXTS = 512


@dataclass(frozen=True)
class Options:
    """How a scenario is run. `peers` None: its own; `model` is a checkpoint of the user's, or a NAME at `url`.

    `machine` was looked at before: what a scenario before this one did is no other work.
    """

    rounds: int | None = None
    peers: tuple[str, ...] | None = None
    data: Data | None = None
    quick: bool = False
    model: str = ""
    url: str = ""
    command: str = "python -m bench.scenarios"
    say: Callable[[str], None] = lambda text: None
    stop: threading.Event = field(default_factory=threading.Event)
    machine: Machine | None = None


@dataclass(frozen=True)
class Subject:
    """What is served: where it is asked; files are None for a server that somebody else started."""

    target: Target
    repository: Path | None
    checkpoint: Path | None

    @property
    def count(self) -> Count | None:
        """Tokens of a text."""
        return texts.counter(self.checkpoint) if self.checkpoint else None


def run_scenario(scenario: Scenario, options: Options) -> Result:
    """Measure SCENARIO. A peer that fails is a note; raises an HfxError where hfx itself can't be measured."""
    wanted = planned(scenario, options)
    facts, notes = options.machine or machine(rates=not options.quick), list[str]()
    with _subject(wanted, options) as subject, ExitStack() as stack:
        found = _ways(wanted, subject, facts.rates, options, notes, stack)
        runs = list(_rounds(wanted, subject, found, options, notes))
    if not runs:
        raise LoadFailed(f"Nothing of {scenario.name} was measured: {'; '.join(notes) or 'it was stopped before'}.")
    early = options.stop.is_set()
    notes += ["It was stopped early: what is missing was not measured."] if early else []
    other = options.quick or options.model  # goals are about the scenario's own model
    goals = () if other else verdicts(wanted, runs)
    return Result(
        kind="scenario",
        title=f"{scenario.name}: {scenario.title}",
        command=options.command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=facts,
        runs=tuple(runs),
        base=wanted.label,
        notes=tuple(notes),
        published=scenario.published,
        details={
            "scenario": scenario.name,
            "quick": options.quick,
            "model": options.model,
            "stopped": early,
            **{f"goal: {goal.words}": goal.detail() for goal in goals},
        },
    )


def planned(scenario: Scenario, options: Options) -> Scenario:
    """SCENARIO as OPTIONS want it. Raises UsageError for a peer that it has not, and for data that can't be read."""
    if options.data is not None:
        texts.check(options.data)
    wanted = quick(scenario) if options.quick else scenario
    if options.rounds:
        wanted = replace(wanted, rounds=options.rounds)
    if options.peers is None:
        return wanted
    known = [way.name for way in scenario.peers]
    if unknown := [name for name in options.peers if name not in known]:
        choice = f"Choose of {', '.join(known)}, or none." if known else "Leave --peers out."
        raise UsageError(f"The scenario {scenario.name} has no peer {', '.join(unknown)}.", choice)
    return replace(wanted, peers=tuple(way for way in wanted.peers if way.name in options.peers))


@contextmanager
def _subject(scenario: Scenario, options: Options) -> Iterator[Subject]:
    if options.url:
        if not options.model:
            raise UsageError("--url needs the name of a model there.", "Add --model NAME.")
        yield Subject(Target(options.model, options.url), None, None)
        return
    model = scenario.model
    options.say(f"{scenario.name}: making the model")
    checkpoint = _own(options.model) if options.model else _random(model, options.quick)
    repository = exported(checkpoint, model.task, model.precision, model.slots)
    name = default_name(checkpoint.name)
    options.say(f"{scenario.name}: starting Triton")
    with EmbeddedServer(repository, models=[name]) as server:
        yield Subject(server_target(server, name, model.precision), repository, checkpoint)


def _random(model: Model, tiny: bool) -> Path:
    shape = BY_NAME[model.shape]
    if tiny:
        return cached(smaller(shape))
    return cached(smaller(shape, **model.config) if model.config else shape)


def _own(model: str) -> Path:
    from hfx.exporter.source import open_checkpoint

    return open_checkpoint(model).folder


def _ways(
    scenario: Scenario, subject: Subject, rates: Rates | None, options: Options, notes: list[str], stack: ExitStack
) -> list[OpenedWay]:
    repository = subject.repository

    def limited(run: Run, asks: RequestSet) -> Run:
        return against_limit(run, repository, rates, asks) if repository and rates else run

    ours = served(subject.target, scenario.label, limited, options.stop)
    if subject.checkpoint is None or repository is None:
        if scenario.peers:
            notes.append("No peers: they need the checkpoint, and only the address of a server was given.")
        return [ours]
    return [ours, *stack.enter_context(peers(scenario, subject.checkpoint, repository, notes, options.say))]


def _rounds(
    scenario: Scenario, subject: Subject, ways: Sequence[OpenedWay], options: Options, notes: list[str]
) -> Iterator[Run]:
    """All cases, one after the other; in each, everybody's turn in every round."""
    count = subject.count
    for case in scenario.cases:
        if options.stop.is_set():
            return
        asks = texts.asks(case.texts, _amount(case), case.settings, count, options.data)
        left = [way for way in ways if way.takes(case)]
        options.say(f"{scenario.name}: {case.words}, warming up")
        warm(ways[0], case, asks)
        options.say(
            f"{scenario.name}: {case.words}, {scenario.rounds} rounds of {', '.join(way.label for way in left)}"
        )
        begun = 0
        for end in sorted({way.lasts(scenario.rounds) for way in left}):
            left = [way for way in left if way.lasts(scenario.rounds) >= end]
            turns = [_turn(way, case, asks, begun) for way in left]
            done: Counter[str] = Counter()
            for run in interleave(turns, end - begun, notes, options.stop):
                done[run.subject.label] += 1
                yield run
            left = [way for way in left if done[way.label] == end - begun]  # the others failed
            begun = end


def _amount(case: Case) -> int:
    return min(MOST_TEXTS, max(case.rows, case.requests or 0, 1) if case.texts.kind != "lengths" else MOST_TEXTS)


def _turn(way: OpenedWay, case: Case, asks: RequestSet, begun: int) -> Way:
    return Way(f"{way.label} ({case.words})", lambda number: way.measure(case, asks, begun + number))
