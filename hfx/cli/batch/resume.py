"""`hfx batch resume`: go on with a job that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hfx.cli.batch.running import (
    EngineOptions,
    PlaceOptions,
    Watcher,
    WorkOptions,
    opened_runner,
    parsed_shard,
    report_end,
    run_options,
    warn_of_unknown,
    working,
)
from hfx.cli.commands import grouped
from hfx.cli.interrupts import deferred
from hfx.cli.output import reporter


@grouped
def command(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The job's folder.")],
    place: PlaceOptions,
    work: WorkOptions,
    engine: EngineOptions,
) -> None:
    """Score what is missing of a job and publish its output; what shapes the answers stays as it was.

    Inputs, model or machine that are not those of before are refused with the reason.

    Examples:
      hfx batch resume scored
      hfx batch resume scored --workers 4
    """
    report = reporter(ctx)
    with deferred():
        from hfx.batch.folder import Folder
        from hfx.batch.job import read_job
        from hfx.batch.local import check_job, finish, logged, missing_chunks, score_missing
        from hfx.batch.options import RunOptions
        from hfx.batch.plan import read_plan
        from hfx.batch.publish import published
    job_folder = Folder(folder)
    job = read_job(job_folder)
    options = run_options(place, work, RunOptions.of(job.run))
    shard = parsed_shard(work.shard)
    planned = read_plan(job_folder)
    if (summary := published(job_folder, job, planned, options.threshold)) is not None:
        report_end(job_folder, summary, shard, report)  # also where nothing can be written
        return
    with working(job_folder, shard, f"Scoring by {job.model.name}", report) as show:
        job_folder.uncancel()
        on_event = logged(job_folder, shard, Watcher.of(job_folder, planned, shard, show))
        if missing := missing_chunks(job_folder, planned, shard):
            with opened_runner(engine, job.model.name, options, job.settings) as running:
                check_job(job, planned, running.open(), options)
                score_missing(job_folder, job, planned, missing, running, on_event)
        summary = finish(job_folder, job, planned, options.threshold, on_event)
    warn_of_unknown(job, report)
    report_end(job_folder, summary, shard, report)
