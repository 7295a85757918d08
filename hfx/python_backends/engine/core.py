"""The steps of the engine: schedule a plan, run it, pick tokens, finish the plan, deliver events, update the counters.

Failures, cancellations and deadlines are handled here, too. Calls come from one thread at a time.
"""

from __future__ import annotations

import heapq
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..errors import BrokenState, DeadlineExceeded, DeviceLost, EngineError, StepFailed
from .fair_scheduler import FairScheduler
from .invariants import check
from .jobs import Events, Job, Listener, Sequence, notify_all
from .partition import Outputs
from .picker import Picker
from .plan import Compact, Encode, Picks, Plan, Run
from .request import Event, Step
from .runners import DecoderRunner, EncoderDecoderRunner, Runner

LOG = logging.getLogger(__name__)
CHECK_STEPS = 1000  # between checks, which take 0.14 ms at 128 rows, and 4 ms with a full prefix cache
RECENT = 1 / 16  # weight of the last request in the mean of `row_seconds`

Observer = Callable[[Plan, FairScheduler], None]

# Upper bounds of the histograms, in seconds.
FIRST_TOKEN_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)


class Histogram:
    """A histogram of values.

    `counts[i]` is the number of values that are at most `bounds[i]` and greater than `bounds[i - 1]`. The last count is
    the number of values greater than all bounds.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value`. This is cheap enough to be done for every token."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass
class Stats:
    """An engine's counters. Seconds and counts are totals since the engine was opened.

    `steps` counts decode steps, one for each partition. `step_seconds` is the time of decode steps and compactions,
    including the work in Python. `prompt_tokens` is the number of prompt tokens that were run, and `cached_tokens` the
    number that came from the prefix cache instead. `draft_tokens` is the number of tokens that were guessed and run,
    and `accepted_tokens` the number of these that their sequences then chose. `failed` includes the `deadlines` that
    passed. `checks` of the state have passed, and `checks_failed` have not. `first_token` is the time from a request's
    submission to its first token (with beams: to the end of the search). `inter_token` is the time between two
    consecutive steps that gave the same request a token.

    On a GPU, `steps_captured` is the number of steps that replayed a CUDA graph, and `steps_ahead` the number that were
    begun while the host took the tokens of the step before. `prompt_runs` has the number of runs of prompts or sources
    for each (rows, width) with padding, and `prompts_captured` the number of these that replayed a graph.
    `device_cache_bytes` is the size of the caches of keys and values, and `capture_refusal` says why graphs are not
    captured, if so.

    The fields from `slots` on describe the moment of the snapshot. `slots`, `slots_used` and `slots_free` are numbers
    of rows. `waiting` is the number of requests that have no rows yet, and `most_waiting` the largest number that may
    wait. `requests` is the number of accepted requests that are not over.
    """

    steps: int = 0
    step_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    deadlines: int = 0
    checks: int = 0
    checks_failed: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BOUNDS))
    steps_captured: int = 0
    steps_ahead: int = 0
    prompt_runs: Counter[tuple[int, int]] = field(default_factory=Counter)
    prompts_captured: int = 0
    device_cache_bytes: int = 0
    capture_refusal: str = ""
    slots: int = 0
    slots_used: int = 0
    slots_free: int = 0
    waiting: int = 0
    most_waiting: int = 0
    requests: int = 0


class Core:
    """The jobs of an engine, and the steps that serve them. `runners` has a runner for each batch.

    `observer` is called after each step, so that tests can check invariants.
    """

    def __init__(
        self, scheduler: FairScheduler, runners: tuple[Runner, ...], picker: Picker, observer: Observer | None = None
    ) -> None:
        self.scheduler = scheduler
        self.counters = Stats()
        self.jobs: dict[int, Job] = {}  # by arrival
        self.runners = runners
        # Rows x seconds that a completed request occupied, as a running mean over recent requests.
        self.row_seconds = 0.0
        self.picker = picker
        self._observer = observer
        self._until_check = CHECK_STEPS
        self._deadlines: list[tuple[float, int]] = []  # (deadline, arrival)

    def runner_of(self, job: Job) -> Runner:
        """The runner of a job's batch."""
        return self.runners[job.batch]

    def accept(self, job: Job) -> None:
        """Add a job, whose request must have been checked."""
        self.jobs[job.arrival] = job
        self.scheduler.enqueue(job)
        if job.request.deadline is not None:
            heapq.heappush(self._deadlines, (job.request.deadline, job.arrival))

    def cancel(self, job: Job) -> None:
        """End a job with the tokens that its sequences have so far. Do nothing if the job is already over."""
        if job.arrival not in self.jobs:
            return
        completions = tuple(each for sequence in job.unfinished for each in sequence.search.cancelled())
        self.scheduler.remove(job)
        notify_all(self._deliver(job, completions))
        self.counters.cancelled += 1

    def expire(self, now: float) -> None:
        """Fail the jobs whose deadline has passed; `now` is in seconds of `time.monotonic`."""
        while self._deadlines and self._deadlines[0][0] <= now:
            job = self.jobs.get(heapq.heappop(self._deadlines)[1])
            if job is not None:
                self.counters.deadlines += 1
                self.fail([job], DeadlineExceeded())

    def step(self) -> bool:
        """Carry out the next plan. Return whether there was one."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self._carry_out(plan)
        return plan is not None

    def _carry_out(self, plan: Plan) -> None:
        started = time.perf_counter()
        for job in plan.jobs if isinstance(plan, Encode) else plan.prefill_jobs if isinstance(plan, Run) else ():
            job.times.began = job.times.began or time.monotonic()
        runner = self.runner_of(plan.jobs[0])
        try:
            draft = plan.draft if isinstance(plan, Run) else ()
            outputs = run_plan(runner, plan)
            if runner.placement.runs_ahead and isinstance(plan, Run) and self._goes_on(plan):
                runner.partitions[plan.width].begin_next_step(plan.groups)
            steps = self.picker.pick(outputs, plan.picks, draft)
            of_prompts = self.picker.of_prompts(outputs, plan)
            drop_rejected(runner, plan, steps)
        except BaseException as error:  # whatever the runtime raises concerns this plan's jobs, and only them
            if isinstance(error, DeviceLost):
                raise
            runner.placement.check()
            self.fail(plan.jobs, _step_failed(plan, error))
        else:
            self.scheduler.finish(plan, steps)
            self._check()
            self._publish(plan.picks, steps, of_prompts)
            self.counters.accepted_tokens += sum(step.accepted for step in steps)
        seconds = time.perf_counter() - started
        self.scheduler.charge(plan, seconds)
        self._count(plan, seconds)
        if self._observer is not None:
            self._observer(plan, self.scheduler)

    def _check(self) -> None:
        """Check the state now and then. Raise BrokenState before callers get tokens of a broken one."""
        self._until_check -= 1
        if not self._until_check:
            self._until_check = CHECK_STEPS
            try:
                check(self.scheduler, self.runners)
            except BrokenState:
                self.counters.checks_failed += 1
                raise
            self.counters.checks += 1

    def _goes_on(self, plan: Run) -> bool:
        """Whether a step of the same rows, with the argmax of each as its next input, probably follows the plan."""
        batch = self.scheduler.batches[plan.jobs[0].batch]
        is_alone = not batch.to_prefill and batch.chunking is None and not plan.logits
        return bool(plan.groups) and is_alone and all(map(_goes_on, plan.sequences))

    def fail(self, jobs: Iterable[Job], error: EngineError) -> None:
        """End `jobs`, whose callers get `error`."""
        ended = [job for job in jobs if job.arrival in self.jobs]
        for job in ended:
            self.scheduler.remove(job)
        self.abandon(ended, error)

    def abandon(self, jobs: Iterable[Job], error: EngineError) -> None:
        """End `jobs` with `error` without calling the scheduler, because the scheduler itself may have failed."""
        ended = list(jobs)
        self.counters.failed += len(ended)
        for job in ended:
            job.over = True
        notify_all(listener for job in ended for listener in self._deliver(job, (), error))

    def _publish(self, picks: Picks, steps: list[Step], of_prompts: Mapping[Job, Event] | None = None) -> None:
        events: dict[Job, list[Event]] = {job: [event] for job, event in (of_prompts or {}).items()}
        failures: dict[Job, EngineError] = {}
        now = time.monotonic()
        for sequence, step in zip(picks, steps, strict=True):
            job, tokens = sequence.job, _new_tokens(sequence, step)
            times = job.times
            self.counters.tokens += tokens
            job.tokens += tokens
            times.first_choice = times.first_choice or now
            if step.emitted or step.completions or step.error is not None:
                events.setdefault(job, []).extend((*step.emitted, *step.completions))
            if step.error is not None:
                failures.setdefault(job, step.error)
            elif tokens and times.last_token != now:  # once a step, however many sequences the job has
                self._time(job, now)
        self.counters.failed += len(failures)
        completed = [job for job in events if job.over and job not in failures]
        self.counters.completed += len(completed)
        for job in completed:
            row_seconds = job.rows * (now - job.times.began)
            self.row_seconds += (row_seconds - self.row_seconds) * (RECENT if self.row_seconds else 1)
        takes = (self._deliver(job, tuple(new), failures.get(job)) for job, new in events.items())
        notify_all(listener for listeners in takes for listener in listeners)

    def _deliver(self, job: Job, events: Events, failure: EngineError | None = None) -> tuple[Listener | None, ...]:
        """Deliver events to a job's reader, and forget the job if it is over. Return the listeners to notify."""
        if job.over:
            self.jobs.pop(job.arrival, None)  # a job that was never accepted is not in `jobs`
        return job.deliver(events, failure)

    def _time(self, job: Job, now: float) -> None:
        times = job.times
        if times.last_token:
            self.counters.inter_token.observe(now - times.last_token)
        else:
            self.counters.first_token.observe(now - times.submitted)
        times.last_token = now

    def _count(self, plan: Plan, seconds: float) -> None:
        counters = self.counters
        if isinstance(plan, Encode):
            counters.prompt_tokens += sum(map(len, plan.sources))
            return
        if isinstance(plan, Run):
            counters.steps += plan.groups > 0
            counters.draft_tokens += len(plan.draft)
            counters.prompt_tokens += sum(len(span.tokens) for span in plan.spans)
            counters.cached_tokens += sum(span.start for span in plan.spans if span.loads)
        if isinstance(plan, Compact) or plan.groups:
            counters.step_seconds += seconds


def run_plan(runner: Runner, plan: Plan) -> Outputs:
    """Carry out `plan` on `runner`. Raises whatever the runtime raises."""
    if isinstance(plan, Run):
        partition = runner.partitions[plan.width]
        for pairs in plan.row_copies:
            partition.reorder_cache(pairs)
        if plan.next_inputs:
            partition.set_next_tokens(plan.next_inputs)
        if plan.draft:
            return partition.verify(plan.draft, plan.logits)
        if not plan.spans:
            return partition.step(plan.groups, plan.logits)
        assert isinstance(runner, DecoderRunner), "only a decoder is given prompts"
        return runner.run(plan.spans, plan.logits)
    if isinstance(plan, Compact):
        for source, target in plan.moves:
            runner.partitions[plan.width].move(source, target)
    else:
        assert isinstance(runner, EncoderDecoderRunner), "only an encoder is given sources"
        runner.trim(plan.in_use)
        runner.encode(plan.sources, plan.places)
    return Outputs(np.empty((0, 1), np.int64))


def drop_rejected(runner: Runner, plan: Plan, steps: list[Step]) -> None:
    """Remove from the KV cache the draft's tokens that were run but not chosen."""
    if isinstance(plan, Run) and plan.draft:
        runner.partitions[plan.width].drop(len(plan.draft) - steps[0].accepted)


def _new_tokens(sequence: Sequence, step: Step) -> int:
    """Return the number of new tokens of `step`. With beams, tokens are only known at the end of the search."""
    return sum(len(each.ids) for each in step.completions) if sequence.search.rows > 1 else len(step.emitted)


def _goes_on(sequence: Sequence) -> bool:
    """Whether a sequence, for which a step has just run, needs another one unless it ends with a certain token."""
    request = sequence.job.request
    chosen = sequence.length + 2 - len(request.settings.decoder_prompt or request.prompt)
    return not sequence.over and not sequence.prompt_left and chosen < request.settings.max_tokens


def _step_failed(plan: Plan, error: BaseException) -> StepFailed:
    failed = StepFailed(
        f"the {type(plan).__name__.lower()} of {len(plan.jobs)} request(s) failed ({type(error).__name__}: {error})",
        "Send the request again; if it fails alone too, the model can't run it",
    )
    failed.__cause__ = error
    return failed
