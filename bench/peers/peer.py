"""What a peer is: another way to run the same checkpoint, opened for one task and asked Batch by Batch."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bench.errors import PeerFailed
from bench.peers.cases import Batch, PeerRun
from bench.peers.model import Kind, Reading
from bench.peers.packages import Packages

if TYPE_CHECKING:
    from hfx.perf.load import Limits, Plan, RequestSet
    from hfx.perf.loadgen.log import RequestLog


@dataclass(frozen=True)
class Identity:
    """What was opened, for tables. `protocol` is how it is asked: "process" or "http"."""

    peer: str
    title: str
    model: str
    task: str
    precision: str
    threads: int
    protocol: str = "process"


class Opened(ABC):
    """An open peer. Use it as a context manager, or `close()` it."""

    identity: Identity
    reading: Reading

    @abstractmethod
    def run(self, batch: Batch, seconds: float = 0.0) -> PeerRun:
        """Answer a batch, text in, text or label out: at least once, and again until SECONDS have passed.

        The first of a kind is answered once before, uncounted. Raises PeerFailed.
        """

    def load(self, plan: Plan, asks: RequestSet, limits: Limits) -> RequestLog:
        """Answer requests that come by PLAN. Raises PeerFailed, also where this peer answers none."""
        raise PeerFailed(f"{self.identity.title} has no way to answer requests one by one")

    @abstractmethod
    def close(self) -> None:
        """End its process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def check(self, batch: Batch) -> Batch:
        """BATCH, if the model can be asked for it."""
        if not batch.texts:
            raise PeerFailed("a batch needs a text")
        if (batch.new_tokens is None) != (self.reading.kind == "classifier"):
            wants = "labels" if batch.new_tokens is None else "new tokens"
            raise PeerFailed(f"{self.identity.model} ({self.identity.task}) can't be asked for {wants}")
        return batch


class Peer(ABC):
    """A library or server that can be compared with hfx: `about` says what for, `needs` what is fetched for it."""

    name: str
    title: str
    about: str
    needs: tuple[Packages, ...] = ()

    @abstractmethod
    def precisions(self, kind: Kind) -> tuple[str, ...]:
        """What it can be opened in, its usual one first; empty where it can't run such models."""

    @abstractmethod
    def open(self, checkpoint: Path, task: str, precision: str = "", threads: int | None = None) -> Opened:
        """The checkpoint for a task, converted at the first time. Raises PeerFailed."""

    def install(self) -> None:
        """Fetch what it needs. Raises FetchFailed."""
        for each in self.needs:
            each.fetch()

    def remove(self) -> bool:
        """Remove what was fetched; whether there was any."""
        return sum(each.remove() for each in self.needs) > 0  # all of them, not up to the first

    @property
    def installed(self) -> bool:
        """Whether it can be opened without fetching anything."""
        return all(each.installed() is not None for each in self.needs)

    def versions(self) -> Mapping[str, str]:
        """The packages that are its own, with their versions."""
        return {each.pins[0].split("==")[0]: each.pins[0].split("==")[1] for each in self.needs}

    def chosen(self, kind: Kind, precision: str) -> str:
        """PRECISION, or the usual one where it is empty. Raises PeerFailed."""
        known = self.precisions(kind)
        if not known:
            raise PeerFailed(f"{self.title} runs no {_words(kind)}")
        if precision and precision not in known:
            raise PeerFailed(f"{self.title} runs a {_words(kind)} in {' or '.join(known)}, not in {precision}")
        return precision or known[0]

    def require_installed(self) -> None:
        """Raise PeerFailed with the command that installs it."""
        if not self.installed:
            raise PeerFailed(f"{self.name} is not installed: `python -m bench.peers install {self.name}` fetches it")


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _words(kind: Kind) -> str:
    return {"decoder": "decoder-only generator", "encoder-decoder": "encoder-decoder", "classifier": "classifier"}[kind]
