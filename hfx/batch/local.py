"""Worker processes on this machine: a generic pool, and the runner that uses it to score missing chunks.

No row is lost when a worker dies, because another worker gets its chunks. If a chunk was in progress at three deaths,
its rows are scored one by one, and a row during which the process died twice becomes an error row.
"""

from __future__ import annotations

import math
import os
import queue
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from hfx.answering import Request
from hfx.batch.folder import Folder
from hfx.batch.job import JobModel, record_of
from hfx.batch.options import RunOptions
from hfx.batch.plan import Shard
from hfx.batch.progress import Progress
from hfx.batch.worker import COMMAND, Start, Work, reported
from hfx.errors import ModelChanged, ServerError
from hfx.process import JsonChild, Messages, exit_reason

POLL_SECONDS = 0.2
OUTPUT_SECONDS = 1.0  # time to read the last output of a dead process, as another process may keep its pipe open
Item = TypeVar("Item")  # a piece of work: a dataclass, which is sent as JSON
DEATHS_TOGETHER, DEATHS_ALONE = 3, 2  # limits: deaths during a chunk, and during a row that is scored alone
DEATHS_IDLE = 3  # deaths of workers that had begun no chunk, since the last finished chunk
DEATHS_IN_A_ROW = 20  # deaths without an answer between them: the machine is to blame, not a row
VMSTAT = Path("/proc/vmstat")


@dataclass(eq=False)
class Worker(Generic[Item]):
    """A worker process, and the `work` that it must finish before `deadline` (time.monotonic).

    `begun` are the chunks of that work that are in progress; `row` is the row that the worker scores alone.
    """

    number: int
    child: JsonChild
    is_open: bool = False
    work: Item | None = None
    deadline: float = math.inf
    begun: set[int] = field(default_factory=set)
    row: int | None = None

    def give(self, work: Item, seconds: float) -> None:
        """Send `work`, which may take up to `seconds`."""
        self.work, self.begun, self.row = work, set(), None
        self.deadline = time.monotonic() + seconds
        self.child.send(asdict(work))  # type: ignore[call-overload]

    def is_late(self) -> bool:
        """Return whether the deadline has passed, or the process ended more than OUTPUT_SECONDS ago."""
        if self.child.process.poll() is not None:
            self.deadline = min(self.deadline, time.monotonic() + OUTPUT_SECONDS)
        return time.monotonic() > self.deadline


@dataclass
class Pool(Generic[Item]):
    """Up to `size` processes that do the `pending` work. As a context manager, the pool kills them at the end.

    Each item may take `seconds`. `start` starts the process with a given number; the process reports `opened` when it
    is ready, and `finished` after each item. `take` is called with every report of a worker. `ended` is called with
    each dead worker, whose work it may put back into `pending`, and the exit code (None if the worker was killed
    because it was late). Both callbacks may raise an error, which ends the run.
    """

    start: Callable[[int, Messages], JsonChild]
    take: Callable[[Worker[Item], dict[str, Any]], None]
    ended: Callable[[Worker[Item], int | None], None]
    seconds: float = math.inf
    size: int = 1
    pending: deque[Item] = field(default_factory=deque)
    workers: dict[int, Worker[Item]] = field(default_factory=dict)
    messages: Messages = field(default_factory=queue.SimpleQueue)

    def run(self, check: Callable[[], None]) -> None:
        """Do all pending work. `check` is called in every round, and may raise."""
        while working := sum(worker.work is not None for worker in self.workers.values()) + len(self.pending):
            check()
            self.grow(min(self.size, working))
            for worker in self.workers.values():
                if worker.is_open and worker.work is None and self.pending:
                    worker.give(self.pending.popleft(), self.seconds)
            self.step()

    def grow(self, size: int) -> None:
        """Start processes until there are `size` of them."""
        free = (number for number in range(self.size) if number not in self.workers)
        for number in [number for number, _ in zip(free, range(size - len(self.workers)), strict=False)]:
            self.workers[number] = Worker(number, self.start(number, self.messages))

    def step(self) -> None:
        """Handle reports, waiting up to POLL_SECONDS for the first one. Then kill the workers that are late."""
        with suppress(queue.Empty):
            report = self.messages.get(timeout=POLL_SECONDS)
            while True:
                self._take(*report)
                report = self.messages.get_nowait()
        for worker in [worker for worker in self.workers.values() if worker.is_late()]:
            self._end(worker)

    def _take(self, child: JsonChild, message: dict[str, Any] | None) -> None:
        worker = next((worker for worker in self.workers.values() if worker.child is child), None)
        if worker is None:
            return  # a report of a worker that was killed
        if message is None:
            self._end(worker)
            return
        worker.is_open |= "opened" in message
        self.take(worker, message)
        if "finished" in message:
            worker.work, worker.deadline = None, math.inf

    def _end(self, worker: Worker[Item]) -> None:
        code = worker.child.process.poll()
        worker.child.kill()
        del self.workers[worker.number]
        self.ended(worker, code)

    def close(self, seconds: float) -> None:
        """Close the input of all processes, and wait up to `seconds` for the end of the processes that were open."""
        deadline = time.monotonic() + seconds
        for worker in self.workers.values():
            worker.child.close()
        for worker in self.workers.values():
            with suppress(subprocess.TimeoutExpired):
                worker.child.process.wait(max(0.0, deadline - time.monotonic()) if worker.is_open else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers.values():
            worker.child.kill()


def count_oom_kills() -> int:
    """Return how many processes this machine's OOM killer has killed since boot; 0 if unknown."""
    with suppress(OSError, ValueError):
        counts = dict(line.split(maxsplit=1) for line in VMSTAT.read_text(encoding="utf-8").splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


class Runner:
    """Runs chunks in worker processes, replaces dead workers, and finds the rows that kill workers."""

    def __init__(self, start: Start, options: RunOptions) -> None:
        self.options = options
        self.pool: Pool[Work] = Pool(self._child, self._take, self._ended)
        self._start = start
        self._model: JobModel | None = None
        self._folder: Folder | None = None  # of the job being scored
        self._on_event: Progress = lambda event: None
        self._deaths: Counter[int] = Counter()  # by chunk
        self._alone_deaths: Counter[int] = Counter()  # by row
        self._idle_deaths = 0  # since the last finished chunk
        self._futile_deaths = 0  # since the last finished chunk, or the last row that was scored alone
        self._oom_kills = count_oom_kills()

    def open(self) -> JobModel:
        """Wait until a worker has opened the model, and return the model's record. Raises HfxError."""
        while self._model is None:
            self.pool.grow(1)
            self.pool.step()
        return self._model

    def score(self, folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
        """Score `chunks`, and return when their parts are on the disk. Raises HfxError."""
        self._folder, self._on_event = folder, on_event
        self.pool.size = max(1, min(self.options.workers, len(chunks)))
        for index in range(self.pool.size):
            own = Shard(index, self.pool.size).chunks(len(chunks))
            self.pool.pending.append(Work(str(folder.path), tuple(chunks[at] for at in own)))
        self.pool.run(folder.check_cancelled)

    def _child(self, number: int, messages: Messages) -> JsonChild:
        child = JsonChild(COMMAND, messages)
        child.send(asdict(self._start))
        return child

    def _take(self, worker: Worker[Work], content: dict[str, Any]) -> None:
        if "chunk" in content:
            worker.begun.add(content["chunk"])
        elif "row" in content:
            self._futile_deaths = 0 if worker.row is not None else self._futile_deaths
            worker.row = content["row"]
        elif "done" in content:
            self._futile_deaths = self._idle_deaths = 0
            worker.begun.discard(content["done"]["number"])
            self._on_event({"event": "chunk", **content["done"]})
        elif "opened" in content:
            model = record_of(JobModel, content["opened"]["model"])
            if self._model not in (None, model):
                raise ModelChanged(f"{self._start.name} was exported again during the run.", "Start a new job.")
            self._model = model
        elif "error" in content:
            raise reported(content["error"])

    def _ended(self, worker: Worker[Work], code: int | None) -> None:
        """Count the death of a worker: for the row that it scored alone, for its chunks in progress, or as idle."""
        if worker.is_open and worker.work is None:
            return  # no work is lost
        how = exit_reason(code or 0)
        if worker.row is not None:
            self._alone_deaths[worker.row] += 1
        elif worker.begun:
            self._deaths.update(worker.begun)
        else:
            self._idle_deaths += 1
            if self._idle_deaths >= DEATHS_IDLE:
                text = f"The process that opens the model has ended {self._idle_deaths} times in a row ({how})."
                raise ServerError(text, self._cause())
        if self._folder is not None:
            self._put_back(worker, how, self._folder)

    def _put_back(self, worker: Worker[Work], how: str, folder: Folder) -> None:
        """Put the unfinished chunks of a dead worker back. Chunks with too many deaths are then scored row by row."""
        self._futile_deaths += 1
        if self._futile_deaths >= DEATHS_IN_A_ROW:
            raise ServerError(
                f"The process of the model has ended {self._futile_deaths} times, and answered nothing in between"
                f" ({how}).",
                f"{self._cause()} `hfx batch resume {folder.path}` continues it.",
            )
        self._on_event({"event": "death", "how": how, "chunks": sorted(worker.begun), "row": worker.row})
        if work := worker.work:
            there = folder.done()
            left = [number for number in (*work.chunks, *work.alone) if number not in there]
            alone = tuple(number for number in left if self._deaths[number] >= DEATHS_TOGETHER)
            together = tuple(number for number in left if number not in alone)
            killers = tuple(sorted(row for row, deaths in self._alone_deaths.items() if deaths >= DEATHS_ALONE))
            self.pool.pending.appendleft(Work(work.folder, together, alone, killers))

    def _cause(self) -> str:
        """Return a hint at why processes died, for the `fix` of an error."""
        if killed := count_oom_kills() - self._oom_kills:
            return f"The kernel has killed {killed} processes meanwhile, as memory ran out: use fewer --workers."
        return "The output of the process is above."


@contextmanager
def runner(name: str, options: RunOptions, settings: Request, probe: bool = False) -> Iterator[Runner]:
    """Yield a Runner for the model `name`. With `probe`, a worker first answers a short text, to check `settings`."""
    threads = None
    if options.in_process and options.workers > 1:
        threads = max(1, (os.cpu_count() or 1) // options.workers)
    start = Start(name, options.as_json() | {"client": dict(options.client)}, threads, settings, probe)
    running = Runner(start, options)
    with running.pool:
        running.pool.grow(1)
        yield running
