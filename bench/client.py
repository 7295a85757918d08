"""A load of requests in an event loop, for what hfx.perf does not speak: HTTP, and the engine in this process.

How a single request is sent is a function; `hfx.perf.measuring` measures whatever answers over gRPC.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import child
from hfx.errors import LoadFailed
from hfx.names import NET_SUFFIX
from hfx.perf.load import Closed, Plan
from hfx.perf.loadgen.log import percentile
from hfx.perf.results import Run
from hfx.perf.server.metrics import engine_step

TIMEOUT = 300.0  # seconds of a request


@dataclass
class Record:
    """One request: when it was due, when each of its messages came (perf_counter), tokens written, and its error."""

    due: float
    messages: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""


Send = Callable[[int, Record], Awaitable[None]]  # sends the request with this number, and fills its record


async def drive(send: Send, plan: Plan, requests: int) -> list[Record]:
    """Send `requests` by `plan`; latency counts from the time at which a request was due."""
    records: list[Record] = []
    numbers, begin = itertools.count(), time.perf_counter()

    async def once(number: int, due: float) -> None:
        record = Record(due)
        records.append(record)
        try:
            await send(number, record)
        except Exception as error:  # a failed request is a result
            record.error = f"{type(error).__name__}: {error}"

    async def caller() -> None:
        while (number := next(numbers)) < requests:
            await once(number, time.perf_counter())

    if isinstance(plan, Closed):
        await asyncio.gather(*(caller() for _ in range(plan.callers)))
        return records
    tasks = []
    for number, at in enumerate(plan.times(requests)):
        if (left := begin + at - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        tasks.append(asyncio.create_task(once(number, begin + at)))
    await asyncio.gather(*tasks)
    return records


def posts(url: str, bodies: Sequence[Any], tokens: Callable[[Any], int]) -> Callable[[Plan, int], child.Run]:
    """A load of JSON posts, `bodies` in turn; `tokens` reads from an answer how many it has. Gives Records."""

    async def load(plan: Plan, requests: int) -> list[Record]:
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as client:

            async def send(number: int, record: Record) -> None:
                answer = await client.post(url, json=bodies[number % len(bodies)])
                answer.raise_for_status()
                record.messages.append(time.perf_counter())
                record.tokens = tokens(answer.json())

            return await drive(send, plan, requests)

    return lambda plan, requests: lambda: asyncio.run(load(plan, requests))


def summary(records: Sequence[Record]) -> dict[str, float | None]:
    """The figures of a load, times in milliseconds; first tokens and pauses of those that came in pieces.

    Raises ValueError where a request failed.
    """
    if errors := [record.error for record in records if record.error]:
        raise ValueError(f"{len(errors)} of {len(records)} requests failed: {errors[0]}")
    begin, ends = min(record.due for record in records), sorted(record.messages[-1] for record in records)
    latencies = [1e3 * (record.messages[-1] - record.due) for record in records]
    pieces = [record for record in records if len(record.messages) > 1]
    first = [1e3 * (record.messages[0] - record.due) for record in pieces]
    pauses = [1e3 * (b - a) for record in pieces for a, b in itertools.pairwise(record.messages) if b > a]
    seconds, written = ends[-1] - begin, sum(record.tokens for record in records)
    return {
        "tokens/s": written / seconds if written else None,
        "requests/s": (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 and ends[-1] > ends[0] else None,
        "requests/s to the last answer": len(ends) / seconds,
        "seconds": seconds,
        "p50 ms": percentile(latencies, 0.5),
        "p99 ms": percentile(latencies, 0.99),
        "first token p50 ms": percentile(first, 0.5),
        "first token p99 ms": percentile(first, 0.99),
        "pause p50 ms": percentile(pauses, 0.5),
        "pause p99 ms": percentile(pauses, 0.99),
    }


def run_figures(run: Run) -> dict[str, float | None]:
    """The same figures of a load that hfx.perf measured, and what the server did. Raises LoadFailed.

    A request that failed makes times incomparable.
    """
    if run.requests.failed or run.latency is None:
        words = next(iter(run.requests.words.values()), "")
        raise LoadFailed(f"{run.requests.failed} of {run.requests.sent} requests failed: {words}")
    return {
        "tokens/s": run.tokens_per_second,
        "requests/s": run.throughput,
        "requests/s to the last answer": run.requests.succeeded / run.seconds
        if run.load.kind == "open"
        else run.throughput,
        "seconds": run.seconds,
        "p50 ms": run.latency.p50,
        "p99 ms": run.latency.p99,
        "first token p50 ms": run.ttft.p50 if run.ttft else None,
        "first token p99 ms": run.ttft.p99 if run.ttft else None,
        "a token p50 ms": run.tpot.p50 if run.tpot else None,
        "pause p50 ms": run.gaps.p50 if run.gaps else None,
        "pause p99 ms": run.gaps.p99 if run.gaps else None,
        "goodput": run.goodput,
        "rows a step": rows_a_step(run),
    }


def rows_a_step(run: Run) -> float | None:
    """Rows of an average step of the engine, or batch of the net; None where the server did not say."""
    if run.server is None:
        return None
    if engine := engine_step(run.server.counters, run.subject.model):
        return engine.batch
    nets = (run.subject.model, run.subject.model + NET_SUFFIX)  # an encoder in one hop, or the net among its steps
    return next((step.batch for step in run.server.steps if step.model in nets), None)
