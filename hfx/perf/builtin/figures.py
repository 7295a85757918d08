"""The figures of a load that is over: a tape of requests as distributions, rates and counts.

Pure: the same tape gives the same figures. Knows neither clocks nor protocols.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hfx.perf.builtin.driver import Outcome
from hfx.perf.builtin.outcome import Generated
from hfx.perf.builtin.records import SUCCEEDED, TIMED_OUT, Tape
from hfx.perf.builtin.strain import Strain, percentile, saturation
from hfx.perf.load import Closed, Open, Plan, Slo
from hfx.perf.results.distribution import distribution
from hfx.perf.results.schema import ClientSide, Requests, Tokens

Column = npt.NDArray[Any]
MOST_EACH = 4096  # requests whose tokens are kept one by one
P99 = 0.99


@dataclass(frozen=True)
class Timed:
    """A request that succeeded, as load.slo judges it."""

    latency: float
    ttft: float | None
    tpot: float | None


class Rows:
    """The rows of a tape that count, as columns."""

    def __init__(self, tape: Tape, since: float) -> None:
        counted = np.asarray(tape.due) >= since
        self.number, self.caller, self.due, self.late, self.took, self.kind = (
            np.asarray(each)[counted] for each in (tape.number, tape.caller, tape.due, tape.late, tape.took, tape.kind)
        )
        self.ttft, self.tpot, self.read, self.written, self.truncated = (
            np.asarray(each)[counted] for each in (tape.ttft, tape.tpot, tape.read, tape.written, tape.truncated)
        )
        self.good = self.kind == SUCCEEDED
        self.gaps = np.asarray(tape.gaps)[np.repeat(counted & (np.asarray(tape.kind) == SUCCEEDED), tape.gap_count)]

    @property
    def ends(self) -> Column:
        """When each was over."""
        return self.due + self.took  # type: ignore[no-any-return]


def figures(outcome: Outcome, plan: Plan, slo: Slo | None, counts: bool) -> Generated:
    """What a load came to. COUNTS: answers told their tokens."""
    tape, rows = outcome.tape, Rows(outcome.tape, outcome.since)
    succeeded = int(rows.good.sum())
    seconds = float(rows.ends.max() - rows.due.min()) if rows.due.size else 0.0
    busy = _busy(rows, plan, seconds)
    tokens = _tokens(rows) if counts and succeeded else None
    latencies = rows.took[rows.good]
    return Generated(
        began=outcome.began,
        seconds=seconds,
        requests=_requests(tape, rows, succeeded),
        throughput=succeeded / busy if busy > 0 else 0.0,
        latency=distribution(latencies.tolist()),
        ttft=distribution(_present(rows.ttft[rows.good])),
        tpot=distribution(_present(rows.tpot[rows.good])),
        gaps=distribution(rows.gaps.tolist()),
        tokens=tokens,
        tokens_per_second=tokens.written / busy if tokens and busy > 0 else None,
        goodput=_goodput(rows, slo) if slo is not None and rows.due.size else None,
        client=_client(outcome.strain, rows, plan),
        interrupted=outcome.interrupted,
        stable=outcome.stable,
        notes=(*outcome.notes, *_notes(rows)),
    )


def _busy(rows: Rows, plan: Plan, seconds: float) -> float:
    """The seconds in which what succeeded was served, with the load on all the time: see Generated.throughput."""
    succeeded = int(rows.good.sum())
    if isinstance(plan, Closed):
        return _mean_span(rows)
    if not _is_spread(plan, rows) or succeeded < 2:
        return seconds
    ends = rows.ends[rows.good]
    between = float(ends.max() - ends.min())
    return between * succeeded / (succeeded - 1) if between > 0 else seconds


def _is_spread(plan: Open, rows: Rows) -> bool:
    return not plan.at_once and bool(rows.due.size) and float(rows.due.max()) > float(rows.due.min())


def _mean_span(rows: Rows) -> float:
    """From each caller's first request to its last answer, on average."""
    if not rows.caller.size:
        return 0.0
    callers = int(rows.caller.max()) + 1
    begin, end = np.full(callers, np.inf), np.full(callers, -np.inf)
    np.minimum.at(begin, rows.caller, rows.due)
    np.maximum.at(end, rows.caller, rows.ends)
    took_part = np.isfinite(begin)
    return float((end - begin)[took_part].mean())


def _requests(tape: Tape, rows: Rows, succeeded: int) -> Requests:
    found = Counter(tape.kinds[kind] for kind in rows.kind[~rows.good])
    timeouts = found.pop(TIMED_OUT, 0)
    words = {kind: words for kind, words in tape.words.items() if kind in found or (kind == TIMED_OUT and timeouts)}
    return Requests(int(rows.due.size), succeeded, timeouts, dict(found), words)


def _tokens(rows: Rows) -> Tokens:
    written = rows.written[rows.good]
    alone = written.size <= MOST_EACH and rows.good.all()
    each = written[np.argsort(rows.number[rows.good], kind="stable")].tolist() if alone else ()
    return Tokens(int(rows.read[rows.good].sum()), int(written.sum()), tuple(each))


def _goodput(rows: Rows, slo: Slo) -> float:
    good = zip(rows.took[rows.good].tolist(), rows.ttft[rows.good].tolist(), rows.tpot[rows.good].tolist(), strict=True)
    kept = sum(slo.kept(Timed(took, _or_none(ttft), _or_none(tpot))) for took, ttft, tpot in good)
    return kept / int(rows.due.size)


def _client(strain: Strain, rows: Rows, plan: Plan) -> ClientSide:
    lag = percentile(strain.lags, P99)
    late = percentile(rows.late.tolist(), P99) if isinstance(plan, Open) else None
    latency = percentile(rows.took[rows.good].tolist(), P99)
    words = saturation(strain.cores, lag, late, latency, _stretch(rows, plan))
    return ClientSide(cores=strain.cores, lag_p99=None if lag is None else lag * 1e3, saturated=words)


def _stretch(rows: Rows, plan: Plan) -> float:
    """How many times longer the sending took than it was to."""
    if isinstance(plan, Closed) or not _is_spread(plan, rows):
        return 1.0
    return float(((rows.due + rows.late).max() - rows.due.min()) / (rows.due.max() - rows.due.min()))


def _notes(rows: Rows) -> Iterable[str]:
    truncated = int((rows.truncated > 0).sum())
    if truncated:
        yield f"{truncated} texts were longer than the model reads: their rest was left out."


def _present(values: Column) -> list[float]:
    return values[~np.isnan(values)].tolist()  # type: ignore[no-any-return]


def _or_none(value: float) -> float | None:
    return value if value == value else None
