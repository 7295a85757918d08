"""Computing a Run from the log of a load: distributions, rates and counts. The computation is deterministic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from hfx.perf.load import Closed, Open, Plan, Slo
from hfx.perf.loadgen.log import COLUMNS, TIMED_OUT, RequestLog, percentile
from hfx.perf.results import ClientSide, Distribution, Load, Requests, Run, Subject, Tokens, distribution

Rows = Any  # np.recarray of ROW
Column = npt.NDArray[Any]
ROW = np.dtype([(name, np.float64) for name in COLUMNS])
MOST_EACH = 4096  # the most requests for which the tokens of each request are kept
RESOLUTION = 1e-5  # seconds; messages closer together came from one read of the socket
P99 = 0.99
BUSY_CORES = 0.9
IDLE_CORES = 0.5
LATE_SECONDS = 0.005  # lateness that is normal on any machine
LATE_SHARE = 0.2  # share of the latency below which lateness hardly changes the figures
MAX_STRETCH = 1.1  # sending time / planned time


def run_of(log: RequestLog, subject: Subject, load: Load, plan: Plan, slo: Slo | None = None, round: int = 0) -> Run:
    """Return the Run of `log`. `seconds` is the time from the first due request to the last answer.

    `throughput` is the number of successful requests divided by
    - closed plans: the mean over callers of the time from the first request to the last answer,
    - open plans: the time from the first answer to the last (times n / (n - 1), as n answers have n - 1 gaps),
    - all requests at once: `seconds`.
    """
    everything: Rows = np.asarray(log.rows).view(ROW).view(np.recarray)
    counts = everything.due >= log.since
    gaps = np.asarray(log.gaps)[np.repeat(counts & (everything.kind == 0), everything.gaps.astype(int))]
    rows = everything[counts]
    good = rows[rows.kind == 0]
    seconds = float(rows.end.max() - rows.due.min()) if rows.size else 0.0
    busy = _busy_seconds(rows, good, plan, seconds)
    tokens = _tokens(rows, good) if log.counts and good.size else None
    return Run(
        subject=subject,
        load=load,
        began=log.began,
        seconds=seconds,
        requests=_requests(log, rows, good),
        throughput=good.size / busy if busy > 0 else 0.0,
        latency=distribution((good.end - good.due).tolist()),
        round=round,
        interrupted=log.interrupted,
        stable=log.stable,
        tokens_per_second=tokens.written / busy if tokens and busy > 0 else None,
        tokens=tokens,
        ttft=_times(good.ttft),
        tpot=_times(good.tpot),
        gaps=distribution(gaps.tolist()),
        slo=slo.text if slo else "",
        goodput=_goodput(good, rows.size, slo),
        client=_client(log, rows, good, plan),
        notes=(*log.notes, *_notes(rows)),
    )


def saturation(cores: float, lag: float | None, late: float | None, latency: float | None, stretch: float = 1.0) -> str:
    """Return why the load generator was the bottleneck; empty if it was not.

    `lag`, `late` and `latency` are 99th percentiles in seconds: of the event loop's lag, of the lateness of sends, and
    of the latency of requests. `stretch` is the time that sending took, divided by the planned time.
    """
    tolerable = max(LATE_SECONDS, LATE_SHARE * (latency or 0.0))
    if cores >= BUSY_CORES:
        return f"the load generator kept {cores:.2f} of a core busy, which is all that it can"
    why = ", as other processes had the cores" if cores < IDLE_CORES else ""
    if stretch > MAX_STRETCH and late is not None and late > LATE_SECONDS:
        return f"requests were sent at {1 / stretch:.0%} of the rate{why}"
    if late is not None and late > tolerable:
        return f"requests were sent up to {late * 1e3:.1f} ms (p99) after their time{why}"
    if lag is not None and lag > tolerable:
        return f"the load generator's event loop was late by {lag * 1e3:.1f} ms (p99){why}"
    return ""


def _busy_seconds(rows: Rows, good: Rows, plan: Plan, seconds: float) -> float:
    if isinstance(plan, Closed):
        return _mean_span(rows)
    if not _is_spread(plan, rows) or good.size < 2:
        return seconds
    between = float(good.end.max() - good.end.min())
    return between * good.size / (good.size - 1) if between > 0 else seconds


def _is_spread(plan: Open, rows: Rows) -> bool:
    return not plan.at_once and bool(rows.size) and float(rows.due.max()) > float(rows.due.min())


def _mean_span(rows: Rows) -> float:
    """Return the mean time from a caller's first request to its last answer, in seconds."""
    if not rows.size:
        return 0.0
    _, caller = np.unique(rows.caller, return_inverse=True)
    begin, end = np.full(caller.max() + 1, np.inf), np.full(caller.max() + 1, -np.inf)
    np.minimum.at(begin, caller, rows.due)
    np.maximum.at(end, caller, rows.end)
    return float((end - begin).mean())


def _requests(log: RequestLog, rows: Rows, good: Rows) -> Requests:
    errors = Counter(log.kinds[int(kind)] for kind in rows.kind[rows.kind > 0])
    messages = {kind: message for kind, message in log.failures.items() if kind in errors}
    timeouts = errors.pop(TIMED_OUT, 0)
    return Requests(rows.size, good.size, timeouts, dict(errors), messages)


def _tokens(rows: Rows, good: Rows) -> Tokens:
    written = good.written.astype(int)
    is_whole = good.size == rows.size <= MOST_EACH
    each = tuple(written[np.argsort(good.number, kind="stable")].tolist()) if is_whole else ()
    return Tokens(int(good.read.sum()), int(written.sum()), each)


def _times(values: Column) -> Distribution | None:
    """Return the distribution of token times. Times below the clock's resolution are left out."""
    return distribution(values[values >= RESOLUTION].tolist())


def _goodput(good: Rows, sent: int, slo: Slo | None) -> float | None:
    if slo is None or not sent:
        return None
    times = zip((good.end - good.due).tolist(), good.ttft.tolist(), good.tpot.tolist(), strict=True)
    return sum(slo.kept(*each) for each in times) / sent


def _client(log: RequestLog, rows: Rows, good: Rows, plan: Plan) -> ClientSide:
    lag, latency = percentile(log.lags, P99), percentile((good.end - good.due).tolist(), P99)
    late = percentile((rows.sent - rows.due).tolist(), P99) if isinstance(plan, Open) else None
    why = saturation(log.cores if log.single_core else 0.0, lag, late, latency, _stretch(rows, plan))
    return ClientSide(cores=log.cores, lag_p99=None if lag is None else lag * 1e3, saturated=why)


def _stretch(rows: Rows, plan: Plan) -> float:
    if isinstance(plan, Closed) or not _is_spread(plan, rows):
        return 1.0
    return float((rows.sent.max() - rows.due.min()) / (rows.due.max() - rows.due.min()))


def _notes(rows: Rows) -> tuple[str, ...]:
    truncated = int((rows.truncated > 0).sum())
    return (f"{truncated} texts were longer than the model reads: their rest was left out.",) if truncated else ()
