"""The input (LoadRun), progress (Progress) and output (RequestLog: numbers for every request) of a load generator.

This module imports neither numpy nor the result file's schema, so that the load generator's process starts quickly.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from hfx import names
from hfx.client.results import CANCELLED
from hfx.errors import RequestCancelled, RequestTimeout, ServerError

if TYPE_CHECKING:
    import threading

    from hfx.client import ModelMetadata
    from hfx.perf.load import LoadLimits, Plan, RequestSet, Slo
    from hfx.perf.results import Tool

Failure = tuple[str, str]  # the name of a class of hfx.errors, and its message
Phase = Literal["warmup", "counted", "draining"]
TIMED_OUT = RequestTimeout.__name__
COUNTS = (names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.TRUNCATED_TOKENS)  # outputs that count an answer's tokens
# A row of a log. Times are in seconds, or NaN if missing; `kind` is 0 for success, or else an index into
# `RequestLog.kinds`; `read`, `written` and `truncated` count tokens; `gaps` is the number of the request's values in
# `RequestLog.gaps`, which has the values of all rows, in order.
COLUMNS = ("number", "caller", "due", "sent", "end", "kind", "ttft", "tpot", "read", "written", "truncated", "gaps")


@dataclass(frozen=True)
class AnswerPart:
    """Token counts of an answer, or of a streamed answer so far: `read`, `written` and `truncated` tokens.

    `finish_reason` is empty until the end of the answer.
    """

    read: int = 0
    written: int = 0
    truncated: int = 0
    finish_reason: str = ""

    @classmethod
    def of(cls, outputs: Mapping[str, Any]) -> Self:
        """Create an AnswerPart from the output values of an answer, by name."""
        read, written, truncated = (int(outputs.get(name) or 0) for name in COUNTS)
        reason = outputs.get(names.FINISH_REASON) or ""
        return cls(read, written, truncated, reason.decode() if isinstance(reason, bytes) else reason)


Read = Callable[[Any], AnswerPart]  # a function that parses one message


@dataclass(slots=True)
class RequestRecord:
    """A request in flight. Times are seconds of any one clock; `times` are the arrivals of the answer's `messages`.

    A negative `number` marks the warm-up. Latency counts from `due`, the moment when the request should be sent.
    """

    number: int
    due: float
    caller: int = 0
    sent: float = 0.0
    end: float = 0.0
    times: list[float] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    error: Failure | None = None

    @property
    def index(self) -> int:
        """The index of the request to send. The warm-up also begins with the first request."""
        return self.number if self.number >= 0 else -1 - self.number


@dataclass(frozen=True)
class Progress:
    """The progress of a load: counts of the phase, and figures of the last second (times in milliseconds).

    In the phase "draining", no more requests are sent, but some answers are still outstanding.
    """

    phase: Phase
    elapsed: float
    sent: int
    succeeded: int
    failed: int
    in_flight: int
    throughput: float
    p50: float | None = None
    p99: float | None = None


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Target:
    """A served model: NAME (never NAME_stream), its `grpc_url` (HOST:PORT), and known facts. Unknown facts are empty.

    `metrics_url` is a complete URL. If it is empty, the metrics are expected two ports above `http_url`. `pid` is the
    server's process on this machine.
    """

    model: str
    grpc_url: str
    http_url: str = ""
    metrics_url: str = ""
    device: str = ""
    precision: str = ""
    task: str = ""
    pid: int | None = None


@dataclass(frozen=True)
class MeasureSpec:
    """A measurement, apart from its plan. If `stream` is None, the answers of generators are streamed.

    `arguments` are additional flags for perf_analyzer or locust.
    """

    requests: RequestSet
    limits: LoadLimits
    slo: Slo | None = None
    tool: Tool = "builtin"
    stream: bool | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadRun:
    """The input of a load generator: put `plan` on `model` at `target`, as `spec` says.

    `model` is the model that requests name, which is NAME_stream for streams. `watch` is called several times per
    second and at each change of phase, in the load generator's thread. When `stop` is set, the load ends early, and
    finished requests count.
    """

    target: Target
    plan: Plan
    spec: MeasureSpec
    model: ModelMetadata
    watch: Watch
    stop: threading.Event


@dataclass
class RequestLog:
    """The requests that count, in the order of their ends, and facts about the whole load.

    `stream` says whether answers were streamed, and `counts` whether they have token counts. Rows that were due before
    `since` do not count. `stable` is None if stability was not required. `cores` is the load generator's CPU time per
    second, `lags` are delays of its event loop in seconds, and `single_core` says that it can't use more than one core.
    """

    stream: bool = False
    counts: bool = False
    began: str = ""
    since: float = -math.inf
    stable: bool | None = None
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    cores: float = 0.0
    lags: array[float] = field(default_factory=lambda: array("d"))
    single_core: bool = True
    rows: array[float] = field(default_factory=lambda: array("d"))
    gaps: array[float] = field(default_factory=lambda: array("d"))
    kinds: list[str] = field(default_factory=lambda: [""])
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, record: RequestRecord, read: Read | None = None) -> None:
        """Append a finished request. `read` is None if messages have no token counts.

        Only two messages are parsed: the first message with a token, and the last message.
        """
        ttft, tpot, gaps, last = math.nan, math.nan, list[float](), AnswerPart()
        if read is not None and record.messages and record.error is None:
            last = read(record.messages[-1])
            record.error = _failure(last)
            if self.stream and last.written:
                ttft, tpot, gaps = _token_times(record, read, last)
        self.gaps.extend(gaps)
        self.rows.extend((
            record.number, record.caller, record.due, record.sent, record.end, self._kind(record.error), ttft, tpot,
            last.read, last.written, last.truncated, len(gaps),
        ))  # fmt: skip

    def _kind(self, error: Failure | None) -> int:
        if error is None:
            return 0
        name, message = error
        if name not in self.failures:
            self.failures[name] = message
            self.kinds.append(name)
        return self.kinds.index(name)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least the `share` of `values` does not exceed (nearest rank).

    Returns None if there are no values.
    """
    if not len(values):
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def timestamp(seconds: float | None = None) -> str:
    """Return `seconds` since the epoch (None: the current time) as ISO 8601, for a result file."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds")


def _failure(last: AnswerPart) -> Failure | None:
    """Return the failure in an answer that came without an error status, if there is one."""
    if last.finish_reason == CANCELLED:
        return RequestCancelled.__name__, f"The server ended the request after {last.written} tokens."
    if not last.finish_reason:
        return ServerError.__name__, "The answer ended without its last piece."
    return None


def _token_times(record: RequestRecord, read: Read, last: AnswerPart) -> tuple[float, float, list[float]]:
    """Return (time to first token, mean time between tokens, gaps between messages), in seconds.

    The gaps begin at the first message with a token. Tokens that arrive in one message have no time between them.
    """
    first, start = next((piece, at) for at, piece in enumerate(map(read, record.messages)) if piece.written)
    times, tokens = record.times[start:], last.written - first.written
    tpot = (times[-1] - times[0]) / tokens if tokens > 0 else math.nan
    return times[0] - record.due, tpot, [later - earlier for earlier, later in itertools.pairwise(times)]
