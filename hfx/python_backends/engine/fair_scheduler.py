"""The scheduler of light and heavier requests, with a batch for each weight.

It decides which batch has the next run, and which job is admitted. Lighter requests do not wait until long prompts,
wide beams and documents free their rows, and they wait only briefly for the runs of these. It touches no tensor, no
thread and no clock: the caller reports how long each run took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..errors import QueueFull
from .jobs import Job
from .plan import QUERIES, Limits, Plan, Run
from .prefix_cache import PrefixCache
from .request import Step
from .scheduler import Scheduler

LIGHT, MEDIUM, HEAVY = range(3)
BATCHES = 3
LIGHT_PROMPT = 256  # tokens
LIGHT_ROWS = 4  # used if the model's own number of beams is not known

# Light requests, and medium requests, each have reserved rows in addition to the slots: this share of the slots, and at
# least `light_rows`.
RESERVED = 0.25

# While rows decode, a part of a long prompt takes about this many times as long as the slowest recent decode step. A
# step is recent if the runs after it took less than RECENT seconds.
PART = 2.0
RECENT = 1.0
# While nothing else runs, a part of more than `Limits.chunk` tokens takes at most so many seconds.
ALONE = 0.1

# A batch gets this many times the run time of the next heavier batch while both have requests.
SHARE = 2.0

# The largest weight of a document's rows when documents are compared (`_weighed`); the rows of a document that has just
# begun have the weight 1.
MOST_WEIGHT = 8


class FairScheduler:
    """Schedules requests in three batches, of `slots` rows each.

    Requests with a `document` number are heavy. These are the parts of documents with 16 parts or more (PARTS in
    generation/generator.py). Prompts longer than LIGHT_PROMPT and requests with more than `light_rows` rows are medium.
    Other requests are light; if `light_rows` is 0, all requests are light. Each batch may use up to `slots` rows. The
    first `reserve` rows of light requests, and of medium requests, do not count towards the `slots` rows that all
    batches share.

    Requests that don't fit into these reserved rows are admitted strictly in order of arrival, with one exception: if
    parts of several documents wait, a part of the document with the fewest rows comes first. For this comparison, a row
    counts more, the more parts of its document have begun. The batches share the prefix cache `prefixes`.

    If `short_parts` is true, parts of long prompts are shortened while rows decode. Afterwards, each part is longer
    than the one before.
    """

    def __init__(
        self,
        slots: int,
        has_encoder: bool,
        limits: Limits,
        light_rows: int = 0,
        prefixes: PrefixCache | None = None,
        short_parts: bool = False,
    ) -> None:
        self.slots = slots
        self.has_encoder = has_encoder
        self.prefixes = prefixes or PrefixCache(0)
        self.batches = tuple(Scheduler(slots, has_encoder, limits, self.prefixes) for _ in range(BATCHES))
        self.reserve = min(slots, max(int(slots * RESERVED), light_rows)) if light_rows else 0
        self._light_rows = light_rows
        self._short_parts = short_parts
        # Weighted fair queueing: the weighted seconds of each batch's runs and of its last run, and the virtual time.
        self._spent = [0.0] * BATCHES
        self._last = [0.0] * BATCHES
        self._clock = 0.0
        # The seconds of each batch's last decode step and of the runs after it, and those of a token in the last part.
        self._step_seconds = [0.0] * BATCHES
        self._since_step = [RECENT] * BATCHES
        self._token_seconds = 0.0
        self._begun = Counter[int]()  # parts of each document

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return all(batch.idle for batch in self.batches)

    @property
    def rows_in_use(self) -> int:
        """The number of rows of all requests, which may exceed `slots`."""
        return sum(self._used())

    @property
    def free_rows(self) -> int:
        """The number of rows that light requests may still get, their reserved rows included."""
        return max(0, self.slots - self.rows_in_use) + max(0, self.reserve - self._used()[LIGHT])

    @property
    def waiting(self) -> int:
        """The number of requests that wait for rows."""
        return sum(len(batch.waiting) for batch in self.batches)

    def batch_of(self, job: Job) -> int:
        """The number of the batch that runs a job."""
        if not self._light_rows:
            return LIGHT
        if job.request.document:
            return HEAVY
        return MEDIUM if job.rows > self._light_rows or len(job.request.prompt) > LIGHT_PROMPT else LIGHT

    def enqueue(self, job: Job) -> None:
        """Add a job that waits for its rows. The job must not need more rows than the engine has."""
        self.batches[job.batch].enqueue(job)

    def check_room(self, arriving: Sequence[Job], max_queue: int) -> None:
        """Raise QueueFull if more than `max_queue` requests would wait, the `arriving` ones included.

        Requests that get free rows before the next step do not count. None of them passes another of its own batch.
        """
        used, waiting = self._used(), [len(batch.waiting) for batch in self.batches]
        for job in arriving:
            if (self._passes(job, used) and not waiting[job.batch]) or (not any(waiting) and self._fits(job, used)):
                used[job.batch] += job.rows
            else:
                waiting[job.batch] += 1
        if sum(waiting) > max_queue:
            raise QueueFull

    def schedule(self) -> Plan | None:
        """Return the next plan, or None if there is nothing to do.

        The caller must finish the plan, or remove its jobs, before it calls this again.
        """
        while (job := self._next_admitted()) is not None:
            if job.batch not in self._in_use():  # it has no credit for the time when it was not in use
                self._spent[job.batch] = max(self._spent[job.batch], self._clock)
            self.batches[job.batch].admit(job)
            if job.batch == HEAVY:
                self._begun[job.request.document] += 1
        # The batch that would have had the least time after another run as long as its last.
        batch = min(self._in_use(), key=lambda each: (self._spent[each] + self._last[each], each), default=LIGHT)
        self._clock = max(self._clock, self._spent[batch])
        self.batches[batch].part = self._part()
        return self.batches[batch].schedule()

    def charge(self, plan: Plan, seconds: float) -> None:
        """Record how long a plan took."""
        batch = plan.jobs[0].batch
        self._spent[batch] += seconds * SHARE**batch
        self._last[batch] = seconds * SHARE**batch
        self._since_step = [each + seconds for each in self._since_step]
        if isinstance(plan, Run) and plan.groups:
            self._step_seconds[batch], self._since_step[batch] = seconds, 0.0
        elif isinstance(plan, Run) and not (plan.spans[0].is_rest or plan.spans[0].scored):
            tokens = len(plan.spans[0].tokens)
            if not plan.spans[0].is_whole or tokens > self.batches[LIGHT].limits.chunk:
                self._token_seconds = seconds / tokens

    def finish(self, plan: Plan, steps: Iterable[Step]) -> None:
        """Take the outcome of a plan: `steps` has a step for each of its picks."""
        self.batches[plan.jobs[0].batch].finish(plan, steps)

    def remove(self, job: Job) -> None:
        """Forget `job`, wherever it is, and free its rows."""
        self.batches[job.batch].remove(job)

    def _used(self) -> list[int]:
        return [batch.slots - batch.free_rows for batch in self.batches]

    def _in_use(self) -> list[int]:
        """The numbers of the batches that have requests."""
        return [number for number, used in enumerate(self._used()) if used]

    def _part(self) -> int:
        """Return the most tokens that the next part of a long prompt may have.

        A part may take as long as PART steps. If no rows decode, the time since the last step is added, so that rows
        which follow wait little longer than they were away. A token takes longer the more tokens come before it, so the
        time of the part before is the measure. The very first part, which has none, is the shortest.
        """
        limits = self.batches[LIGHT].limits
        if not self._short_parts:
            return limits.chunk
        decode = [any(partition.groups for partition in batch.partitions.values()) for batch in self.batches]
        decodes = any(decode)
        recent = [each for each in range(BATCHES) if self._since_step[each] < RECENT or decode[each]]
        longest = limits.chunk if decodes else max(limits.chunk, min(limits.alone, self._tokens(ALONE)))
        if not recent:
            return longest
        seconds = PART * max(self._step_seconds[number] for number in recent)
        return min(longest, max(self._tokens(seconds + (0 if decodes else min(self._since_step))), QUERIES))

    def _tokens(self, seconds: float) -> int:
        """Return how many tokens a part has that takes `seconds`; 0 if no part was run yet."""
        return int(seconds / self._token_seconds) // QUERIES * QUERIES if self._token_seconds else 0

    def _next_admitted(self) -> Job | None:
        """Return the next job that can get its rows now, if there is one."""
        used = self._used()
        heads = [batch.waiting[0] for batch in self.batches if batch.waiting]
        passing = next((job for job in heads if self._passes(job, used)), None)
        if passing is not None or not heads:
            return passing
        first = min(heads, key=lambda job: job.arrival)
        job = self._fairest() if first.batch == HEAVY else first
        return job if self._fits(job, used) else None

    def _passes(self, job: Job, used: Sequence[int]) -> bool:
        """Whether a job fits the reserved rows of its batch; `used` are the rows in use of each batch."""
        return job.batch != HEAVY and used[job.batch] + job.rows <= self.reserve

    def _fits(self, job: Job, used: Sequence[int]) -> bool:
        """Whether there is room for a job; `used` are the rows in use of each batch."""
        after = [rows + job.rows * (number == job.batch) for number, rows in enumerate(used)]
        counted = after[HEAVY] + sum(max(0, rows - self.reserve) for rows in after[:HEAVY])
        return after[job.batch] <= self.slots and counted <= self.slots

    def _fairest(self) -> Job:
        """Return the first waiting part of the document whose rows count least."""
        rows = Counter[int]()
        for job in self.batches[HEAVY].admitted:
            rows[job.request.document] += job.rows
        firsts: dict[int, Job] = {}
        for job in self.batches[HEAVY].waiting:
            firsts.setdefault(job.request.document, job)
        self._begun = Counter({document: self._begun[document] for document in {*rows, *firsts}})
        return min(firsts.values(), key=lambda job: (self._weighed(rows, job.request.document), job.arrival))

    def _weighed(self, rows: Counter[int], document: int) -> int:
        """Return a document's rows times a weight: 1, and 1 more for every `slots` parts begun, up to MOST_WEIGHT."""
        return rows[document] * min(MOST_WEIGHT, 1 + self._begun[document] // self.slots)
