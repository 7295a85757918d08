"""The queue of requests that wait for rows, and its bound: first come, first served, and no priority starves any."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .errors import QueueFull
from .jobs import Job

# A request overtakes at most so many earlier ones for each level of priority that it has above theirs.
OVERTAKES_A_LEVEL = 64


class WaitingQueue:
    """Jobs by arrival, each level of priority counting as OVERTAKES_A_LEVEL arrivals earlier."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []
        self._left: set[Job] = set()

    def __len__(self) -> int:
        return len(self._heap) - len(self._left)

    def push(self, job: Job) -> None:
        """Append `job`."""
        rank = job.arrival - OVERTAKES_A_LEVEL * job.request.priority
        heapq.heappush(self._heap, (rank, job.arrival, job))

    def check_room(self, arriving: Sequence[Job], free_rows: int, max_queue: int) -> None:
        """Raise QueueFull if more than `max_queue` requests would wait with those that are `arriving`.

        Those that fit into `free_rows` get them before the next step and don't wait.
        """
        waiting = len(self) + len(arriving)
        if not self:  # else the first did not fit, and none passes it
            for job in arriving:
                if job.rows > free_rows:
                    break
                free_rows -= job.rows
                waiting -= 1
        if waiting > max_queue:
            raise QueueFull(f"{waiting - 1} requests wait, of {max_queue} that may", "Try again later")

    def first(self) -> Job | None:
        """The next to get rows."""
        while self._heap and self._heap[0][2] in self._left:
            self._left.remove(heapq.heappop(self._heap)[2])
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Job:
        """Take the next to get rows. Raises IndexError where none waits."""
        self.first()
        return heapq.heappop(self._heap)[2]

    def remove(self, job: Job) -> None:
        """Take `job`, which waits, out of the middle."""
        self._left.add(job)
        if len(self._left) > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2] not in self._left]
            heapq.heapify(self._heap)
            self._left.clear()
