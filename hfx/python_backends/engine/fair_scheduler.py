"""Light requests beside heavy ones: a batch of each, which of them has the next run, and who is admitted.

Light requests wait neither for the rows nor, for long, for the runs of documents, long prompts and wide beams. It
touches no tensor, no thread and no clock: runs are charged from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .errors import QueueFull
from .jobs import Job
from .plan import Outcome, Plan
from .scheduler import Limits, Scheduler

LIGHT_PROMPT = 256  # tokens
LIGHT_ROWS = 4  # where the model's own number of beams is not known

# This share of the slots, or as many as one needs, more rows than slots are for light requests beside heavy ones.
RESERVED = 0.25

# Runs of light requests take so many times as long as those of heavy ones, while there are both.
LIGHT_SHARE = 2.0


class FairScheduler:
    """Two batches of `slots` rows each.

    Heavy are the parts of documents, prompts above LIGHT_PROMPT, and requests of more than `light_rows` rows; with 0,
    there are none. Either kind alone has up to `slots` rows; beside heavy requests, light ones may have `reserve` more.
    Beyond these, requests are admitted strictly in order of arrival; but the parts of a document wait for those of
    documents with fewer rows.
    """

    def __init__(self, slots: int, has_encoder: bool, limits: Limits, mixes: bool = False, light_rows: int = 0) -> None:
        self.slots = slots
        self.has_encoder = has_encoder
        self.light = Scheduler(slots, has_encoder, limits, mixes)
        self.heavy = Scheduler(slots, has_encoder, limits, mixes)
        self.reserve = min(slots, max(int(slots * RESERVED), light_rows)) if light_rows else 0
        self._light_rows = light_rows
        # While there are both: seconds of light runs, less LIGHT_SHARE times those of heavy ones.
        self._balance = 0.0
        self._heavy_seconds = 0.0  # of the last run

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.light.idle and self.heavy.idle

    @property
    def rows_in_use(self) -> int:
        """Those of light and heavy requests; they may be more than `slots`."""
        return _used(self.light) + _used(self.heavy)

    @property
    def waiting(self) -> int:
        """How many requests wait for rows."""
        return len(self.light.waiting) + len(self.heavy.waiting)

    def is_heavy(self, job: Job) -> bool:
        """Whether a job's runs are those of the heavy batch."""
        if not self._light_rows:
            return False
        return job.request.document != 0 or job.rows > self._light_rows or len(job.request.prompt) > LIGHT_PROMPT

    def enqueue(self, job: Job) -> None:
        """Take a job, whose rows fit the engine."""
        self._batch(job).enqueue(job)

    def check_room(self, arriving: Sequence[Job], max_queue: int) -> None:
        """Raise QueueFull if more than `max_queue` requests would wait with those that are `arriving`.

        Those that fit into the free rows get them before the next step and don't wait.
        """
        light, heavy = _used(self.light), _used(self.heavy)
        waiting, blocked = self.waiting, self.waiting > 0
        for job in arriving:
            passes = not job.heavy and light + job.rows <= self.reserve
            if passes or not (blocked or not self._fits(job, light, heavy)):
                light, heavy = (light, heavy + job.rows) if job.heavy else (light + job.rows, heavy)
            else:
                waiting, blocked = waiting + 1, True
        if waiting > max_queue:
            raise QueueFull(f"{waiting - 1} requests wait, of {max_queue} that may", "Try again later")

    def schedule(self) -> Plan | None:
        """The next plan, None where there is nothing to do. Finish it, or remove its jobs, before the next."""
        while (job := self._next_admitted()) is not None:
            self._batch(job).admit(job)
        light, heavy = _used(self.light), _used(self.heavy)
        if not (light and heavy):
            self._balance = 0.0
        is_due = self._balance >= LIGHT_SHARE * self._heavy_seconds
        return self.heavy.schedule() if heavy and (is_due or not light) else self.light.schedule()

    def charge(self, plan: Plan, seconds: float) -> None:
        """Say how long a plan took."""
        if plan.jobs[0].heavy:
            self._heavy_seconds = seconds
            self._balance -= LIGHT_SHARE * seconds
        else:
            self._balance += seconds

    def finish(self, plan: Plan, outcomes: Iterable[Outcome]) -> None:
        """Take what a plan gave, with an outcome for each of its picks."""
        self._batch(plan.jobs[0]).finish(plan, outcomes)

    def remove(self, job: Job) -> None:
        """Forget `job`, wherever it is, and free its rows."""
        self._batch(job).remove(job)

    def _batch(self, job: Job) -> Scheduler:
        return self.heavy if job.heavy else self.light

    def _next_admitted(self) -> Job | None:
        """The next job that gets its rows now, if there is one."""
        light, heavy = _used(self.light), _used(self.heavy)
        lights, heavies = self.light.waiting, self.heavy.waiting
        if lights and light + lights[0].rows <= self.reserve:
            return lights[0]
        job = self._fairest() if heavies else None
        if lights and (not heavies or lights[0].arrival < heavies[0].arrival):
            job = lights[0]
        return job if job is not None and self._fits(job, light, heavy) else None

    def _fits(self, job: Job, light: int, heavy: int) -> bool:
        """Whether a job fits beside so many rows of light and heavy ones."""
        if job.heavy:
            return heavy + max(0, light - self.reserve) + job.rows <= self.slots
        return light + job.rows <= min(self.slots, self.slots + self.reserve - heavy)

    def _fairest(self) -> Job:
        """Of the heavy jobs that wait, the first one of the document with the fewest rows; others have none."""
        rows = Counter[int]()
        for job in self.heavy.admitted:
            rows[job.request.document] += job.rows
        rows[0] = 0
        firsts: dict[int, Job] = {}
        for job in self.heavy.waiting:
            firsts.setdefault(job.request.document, job)
        return min(firsts.values(), key=lambda job: (rows[job.request.document], job.arrival))


def _used(batch: Scheduler) -> int:
    return batch.slots - batch.free_rows
