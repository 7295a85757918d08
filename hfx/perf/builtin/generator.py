"""`generate`: check the requests against the model, start the generator's process, follow it, and take its figures."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from hfx import names
from hfx.client import ModelMetadata
from hfx.client.address import Access, parse_address
from hfx.errors import HfxError, ServerError, UsageError
from hfx.perf.builtin.driver import Job, News, Outcome
from hfx.perf.builtin.figures import figures
from hfx.perf.builtin.messages import encoded
from hfx.perf.builtin.outcome import Generated, Progress
from hfx.perf.builtin.strain import percentile
from hfx.perf.load import Limits, Open, Plan, RequestSet, Slo

WORKER = "hfx.perf.builtin.worker"
POLL_SECONDS = 0.05
SHOWN_SECONDS = 1.0  # that a Progress is about
END_SECONDS = 10.0

Watch = Callable[[Progress], None]


def generate(
    url: str,
    model: str,
    plan: Plan,
    asks: RequestSet,
    limits: Limits,
    slo: Slo | None = None,
    stream: bool = False,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
    access: Access | None = None,
) -> Generated:
    """Put PLAN to MODEL (its NAME_stream with STREAM) at URL, a gRPC address, and return what came of it.

    WATCH is called some times a second, and at each change of phase, in this thread. When STOP is set, requests under
    way are cancelled, and what has ended counts. Raises UsageError for what can't be asked, ServerUnreachable and
    ModelUnknown before anything is sent; what fails later is counted.
    """
    check(plan, limits, slo, stream)
    address, access = parse_address(url), access or Access()
    if address.protocol != "grpc":
        raise UsageError(f"{url} is an HTTP address.", "Give the server's gRPC port (8001 unless chosen otherwise).")
    metadata = _metadata(url, model + names.STREAM_SUFFIX if stream else model, access)
    counts = any(tensor.name == names.OUTPUT_TOKENS for tensor in metadata.outputs)
    messages = encoded(asks, metadata, stream, limits.timeout)
    outcome = _carried_out(Job(address, access, plan, limits, messages, stream, counts), watch, stop)
    return figures(outcome, plan, slo, counts)


def check(plan: Plan, limits: Limits, slo: Slo | None, stream: bool) -> None:
    """Raise UsageError for a load without an end, or one that can't be judged as asked."""
    if slo is not None:
        slo.check(stream)
    endless = limits.requests is None and limits.most_seconds is None
    if isinstance(plan, Open) and plan.at_once:
        if limits.requests is None or limits.warmup_seconds or limits.stable is not None:
            raise UsageError(
                "A burst of all requests at once needs their number, and has no seconds.",
                "Give --requests; a warm-up may be a number of requests.",
            )
    elif endless and not (isinstance(plan, Open) and plan.arrivals == "trace"):
        raise UsageError("The load has no end.", "Give --requests or --duration.")


def _metadata(url: str, model: str, access: Access) -> ModelMetadata:
    from hfx.client import Client

    with Client(url, headers=access.headers, tls=access.tls) as client:
        return client.metadata(model)


def _carried_out(job: Job, watch: Watch | None, stop: threading.Event | None) -> Outcome:
    with _process() as (process, pipe):
        try:
            pipe.send(job)
            return _followed(pipe, watch, stop)
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            reason = f"The load generator's process ended with code {process.returncode}."
            raise HfxError(reason, "See what it said above.") from None


def _followed(pipe: Connection, watch: Watch | None, stop: threading.Event | None) -> Outcome:
    recent, told = Recent(), False
    while True:
        if stop is not None and stop.is_set() and not told:
            pipe.send(None)
            told = True
        if not pipe.poll(POLL_SECONDS):
            continue
        message = pipe.recv()
        if isinstance(message, ServerError):
            raise message
        if isinstance(message, Outcome):
            return message
        if watch is not None:
            watch(recent.progress(message))


class Recent:
    """The news of the last second as a Progress."""

    def __init__(self) -> None:
        self._news: deque[News] = deque()

    def progress(self, news: News) -> Progress:
        """What is known with NEWS."""
        if news.phase == "counted" and self._news and self._news[-1].phase == "warmup":
            self._news.clear()
        self._news.append(news)
        while len(self._news) > 1 and self._news[1].at < news.at - SHOWN_SECONDS:
            self._news.popleft()
        first, *later = self._news
        latencies = [value for each in later for value in each.latencies]
        seconds, answers = news.at - first.at, news.succeeded - first.succeeded
        p50, p99 = (percentile(latencies, share) for share in (0.5, 0.99))
        return Progress(
            phase=news.phase,
            elapsed=news.elapsed,
            sent=news.sent,
            succeeded=news.succeeded,
            failed=news.failed,
            in_flight=news.in_flight,
            throughput=answers / seconds if seconds > 0 else 0.0,
            p50=None if p50 is None else p50 * 1e3,
            p99=None if p99 is None else p99 * 1e3,
        )


@contextmanager
def _process() -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """The worker and our end of its pipe; it is gone when the context is left."""
    ours, theirs = Pipe()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", WORKER, str(theirs.fileno())]
    # In a group of its own, Ctrl-C is for its starter alone, which tells it what to do.
    process = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, process_group=0
    )
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()  # which tells it to end
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
