"""The queue of requests that wait for rows: first come, first served, with a priority that can't starve anybody.

Owns the order; knows nothing of what a request needs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from .jobs import Job

# A request overtakes at most so many earlier ones for each level of priority that it has above theirs.
OVERTAKES_A_LEVEL = 64
PRIORITIES = range(-10, 11)


class WaitingQueue:
    """Jobs by arrival, each level of priority counting as OVERTAKES_A_LEVEL arrivals earlier."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []
        self._left: set[Job] = set()
        self.rows = 0

    def __len__(self) -> int:
        return len(self._heap) - len(self._left)

    def __iter__(self) -> Iterator[Job]:
        return (job for _, _, job in sorted(self._heap, key=lambda entry: entry[:2]) if job not in self._left)

    def push(self, job: Job) -> None:
        """Append `job`."""
        rank = job.arrival - OVERTAKES_A_LEVEL * job.request.priority
        heapq.heappush(self._heap, (rank, job.arrival, job))
        self.rows += job.rows

    def first(self) -> Job | None:
        """Who goes next."""
        while self._heap and self._heap[0][2] in self._left:
            self._left.remove(heapq.heappop(self._heap)[2])
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Job:
        """Take who goes next. Raises IndexError where nobody waits."""
        self.first()
        job = heapq.heappop(self._heap)[2]
        self.rows -= job.rows
        return job

    def remove(self, job: Job) -> None:
        """Take `job`, which waits, out of the middle."""
        self._left.add(job)
        self.rows -= job.rows
        if len(self._left) > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2] not in self._left]
            heapq.heapify(self._heap)
            self._left.clear()
