"""A served model under load: what callers see, and how large the net's batches were.

Owns the measurement of one served model. It must not know which variants are compared.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.perf_analyzer import PerfAnalyzer
from hfx import names
from hfx.triton import EmbeddedServer

WARM_REQUESTS = 1000


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
        self._analyzer = PerfAnalyzer()
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

    def measure(self, model: str, data: Path, concurrency: int, requests: int) -> Served:
        """At least `requests` requests of `data`, `concurrency` at a time."""
        server = self._servers[model]
        before = server.statistics()[model + names.NET_SUFFIX]
        load = self._analyzer.measure(server.grpc_url, model, data, concurrency, requests)
        after = server.statistics()[model + names.NET_SUFFIX]
        rows, runs = (int(after[key]) - int(before[key]) for key in ("inference_count", "execution_count"))
        return Served(load.requests_per_second, load.p50, load.p99, rows / max(runs, 1))

    def warm(self, model: str, data: Path, concurrency: int) -> None:
        """Requests that nobody counts: every shape of `data` is met, memory pools have grown."""
        self._analyzer.measure(self._servers[model].grpc_url, model, data, concurrency, WARM_REQUESTS)
