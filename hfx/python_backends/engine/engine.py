"""The engine as callers see it: requests in from any thread, events out, one thread that does the work."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Collection
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

from .core import Core, Stats
from .errors import EngineClosed, EngineError, QueueFull
from .fair_scheduler import BATCHES, LIGHT_ROWS, FairScheduler
from .handle import Handle
from .jobs import Drafter, Job, new_job
from .picker import Picker
from .prefix_cache import DEFAULT_MB, PrefixCache
from .probes import MOST_DRAFT
from .request import Request, check
from .runner import DecoderRunner, Runner, SessionSettings
from .runners import open_runner
from .spec import EngineSpec, read_spec

LOG = logging.getLogger(__name__)
DEFAULT_SLOTS = 32  # rows that are decoded at a time: a beam or a sampled sequence takes one
# After so long without work, memory is given back, and the thread looks whether the program has ended without close().
IDLE_SECONDS = 1.0
FULL_SECONDS = 1.0  # after a refusal, and while at least half of the queue is in use: requests are refused unseen
THREAD_NAME = "generation-engine"
CPU = "CPU"  # the provider whose memory is real where it is written only, so that there can be rows for several batches


class Engine:
    """A model that answers many requests at once. Use as a context manager, or `close()` it."""

    def __init__(
        self, spec: EngineSpec, core: Core, max_queue: int, guesses: bool = True, max_queue_seconds: float = 0.0
    ) -> None:
        self.spec = spec
        self.guesses = guesses
        self.max_queue = max_queue
        self.max_queue_seconds = max_queue_seconds
        self._core = core
        self._arrivals = itertools.count()
        self._submitted: list[Job] = []
        self._cancelled: list[Job] = []
        # Reentrant: the collector may finalize an abandoned stream, and so cancel it, in the midst of a locked section.
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._full_until = float("-inf")
        self._rested = False
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=False)
        self._thread.start()

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        slots: int = DEFAULT_SLOTS,
        max_queue: int = 64,
        max_queue_seconds: float = 0.0,
        threads: int = 0,
        provider: str = "CPU",
        beams: Collection[int] = (),
        runtime: str | None = None,
        prefix_cache_mb: int | None = None,
        guesses: bool = True,
    ) -> Engine:
        """The engine of the model in `folder` (with engine.json).

        `slots` are rows: a beam or a sampled sequence takes one. `max_queue` is how many requests may wait beyond those
        that have rows, and with `max_queue_seconds` no more than will have begun by then, by the time that requests
        have taken so far; as many as there are rows may always wait. `threads` of each operator, 0 for one a core.
        `beams` are usual: an encoder-decoder's decoders for them are opened now, others with the first request that
        needs them, and requests of more rows are not light (see FairScheduler). `runtime` is one of spec.RUNTIMES;
        None: the model's own choice on CPU, or onnxruntime where it can't be had. Of a decoder that ONNX Runtime runs
        on CPU, `prefix_cache_mb` MB of keys and values are kept of beginnings that prompts have in common (0: none;
        None: DEFAULT_MB). `guesses`: see Drafter. Raises ModelRefused in its kinds.
        """
        for name, value in (("slots", slots), ("max_queue", max_queue)):
            if value < 1:
                raise EngineError(f"{name} is {value}", "It must be at least 1")
        if prefix_cache_mb is not None and prefix_cache_mb < 0:
            raise EngineError(
                f"prefix_cache_mb is {prefix_cache_mb}", "It must be at least 0, which is no prefix cache"
            )
        spec, settings = read_spec(Path(folder)), SessionSettings(threads, provider, runtime)
        runner = open_runner(spec, slots, settings)
        return cls.of(
            runner,
            spec,
            settings,
            slots=slots,
            max_queue=max_queue,
            max_queue_seconds=max_queue_seconds,
            beams=beams,
            prefix_cache_mb=prefix_cache_mb,
            guesses=guesses,
        )

    @classmethod
    def of(
        cls,
        runner: Runner,
        spec: EngineSpec,
        settings: SessionSettings,
        *,
        slots: int,
        max_queue: int,
        max_queue_seconds: float = 0.0,
        beams: Collection[int] = (),
        prefix_cache_mb: int | None = None,
        guesses: bool = True,
    ) -> Engine:
        """The engine of a runner with `slots` rows, which it closes in the end; see `open`."""
        for width in set(beams).intersection(spec.beams):
            runner.open_partition(width)
        prefixes = open_prefix_cache(runner, prefix_cache_mb)
        separates = settings.provider == CPU
        runners = (runner, *(runner.second() for _ in range(BATCHES - 1))) if separates else (runner,)
        light_rows = max(beams, default=LIGHT_ROWS) if separates else 0
        scheduler = FairScheduler(slots, spec.has_encoder, runner.limits, light_rows, prefixes)
        return cls(spec, Core(scheduler, runners, Picker(spec, slots, settings)), max_queue, guesses, max_queue_seconds)

    @property
    def runtime(self) -> str:
        """The one that runs the model: one of spec.RUNTIMES."""
        return self._core.runners[0].runtime

    def submit(self, request: Request) -> Handle:
        """Take a request; its handle gives its events.

        Raises InvalidRequest, DoesNotFit, QueueFull or EngineClosed at once, and then nothing was taken. The
        first request with a new number of beams waits here until the decoder for it is open.
        """
        scheduler = self._core.scheduler
        check(request, self.spec, scheduler.slots)
        job = new_job(request, self.spec.has_encoder)
        job.batch = scheduler.batch_of(job)
        job.submitted = time.monotonic()
        job.handle = Handle(partial(self._cancel, job))
        self._refuse_if_closed()
        self._open_partition(job)
        self._enqueue(job)
        return job.handle

    def most_open(self) -> int | None:
        """How many requests may be under way in all; None where the queue has not been full for a while.

        With it a request is refused before its text is read: to read and refuse one by `submit` takes the interpreter
        from the steps for as long as several tokens.
        """
        now = time.monotonic()
        if now > self._full_until:
            return None
        scheduler = self._core.scheduler
        waiting = scheduler.waiting + len(self._submitted)
        most = self._most_waiting()
        if 2 * waiting >= most:
            self._full_until = now + FULL_SECONDS
        free = scheduler.free_rows
        return len(self._core.jobs) + len(self._submitted) - waiting + free + most

    def stats(self) -> Stats:
        """Counters and the state at the moment."""
        with self._lock:
            scheduler = self._core.scheduler
            return replace(
                deepcopy(self._core.counters),
                slots=scheduler.slots,
                slots_used=scheduler.rows_in_use,
                slots_free=max(0, scheduler.slots - scheduler.rows_in_use),
                waiting=scheduler.waiting + len(self._submitted),
                most_waiting=self._most_waiting(),
                requests=len(self._core.jobs),
            )

    def close(self) -> None:
        """Stop after the step that runs, fail what is not over with EngineClosed, and release the model."""
        with self._lock:
            self._closing = True
            self._work.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _enqueue(self, job: Job) -> None:
        with self._lock:
            self._refuse_if_closed()
            try:
                self._core.scheduler.check_room([*self._submitted, job], self._most_waiting())
            except QueueFull:
                self._full_until = time.monotonic() + FULL_SECONDS
                raise
            job.arrival = next(self._arrivals)
            self._submitted.append(job)
            self._work.notify()

    def _most_waiting(self) -> int:
        """How many requests may wait; see `open`."""
        slots, row_seconds = self._core.scheduler.slots, self._core.row_seconds
        if not (self.max_queue_seconds and row_seconds):
            return self.max_queue
        return min(self.max_queue, max(slots, int(self.max_queue_seconds * slots / row_seconds)))

    def _open_partition(self, job: Job) -> None:
        runner, width = self._core.runner_of(job), job.sequences[0].width
        runner.open_partition(width)
        if self.guesses and job.rows == 1 and runner.partitions[width].verifier is not None:
            job.sequences[0].drafter = Drafter(job.request.prompt, MOST_DRAFT, job.request.settings.max_tokens)

    def _cancel(self, job: Job) -> None:
        with self._lock:
            self._cancelled.append(job)  # the thread does not sleep while there is anything to cancel

    def _refuse_if_closed(self) -> None:
        if self._closing:
            reason = f": {self._failure!r}" if self._failure is not None else ""
            raise EngineClosed(f"the engine is closed{reason}", "Open another")

    def _run(self) -> None:
        try:
            while self._take_requests():
                self._core.expire(time.monotonic())
                if not self._core.step() and self._rested:
                    for runner in self._core.runners:
                        runner.release_memory()
        except BaseException as error:  # a bug: all requests must end
            self._failure = error
        finally:
            self._end()

    def _take_requests(self) -> bool:
        """Do what was asked for since the last step; wait where there is nothing to do. False: stop."""
        with self._lock:
            if not (self._submitted or self._cancelled or self._closing) and self._core.scheduler.idle:
                self._rested = not self._work.wait(IDLE_SECONDS)
                self._closing = self._closing or (self._rested and _program_has_ended())
            submitted, self._submitted = self._submitted, []
            cancelled, self._cancelled = self._cancelled, []
            for job in submitted:
                self._core.accept(job)
            for job in cancelled:
                self._core.cancel(job)
            return not self._closing

    def _end(self) -> None:
        with self._lock:
            self._closing = True
            left, self._submitted = [*self._core.jobs.values(), *self._submitted], []
        reason = f": {self._failure!r}" if self._failure is not None else ""
        error = EngineClosed(f"the engine was closed before the request was done{reason}", "Send it to another")
        error.__cause__ = self._failure
        self._core.abandon(left, error)
        for runner in self._core.runners:
            runner.close()


def open_prefix_cache(runner: Runner, megabytes: int | None) -> PrefixCache:
    """One with memory in `runner`, before it has a second; empty where there can't be one, says a log line."""
    size = (DEFAULT_MB if megabytes is None else megabytes) << 20
    blocks = runner.keep_prefixes(size) if size and isinstance(runner, DecoderRunner) else 0
    if megabytes and not blocks:
        LOG.warning("prefix_cache_mb is %d, but this model has no prefix cache here", megabytes)
    return PrefixCache(blocks)


def _program_has_ended() -> bool:
    """Whether the interpreter only waits for engines that were not closed."""
    others = (thread for thread in threading.enumerate() if not thread.daemon and thread.name != THREAD_NAME)
    return not any(thread.is_alive() for thread in others)
