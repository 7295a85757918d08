"""Jobs of batch endpoints by the commands of `az ml job`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hfx.cli.batch.azure import InWorkspace, Named
from hfx.cli.commands import grouped
from hfx.cli.output import Reporter, reporter

if TYPE_CHECKING:
    from hfx.batch.azure.jobs import AzureJob

COMMANDS = {name: f"{__name__}:{name}" for name in ("show", "stream", "download", "cancel", "resume")}
COLUMNS = ("name", "status", "endpoint_name", "deployment_name", "created", "mini_batches", "done", "failed")


@grouped
def list_jobs(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """List the jobs of an endpoint, or all; also those of endpoints that are deleted.

    Examples:
      hfx batch list-jobs
      hfx batch list-jobs reviews
    """
    from hfx.batch.azure.jobs import jobs, progress

    values = [progress(each) for each in jobs(place.opened(), name.optional)]
    heads = [column.replace("_", " ").upper() for column in COLUMNS]
    reporter(ctx).table({"jobs": values}, heads, [[value[column] for column in COLUMNS] for value in values])


@grouped
def show(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """Show a job: its state, how much is done, where its output is.

    Examples:
      hfx batch job show JOB
      hfx batch job show JOB --json
    """
    from hfx.batch.azure.jobs import progress

    value = progress(_job(name, place))
    reporter(ctx).result(value, (f"{key}: {item}" for key, item in value.items() if item is not None))


@grouped
def stream(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """Print the log of a job until it ends; the exit code is the job's.

    Examples:
      hfx batch job stream JOB
      hfx batch job stream JOB --workspace /data/hfx
    """
    follow(_job(name, place), reporter(ctx))


@grouped
def download(
    ctx: typer.Context,
    name: Named,
    place: InWorkspace,
    output_name: Annotated[str, Option(help="`score` is the only output.")] = "score",
    download_path: Annotated[Path, Option("--download-path", "-p", help="The folder.")] = Path(),
    all_: Annotated[bool, Option("--all", help="The logs as well.")] = False,
) -> None:
    """Copy the output of a job to DIR/named-outputs/score.

    Examples:
      hfx batch job download JOB
      hfx batch job download JOB --download-path results --all
    """
    copied = _job(name, place).download(download_path, output_name, logs=all_)
    reporter(ctx).result({"downloaded": str(copied)}, f"Downloaded to {copied}.")


@grouped
def cancel(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """End a job; what was done stays, and can be resumed.

    Examples:
      hfx batch job cancel JOB
      hfx batch job cancel JOB --json
    """
    from hfx.batch.azure.jobs import progress

    job = _job(name, place)
    job.cancel()
    reporter(ctx).result(progress(job), f"The job {job.name} is {job.status}.")


@grouped
def resume(
    ctx: typer.Context,
    name: Named,
    place: InWorkspace,
    error_threshold: Annotated[int | None, Option(min=-1, help="Failed files or rows that are allowed now.")] = None,
) -> None:
    """Go on with a job that was killed, cancelled or has failed; what was done is not done again.

    Examples:
      hfx batch job resume JOB
      hfx batch job resume JOB --error-threshold 100
    """
    from hfx.batch.azure.jobs import progress

    job = _job(name, place)
    job.start(error_threshold)
    reporter(ctx).result(progress(job), job.name)


def follow(job: AzureJob, report: Reporter) -> None:
    """Print the log of a job until it has stopped, then how it ended. Raises why it is not Completed."""
    from hfx.batch.azure.jobs import progress

    for line in job.log_lines():
        report.note(line) if report.json else report.lines([line])
    job.check_completed()
    report.result(progress(job), f"The job {job.name} is Completed.")


def _job(name: Named, place: InWorkspace) -> AzureJob:
    from hfx.batch.azure.jobs import job

    return job(place.opened(), name.given)
