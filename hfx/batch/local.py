"""The processes of one machine: a pool of them, and those that score the missing chunks with a model.

A worker that dies takes no row with it: its chunks are given to the next. Where a chunk was under way at three deaths,
its rows go one by one, and a row that ends the process twice by itself becomes an error row.
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
LAST_WORDS_SECONDS = 1.0  # for what a process wrote before it ended, where another one keeps its pipe open
Piece = TypeVar("Piece")  # of work: a dataclass, sent as it is
DEATHS_TOGETHER, DEATHS_ALONE = 3, 2
DEATHS_IDLE = 3  # of workers that had begun no chunk, since the last chunk that was done
DEATHS_IN_A_ROW = 20  # without an answer: then it is the machine, and no row
VMSTAT = Path("/proc/vmstat")


@dataclass(eq=False)
class Worker(Generic[Piece]):
    """A process. It does `work` by the `deadline`; of that it has `begun` these chunks, and the `row` of one alone."""

    number: int
    child: JsonChild
    is_open: bool = False
    work: Piece | None = None
    deadline: float = math.inf
    begun: set[int] = field(default_factory=set)
    row: int | None = None

    def give(self, work: Piece, seconds: float) -> None:
        """Let it do `work`."""
        self.work, self.begun, self.row = work, set(), None
        self.deadline = time.monotonic() + seconds
        self.child.send(asdict(work))  # type: ignore[call-overload]

    def is_late(self) -> bool:
        """Whether it should have finished by now."""
        if self.child.process.poll() is not None:
            self.deadline = min(self.deadline, time.monotonic() + LAST_WORDS_SECONDS)
        return time.monotonic() > self.deadline


@dataclass
class Pool(Generic[Piece]):
    """Up to `size` processes for what is `pending`, each piece of which may take some `seconds`.

    `start` starts a process by its number. It reports `opened` when it takes work, and `finished` after each piece.
    `take` gets all that it reports. `ended` gets a worker that has ended, whose work it may put back, and the exit
    code; None of one that was late. Both raise what ends the run. A context manager that kills all.
    """

    start: Callable[[int, Messages], JsonChild]
    take: Callable[[Worker[Piece], dict[str, Any]], None]
    ended: Callable[[Worker[Piece], int | None], None]
    seconds: float = math.inf
    size: int = 1
    pending: deque[Piece] = field(default_factory=deque)
    workers: dict[int, Worker[Piece]] = field(default_factory=dict)
    messages: Messages = field(default_factory=queue.SimpleQueue)

    def run(self, check: Callable[[], None]) -> None:
        """Return when nothing is pending or under way; `check` is called on the way."""
        while working := sum(worker.work is not None for worker in self.workers.values()) + len(self.pending):
            check()
            self.grow(min(self.size, working))
            for worker in self.workers.values():
                if worker.is_open and worker.work is None and self.pending:
                    worker.give(self.pending.popleft(), self.seconds)
            self.step()

    def grow(self, size: int) -> None:
        """Start the processes that there are less than `size`."""
        free = (number for number in range(self.size) if number not in self.workers)
        for number in [number for number, _ in zip(free, range(size - len(self.workers)), strict=False)]:
            self.workers[number] = Worker(number, self.start(number, self.messages))

    def step(self) -> None:
        """Take what is reported, or wait for it a moment; then end the workers that are late."""
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
            return  # it was late
        if message is None:
            self._end(worker)
            return
        worker.is_open |= "opened" in message
        self.take(worker, message)
        if "finished" in message:
            worker.work, worker.deadline = None, math.inf

    def _end(self, worker: Worker[Piece]) -> None:
        code = worker.child.process.poll()
        worker.child.kill()
        del self.workers[worker.number]
        self.ended(worker, code)

    def close(self, seconds: float) -> None:
        """Let the processes that are open end by themselves."""
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
    """How many processes the kernel of this machine has killed for want of memory; 0 where it does not say."""
    with suppress(OSError, ValueError):
        counts = dict(line.split(maxsplit=1) for line in VMSTAT.read_text(encoding="utf-8").splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


class Runner:
    """The workers of a run, their deaths, and the model that they have opened."""

    def __init__(self, start: Start, options: RunOptions) -> None:
        self.options = options
        self.pool: Pool[Work] = Pool(self._child, self._take, self._ended)
        self._start = start
        self._model: JobModel | None = None
        self._folder: Folder | None = None  # of the job that is scored
        self._on_event: Progress = lambda event: None
        self._deaths: Counter[int] = Counter()  # of chunks
        self._alone_deaths: Counter[int] = Counter()  # of rows
        self._idle_deaths = 0  # since the last chunk that was done
        self._futile_deaths = 0  # since the last row that was answered alone, or the last chunk that was done
        self._oom_kills = count_oom_kills()

    def open(self) -> JobModel:
        """The model of the first worker, once it is open. Raises HfxError."""
        while self._model is None:
            self.pool.grow(1)
            self.pool.step()
        return self._model

    def score(self, folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
        """Score `chunks`; returns when all of their parts are on the disk. Raises HfxError."""
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
        """Count a death: of a row that was alone, of chunks that had begun, or of neither."""
        if worker.is_open and worker.work is None:
            return  # it had nothing to do
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
        """Put the rest of a dead worker's chunks back; those of too many deaths go row by row."""
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
        """What is known of why processes have ended."""
        if killed := count_oom_kills() - self._oom_kills:
            return f"The kernel has killed {killed} processes for want of memory meanwhile: use fewer --workers."
        return "What it printed is above."


@contextmanager
def runner(name: str, options: RunOptions, settings: Request, probe: bool = False) -> Iterator[Runner]:
    """A Runner of the model `name`; with `probe`, a worker first answers a short text with `settings`."""
    threads = None
    if options.in_process and options.workers > 1:
        threads = max(1, (os.cpu_count() or 1) // options.workers)
    start = Start(name, options.as_json() | {"client": dict(options.client)}, threads, settings, probe)
    running = Runner(start, options)
    with running.pool:
        running.pool.grow(1)
        yield running
