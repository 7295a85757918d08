"""An engine in virtual time, with the callers, faults and pauses that a seed decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from hfx.python_backends.engine.engine import Engine, EngineSettings
from hfx.python_backends.engine.jobs import Job, Listener
from hfx.python_backends.engine.kv_cache import PrefixBlocks
from hfx.python_backends.engine.plan import Plan, Run
from hfx.python_backends.engine.request import Event, Request
from hfx.python_backends.engine.runners import DecoderRunner, new_runner
from hfx.python_backends.errors import DeadlineExceeded, DeviceLost, EngineClosed, EngineError, QueueFull, StepFailed
from tests.unit.simulation.engine_model import Arithmetic, clear_unused, spec
from tests.unit.simulation.engine_promises import Promises
from tests.unit.simulation.engine_requests import REQUESTS, Expected, expected_of, request_of
from tests.unit.simulation.engine_threads import Threads

HABITS = ("listening", "waiting", "polling", "late")  # when a caller reads its events
MOST_STEPS = 20_000
PAUSES = (0.5, 5.0, 45.0)  # seconds for which the machine does something else


class Panic(BaseException):
    """What libraries in Rust raise."""


@dataclass(eq=False)
class Caller:
    """A request, and what its caller has read. `again` is called when it has read the end."""

    request: Request
    expected: Expected
    job: Job
    habit: str
    again: Callable[[], None] | None = None
    events: list[Event] = field(default_factory=list)
    error: EngineError | None = None
    has_ended: bool = False
    is_cancelled: bool = False


class World:
    """A simulation of `seed`: `run` runs it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.threads = Threads(random, self.on_idle)
        self.callers: list[Caller] = []
        self.has_encoder = random.random() < 0.4
        self.step_seconds = random.choice((0.002, 0.02, 0.1))
        self.is_noisy = random.random() < 0.5
        self.pauses = random.choice((0.0, 0.0, 0.002))
        self.failures = random.choice((0.0, 0.0, 0.02))
        self.cancels, self.deadlines = random.choice((0.0, 0.1, 0.5)), random.choice((0.0, 0.1, 0.5))
        self.loses_device = random.random() < 0.2
        self.closes = math.inf if random.random() < 0.9 else random.random() * 500 * self.step_seconds
        self._documents = 0
        self._has_failed = self._is_closed = self._was_lost = False
        self._doomed: set[Job] = set()
        self._settled: set[int] = set()  # arrivals of requests that were cancelled before the last step ended
        self._cancelled: set[int] = set()
        self._rows: dict[tuple[int, int], int] = {}  # in use after the last step, by batch and width
        self.steps = 0

    @property
    def now(self) -> float:
        return self.threads.now

    def open(self) -> Engine:
        """Open the engine, as its own code does."""
        random, slots = self.random, self.random.randint(1, 12)
        placement = Arithmetic(random, self.model_runs, self.check_device)
        settings = EngineSettings(
            slots=slots,
            max_queue=random.choice((3, 20, 200)),
            max_queue_seconds=random.choice((0.0, 0.0, 100 * self.step_seconds)),
            beams=random.choice(((), (1,), (4,))),
            prefix_cache_mb=None if placement.blocks else 0,
            guesses=random.random() < 0.8,
        )
        description = spec(self.has_encoder)
        engine = Engine.of(new_runner(description, slots, placement), description, settings)
        self.core = core = engine._core
        core.scheduler.prefixes.most_seen = random.choice((2, 5, 4096))
        is_even = not self.is_noisy and not self.pauses and core.scheduler._short_parts
        self.promises = Promises(core, settings.max_queue, is_even)
        self._ahead = int(placement.runs_ahead)
        self._make_plan = core.scheduler.schedule
        setattr(core.scheduler, "schedule", self.schedule)  # noqa: B010
        core._observer = self.after_step
        return engine

    def run(self) -> None:
        """Run the engine until all callers have gone, and check everything."""
        with self.threads.in_place():
            self.engine = engine = self.open()
            engine.call_when_failed(self.when_failed)
            for _ in range(self.random.randint(1, 5)):
                self.threads.at(self.random.random() * 100 * self.step_seconds, self.load)
            if self.closes < math.inf:
                self.threads.at(self.closes, self.close)
            engine._run()
            while self.threads.has_events:
                self.threads.elapse(60.0)
        for failure in (engine._failure if not self._was_lost else None, self.threads.failure):
            if failure is not None:
                raise failure
        for caller in self.callers:
            self.check(caller)
        self.check_end()

    # Load

    def load(self) -> None:
        """Begin a burst, a stream, a loop or a document of requests."""
        random, kind = self.random, self.random.choice(("burst", "stream", "loop", "document"))
        count = random.choice((3, 6, 24))
        if kind == "burst":
            for _ in range(count):
                self.submit()
        elif kind == "stream":
            self.stream(count, random.choice((2, 20, 500, 100_000)) * self.step_seconds)
        elif kind == "loop":
            for _ in range(random.randint(1, 6)):
                self.loop(count // 3)
        else:
            self._documents += 1
            for _ in range(count):
                self.submit(document=self._documents)

    def stream(self, count: int, pause: float) -> None:
        self.submit()
        if count > 1:
            self.threads.at(self.random.expovariate(1 / pause), lambda: self.stream(count - 1, pause))

    def loop(self, count: int) -> None:
        if count:
            self.submit(lambda: self.loop(count - 1))

    def submit(self, again: Callable[[], None] | None = None, document: int = 0) -> None:
        """Submit a random request, and let it be cancelled or read as its caller does."""
        random, slots = self.random, self.core.scheduler.slots
        number = random.randrange(REQUESTS)
        while (request := request_of(number, self.has_encoder)).settings.rows > slots:
            number = random.randrange(REQUESTS)
        if random.random() < self.deadlines:
            seconds = random.choice((-1, 3, 30, 30, 3000)) * random.random() * self.step_seconds
            request = replace(request, deadline=self.now + seconds)
        request = replace(request, document=document) if document else request
        full = self.is_full()
        try:
            job = self.engine.submit(request)
        except QueueFull:
            assert full, "a request was refused, and the queue has room"
            assert self.engine.most_open() is not None
            return
        except EngineClosed:
            assert self._is_closed or self._was_lost or self.threads.is_ending
            return
        assert not self.threads.is_asleep, "the engine sleeps on"
        expected = expected_of(number, self.has_encoder)
        caller = Caller(request, expected, job, random.choice(HABITS), again)
        self.callers.append(caller)
        while random.random() < self.cancels:
            scale = random.choice((0, 1, 20)) * self.step_seconds
            self.threads.at(random.random() * scale, lambda: self.cancel(caller))
        if caller.habit != "late":
            later = random.choice((0.0, 0.0, random.random() * 10 * self.step_seconds))
            self.threads.at(later, lambda: self.begin_to_read(caller))

    def is_full(self) -> bool:
        """Return whether more requests wait than may, if one more comes that gets no rows at once."""
        waiting = self.core.scheduler.waiting + len(self.engine._submitted)
        return waiting + 1 > self.engine._most_waiting()

    def cancel(self, caller: Caller) -> None:
        caller.job.cancel()
        caller.is_cancelled = True
        self._cancelled.add(caller.job.arrival)

    def close(self) -> None:
        for _ in range(self.random.randint(0, 2)):
            self.submit()  # which the engine may not have taken yet
        self._is_closed = True
        self.engine.close()

    # Reading

    def begin_to_read(self, caller: Caller) -> None:
        if caller.habit == "listening":
            caller.job.on_events = Listener(self.notify, caller)
        if caller.habit == "waiting":
            caller.job.on_end = Listener(self.notify_of_end, caller)
        if caller.habit != "waiting" or caller.job.done:
            self.read(caller)

    def notify(self, callers: list[Caller]) -> None:
        assert len({*callers}) == len(callers), "a listener is notified twice of one step"
        for caller in callers:
            self.threads.at(self.random.random() * self.step_seconds, lambda caller=caller: self.read(caller))  # type: ignore[misc]

    def notify_of_end(self, callers: list[Caller]) -> None:
        assert all(caller.job.done for caller in callers)
        self.notify(callers)

    def read(self, caller: Caller) -> bool:
        """Read what has come, and return whether it ends there. A polling caller comes back later."""
        try:
            while events := caller.job.poll():
                assert not caller.has_ended, "an event after the end"
                caller.events += events
        except EngineError as error:
            caller.error, events = error, None
        if events is None and not caller.has_ended:
            caller.has_ended = True
            if caller.again is not None and caller.habit != "late":
                caller.again()
        if caller.habit == "polling" and not caller.has_ended:
            self.threads.at(self.random.random() * 20 * self.step_seconds, lambda: self.read(caller))
        return events is None

    # The model and its device

    def model_runs(self, rows: int, tokens: int, last: int) -> None:
        """Let the time of a run pass, after which the run may fail."""
        random = self.random
        work = 1 + rows / 50 if tokens == 1 else 0.5 + rows * tokens * (1 + last / 500) / 25
        noise = random.uniform(0.5, 1.5) if self.is_noisy else 1.0
        pause = random.choice(PAUSES) if random.random() < self.pauses else 0.0
        self.threads.elapse(work * noise * self.step_seconds + pause)
        self._has_failed = random.random() < self.failures
        if self._has_failed:
            self._was_lost = self.loses_device and random.random() < 0.3
            raise (
                DeviceLost("the device is lost") if self._was_lost else random.choice((RuntimeError, Panic))("a fault")
            )

    def check_device(self) -> None:
        if self.loses_device and self.random.random() < 0.3:
            self._was_lost = True
            raise DeviceLost("the device is lost")

    def when_failed(self, failure: BaseException) -> None:
        if not self._was_lost:
            raise failure
        assert all(caller.job.done for caller in self.callers)

    # Checks

    def schedule(self) -> Plan | None:
        """Have the scheduler make a plan, and check it."""
        assert self.steps < MOST_STEPS, "the engine runs without end"
        for job in self.core.jobs.values():
            assert job.request.deadline is None or job.request.deadline > self.engine._step_began, "a deadline passed"
        assert not self._settled & self.core.jobs.keys(), "a cancelled request goes on"
        before = self.promises.before()
        plan = self._make_plan()
        self.promises.check_plan(plan, before)
        self._began, self._has_failed = self.threads.now, False
        return plan

    def after_step(self, plan: Plan, _: Any) -> None:
        """Check the state after a step, and clear memory that no row may read."""
        self.steps += 1
        if self.threads.failure is not None:
            raise self.threads.failure
        if self._has_failed:
            assert all(job.done for job in plan.jobs), "a step failed, and its requests go on"
            self._doomed.update(plan.jobs)
        self.promises.check_run(plan, self.threads.now - self._began)
        self._settled = {*self._cancelled}
        number = plan.jobs[0].batch
        runner = self.core.runners[number]
        for width, partition in self.core.scheduler.batches[number].partitions.items():
            memory = runner.partitions[width]
            lengths = {row: sequence.length for sequence in partition.sequences for row in sequence.rows}
            assert all(memory.lengths[row] == memory.positions[row, 0] == lengths[row] for row in lengths), "lengths"
            rows = len(partition.groups) * width
            clear_unused(memory, lengths, max(rows, self._rows.get((number, width), 0)), self._ahead)
            self._rows[number, width] = rows
        if isinstance(plan, Run) and plan.spans:
            self.check_blocks()

    def check_blocks(self) -> None:
        """Check that each saved block of the prefix cache has the keys of its tokens."""
        runner = self.core.runners[0]
        blocks = runner.prompts.blocks if isinstance(runner, DecoderRunner) else None
        if isinstance(blocks, PrefixBlocks):
            for (_, packed), block in self.core.scheduler.prefixes.saved.items():
                tokens = memoryview(packed).cast("q").tolist()
                assert blocks.array[block.memory, 0, 0, :, 0].tolist() == tokens, "a block has other keys"

    def on_idle(self) -> None:
        """Check that nothing is left to do, and end the program if no caller has anything left to do."""
        assert all(caller.job.done for caller in self.callers), "the engine sleeps, and a request is not done"
        assert not self.core.jobs and self.core.scheduler.idle and not self.core.scheduler.rows_in_use
        if self.threads.failure is not None:
            raise self.threads.failure
        if not self.threads.has_events:
            if self.random.random() < 0.5:
                self.threads.is_ending = True
            else:
                self.close()

    def check(self, caller: Caller) -> None:
        """Check that a caller has got its own answer, or an error that has a reason."""
        job, request, expected = caller.job, caller.request, caller.expected
        assert job.done, "a request has no end"
        if caller.habit == "late":
            self.read(caller)
        assert caller.has_ended, f"a {caller.habit} caller was not notified"
        assert self.read(caller), "the end can be read once only"
        events = [event for event in caller.events if not event.of_prompt]
        of_prompt = caller.events[: len(caller.events) - len(events)]
        assert all(event.of_prompt for event in of_prompt), "tokens of the prompt come late"
        ends = [event for event in events if event.finish_reason]
        is_cancelled = any(event.finish_reason == "cancelled" for event in ends)
        by_index = {index: [event for event in events if event.index == index] for index in expected.events}
        is_whole = caller.error is None and not is_cancelled
        if is_whole:
            assert by_index == expected.events, "another answer"
            assert not expected.before_failure
        for name in ("ids", "log_probs", "top") if request.settings.prompt_log_probs is not None else ():
            own, all_of_them = (
                [value for event in some for value in getattr(event, name)] for some in (of_prompt, expected.of_prompt)
            )
            assert own == all_of_them[: len(own)] and (not is_whole or own == all_of_them), f"{name} of the prompt"
        if caller.error is None:
            assert job.result(0) == tuple(sorted(ends, key=lambda event: event.index))
            count = 1 if request.settings.num_beams > 1 else request.settings.num_return_sequences
            assert len(ends) >= count, "a sequence has no end"
        self.check_error(caller)
        if is_cancelled:
            assert caller.is_cancelled, "nothing cancelled this request"
            own = tuple(event for event in ends if event.finish_reason == "cancelled")
            steps = [step for search in expected.cancelled for step in search]
            beams = request.settings.num_beams > 1
            assert all(some in steps for some in ([own] if beams else [(event,) for event in own])), "another end"
        for index, got in by_index.items():
            tokens = [event for event in got if event.finish_reason != "cancelled"]
            assert tokens == expected.events[index][: len(tokens)], "another beginning"
            if len(tokens) < len(got) and request.settings.num_beams == 1:
                assert got[-1].ids == tuple(event.ids[0] for event in tokens), "a cancelled end has other tokens"

    def check_error(self, caller: Caller) -> None:
        """Check that an error has its reason."""
        error, deadline = caller.error, caller.request.deadline
        if isinstance(error, DeadlineExceeded):
            assert deadline is not None and deadline <= caller.job.times.ended, "a deadline has not passed"
        elif isinstance(error, EngineClosed):
            assert self._is_closed or self._was_lost or self.threads.is_ending
        elif isinstance(error, StepFailed) and caller.job not in self._doomed:
            assert caller.expected.before_failure, error
            counts = Counter(event.index for event in caller.events if not event.of_prompt)
            assert counts == Counter(caller.expected.before_failure), "events before a failure are missing"
        else:
            assert error is None or isinstance(error, StepFailed), error

    def check_end(self) -> None:
        """Check the counters, and that nothing is left."""
        counters, callers = self.core.counters, self.callers
        ended = counters.completed + counters.cancelled + counters.failed
        assert ended == len(callers), f"{ended} of {len(callers)} requests are counted"
        errors = [caller.error for caller in callers if caller.error is not None]
        assert counters.failed == len(errors)
        assert counters.deadlines == sum(isinstance(error, DeadlineExceeded) for error in errors)
        assert counters.accepted_tokens <= counters.draft_tokens
        firsts = sum(caller.job.times.last_token > 0 for caller in callers)
        assert sum(counters.first_token.counts) == firsts
        assert counters.tokens == sum(caller.job.tokens for caller in callers)
