"""`hfx batch list | show | logs | cancel | publish`, which only use the folders of jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hfx.cli.batch.running import duration, report_end
from hfx.cli.output import reporter
from hfx.errors import JobError
from hfx.options import Option

if TYPE_CHECKING:
    from hfx.batch.folder import Folder
    from hfx.batch.job import Job

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the job.")]


def list_jobs(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder that contains jobs.")] = Path(),
) -> None:
    """List the jobs in a folder.

    Examples:
      hfx batch list
      hfx batch list /data/jobs --json
    """
    from hfx.batch.progress import Status, jobs_in, status_of

    found = []
    for job in jobs_in(folder):
        try:
            found.append(status_of(job))
        except JobError:  # `hfx batch show` prints the reason
            found.append(Status(str(job.path), "", "Unreadable", 0, 0, {}))
    value = {"jobs": [asdict(status) for status in found]}
    rows = [(s.folder, s.model, s.state, f"{s.done}/{s.rows}", sum(s.errors.values())) for s in found]
    reporter(ctx).table(value, ("JOB", "MODEL", "STATE", "ROWS", "ERRORS"), rows)


def show(ctx: typer.Context, folder: Dir) -> None:
    """Show a job's progress: rows, rate, time left, errors by kind. Works while the job runs, on any machine.

    Examples:
      hfx batch show scored
      hfx batch show scored --json
    """
    from hfx.batch.folder import Folder
    from hfx.batch.progress import status_of

    status = status_of(Folder(folder))
    lines = [f"{status.folder}: {status.state}", f"model   {status.model}", f"rows    {status.done} of {status.rows}"]
    if status.rows_per_second and status.eta is not None:
        lines.append(f"rate    {status.rows_per_second:.1f} rows/s, {duration(status.eta)} left")
    lines.append(f"errors  {sum(status.errors.values())}")
    lines += [f"{count:>8}  {kind}" for kind, count in status.errors.items()]
    reporter(ctx).result(asdict(status), lines)


def logs(ctx: typer.Context, folder: Dir) -> None:
    """Print a job's log: runs, chunks, ended workers.

    Examples:
      hfx batch logs scored
      hfx batch logs scored --json
    """
    job_folder, _ = _job(folder)
    events = list(job_folder.events())
    reporter(ctx).result({"events": events}, map(_line, events))


def cancel(ctx: typer.Context, folder: Dir) -> None:
    """Stop a job, on whichever machines it runs. Finished work is kept; `hfx batch resume` continues it.

    Shards that a launcher restarts stop at once, with exit code 130.

    Examples:
      hfx batch cancel scored
      hfx batch cancel /data/jobs/scored
    """
    from hfx.batch.folder import SUMMARY

    job_folder, _ = _job(folder)
    if job_folder.has(SUMMARY):
        raise JobError(f"{folder} is completed.", "There is nothing to stop.")
    job_folder.cancel()
    text = f"{folder}: cancelled. `hfx batch resume {folder}` continues it."
    reporter(ctx).result({"folder": str(folder), "status": "cancelled"}, text)


def publish(
    ctx: typer.Context,
    folder: Dir,
    partial: Annotated[bool, Option("--partial", help="Write the finished rows to files marked .partial.")] = False,
    error_threshold: Annotated[
        str | None, Option(metavar="N|P%|-1", help="Most error rows allowed. Default: the job's setting.")
    ] = None,
) -> None:
    """Join the parts of a job into its output. Refused while parts are missing, unless --partial is given.

    Examples:
      hfx batch publish scored
      hfx batch publish scored --json
    """
    from hfx.batch.options import RunOptions, Threshold
    from hfx.batch.plan import PlannedJob
    from hfx.batch.publish import publish as publish_job

    job_folder, job = _job(folder)
    threshold = Threshold.parse(error_threshold or RunOptions.of(job.run).error_threshold)
    with job_folder.locked():
        summary = publish_job(PlannedJob.read(job_folder), threshold, partial)
    report_end(job_folder, summary, None, reporter(ctx))


def _job(folder: Path) -> tuple[Folder, Job]:
    """Return the folder of a job, and the job. Raises JobError for any other folder."""
    from hfx.batch.folder import Folder
    from hfx.batch.job import read_job

    return Folder(folder), read_job(Folder(folder))


def _line(event: Mapping[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.get("time", 0)))
    rest = " ".join(
        f"{name}={f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in event.items()
        if name not in ("time", "event") and value != {}
    )
    return f"{at} {event.get('event', '')} {rest}"
