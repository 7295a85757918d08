"""The result file: what was measured, under which load, on which machine.

All tools and commands share this format. Files are written atomically and read strictly. Times are in milliseconds
unless a name says otherwise. A value that was not measured is None, never zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from hdrh.histogram import HdrHistogram
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from hfx.errors import UsageError
from hfx.repository.staging import write_output

Kind = Literal["run", "compare", "tune"]
Tool = Literal["builtin", "perf_analyzer", "locust"]
Scalar = bool | int | float | str

PHASES = ("queue", "input", "infer", "output")  # fields of a Step
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=STRICT)
class Distribution:
    """A distribution of times in milliseconds.

    `hdr` holds all of them (HdrHistogram's V2 encoding, microseconds, base64).
    """

    count: int
    mean: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float
    hdr: str


@dataclass(frozen=True, config=STRICT)
class Subject:
    """The subject of a measurement. `label` is its name in tables, such as "cpu" or "int8".

    `protocol` is grpc or grpc-stream. `settings` distinguish the subject from the other candidates of a comparison.
    """

    label: str
    model: str
    tool: Tool
    task: str = ""
    device: Literal["cpu", "gpu", ""] = ""
    precision: str = ""
    protocol: str = "grpc"
    settings: dict[str, Scalar] = Field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class Load:
    """A load: `concurrency` callers that wait for answers (closed), or `rate` requests per second (open).

    `data` describes the requests, `limit` the duration ("200 requests", "10 s"). `case` names a case of a comparison.
    """

    kind: Literal["closed", "open"]
    concurrency: int | None = None
    rate: float | None = None
    arrivals: str = ""
    data: str = ""
    limit: str = ""
    case: str = ""

    @property
    def label(self) -> str:
        """The name of the load in tables."""
        if self.kind == "open":
            words = f"{round(self.rate, 2):g}/s {self.arrivals}".strip() if self.rate else self.arrivals
        else:
            words = f"{self.concurrency} caller{'s' if self.concurrency != 1 else ''}"
        return f"{self.case}, {words}" if self.case else words


@dataclass(frozen=True, config=STRICT)
class Requests:
    """Counts of requests.

    `errors` maps kinds to numbers, without timeouts; `words` maps each kind to an example message.
    """

    sent: int
    succeeded: int
    timeouts: int = 0
    errors: dict[str, int] = Field(default_factory=dict)
    words: dict[str, str] = Field(default_factory=dict)

    @property
    def failed(self) -> int:
        """The number of requests that did not succeed, including timeouts."""
        return self.sent - self.succeeded


@dataclass(frozen=True, config=STRICT)
class Tokens:
    """Tokens of all successful requests.

    If all requests succeeded and are few, `each` has the written tokens per request.
    """

    read: int
    written: int
    each: tuple[int, ...] = ()


@dataclass(frozen=True, config=STRICT)
class ClientSide:
    """The load generator. `cores` are its busy cores, and `lag_p99` is the p99 of its event loop's lag.

    `saturated` says why the load generator was the bottleneck; it is empty if it was not.
    """

    cores: float
    lag_p99: float | None = None
    saturated: str = ""


@dataclass(frozen=True, config=STRICT)
class Step:
    """A model of the server during the run: a member of an ensemble, or the model itself.

    `requests` counts rows, `executions` counts batches, and `batch` is their ratio. Times are means over requests.
    """

    model: str
    requests: int
    executions: int
    batch: float
    queue: float
    input: float
    infer: float
    output: float


@dataclass(frozen=True, config=STRICT)
class Gpu:
    """A GPU during the run: its utilization (0 to 1), and the largest number of bytes in use."""

    name: str
    busy: float | None = None
    memory: int | None = None


@dataclass(frozen=True, config=STRICT)
class ServerSide:
    """The server during the run: its models, busy cores, largest resident memory, GPUs, and counters of /metrics."""

    steps: tuple[Step, ...] = ()
    cores: float | None = None
    memory: int | None = None
    gpus: tuple[Gpu, ...] = ()
    counters: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class Cost:
    """The price per hour of the serving instance, and the costs that follow from the measured throughput."""

    price_per_hour: float
    per_1k_requests: float
    per_1m_tokens: float | None = None
    currency: str = ""


@dataclass(frozen=True, config=STRICT)
class Run:
    """One measurement of a subject under a load. `round` numbers the rounds of interleaved measurements.

    `goodput` is the share of all requests that met `slo`. `stable` is None if stability was not required. `ttft` is the
    time to the first token, `tpot` the mean time between the tokens of a request, and `gaps` the times between
    messages.
    """

    subject: Subject
    load: Load
    began: str
    seconds: float
    requests: Requests
    throughput: float
    latency: Distribution | None
    round: int = 0
    interrupted: bool = False
    stable: bool | None = None
    tokens_per_second: float | None = None
    tokens: Tokens | None = None
    ttft: Distribution | None = None
    tpot: Distribution | None = None
    gaps: Distribution | None = None
    slo: str = ""
    goodput: float | None = None
    client: ClientSide | None = None
    server: ServerSide | None = None
    cost: Cost | None = None
    notes: tuple[str, ...] = ()

    @property
    def good_share(self) -> float:
        """The share of requests that succeeded and, if there is an SLO, met it."""
        if self.goodput is not None:
            return self.goodput
        return self.requests.succeeded / self.requests.sent if self.requests.sent else 0.0


@dataclass(frozen=True, config=STRICT)
class Machine:
    """A machine. `load` is the load average at the start; above 0.5 per core, the machine had other work."""

    processor: str
    cores: int
    memory: int
    system: str
    load: float
    gpus: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class Result:
    """The content of a result file. `notes` say what was not run and why; ratios refer to the label `base`."""

    kind: Kind
    title: str
    command: str
    created: str
    machine: Machine
    runs: tuple[Run, ...]
    base: str = ""
    notes: tuple[str, ...] = ()
    details: dict[str, Scalar | list[Scalar] | dict[str, Scalar] | None] = Field(default_factory=dict)
    format: Literal[2] = 2


# Distributions: HdrHistogram from 1 microsecond to 1 hour, with three significant digits

LOWEST, HIGHEST, DIGITS = 1, 3_600_000_000, 3  # microseconds
MILLI = 1e3  # microseconds in a millisecond


def distribution(seconds: Iterable[float]) -> Distribution | None:
    """Return the distribution of times in seconds; None if there are none. Times above an hour count as an hour."""
    histogram, times = HdrHistogram(LOWEST, HIGHEST, DIGITS), list(seconds)
    for each in times:
        histogram.record_value(min(max(round(each * 1e6), LOWEST), HIGHEST))
    return _of(histogram, 1e3 * sum(times) / len(times)) if times else None


def merged(parts: Sequence[Distribution]) -> Distribution | None:
    """Combine several distributions into one. Returns None if there are none."""
    if not parts:
        return None
    histogram = HdrHistogram(LOWEST, HIGHEST, DIGITS)
    for part in parts:
        histogram.add(HdrHistogram.decode(part.hdr))
    return _of(histogram, sum(part.mean * part.count for part in parts) / sum(part.count for part in parts))


def cumulative(found: Distribution, points: int = 100) -> list[tuple[float, float]]:
    """Return the cumulative distribution as about `points` ascending pairs (milliseconds, share of events so far)."""
    percents = sorted([*(100 * each / points for each in range(points)), 99.5, 99.9, 100.0])
    at = HdrHistogram.decode(found.hdr).get_percentile_to_value_dict(percents)  # one pass for all percentiles
    return [(at[percent] / MILLI, percent / 100) for percent in percents]


def _of(histogram: Any, mean: float) -> Distribution:
    """Return the Distribution of a histogram.

    `mean` (ms) is passed because the histogram computes its own mean slowly.
    """
    at = histogram.get_percentile_to_value_dict([50, 90, 95, 99])
    return Distribution(
        count=int(histogram.get_total_count()),
        mean=mean,
        min=histogram.get_min_value() / MILLI,
        max=histogram.get_max_value() / MILLI,
        p50=at[50] / MILLI,
        p90=at[90] / MILLI,
        p95=at[95] / MILLI,
        p99=at[99] / MILLI,
        hdr=histogram.encode().decode(),
    )


# Files

MAX_BYTES = 256 << 20
_adapter = TypeAdapter(Result)


def to_json(result: Result) -> str:
    """Return the text of a result file. Each run is on one line, so that line-based diffs are useful."""
    value = _adapter.dump_python(result, mode="json")
    runs = ",\n".join(json.dumps(run, ensure_ascii=False, allow_nan=False) for run in value.pop("runs"))
    head = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return f'{head[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def write_result(result: Result, path: Path) -> None:
    """Write `result` to `path` atomically. Raises UsageError if writing fails."""
    write_output(path, to_json(result))


def read_result(path: Path) -> Result:
    """Read the result in the file `path`. Raises UsageError with the name of the first invalid field."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} is larger than {MAX_BYTES} bytes.", "Give a result file of hfx perf.")
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.", "Give a result file of hfx perf.") from error
    try:
        return _adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{path} is not a result file of this version: {where + ': ' if where else ''}{first['msg']}.",
            "Give a file that hfx perf wrote with --output.",
        ) from None
