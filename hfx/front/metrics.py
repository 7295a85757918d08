"""The front's metrics, which follow Triton's own metrics in Prometheus's text format.

A request only updates a few dicts. All other work is done when /metrics is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from hfx.front.refusals import refusal_label

if TYPE_CHECKING:
    from hfx.front.response import Response

OTHER = "other"  # the route of all paths that the front does not know
MOST_MODELS = 1000  # names that become labels; a name does after its first successful answer
# The bounds of the histograms, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class _Times:
    """The times of a route: their number in each bucket of BUCKETS, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound as text with the number of times up to it."""
        return [*zip((*map(str, BUCKETS), "+Inf"), map(float, accumulate(self.counts)), strict=True)]


@dataclass(frozen=True)
class Family:
    """A metric: its name, kind and description, and the names of its labels."""

    name: str
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
    text: str
    labels: tuple[str, ...] = ()


COUNTER, GAUGE, HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
RESTARTS = Family(
    "hfx_restarts_total", COUNTER, "Restarts of models, HTTP fronts and servers, including failed attempts"
)
STARTED = Family("hfx_start_time_seconds", GAUGE, "Start time of `hfx serve`, in seconds since 1970")
REQUESTS = Family(
    "hfx_http_requests_total",
    COUNTER,
    "HTTP requests; status 0: the client closed the connection before the answer",
    ("route", "model", "status"),
)
REFUSALS = Family("hfx_http_refusals_total", COUNTER, "Requests refused, by reason and key", ("reason", "key"))
ENDED = Family(
    "hfx_http_connections_ended_total",
    COUNTER,
    "Connections closed by the front: idle, slow, unread, replaced by another one, or refused",
    ("reason",),
)
RECEIVED = Family("hfx_http_request_bytes_total", COUNTER, "Bytes of requests' bodies, decompressed")
SENT = Family("hfx_http_response_bytes_total", COUNTER, "Bytes of answers' bodies")
IN_PROGRESS = Family("hfx_http_requests_in_progress", GAUGE, "Requests whose bodies are complete")
CONNECTIONS = Family("hfx_http_connections", GAUGE, "Connections of clients")
FIRST_BYTE = Family(
    "hfx_http_first_byte_seconds", HISTOGRAM, "Seconds from a request's head to its answer's first byte", ("route",)
)
COMPARED = Family(
    "hfx_parity_answers_total",
    COUNTER,
    "Answers compared with a reference model's: same, tie or differs (--shadow)",
    ("model", "verdict"),
)
DRIFT = Family(
    "hfx_parity_drift_total", COUNTER, "Sum of the differences of scores of the answers that were compared", ("model",)
)
PARITY_LIMIT = Family(
    "hfx_parity_limit",
    GAUGE,
    "Least share of answers that do not differ (agreement), and largest mean difference of scores (drift)",
    ("model", "of"),
)
NOT_COMPARED = Family("hfx_parity_skipped_total", COUNTER, "Answers that were selected but not compared", ("reason",))
LOADED = Family("hfx_model_loaded", GAUGE, "Whether a model is in memory (--idle-unload)", ("model",))
MODEL_BYTES = Family("hfx_model_memory_bytes", GAUGE, "Memory that a model took when it was loaded last", ("model",))
LOADS = Family("hfx_model_loads_total", COUNTER, "Loads of a model for a request", ("model",))
UNLOADS = Family("hfx_model_unloads_total", COUNTER, "Unloads of an idle model", ("model",))
LOAD_WAIT = Family("hfx_model_load_wait_seconds_total", COUNTER, "Seconds that requests waited for loads", ("model",))
IDLE = (LOADED, MODEL_BYTES, LOADS, UNLOADS, LOAD_WAIT)
PARITY = (COMPARED, DRIFT, PARITY_LIMIT, NOT_COMPARED)
FAMILIES = (
    RESTARTS, STARTED, REQUESTS, REFUSALS, ENDED, RECEIVED, SENT, IN_PROGRESS, CONNECTIONS, FIRST_BYTE, *PARITY, *IDLE,
)  # fmt: skip


Samples = Mapping[Family, Mapping[tuple[str, ...], Any]]  # family -> values of its labels -> value


class Metrics(Collector):
    """The counts of a front process. `started` is the start time of the whole server, in seconds since 1970.

    `sources` are functions that return more samples. `ended` counts the connections that the front has closed, by
    reason. `restarts`, `in_progress` and `connections` are set just before the metrics are read.
    """

    def __init__(self, started: float, sources: Sequence[Callable[[], Samples]] = ()) -> None:
        self._started = started
        self._sources = sources
        self.restarts = self.connections = self.in_progress = 0
        self.ended: Counter[str] = Counter()
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._refusals: Counter[tuple[str, ...]] = Counter()
        self._received = self._sent = 0
        self._first_byte: dict[str, _Times] = {}
        self._models: set[str] = set()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def add(self, response: Response) -> None:
        """Count a request that has ended."""
        status, route = response.logged_status, response.route or OTHER
        if 200 <= status < 300 and len(self._models) < MOST_MODELS:
            self._models.add(response.model)
        model = response.model if response.model in self._models else ""
        self._requests[route, model, str(status)] += 1
        self._received += response.received
        self._sent += response.bytes
        if response.refusal:
            self._refusals[response.refusal, response.caller.label] += 1
        if response.first_byte is not None:
            self._first_byte.setdefault(route, _Times()).add(response.first_byte)

    def refused(self, status: int) -> None:
        """Count a request that was refused before it was complete."""
        self._refusals[refusal_label(status), ""] += 1

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the families with their samples. prometheus_client calls this."""
        samples: dict[Family, Mapping[tuple[str, ...], Any]] = {
            RESTARTS: {(): self.restarts},
            STARTED: {(): self._started},
            REQUESTS: self._requests,
            REFUSALS: self._refusals,
            ENDED: {(reason,): count for reason, count in self.ended.items()},
            RECEIVED: {(): self._received},
            SENT: {(): self._sent},
            IN_PROGRESS: {(): self.in_progress},
            CONNECTIONS: {(): self.connections},
        }
        for source in self._sources:
            samples |= source()
        for family, values in samples.items():
            made: Any = family.kind(family.name, family.text, labels=family.labels)
            for labels, value in values.items():
                made.add_metric(labels, value)
            yield made
        times = HistogramMetricFamily(FIRST_BYTE.name, FIRST_BYTE.text, labels=FIRST_BYTE.labels)
        for route, each in self._first_byte.items():
            times.add_metric((route,), each.buckets(), each.sum)
        yield times
