"""A served model under load: what callers see, and how large the net's batches were.

Owns the measurement of one served model. It must not know which variants are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hfx import names
from hfx.perf.load import Closed, Limits, Request, RequestSet
from hfx.perf.measuring import MeasureSpec, measure, server_target
from hfx.perf.results import Run
from hfx.perf.tools.install import fetch
from hfx.triton import EmbeddedServer

WARM_REQUESTS = 1000
FEWEST_ROUNDS = 5  # of a request of each caller; the first one is not counted


@dataclass(frozen=True)
class Served:
    """One round: requests a second, latencies in milliseconds, rows in an average batch of the net."""

    requests_per_second: float
    p50: float
    p99: float
    batch: float


class Servers:
    """A Triton for each model, silent until it is its turn. A context manager."""

    def __init__(self, repository: Path, models: tuple[str, ...]) -> None:
        fetch()
        self._repository = repository
        self._models = models
        self._servers: dict[str, EmbeddedServer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Servers:
        with self._stack as stack:
            for model in self._models:
                server = EmbeddedServer(self._repository, models=[model])
                self._servers[model] = stack.enter_context(server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def measure(self, model: str, asks: RequestSet, concurrency: int, requests: int) -> Served:
        """At least `requests` of ASKS, `concurrency` at a time, by perf_analyzer: a Python client would be measured."""
        server = self._servers[model]
        before = server.statistics()[model + names.NET_SUFFIX]
        load = self._load(model, asks, concurrency, requests)
        after = server.statistics()[model + names.NET_SUFFIX]
        rows, runs = (int(after[key]) - int(before[key]) for key in ("inference_count", "execution_count"))
        assert load.latency is not None
        return Served(load.throughput, load.latency.p50, load.latency.p99, rows / max(runs, 1))

    def warm(self, model: str, asks: RequestSet, concurrency: int) -> None:
        """Requests that nobody counts: every shape of ASKS is met, memory pools have grown."""
        self._load(model, asks, concurrency, WARM_REQUESTS)

    def _load(self, model: str, asks: RequestSet, concurrency: int, requests: int) -> Run:
        limits = Limits(requests=max(requests, FEWEST_ROUNDS * concurrency), warmup_requests=concurrency)
        order = MeasureSpec(asks, limits, tool="perf_analyzer", stream=False)
        return measure(server_target(self._servers[model], model), Closed(concurrency), order)


def asks_of(texts: Iterable[str]) -> RequestSet:
    """Requests for a classifier, sent in turn."""
    return RequestSet(tuple(Request({names.TEXT_INPUT: (text,)}) for text in texts), "texts of the benchmark")
