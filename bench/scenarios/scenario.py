"""What a scenario is, as a value: a model, its loads, the peers beside it, and goals.

It must not know how anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from bench.scenarios.texts import Texts
from hfx.names import MAX_TOKENS, Task
from hfx.perf.load import Closed, Open, Plan
from hfx.perf.results import Load, Published
from hfx.perf.results.schema import Scalar

HFX, IN_PROCESS = "hfx", "in process"
Key = tuple[str, float]  # a case's name and size
QUICK_ROWS, QUICK_TOKENS, QUICK_SECONDS, QUICK_RATE = 4, 4, 0.4, 10.0


@dataclass(frozen=True)
class Model:
    """A shape of bench.checkpoints (with other values of its `config`), its task, and how it is exported.

    `slots` are a generator's rows.
    """

    shape: str
    task: Task
    precision: str = "int8"
    slots: int | None = None
    config: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One load: callers who wait or requests at their times, until `requests` are sent or `seconds` are over.

    A peer in process gets the same texts, `rows` at once, as it knows no callers. `name` and `size` (callers, requests
    a second, or rows) tell cases apart. `settings` go with every request; those that an answer's length follow from are
    MAX_TOKENS alone, which is written exactly. `stream` asks a generator for pieces.
    """

    name: str
    plan: Plan
    texts: Texts
    rows: int = 1
    requests: int | None = None
    seconds: float | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    slo: str = ""
    stream: bool = False

    @property
    def size(self) -> float:
        """How much at once, or a second."""
        return self.plan.callers if isinstance(self.plan, Closed) else (self.plan.rate or self.rows)

    @property
    def new_tokens(self) -> int | None:
        """Tokens of each answer; None: a classifier, or as many as each request says."""
        found = self.settings.get(MAX_TOKENS)
        return None if found is None else int(found)

    @property
    def key(self) -> Key:
        """What tells it from the others of a scenario."""
        return self.name, float(self.size)

    @property
    def words(self) -> str:
        """The load as hfx gets it, for tables."""
        if isinstance(self.plan, Closed):
            return f"{self.name}, {self.plan.callers} caller{'s' * (self.plan.callers != 1)}"
        return f"{self.name}, {self.plan.rate:g}/s" if self.plan.rate else f"{self.rows} {self.name}"


def key_of(load: Load) -> Key:
    """The case that a measured load belongs to."""
    size = load.concurrency if load.concurrency is not None else load.rate
    return load.case, float(size or 0)


@dataclass(frozen=True)
class PeerWay:
    """A peer in one precision, in the first `rounds` (None: in all), for batches of at most `most_rows`.

    `cases` are the names of the cases that it takes part in (empty: all); `served` says that it takes the load as
    callers bring it, being a server itself.
    """

    name: str
    precision: str
    rounds: int | None = None
    most_rows: int = 1024
    cases: tuple[str, ...] = ()
    served: bool = False

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{HFX} {self.precision} {IN_PROCESS}" if self.name == HFX else f"{self.name} {self.precision}"

    def takes(self, case: Case) -> bool:
        """Whether it is measured in CASE."""
        return case.rows <= self.most_rows and (not self.cases or case.name in self.cases)


@dataclass(frozen=True)
class Goal:
    """What FIGURE (of verdicts.figure_of) of hfx should be in a case: at `least`, or at `most`.

    With `against`, a label of a peer, it is the ratio to that peer's, or the difference.
    """

    figure: str
    case: Key
    least: float | None = None
    most: float | None = None
    against: str = ""
    relation: Literal["value", "ratio", "difference"] = "value"


@dataclass(frozen=True)
class Scenario:
    """A canned measurement. `published` are figures of others, shown beside and never part of a ratio."""

    name: str
    title: str
    model: Model
    cases: tuple[Case, ...]
    peers: tuple[PeerWay, ...]
    goals: tuple[Goal, ...]
    rounds: int = 3
    published: tuple[Published, ...] = ()

    @property
    def label(self) -> str:
        """The name of hfx's own way in tables."""
        return f"{HFX} {self.model.precision}"


def quick(scenario: Scenario) -> Scenario:
    """The same in a moment, for a smoke run: its figures mean nothing."""
    small = {case.key: case for case in map(_quick, scenario.cases)}
    return replace(scenario, cases=tuple(small.values()), rounds=1)


def _quick(case: Case) -> Case:
    plan: Plan = Closed(min(case.plan.callers, QUICK_ROWS)) if isinstance(case.plan, Closed) else case.plan
    if isinstance(plan, Open) and plan.rate:
        plan = replace(plan, rate=min(plan.rate, QUICK_RATE))
    new = case.new_tokens
    return replace(
        case,
        plan=plan,
        rows=min(case.rows, QUICK_ROWS),
        requests=None if case.requests is None else min(case.requests, QUICK_ROWS),
        seconds=None if case.seconds is None else min(case.seconds, QUICK_SECONDS),
        settings=case.settings if new is None else {**case.settings, MAX_TOKENS: min(new, QUICK_TOKENS)},
        texts=case.texts.shortened(),
    )
