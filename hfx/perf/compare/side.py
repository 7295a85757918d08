"""One side of a comparison: what is measured, and how it is opened when its turn comes.

Owns the sides that are models served by Triton. It must not know what they are compared for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hfx.errors import ServerError
from hfx.perf.compare.published import built_precision, memory_needed
from hfx.perf.load import Plan
from hfx.perf.measuring import MeasureSpec, Target, Watch, measure, server_target
from hfx.perf.results import Run
from hfx.perf.results.schema import Scalar
from hfx.perf.server import gpus
from hfx.repository.catalog import model
from hfx.triton import EmbeddedServer


@dataclass(frozen=True)
class Case:
    """A load that every side gets."""

    plan: Plan
    order: MeasureSpec
    name: str = ""

    @property
    def load_label(self) -> str:
        """The load in tables and notes."""
        return self.plan.load("", "", self.name).label


@dataclass(frozen=True)
class Session:
    """What all sides share.

    `show` begins a measurement by its title and gives who hears of its progress, `say` is told of other steps, `stop`
    ends all of it early.
    """

    show: Callable[[str], Watch] = lambda title: lambda progress: None
    say: Callable[[str], None] = lambda line: None
    stop: threading.Event = field(default_factory=threading.Event)

    def title(self, label: str, case: Case, number: int) -> str:
        """What is measured, for people."""
        return f"{label}, {case.load_label}, round {number + 1}"


Measure = Callable[[Case, int], Run]  # a load, and the number of the round


@dataclass(frozen=True)
class Side:
    """What is measured under the name `label`; `opened` makes it ready and takes it away again.

    `memory` is roughly what it needs meanwhile, in bytes; 0 where it runs anyway, or elsewhere.
    """

    label: str
    opened: Callable[[Session], AbstractContextManager[Measure]]
    memory: int = 0


def served(
    label: str, repository: Path, name: str, device: str = "cpu", settings: Mapping[str, Scalar] | None = None
) -> Side:
    """The published model NAME on a Triton of its own. Raises ModelMissing and ModelCorrupt."""
    manifest = model(repository, name)

    @contextmanager
    def opened(session: Session) -> Iterator[Measure]:
        precision = built_precision(manifest, device)
        if device == "gpu" and not gpus.look():
            raise ServerError("this machine has no GPU that nvidia-smi knows of", "Measure it on one that has.")
        session.say(f"Starting {label}")
        with EmbeddedServer(repository, device=device, models=[name]) as server:
            target = replace(server_target(server, name, precision), task=str(manifest.task))
            measured = partial(_measure, target, label, dict(settings or {}), session)
            yield measured

    return Side(label, opened, memory_needed(manifest, device))


def running(label: str, target: Target) -> Side:
    """A model on a server that runs already, here or elsewhere."""

    @contextmanager
    def opened(session: Session) -> Iterator[Measure]:
        yield partial(_measure, target, label, {}, session)

    return Side(label, opened)


def _measure(
    target: Target, label: str, settings: Mapping[str, Scalar], session: Session, case: Case, number: int
) -> Run:
    return measure(
        target,
        case.plan,
        case.order,
        label=label,
        round=number,
        case=case.name,
        settings=settings,
        watch=session.show(session.title(label, case, number)),
        stop=session.stop,
    )
