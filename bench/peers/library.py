"""Peers that are libraries: the checkpoint converted for them, opened in a process of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bench.errors import PeerFailed
from bench.peers.cases import Batch, PeerRun
from bench.peers.conversions import Convert, Finish, converted
from bench.peers.generated import log_of, now, text_load
from bench.peers.model import Kind, Model, Reading, read
from bench.peers.nets import OpenNet, open_labels, open_texts
from bench.peers.packages import SEPARATOR, Packages
from bench.peers.peer import Identity, Opened, Peer, cores
from bench.peers.resident import Pace, Resident
from hfx.errors import FetchFailed
from hfx.perf.load import Limits, Plan, RequestSet
from hfx.perf.loadgen.log import RequestLog

FEWEST, WAKE_SECONDS = 1, 1.5  # calls; shorter ones are made once before, so that caches and clocks have woken up


@dataclass(frozen=True, eq=False)
class Way:
    """How a library runs one kind of model: `open_net` in its process, on what `convert` has made for it.

    `sources` are files that a conversion depends on beside that of `convert`. `has_load`: the net attends to loads.
    """

    open_net: OpenNet
    precisions: tuple[str, ...]
    convert: Convert | None = None
    finish: Finish = lambda folder: None
    needs: tuple[Packages, ...] = ()
    sources: Callable[[], list[Path]] = list
    has_load: bool = False

    @property
    def fetched(self) -> str:
        """The folders of its packages, fetched where they are missing. Raises FetchFailed."""
        return SEPARATOR.join(str(each.fetch()) for each in self.needs)

    def folder(self, name: str, model: Model, precision: str) -> str:
        """The model as the library wants it; empty where it takes the checkpoint. Raises OpenFailed, FetchFailed."""
        if self.convert is None:
            return ""
        where = hashlib.sha256(model.checkpoint.encode()).hexdigest()[:8]
        stem = f"peer-{name}-{precision}-{model.name}-{where}"
        return str(converted(stem, model, precision, self.convert, self.fetched, self.finish, self.sources()))


class Library(Peer):
    """A library with a Way for each kind of model that it runs; `own` are packages of the environment."""

    def __init__(self, name: str, title: str, about: str, ways: Mapping[Kind, Way], own: tuple[str, ...] = ()) -> None:
        self.name, self.title, self.about = name, title, about
        self.ways = ways
        self._own = own
        self.needs = tuple({each.name: each for way in ways.values() for each in way.needs}.values())

    def precisions(self, kind: Kind) -> tuple[str, ...]:
        """See Peer."""
        return self.ways[kind].precisions if kind in self.ways else ()

    def versions(self) -> Mapping[str, str]:
        """See Peer."""
        return {**{name: version(name) for name in self._own}, **super().versions()}

    def open(self, checkpoint: Path, task: str, precision: str = "", threads: int | None = None) -> Opened:
        """See Peer."""
        model, reading = read(checkpoint, task)
        chosen = self.chosen(reading.kind, precision)
        self.require_installed()
        way, count = self.ways[reading.kind], threads or cores()
        identity = Identity(self.name, self.title, model.name, task, chosen, count)
        try:
            folder, fetched = way.folder(self.name, model, chosen), way.fetched
        except FetchFailed as error:
            raise PeerFailed(error.message) from error
        arguments = {"opener": way.open_net, "model": model, "reading": reading, "folder": folder, "fetched": fetched}
        opener = open_labels if reading.kind == "classifier" else open_texts
        return InProcess(
            identity, reading, Resident(opener, **arguments, precision=chosen, threads=count), way.has_load
        )


class InProcess(Opened):
    """A way that answers in a process of its own."""

    def __init__(self, identity: Identity, reading: Reading, resident: Resident, has_load: bool = False) -> None:
        self.identity, self.reading = identity, reading
        self._resident = resident
        self._has_load = has_load

    def run(self, batch: Batch, seconds: float = 0.0) -> PeerRun:
        """See Opened."""
        sample = self._resident.measure(self.check(batch), Pace(seconds, FEWEST, WAKE_SECONDS))
        answered, memory = sample.value
        return PeerRun(sample.seconds, answered, sample.cpu_seconds, memory)

    def load(self, plan: Plan, asks: RequestSet, limits: Limits) -> RequestLog:
        """See Opened."""
        if not self._has_load:
            return super().load(plan, asks, limits)
        load, began = text_load(plan, asks, limits), now()
        return log_of(self._resident.answer(load), began)

    def close(self) -> None:
        """See Opened."""
        self._resident.close()
