"""What a load generator carries out, how far it is, and its log: a row of numbers for each request that has ended.

Free of numpy and of the schema, so that the load generator's process starts quickly.
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
# Of a row: times in seconds, NaN where there is none; `kind` is 0 for success or an index into `RequestLog.kinds`;
# `read`, `written`, `truncated` count tokens; the request's `gaps` follow those of the rows before.
COLUMNS = ("number", "caller", "due", "sent", "end", "kind", "ttft", "tpot", "read", "written", "truncated", "gaps")


@dataclass(frozen=True)
class Piece:
    """A part of an answer: tokens read, written (up to here) and cut off, why the text ended ("" before its end).

    `error` is what a stream says in place of an answer.
    """

    read: int = 0
    written: int = 0
    truncated: int = 0
    finish_reason: str = ""
    error: str = ""

    @classmethod
    def of(cls, outputs: Mapping[str, Any]) -> Self:
        """From the outputs of an answer by name, each as one value."""
        read, written, truncated = (int(outputs.get(name) or 0) for name in COUNTS)
        reason = outputs.get(names.FINISH_REASON) or ""
        return cls(read, written, truncated, reason.decode() if isinstance(reason, bytes) else reason)


Read = Callable[[Any], Piece]  # of one message


@dataclass(slots=True)
class RequestRecord:
    """A request under way; times are seconds of any clock, `times` those of the `messages` that answer it.

    A `number` below 0 is of the warm-up. Latency counts from `due`, the moment when it was to be sent.
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
        """Which request of the set it sends; those of the warm-up begin with the first one, too."""
        return self.number if self.number >= 0 else -1 - self.number


@dataclass(frozen=True)
class Progress:
    """A load under way. The counts are those of the phase; figures are of the last second, times in milliseconds.

    `draining`: nothing more is sent, and answers are still due.
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
    """A served model: NAME (never NAME_stream), its address (`grpc_url`: HOST:PORT), and what is known of it.

    `metrics_url` is a whole URL; where it is not known, it may be near `http_url`. `pid` is the server's, on this
    machine. What is empty is not known.
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
    """What is sent, how long and how, but not how many at a time. `stream` None: as the task is usually used.

    `arguments` are further flags of perf_analyzer's or locust's own.
    """

    requests: RequestSet
    limits: LoadLimits
    slo: Slo | None = None
    tool: Tool = "builtin"
    stream: bool | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadRun:
    """What a tool carries out: `plan` is put to `model` at `target` as `spec` says.

    `model` is the name that requests have: NAME_stream for streams. `watch` is called some times a second, and at each
    change of phase, in the tool's thread; when `stop` is set the load ends early, and what has ended counts.
    """

    target: Target
    plan: Plan
    spec: MeasureSpec
    model: ModelMetadata
    watch: Watch
    stop: threading.Event


@dataclass
class RequestLog:
    """All requests that count, in the order of their ends, and what is known of the load as a whole.

    `stream`: answers came piece by piece; `counts`: they give their tokens. Rows that were due before `since` do not
    count. `stable` is None where stability was no aim. `cores` is the processor time of the sender in cores; `lags` are
    delays of its event loop in seconds; `single_core`: it can't use more than one.
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
        """Append a request that has ended; `read` is None where messages say nothing of tokens.

        Two messages are read: the first one with a token, and the last.
        """
        ttft, tpot, gaps, last = math.nan, math.nan, list[float](), Piece()
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
    """The smallest value that `share` of them do not exceed; None of none."""
    if not len(values):
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def timestamp(seconds: float | None = None) -> str:
    """`seconds` since the epoch, or now, as a result file has it."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds")


def _failure(last: Piece) -> Failure | None:
    """What is wrong with an answer that came without an error status."""
    if last.error:
        return ServerError.__name__, last.error
    if last.finish_reason == CANCELLED:
        return RequestCancelled.__name__, f"The server ended the request after {last.written} tokens."
    if not last.finish_reason:
        return ServerError.__name__, "The answer ended without its last piece."
    return None


def _token_times(record: RequestRecord, read: Read, last: Piece) -> tuple[float, float, list[float]]:
    """Seconds to the first token, between tokens on average, and between messages from the first token on.

    Tokens that come in one message have no time between them.
    """
    first, start = next((piece, at) for at, piece in enumerate(map(read, record.messages)) if piece.written)
    times, tokens = record.times[start:], last.written - first.written
    tpot = (times[-1] - times[0]) / tokens if tokens > 0 else math.nan
    return times[0] - record.due, tpot, [later - earlier for earlier, later in itertools.pairwise(times)]
