"""The engine's interface for callers: any thread submits requests and reads events; one thread does the work."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import EngineClosed, EngineError, InvalidRequest, QueueFull
from .core import Core, Stats
from .fair_scheduler import BATCHES, FairScheduler
from .jobs import Drafter, Job, new_job
from .partition import MOST_DRAFT
from .picker import Picker
from .prefix_cache import DEFAULT_MB, PrefixCache
from .request import Request, check
from .runners import Runner
from .runtimes import open_runner
from .sessions import SessionSettings
from .spec import EngineSpec, read_spec

LOG = logging.getLogger(__name__)
DEFAULT_SLOTS = 32  # rows that are decoded at a time: a beam or a sampled sequence takes one
# After this time without work, memory is given back, and the thread checks whether the program ended without close().
IDLE_SECONDS = 1.0
# A step that takes longer counts as frozen, so that other servers get the requests; even a long prompt takes less.
FROZEN_SECONDS = 30.0
# For this long after a refusal, `most_open` returns a number; each call while half of the queue is in use extends this.
FULL_SECONDS = 1.0
THREAD_NAME = "generation-engine"
CPU = "CPU"
WARM_SECONDS = 3.0  # in which a GPU captures the commonest runs before the first request


@dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine. Raises EngineError if a number is too small.

    `slots` is the number of rows; a beam or a sampled sequence takes one. `max_queue` is the number of requests that
    may wait for rows. `max_queue_seconds` (0: off) limits it further, to the requests that are expected to begin within
    this time, judged by the time that recent requests took; this limit is never below `slots`.

    `beams` are the usual numbers of beams. An encoder-decoder opens the decoders for these numbers when the engine
    opens, and any other decoder when the first request needs it. On CPU, a request with more rows than the largest of
    `beams` (LIGHT_ROWS if there are none) is not light (see FairScheduler). A decoder-only model on CPU stores up to
    `prefix_cache_mb` MB of keys and values of the beginnings that prompts share (0: none; None: DEFAULT_MB). `guesses`
    turns prompt lookup on (see Drafter).
    """

    slots: int = DEFAULT_SLOTS
    max_queue: int = 64
    max_queue_seconds: float = 0.0
    beams: Collection[int] = ()
    prefix_cache_mb: int | None = None
    guesses: bool = True

    def __post_init__(self) -> None:
        for name, value in (("slots", self.slots), ("max_queue", self.max_queue)):
            if value < 1:
                raise EngineError(f"{name} is {value}", "It must be at least 1")
        if self.prefix_cache_mb is not None and self.prefix_cache_mb < 0:
            raise EngineError(
                f"prefix_cache_mb is {self.prefix_cache_mb}", "It must be at least 0, which is no prefix cache"
            )


class Engine:
    """A model that answers many requests at once. Use it as a context manager, or call `close()`."""

    def __init__(self, spec: EngineSpec, core: Core, settings: EngineSettings) -> None:
        self.spec = spec
        self.settings = settings
        self._core = core
        self._arrivals = itertools.count()
        self._submitted: list[Job] = []
        self._cancelled: list[Job] = []
        # Reentrant: the garbage collector may finalize an abandoned stream, which cancels it, inside a locked section.
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._full_until = float("-inf")
        self._rested = False
        self._step_began = float("inf")  # no step runs
        self._closing = False
        self._failure: BaseException | None = None
        self._has_ended = False
        self._on_failed: Callable[[BaseException], None] | None = None
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=False)
        self._thread.start()

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        threads: int = 0,
        provider: str = CPU,
        runtime: str | None = None,
        device_id: int = 0,
        **settings: Any,
    ) -> Engine:
        """Open the model in `folder`, which has an engine.json. `settings` are the fields of EngineSettings.

        `threads` is the number of threads of each operator; 0 means one per core. `runtime` is one of spec.RUNTIMES;
        None means the model's own choice on CPU, or onnxruntime if that is unavailable. `device_id` is the number of
        the GPU. Raises the subclasses of ModelRefused.
        """
        chosen = EngineSettings(**settings)
        spec, session = read_spec(Path(folder)), SessionSettings(threads, provider, runtime, device_id=device_id)
        return cls.of(open_runner(spec, chosen.slots, session), spec, chosen)

    @classmethod
    def of(cls, runner: Runner, spec: EngineSpec, settings: EngineSettings) -> Engine:
        """Return an engine that uses `runner`, which must have rows for the slots. The engine closes it in the end."""
        beams, slots = settings.beams, settings.slots
        for width in set(beams).intersection(spec.beams):
            runner.open_partition(width)
        prefixes = open_prefix_cache(runner, settings.prefix_cache_mb)
        placement = runner.placement
        limits, light_rows = placement.limits, placement.light_rows(beams)
        short_parts = spec.max_length > limits.chunk and runner.same_in_parts
        runners = (runner, *(runner.second() for _ in range(BATCHES - 1 if light_rows else 0)))
        scheduler = FairScheduler(slots, spec.has_encoder, limits, light_rows, prefixes, short_parts)
        return cls(spec, Core(scheduler, runners, Picker(placement.scores(spec, slots))), settings)

    @property
    def runtime(self) -> str:
        """The runtime of the model: one of spec.RUNTIMES."""
        return self._core.runners[0].runtime

    def submit(self, request: Request) -> Job:
        """Submit a request. The returned job delivers its events.

        Raises InvalidRequest, DoesNotFit, QueueFull or EngineClosed at once, if the request is not accepted. The first
        request with a new number of beams blocks here until the decoder for this number is open.
        """
        scheduler = self._core.scheduler
        check(request, self.spec, scheduler.slots)
        job = new_job(request, self.spec.has_encoder)
        job.batch = scheduler.batch_of(job)
        job.times.submitted = time.monotonic()
        job.on_cancel = self._cancel
        self._refuse_if_closed()
        self._open_partition(job)
        self._enqueue(job)
        return job

    def most_open(self) -> int | None:
        """Return how many requests may be open in all, or None if no request has been refused lately.

        With this number, callers can refuse a request before they read its text. Reading a request only to refuse it in
        `submit` would hold the interpreter's lock, and delay the steps by the time of several tokens.
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

    def is_working(self) -> bool:
        """Whether the engine takes requests and makes steps; also False if a step takes more than FROZEN_SECONDS."""
        return not self._closing and time.monotonic() - self._step_began < FROZEN_SECONDS

    def call_when_failed(self, on_failed: Callable[[BaseException], None]) -> None:
        """Have `on_failed` called with the reason if the engine fails, once all requests have failed."""
        with self._lock:
            self._on_failed = on_failed
            is_late = self._has_ended
        if is_late and self._failure is not None:
            on_failed(self._failure)

    def stats(self) -> Stats:
        """Return the counters and the current state."""
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
                **vars(self._core.runners[0].placement.counts.copy()),
            )

    def close(self) -> None:
        """Stop after the current step, fail unfinished requests with EngineClosed, and release the model."""
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
        """How many requests may wait; see EngineSettings."""
        slots, row_seconds = self._core.scheduler.slots, self._core.row_seconds
        most, seconds = self.settings.max_queue, self.settings.max_queue_seconds
        return min(most, max(slots, int(seconds * slots / row_seconds))) if seconds and row_seconds else most

    def _open_partition(self, job: Job) -> None:
        runner, width = self._core.runner_of(job), job.sequences[0].width
        runner.open_partition(width)
        if job.scored and not runner.partitions[width].takes_several:
            message = "the model's graph has no log-probabilities of prompts; export the model again"
            raise InvalidRequest("prompt_log_probs", job.request.settings.prompt_log_probs, "", message)
        if self.settings.guesses and job.rows == 1 and runner.partitions[width].verifies:
            job.sequences[0].drafter = Drafter(job.request.prompt, MOST_DRAFT, job.request.settings.max_tokens)

    def _cancel(self, job: Job) -> None:
        with self._lock:
            self._cancelled.append(job)  # without notify: the thread does not sleep while it has a request to cancel

    def _refuse_if_closed(self) -> None:
        if self._closing:
            raise EngineClosed(f"the engine is closed{self._reason()}", "Open another")

    def _reason(self) -> str:
        if self._failure is None:
            return ""
        return f": {self._failure if isinstance(self._failure, EngineError) else repr(self._failure)}"

    def _run(self) -> None:
        try:
            for runner in self._core.runners:
                runner.placement.warm(tuple(runner.partitions.values()), WARM_SECONDS)
            while self._take_requests():
                self._step_began = time.monotonic()
                self._core.expire(self._step_began)
                if not self._core.step() and self._rested:
                    for runner in self._core.runners:
                        runner.release_memory()
                self._step_began = float("inf")
        except BaseException as error:  # a bug: all requests must end
            self._failure = error
        finally:
            self._end()

    def _take_requests(self) -> bool:
        """Accept and cancel jobs as callers requested; wait if there is nothing to do. Return False to stop."""
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
        words = f"the engine was closed before the request was done{self._reason()}"
        error = EngineClosed(words, "Send it to another")
        error.__cause__ = self._failure
        self._core.abandon(left, error)
        for runner in self._core.runners:
            runner.close()
        self._core.picker.close()
        with self._lock:
            self._has_ended, on_failed = True, self._on_failed
        if on_failed is not None and self._failure is not None:
            on_failed(self._failure)


def open_prefix_cache(runner: Runner, megabytes: int | None) -> PrefixCache:
    """Return a prefix cache with memory in `runner`, which must not have a second runner yet.

    If `megabytes` is 0, or the runner can't have a prefix cache, the returned cache has no blocks. In the second case,
    a log line says so if `megabytes` was set.
    """
    size = (DEFAULT_MB if megabytes is None else megabytes) << 20
    blocks = runner.keep_prefixes(size) if size else 0
    if megabytes and not blocks:
        LOG.warning("prefix_cache_mb is %d, but this model has no prefix cache here", megabytes)
    return PrefixCache(blocks)


def _program_has_ended() -> bool:
    """Whether only the threads of engines that were not closed keep the program from ending."""
    others = (thread for thread in threading.enumerate() if not thread.daemon and thread.name != THREAD_NAME)
    return not any(thread.is_alive() for thread in others)
