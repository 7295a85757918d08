"""The runner of one machine: worker processes that score the missing chunks, watched and restarted, then the output.

A worker that dies takes no row with it: its chunks are given to the next. Where a chunk was under way at three deaths,
its rows go one by one, and a row that ends the process twice by itself becomes an error row.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple, Protocol

from hfx.answering import Request
from hfx.batch.folder import Folder
from hfx.batch.job import Job, JobModel, differences, this_machine
from hfx.batch.options import RunOptions
from hfx.batch.plan import PlannedChunk, check_inputs, count_rows
from hfx.batch.publish import count, publish, too_many
from hfx.batch.records import record_of
from hfx.batch.shards import Shard
from hfx.batch.threshold import Threshold
from hfx.batch.worker import COMMAND, Start, Work, reported
from hfx.errors import JobError, ModelChanged, ServerError
from hfx.triton.process import ends_with_parent, exit_reason

DEATHS_TOGETHER, DEATHS_ALONE = 3, 2
DEATHS_IDLE = 3  # of workers that had begun no chunk, since the last chunk that was done
DEATHS_IN_A_ROW = 20  # without an answer: then it is the machine, and no row
POLL_SECONDS = 0.5
VMSTAT = Path("/proc/vmstat")

Progress = Callable[[Mapping[str, Any]], None]


class ChunkRunner(Protocol):
    """What scores the chunks of a job: processes of this machine (Runner), or tasks of Spark."""

    @property
    def options(self) -> RunOptions:
        """The options of the run."""

    def open(self) -> JobModel:
        """The model, once it is open. Raises HfxError."""

    def score(self, folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
        """Score `chunks`; returns when all of their parts are on the disk. Raises HfxError."""


class Message(NamedTuple):
    """What a worker reports; None when it has ended."""

    worker: Worker
    content: dict[str, Any] | None


class Worker:
    """A worker process. Its reports go to `messages`; it ends with this process."""

    def __init__(self, start: Start, messages: queue.SimpleQueue[Message]) -> None:
        command = ends_with_parent(COMMAND, SIGKILL)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        self.work: Work | None = None
        self.begun: set[int] = set()
        self.row: int | None = None
        self.send(asdict(start))
        threading.Thread(target=self._read, args=(messages,), daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a Start or Work; a worker that has ended gets nothing."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def give(self, work: Work) -> None:
        """Let it score chunks."""
        self.work, self.begun, self.row = work, set(), None
        self.send(asdict(work))

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def ending(self) -> str:
        """How it ended."""
        return exit_reason(self._process.wait())

    def _read(self, messages: queue.SimpleQueue[Message]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # the last one of a process that was killed
                messages.put(Message(self, json.loads(line)))
        messages.put(Message(self, None))


def count_oom_kills() -> int:
    """How many processes the kernel of this machine has killed for want of memory; 0 where it does not say."""
    with suppress(OSError, ValueError):
        counts = dict(line.split(maxsplit=1) for line in VMSTAT.read_text(encoding="utf-8").splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


@dataclass
class Runner:
    """The workers of a run and what is left to do."""

    start: Start
    options: RunOptions
    messages: queue.SimpleQueue[Message] = field(default_factory=queue.SimpleQueue)
    workers: list[Worker] = field(default_factory=list)
    deaths: Counter[int] = field(default_factory=Counter)  # of chunks
    alone_deaths: Counter[int] = field(default_factory=Counter)  # of rows
    idle_deaths: int = 0  # since the last chunk that was done
    futile_deaths: int = 0  # since the last row that was answered alone, or the last chunk that was done
    model: JobModel | None = None
    oom_kills: int = field(default_factory=count_oom_kills)  # when the run began

    def open(self) -> JobModel:
        """The model of the first worker, once it is open. Raises HfxError."""
        while True:
            message = self.messages.get()
            if message.content is None:
                self._idle_death(message.worker)
                self.workers.remove(message.worker)
                self.start_worker()
            elif "opened" in message.content:
                self.model = record_of(JobModel, message.content["opened"]["model"])
                return self.model
            else:
                raise reported(message.content["error"])

    def score(self, folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
        """Score `chunks`; returns when all of their parts are on the disk. Raises HfxError."""
        count = max(1, min(self.options.workers, len(chunks)))
        while len(self.workers) < count:
            self.start_worker()
        for index, worker in enumerate(self.workers):
            own = Shard(index, count).chunks(len(chunks))
            worker.give(Work(str(folder.path), tuple(chunks[at] for at in own)))
        working = set(self.workers)
        while working:
            folder.check_cancelled()
            with suppress(queue.Empty):
                message = self.messages.get(timeout=POLL_SECONDS)
                self._take(message, folder, working, on_event)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.ending()

    def start_worker(self) -> Worker:
        """Start a worker, which begins to open the model."""
        worker = Worker(self.start, self.messages)
        self.workers.append(worker)
        return worker

    def _take(self, message: Message, folder: Folder, working: set[Worker], on_event: Progress) -> None:
        worker, content = message
        if content is None:
            if worker in working:
                working.remove(worker)
                working.add(self._replace(worker, folder, on_event))
        elif "chunk" in content:
            worker.begun.add(content["chunk"])
        elif "row" in content:
            self.futile_deaths = 0 if worker.row is not None else self.futile_deaths
            worker.row = content["row"]
        elif "done" in content:
            self.futile_deaths = self.idle_deaths = 0
            worker.begun.discard(content["done"]["number"])
            on_event({"event": "chunk", **content["done"]})
        elif "finished" in content:
            working.remove(worker)
        elif "opened" in content and record_of(JobModel, content["opened"]["model"]) != self.model:
            raise ModelChanged(f"{self.start.name} was exported anew during the run.", "Start a new job.")
        elif "error" in content:
            raise reported(content["error"])

    def _replace(self, dead: Worker, folder: Folder, on_event: Progress) -> Worker:
        """Give the rest of a dead worker's chunks to a new one."""
        assert dead.work is not None
        killers = set(dead.work.killers)
        if dead.row is not None:
            self.alone_deaths[dead.row] += 1
            if self.alone_deaths[dead.row] == DEATHS_ALONE:
                killers.add(dead.row)
        elif dead.begun:
            self.deaths.update(dead.begun)
        else:
            self._idle_death(dead)
        self.futile_deaths += 1
        if self.futile_deaths >= DEATHS_IN_A_ROW:
            raise ServerError(
                f"The process of the model has ended {self.futile_deaths} times, and answered nothing in between"
                f" ({dead.ending()}).",
                f"{self._cause()} `hfx batch resume {folder.path}` goes on.",
            )
        on_event({"event": "death", "how": dead.ending(), "chunks": sorted(dead.begun), "row": dead.row})
        self.workers.remove(dead)
        there = folder.done()
        left = [number for number in (*dead.work.chunks, *dead.work.alone) if number not in there]
        alone = tuple(number for number in left if self.deaths[number] >= DEATHS_TOGETHER)
        worker = self.start_worker()
        together = tuple(number for number in left if number not in alone)
        worker.give(Work(str(folder.path), together, alone, tuple(sorted(killers))))
        return worker

    def _idle_death(self, worker: Worker) -> None:
        self.idle_deaths += 1
        if self.idle_deaths >= DEATHS_IDLE:
            raise ServerError(
                f"The process that opens the model has ended {self.idle_deaths} times in a row ({worker.ending()}).",
                self._cause(),
            )

    def _cause(self) -> str:
        """What is known of why processes have ended."""
        if killed := count_oom_kills() - self.oom_kills:
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
    try:
        running.start_worker()
        yield running
    finally:
        running.close()


def missing_chunks(folder: Folder, planned: Sequence[PlannedChunk], shard: Shard | None = None) -> list[int]:
    """The numbers of the chunks (of a shard) whose parts are not there."""
    done = folder.done()
    mine = shard.chunks(len(planned)) if shard else range(len(planned))
    return [number for number in mine if number not in done]


def logged(folder: Folder, shard: Shard | None, on_event: Progress) -> Progress:
    """`on_event`, and the event in the job's log."""
    of_shard = {"shard": str(shard)} if shard else {}

    def take(event: Mapping[str, Any]) -> None:
        folder.log({**of_shard, **event})
        on_event(event)

    return take


def score_missing(
    folder: Folder,
    job: Job,
    planned: Sequence[PlannedChunk],
    chunks: Sequence[int],
    running: ChunkRunner,
    on_event: Progress,
) -> None:
    """Score the missing `chunks` of a job. Raises TooManyErrors as soon as the threshold is exceeded, and HfxError."""
    threshold = running.options.threshold
    total = count_rows(planned)
    done = folder.done() if threshold.limit >= 0 else ()
    errors = count(folder, job, [chunk for chunk in planned if chunk.number in done]).errors

    def counted(event: Mapping[str, Any]) -> None:
        nonlocal errors
        on_event(event)
        if event["event"] == "chunk":
            errors += sum(event["errors"].values())
            if threshold.is_exceeded(errors, total):
                raise too_many(errors, total, threshold)

    on_event({"event": "run", "missing": len(chunks), "workers": running.options.workers})
    running.score(folder, chunks, counted)


def finish(
    folder: Folder, job: Job, planned: Sequence[PlannedChunk], threshold: Threshold, on_event: Progress
) -> dict[str, Any] | None:
    """Publish a job of which no part is missing; None where other shards have to end before."""
    if missing_chunks(folder, planned):
        return None
    summary = publish(folder, job, planned, threshold)
    on_event({"event": "published", "rows": summary["rows"], "errors": summary["errors"]})
    return summary


def check_job(job: Job, planned: Sequence[PlannedChunk], model: JobModel, options: RunOptions) -> None:
    """Raise JobError where the model, the inputs or the machine are not those that the job was planned with."""
    check_inputs(job.inputs, planned)
    if model.task != job.model.task or model.inputs != job.model.inputs or model.labels != job.model.labels:
        raise JobError(f"{model.name} is another model than when the job was planned.", "Start a new job.")
    check_files(model.files, job)
    check_machine(job, options)


def check_files(sha256: str, job: Job) -> None:
    """Raise ModelChanged where the model's files are not those that the job was planned with, as far as both say."""
    if sha256 and job.model.files and sha256 != job.model.files:
        raise ModelChanged(f"{job.model.name} was exported anew since the job was planned.", "Start a new job.")


def check_machine(job: Job, options: RunOptions) -> None:
    """Raise JobError where answers that are computed here may differ from those of the machine of the plan."""
    if not options.mixed_processors and (difference := differences(job.machine, this_machine(options.in_process))):
        raise JobError(
            f"Answers may differ in their last digits from those that are there: {difference}.",
            "Run it on the same kind of machine, or accept that with --mixed-processors.",
        )
