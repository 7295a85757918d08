"""What the engine promises about its schedule, checked at each plan: who gets rows, what is next, and for how long."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

from hfx.python_backends.engine import invariants
from hfx.python_backends.engine.core import Core
from hfx.python_backends.engine.fair_scheduler import BATCHES, HEAVY, PART, SHARE
from hfx.python_backends.engine.jobs import Job, Sequence
from hfx.python_backends.engine.plan import QUERIES, Compact, Encode, Plan, Run
from hfx.python_backends.engine.scheduler import Scheduler
from tests.unit.simulation.engine_threads import TICK

SLACK = 20 * TICK  # of a plan: its time is measured here from other readings of the clock than the engine's


class Promises:
    """Checks the plans of `core`. `max_queue` is the most requests that may wait.

    If runs of one kind always take the same time, `is_even` is true, and the time of parts of prompts is checked.
    """

    def __init__(self, core: Core, max_queue: int, is_even: bool) -> None:
        self._core, self._state = core, core.scheduler
        self._max_queue, self._is_even = max_queue, is_even
        self._longest = [0.0] * BATCHES  # run
        self._longest_step = self._token_seconds = 0.0
        self._lead: dict[tuple[int, int], float] = dict.fromkeys(combinations(range(BATCHES), 2), 0.0)
        self._plans = 0
        self._unread: list[list[Job]] = [[] for _ in range(BATCHES)]
        self._is_long = [False] * BATCHES  # the prompt that has waited longest
        self._missed: list[tuple[Job | None, int]] = [(None, 0)] * BATCHES
        # What was run since the last step of a partition: steps of other partitions, and prompts as width 0.
        self._since: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        # The widths of partitions that have made a step since prompts wait.
        self._stepped: tuple[set[int], ...] = tuple(set() for _ in range(BATCHES))
        self._seated: dict[tuple[int, int], set[Sequence]] = defaultdict(set)

    @property
    def used(self) -> list[int]:
        return [batch.slots - batch.free_rows for batch in self._state.batches]

    def before(self) -> list[Job]:
        """Return the waiting jobs before a plan is made."""
        used, prefixes = self.used, self._state.prefixes
        for number, batch in enumerate(self._state.batches):
            self._unread[number] = [job for job in self._unread[number] if job in {*batch.to_prefill, batch.chunking}]
            self._is_long[number] = any(
                job.scored or len(job.prompt) - prefixes.cached(job.prompt) > batch.limits.chunk
                for job in self._unread[number][:1]
            )
        for pair in self._lead:
            if not (used[pair[0]] and used[pair[1]]):
                self._lead[pair] = 0.0
        return [job for batch in self._state.batches for job in batch.waiting]

    def check_plan(self, plan: Plan | None, before: list[Job]) -> None:
        """Check a plan that was just made, and which of the waiting jobs `before` were admitted."""
        admitted = [job for job in before if job.admitted]
        self._check_admissions(admitted)
        if plan is None:
            assert self._state.idle, "requests are left, and nothing is done"
            return
        number = plan.jobs[0].batch
        assert all(job.batch == number for job in plan.jobs), "a plan is of several batches"
        assert not any(job.over for job in plan.jobs), "a plan has a job that is over"
        for at, batch in enumerate(self._state.batches):
            in_order = dict.fromkeys((*plan.jobs, batch.chunking, *batch.to_prefill))
            self._unread[at] += [job for job in in_order if job in admitted and job.batch == at]
        if isinstance(plan, Encode) or (isinstance(plan, Run) and plan.spans):
            self._check_reading(number, plan)
        self._check_round(self._state.batches[number], number, plan)

    def check_run(self, plan: Plan, seconds: float) -> None:
        """Check the state after a plan, and the time that its batch has had."""
        self._plans += 1
        for batch in self._state.batches if self._plans % 8 == 0 else [self._state.batches[plan.jobs[0].batch]]:
            invariants.check_batch(batch)
        if isinstance(plan, Run) and plan.spans:
            invariants.check_prefixes(self._state.prefixes)
            self._check_part(plan, seconds)
        number = plan.jobs[0].batch
        self._longest[number] = max(self._longest[number], seconds)
        if isinstance(plan, Run) and plan.groups:
            self._longest_step = max(self._longest_step, seconds)
        for (light, heavy), lead in self._lead.items():
            if number not in (light, heavy):
                continue
            lead += seconds * SHARE**number * (1 if number == light else -1)
            self._lead[light, heavy] = lead
            most = 2 * sum(self._longest[each] * SHARE**each for each in (light, heavy)) + SLACK * self._plans
            assert abs(lead) <= most, f"batch {light} is {lead} s ahead of batch {heavy}, at most {most} s"

    def fits(self, job: Job) -> bool:
        """Whether a job has room in the rows that all batches share, or in the reserved rows of its own."""
        state, after = self._state, self.used
        after[job.batch] += job.rows
        counted = after[HEAVY] + sum(max(0, rows - state.reserve) for rows in after[:HEAVY])
        return after[job.batch] <= state.slots and counted <= state.slots

    def _check_admissions(self, admitted: list[Job]) -> None:
        state, used = self._state, self.used
        waiting = [job for batch in state.batches for job in batch.waiting]
        # A wide part of a document may get the rows that were counted for several parts that came before it.
        most = self._max_queue + state.slots * bool(state.batches[HEAVY].waiting)
        assert len(waiting) <= most, f"{len(waiting)} requests wait, at most {most} may"
        counted = used[HEAVY] + sum(max(0, rows - state.reserve) for rows in used[:HEAVY])
        assert counted <= state.slots and max(used) <= state.slots, f"too many rows are in use: {used}"
        for job in admitted:
            earlier = [other for other in waiting if other.arrival < job.arrival]
            if job.batch == HEAVY:
                heavy = min(each.arrival for each in (*admitted, *waiting) if each.batch == HEAVY)
                assert all(heavy < other.arrival for other in earlier if other.batch != HEAVY), "a document passed"
            else:
                assert not any(other.batch == job.batch for other in earlier), "a request passed one of its own kind"
                assert not earlier or used[job.batch] <= state.reserve, "a request passed beyond the reserved rows"
        self._check_documents(admitted)
        if not waiting:
            return
        first = min(waiting, key=lambda job: job.arrival)
        if first.batch != HEAVY:
            assert not self.fits(first), "the first request waits for rows that are free"
            assert next(iter(self._core.jobs)) != first.arrival, "a request waits, and all before it have ended"
        else:
            assert not all(map(self.fits, state.batches[HEAVY].waiting)), "documents wait for rows that are free"
        for batch, rows in zip(state.batches[:HEAVY], used, strict=False):
            assert not batch.waiting or rows + batch.waiting[0].rows > state.reserve, "reserved rows are free"

    def _check_documents(self, admitted: list[Job]) -> None:
        """A part of a document is not admitted while another document has no rows, unless it came first."""
        batch = self._state.batches[HEAVY]
        rows = Counter[int]()
        for job in batch.admitted:
            rows[job.request.document] += job.rows
        for job in admitted:
            for other in batch.waiting if job.batch == HEAVY else ():
                document = job.request.document
                if not rows[other.request.document]:
                    is_first = rows[document] == job.rows and job.arrival < other.arrival
                    assert is_first, f"document {document} got rows before {other.request.document}, which has none"

    def _check_reading(self, number: int, plan: Run | Encode) -> None:
        """The prompt that has waited longest is run, or is run after this one.

        A long prompt may have to wait for the rest of another, which was begun while it still had a cached beginning.
        """
        first, jobs = self._unread[number][0], plan.jobs
        job, missed = self._missed[number]
        missed = 0 if first in jobs else missed + 1 if first is job else 1
        if self._is_long[number] and isinstance(plan, Run) and (jobs[0].prefilled or plan.spans[0].rows):
            missed = min(missed, 1)
        self._missed[number] = first, missed
        assert missed <= 1, "a prompt waits while others are run"

    def _check_round(self, batch: Scheduler, number: int, plan: Plan) -> None:
        """Between two steps of a partition, each other partition has one step, and prompts are run once if any wait."""
        if isinstance(plan, Compact):
            return
        ran = plan.width if isinstance(plan, Run) and plan.groups else 0
        if not (ran and (batch.to_prefill or batch.chunking)):
            self._stepped[number].clear()
        else:
            assert ran not in self._stepped[number], "prompts wait, and steps are made"
            self._stepped[number].add(ran)
        for width, partition in batch.partitions.items():
            since, seated = self._since[number, width], {*partition.sequences}
            if not self._seated[number, width] & seated:
                since.clear()
            self._seated[number, width] = seated
            if width == ran:
                since.clear()
            elif seated:
                since[ran] += 1
                assert since[ran] <= 1, f"width {width} has no step between two of {ran}"

    def _check_part(self, plan: Run, seconds: float) -> None:
        """While rows decode, parts of long prompts take about as long as two steps, or have the fewest tokens."""
        span, before = plan.spans[0], self._token_seconds
        if not self._is_even or span.is_whole or span.is_rest or span.scored:
            return
        self._token_seconds = seconds / len(span.tokens)
        decodes = any(partition.groups for batch in self._state.batches for partition in batch.partitions.values())
        if before and decodes and self._longest_step and not span.rows:
            assert len(span.tokens) <= QUERIES or seconds <= 2 * PART * self._longest_step, f"a part takes {seconds} s"
