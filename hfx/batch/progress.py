"""Running a job from its missing chunks to its output, and reporting its status.

The status is read from the job's folder, so that another terminal or machine can show it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from hfx.batch.folder import JOB, SUMMARY, Folder, State
from hfx.batch.job import Job, JobModel, differences, this_machine
from hfx.batch.options import RunOptions, Threshold
from hfx.batch.plan import PlannedJob, Shard, check_inputs, count_rows
from hfx.batch.publish import count, publish, too_many
from hfx.errors import JobError, ModelChanged

Progress = Callable[[Mapping[str, Any]], None]
RECENT = 300.0  # seconds over which the rate is measured


class ChunkRunner(Protocol):
    """A runner that scores chunks: in processes on this machine (local.Runner), or as Spark tasks (SparkRunner)."""

    @property
    def options(self) -> RunOptions:
        """The options of the run."""

    def open(self) -> JobModel:
        """Wait until the model is open, and return its record. Raises HfxError."""

    def score(self, folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
        """Score `chunks`, and return when their parts are on the disk. Raises HfxError."""


def logged(folder: Folder, shard: Shard | None, on_event: Progress) -> Progress:
    """Return a function that writes an event to the job's log, and then passes it to `on_event`."""
    of_shard = {"shard": str(shard)} if shard else {}

    def take(event: Mapping[str, Any]) -> None:
        folder.log({**of_shard, **event})
        on_event(event)

    return take


def score_missing(planned: PlannedJob, running: ChunkRunner, on_event: Progress, shard: Shard | None = None) -> None:
    """Score the missing chunks of a job, or of its `shard`.

    Raises TooManyErrors as soon as the threshold is exceeded, or HfxError.
    """
    folder, total = planned.folder, planned.rows
    missing = [chunk.number for chunk in planned.missing(shard)]
    threshold = running.options.threshold
    done = folder.done() if threshold.limit >= 0 else ()
    errors = count(planned, [chunk for chunk in planned.chunks if chunk.number in done]).errors

    def counted(event: Mapping[str, Any]) -> None:
        nonlocal errors
        on_event(event)
        if event["event"] == "chunk":
            errors += sum(event["errors"].values())
            if threshold.is_exceeded(errors, total):
                raise too_many(folder, errors, total, threshold)

    on_event({"event": "run", "missing": len(missing), "workers": running.options.workers})
    running.score(folder, missing, counted)


def finish(planned: PlannedJob, threshold: Threshold, on_event: Progress) -> dict[str, Any] | None:
    """Publish the output, and return its summary. Returns None while other shards still have missing parts."""
    if planned.missing():
        return None
    summary = publish(planned, threshold)
    on_event({"event": "published", "rows": summary["rows"], "errors": summary["errors"]})
    return summary


def check_job(planned: PlannedJob, model: JobModel, options: RunOptions) -> None:
    """Raise JobError (or a subclass) if the model, the inputs or the machine are not those of the plan."""
    job = planned.job
    check_inputs(job.inputs, planned.chunks)
    if model.task != job.model.task or model.inputs != job.model.inputs or model.labels != job.model.labels:
        raise JobError(f"{model.name} is another model than when the job was planned.", "Start a new job.")
    check_files(model.files, job)
    check_machine(job, options)


def check_files(sha256: str, job: Job) -> None:
    """Raise ModelChanged if the hash of the model's files differs from the plan's hash, and both are known."""
    if sha256 and job.model.files and sha256 != job.model.files:
        raise ModelChanged(f"{job.model.name} was exported again since the job was planned.", "Start a new job.")


def check_machine(job: Job, options: RunOptions) -> None:
    """Raise JobError if the last digits of answers on this machine may differ from those on the plan's machine."""
    if not options.mixed_processors and (difference := differences(job.machine, this_machine(options.in_process))):
        raise JobError(
            f"Answers may differ in their last digits from those that are there: {difference}.",
            "Run it on the same kind of machine, or accept that with --mixed-processors.",
        )


# Status


@dataclass(frozen=True)
class Status:
    """The state of a job. `rows_per_second` and `eta` (seconds) are None unless it runs and has finished a chunk.

    `errors` counts the error rows in the log by kind. A job whose files are damaged is Unreadable.
    """

    folder: str
    model: str
    state: State | Literal["Unreadable"]
    rows: int
    done: int
    errors: Mapping[str, int]
    rows_per_second: float | None = None
    eta: float | None = None


def status_of(folder: Folder) -> Status:
    """Return the status of the job in `folder`. Raises JobError if there is no job."""
    planned = PlannedJob.read(folder)
    rows, missing = planned.rows, count_rows(planned.missing())
    events = list(folder.events())
    has_failed = bool(events) and events[-1]["event"] == "failed" and not folder.is_cancelled
    state = "Completed" if folder.has(SUMMARY) else folder.state(lambda: "Failed" if has_failed else None)
    rate = _rate(events) if state == "Running" else None
    eta = missing / rate if rate else None
    name = planned.job.model.name
    return Status(str(folder.path), name, state, rows, rows - missing, errors_of(events), rate, eta)


def errors_of(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count error rows by kind. For a chunk that was scored repeatedly, only the last time counts."""
    chunks = {event["number"]: event["errors"] for event in events if event["event"] == "chunk"}
    kinds: Counter[str] = Counter()
    for errors in chunks.values():
        kinds.update(errors)
    return dict(kinds.most_common())


def _rate(events: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the rows per second over the last RECENT seconds.

    If an unsharded run has started since, only the time since its start counts.
    """
    now = time.time()
    recent: list[Mapping[str, Any]] = []
    for event in events:
        if event["event"] == "run" and not event.get("shard"):
            recent = []
        if event["event"] in ("run", "chunk") and event["time"] > now - RECENT:
            recent.append(event)
    rows = sum(event.get("rows", 0) for event in recent)
    return rows / max(now - recent[0]["time"], 0.001) if rows else None


def jobs_in(folder: Path) -> list[Folder]:
    """Return the jobs in subfolders of `folder`, and `folder` itself if it is a job.

    Raises JobError if it is not a folder.
    """
    if not folder.is_dir():
        raise JobError(f"{folder} is not a folder.", "Give a folder of jobs.")
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return [Folder(path) for path in candidates if (path / JOB).is_file()]
