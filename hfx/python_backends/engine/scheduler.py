"""The scheduler of a batch: which prompts are run together, and which partition takes a step.

It owns the state of the batch's requests between steps. The state changes only when a request is added, admitted or
removed, when a plan is made, and when the outcome of a plan is reported. It touches no tensor, no thread and no clock.
fair_scheduler.py decides which requests are admitted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..checks import Ids
from .jobs import Job, Pairs, Sequence
from .plan import SCORED, Compact, Encode, Limits, Plan, Run, Span, part_start
from .prefix_cache import BLOCK, PrefixCache
from .request import Step


class Partition:
    """The rows of a partition for searches of `width` beams, in at most `capacity` groups: row = group * width + beam.

    `groups[group]` is the sequence that has the group, or None if it is one of the `free_groups`. The last group is
    never free.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.capacity = capacity
        self.groups: list[Sequence | None] = []
        self.free_groups: set[int] = set()
        self.sequences: dict[Sequence, None] = {}

    def take(self, sequence: Sequence, groups: int) -> None:
        """Give `sequence` this number of further `groups`: free groups first, then new ones at the end."""
        for _ in range(groups):
            group = self._free_group()
            self.groups[group] = sequence
            sequence.rows += range(group * self.width, (group + 1) * self.width)
        self.sequences[sequence] = None

    def free(self, sequence: Sequence) -> None:
        """Free the rows of `sequence`."""
        del self.sequences[sequence]
        for group in {row // self.width for row in sequence.rows}:
            self.groups[group] = None
            self.free_groups.add(group)
        sequence.rows = []
        self._trim()

    def compact(self) -> tuple[Pairs, tuple[Sequence, ...]]:
        """Move the last groups to free groups. Return the (source, target) moves, and the sequences that moved."""
        moves = []
        moved: dict[Sequence, None] = {}
        while self.free_groups:
            source, target = len(self.groups) - 1, min(self.free_groups)
            sequence = self.groups.pop()
            assert sequence is not None
            self.free_groups.remove(target)
            self.groups[target] = sequence
            shift = (target - source) * self.width
            sequence.rows = [row + shift if row // self.width == source else row for row in sequence.rows]
            moves.append((source, target))
            moved[sequence] = None
            self._trim()
        return tuple(moves), tuple(moved)

    def step(self) -> Run:
        """Return a decode step of all rows. There must be no free groups."""
        row_copies: list[Pairs] = []
        next_inputs: list[tuple[int, int]] = []
        for sequence in self.sequences:
            rows = sequence.rows
            if sequence.copies:
                row_copies.append(tuple((rows[source], rows[target]) for source, target in sequence.copies))
            if sequence.next_inputs:
                next_inputs += zip(rows, sequence.next_inputs, strict=True)
        return Run(
            self.width,
            len(self.groups),
            tuple(row_copies),
            tuple(next_inputs),
            tuple(self.sequences),
            draft=self._draft(),
        )

    def _draft(self) -> Ids:
        """Return a guess at the next tokens if the partition has only one row.

        With several rows, no guess is made, because the rows already fill a run.
        """
        if len(self.groups) != 1:
            return ()
        (sequence,) = self.sequences
        return sequence.drafter.guess() if sequence.drafter is not None and not sequence.prompt_left else ()

    def _free_group(self) -> int:
        if self.free_groups:
            group = min(self.free_groups)
            self.free_groups.remove(group)
            return group
        assert len(self.groups) < self.capacity, "more groups are taken than were reserved"
        self.groups.append(None)
        return len(self.groups) - 1

    def _trim(self) -> None:
        while self.groups and self.groups[-1] is None:
            self.groups.pop()
            self.free_groups.remove(len(self.groups))


class Scheduler:
    """The scheduler of a batch with `slots` rows.

    It works in rounds: at most one plan that runs prompts or sources, then a step for every partition in use. If the
    prefix cache `prefixes` has the beginning of a prompt, only the rest of the prompt is run.
    """

    def __init__(self, slots: int, has_encoder: bool, limits: Limits, prefixes: PrefixCache) -> None:
        self.slots = slots
        self.has_encoder = has_encoder
        self.limits = limits
        self.part = limits.chunk  # the most tokens of the next part of a long prompt
        self.prefixes = prefixes
        self.free_rows = slots
        self.waiting: deque[Job] = deque()
        self.to_prefill: list[Job] = []
        self.chunking: Job | None = None
        self.partitions: dict[int, Partition] = {}
        self._round: deque[Partition] = deque()
        self._chunk_was_last = False

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.free_rows == self.slots and not self.waiting

    @property
    def admitted(self) -> list[Job]:
        """The jobs that have rows."""
        sequences = (sequence for partition in self.partitions.values() for sequence in partition.sequences)
        chunking = [] if self.chunking is None else [self.chunking]
        return [*self.to_prefill, *chunking, *dict.fromkeys(sequence.job for sequence in sequences)]

    def enqueue(self, job: Job) -> None:
        """Add a job that waits for its rows. The job must not need more rows than the engine has."""
        self.waiting.append(job)

    def admit(self, job: Job) -> None:
        """Reserve the rows of a waiting job. They must be free."""
        self.waiting.remove(job)
        self.free_rows -= job.rows
        self.to_prefill.append(job)
        job.admitted = True

    def schedule(self) -> Plan | None:
        """Return the next plan, or None if there is nothing to do.

        The caller must finish the plan, or remove its jobs, before it calls this again.
        """
        while True:
            if not self._round:
                plan = self._prefill() if self.to_prefill or self.chunking else None
                if isinstance(plan, Compact):
                    return plan
                self._round.extend(partition for partition in self.partitions.values() if partition.groups)
                if plan is not None or not self._round:
                    return plan
            partition = self._round[0]
            if partition.free_groups:
                return self._compact(partition)
            self._round.popleft()
            if partition.groups:
                return partition.step()

    def finish(self, plan: Plan, steps: Iterable[Step]) -> None:
        """Take the outcome of a plan: `steps` has a step for each of its picks."""
        if not isinstance(plan, Run):
            return
        for sequence in plan.sequences:
            if not sequence.over:
                _advance(sequence)
        for span, job in zip(plan.spans, plan.prefill_jobs, strict=True):
            job.prefilled = span.end
            for sequence in job.sequences:
                sequence.length = job.prefilled
            if span.rows:
                self.prefixes.add(job.prompt, span.saves)
        for (sequence, rows), step in zip(plan.picks.items(), steps, strict=True):
            if not sequence.over:
                # Only a decode step without a draft leaves its argmax in the rows' next inputs; after any other run,
                # the next inputs must be set.
                sequence.length += step.accepted
                self._take(sequence, step, rows[0] < plan.groups * plan.width and not plan.draft)

    def remove(self, job: Job) -> None:
        """Forget `job`, wherever it is, and free its rows."""
        job.over = True
        if not job.admitted:
            self.waiting.remove(job)
            return
        if job in self.to_prefill:
            self.to_prefill.remove(job)
        if job is self.chunking:
            self.chunking = None
        for sequence in job.sequences:
            if not sequence.over:
                self._end(sequence)

    def _take(self, sequence: Sequence, step: Step, in_place: bool) -> None:
        if sequence.drafter is not None:
            sequence.drafter.take(step.emitted, step.accepted)
        if step.error is not None:
            self.remove(sequence.job)
            return
        if step.completions:
            self._end(sequence)
            sequence.job.over = all(each.over for each in sequence.job.sequences)
            return
        # Up to its first choice, all rows of a search have the same tokens, so that there is nothing to copy.
        if sequence.chosen and len(sequence.rows) > 1:
            sequence.follow(step.parents)
        sequence.chosen = True
        inputs = tuple(sequence.search.next_inputs())
        sequence.next_inputs = () if in_place and step.argmax == inputs[0] else inputs

    def _prefill(self) -> Plan:
        """Return the run of the next prompts or sources, or a compaction that must come first."""
        if self.has_encoder:
            return self._encode(similar(self.to_prefill, self.limits.encode, self.limits))
        partition, jobs = self._partition(1), self._next_prompts()
        if len(jobs) > 1 and partition.free_groups:
            return self._compact(partition)
        self._chunk_was_last = self.chunking in jobs
        return Run(spans=self._spans(jobs, partition), prefill_jobs=tuple(jobs))

    def _next_prompts(self) -> list[Job]:
        """Return a job whose prompt is run in parts, or several jobs with short prompts.

        A prompt whose log-probabilities are wanted is always run in parts, and from its beginning, because the prefix
        cache has no logits. If there are both, they alternate. The rest of a prompt whose beginning is cached is run
        alone: runners take no batch of rows with cached tokens.
        """
        cached = {job: self.prefixes.cached(job.prompt) for job in self.to_prefill}
        long = [job for job in self.to_prefill if job.scored or len(job.prompt) - cached[job] > self.limits.chunk]
        if self.chunking is None and long:
            self.chunking = long[0]
            self.to_prefill.remove(long[0])
        short = [job for job in self.to_prefill if job not in long]
        if self.chunking is not None and not (short and self._chunk_was_last):
            return [self.chunking]
        if cached[short[0]]:
            return short[:1]
        return similar([job for job in short if not cached[job]], self.limits.prefill, self.limits)

    def _spans(self, jobs: list[Job], partition: Partition) -> tuple[Span, ...]:
        """Return a span with the next tokens of each job's prompt.

        A job gets its rows when the last tokens of its prompt are run.
        """
        loads = {job: () if job.prefilled or job.scored else self.prefixes.load(job.prompt) for job in jobs}
        starts = {job: job.prefilled or BLOCK * len(loads[job]) for job in jobs}
        most = self.part if self.chunking in jobs else self.limits.chunk
        ends = {job: min(starts[job] + min(most, SCORED if job.scored else most), len(job.prompt)) for job in jobs}
        complete = [job for job, end in ends.items() if end == len(job.prompt)]
        saves = dict(zip(complete, self.prefixes.reserve([job.prompt for job in complete]), strict=True))
        # First, each job gets the row in which its prompt is run. With several jobs, these rows lie beside each other;
        # a single job may take a free group in between. Then each job gets its further rows, to which the prompt is
        # copied.
        for job in complete:
            partition.take(job.sequences[0], 1)
        for job in complete:
            self._assign(job)
        starts = {job: part_start(starts[job], end) for job, end in ends.items()}
        return tuple(
            Span(job.prompt[starts[job] : end], starts[job], job.all_rows, loads[job], saves.get(job, ()), job.scored)
            for job, end in ends.items()
        )

    def _encode(self, jobs: list[Job]) -> Encode:
        for job in jobs:
            self._assign(job)
            for sequence in job.sequences:
                sequence.next_inputs = (sequence.search.prompt[0],) * sequence.search.rows
                sequence.prompt_left = tuple(sequence.search.prompt[1:])
        places = tuple(tuple((each.width, each.rows[0] // each.width) for each in job.sequences) for job in jobs)
        in_use = tuple((partition.width, len(partition.groups)) for partition in self.partitions.values())
        return Encode(tuple(job.prompt for job in jobs), places, in_use, tuple(jobs))

    def _compact(self, partition: Partition) -> Compact:
        moves, moved = partition.compact()
        return Compact(partition.width, moves, tuple(dict.fromkeys(sequence.job for sequence in moved)))

    def _partition(self, width: int) -> Partition:
        if width not in self.partitions:
            self.partitions[width] = Partition(width, self.slots // width)
        return self.partitions[width]

    def _assign(self, job: Job) -> None:
        """Give every sequence of `job` the rows that it does not have yet."""
        if job is self.chunking:
            self.chunking = None
        else:
            self.to_prefill.remove(job)
        for sequence in job.sequences:
            self._partition(sequence.width).take(
                sequence, (sequence.search.rows - len(sequence.rows)) // sequence.width
            )

    def _end(self, sequence: Sequence) -> None:
        sequence.over = True
        self.free_rows += sequence.search.rows
        if sequence.rows:
            self.partitions[sequence.width].free(sequence)


def _advance(sequence: Sequence) -> None:
    """Update a sequence after a step: one more cached token, and the next token of the decoder's prompt, if any."""
    sequence.length += 1
    sequence.copies = ()
    sequence.next_inputs = sequence.prompt_left[:1] * sequence.search.rows
    sequence.prompt_left = sequence.prompt_left[1:]


def similar(jobs: list[Job], most: int, limits: Limits) -> list[Job]:
    """Return the first of `jobs`, and later ones of similar length that fit a batch of `most` padded tokens."""
    chosen = [jobs[0]]
    shortest = longest = len(jobs[0].prompt)
    for job in jobs[1:]:
        low, high = min(shortest, len(job.prompt)), max(longest, len(job.prompt))
        padded = high * (len(chosen) + 1)
        if padded <= most and (padded <= limits.few or high <= limits.unlike * low):
            chosen.append(job)
            shortest, longest = low, high
    return chosen
