"""How far a job is, read from its folder: from another terminal, or from another machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.batch.folder import JOB, Folder
from hfx.batch.job import read_job
from hfx.batch.plan import count_rows, read_plan
from hfx.errors import JobError

RECENT = 300.0  # seconds by which the rate is measured


@dataclass(frozen=True)
class Status:
    """The state of a job and its counts; `rows_per_second` and `eta` (seconds) only while it runs and is known.

    States are those of Azure ML: Running, Completed, Failed, Cancelled, Paused (chunks are missing and nothing runs).
    `errors` are those of the log, by kind.
    """

    folder: str
    model: str
    state: str
    rows: int
    done: int
    errors: Mapping[str, int]
    rows_per_second: float | None = None
    eta: float | None = None


def status_of(folder: Folder) -> Status:
    """The status of a job. Raises JobError where there is none."""
    job, planned = read_job(folder), read_plan(folder)
    done = folder.done()
    rows = count_rows(planned)
    finished = count_rows(chunk for chunk in planned if chunk.number in done)
    events = list(folder.events())
    state = _state(folder, events)
    rate = _rate(events) if state == "Running" else None
    eta = (rows - finished) / rate if rate else None
    return Status(str(folder.path), job.model.name, state, rows, finished, errors_of(events), rate, eta)


def unreadable(folder: Folder) -> Status:
    """The status of a job whose files are damaged."""
    return Status(str(folder.path), "", "Unreadable", 0, 0, {})


def _state(folder: Folder, events: list[dict[str, Any]]) -> str:
    if folder.summary.exists():
        return "Completed"
    if folder.is_locked:
        return "Running"
    if folder.is_cancelled:
        return "Cancelled"
    return "Failed" if events and events[-1]["event"] == "failed" else "Paused"


def errors_of(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Error rows by kind, of the last time that each chunk was done."""
    chunks = {event["number"]: event["errors"] for event in events if event["event"] == "chunk"}
    kinds: Counter[str] = Counter()
    for errors in chunks.values():
        kinds.update(errors)
    return dict(kinds.most_common())


def _rate(events: Iterable[Mapping[str, Any]]) -> float | None:
    """Rows a second, over RECENT seconds at most: since the last start, of several shards since their first event."""
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
    """The jobs below a folder, or of the folder itself. Raises JobError for no folder."""
    if not folder.is_dir():
        raise JobError(f"{folder} is no folder.", "Give a folder of jobs.")
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return [Folder(path) for path in candidates if (path / JOB).is_file()]
