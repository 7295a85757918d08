"""Manage jobs of batch endpoints, with the commands of `az ml job`.

Examples:
  hfx batch azure job show JOB
  hfx batch azure job download JOB --download-path results
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from hfx.cli.batch.azure.endpoint import InWorkspace, Named, Set
from hfx.cli.commands import given, grouped
from hfx.cli.output import Reporter, reporter
from hfx.errors import UsageError
from hfx.options import Option, option

if TYPE_CHECKING:
    from hfx.batch.azure.jobs import AzureJob

COMMANDS = {name: f"{__name__}:{name}" for name in ("show", "stream", "download", "cancel", "resume")}
COLUMNS = ("name", "status", "endpoint_name", "deployment_name", "created", "mini_batches", "done", "failed")
PLACES = {"instance_count": "resources", "max_retries": "settings.retry_settings", "timeout": "settings.retry_settings"}


@dataclass(frozen=True)
class SettingOptions:
    """Settings of the deployment for this job."""

    PANEL: ClassVar[str] = "Settings of this job"

    mini_batch_size: int | None = option(None, "Files per call of run().", "--mini-batch-size", "-m")
    instance_count: int | None = option(None, "Number of instances.", "--instance-count", "-c")
    max_retries: int | None = option(None, "Retries of a failed mini-batch.")
    timeout: int | None = option(None, "Time limit for a call of run(), in seconds.")
    error_threshold: int | None = option(None, "Most failed files allowed; -1: any number.")


@grouped
def invoke(
    ctx: typer.Context,
    name: Named,
    place: InWorkspace,
    options: SettingOptions,
    deployment_name: Annotated[
        str | None, Option("--deployment-name", "-d", help="Deployment to use. Default: the endpoint's default.")
    ] = None,
    inputs: Annotated[list[str] | None, Option("--input", help="Input file or folder. Repeatable.")] = None,
    output_path: Annotated[Path | None, Option(help="Output folder; must not exist.")] = None,
    set_: Set = None,
    job_name: Annotated[str | None, Option(help="Name of the job. Default: generated.")] = None,
    wait: Annotated[
        bool, Option("--wait", help="Print the log until the job ends, and exit with the job's exit code.")
    ] = False,
) -> None:
    """Start a job of an endpoint and print its name. The job runs in the background.

    --set output_file_name=F changes a setting of the deployment for this job.

    Examples:
      hfx batch azure invoke reviews --input reviews.csv
      hfx batch azure invoke reviews --input data/ --set output_file_name=scores.csv --wait
    """
    from hfx.batch.azure.jobs import create_job

    workspace, report = place.opened(), reporter(ctx)
    settings = [f"{key}={value}" for key, value in given(options).items()] + (set_ or [])
    chosen = deployment_name or workspace.endpoint(name.given).default
    if chosen is None:
        raise UsageError(
            f"The endpoint {name.given} has no default deployment.",
            "Give --deployment-name NAME, or make one: hfx batch azure deployment create --file FILE --set-default.",
        )
    deployment = workspace.deployment(name.given, chosen, [_placed(setting) for setting in settings])
    if deployment.code is None and (options.timeout is not None or options.max_retries is not None):
        raise UsageError("--timeout and --max-retries are for a scoring script's run().", "Leave them out.")
    job = create_job(workspace, deployment, inputs or [], output_path, job_name)
    job.start()
    if wait:
        report.note(job.name)
        follow(job, report)
    else:
        report.result(job.progress(), job.name)


def _placed(setting: str) -> str:
    """Return `setting` under the key that it has in the YAML file."""
    key = setting.partition("=")[0]
    if "." in key and not key.startswith("retry_settings."):
        return setting
    return f"{PLACES.get(key, 'settings')}.{setting}"


@grouped
def list_jobs(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """List the jobs of an endpoint, or all jobs. Includes those of deleted endpoints.

    Examples:
      hfx batch azure list-jobs
      hfx batch azure list-jobs reviews
    """
    from hfx.batch.azure.jobs import jobs

    values = [each.progress() for each in jobs(place.opened(), name.optional)]
    heads = [column.replace("_", " ").upper() for column in COLUMNS]
    reporter(ctx).table({"jobs": values}, heads, [[value[column] for column in COLUMNS] for value in values])


@grouped
def show(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """Show a job: state, progress and output folder.

    Examples:
      hfx batch azure job show JOB
      hfx batch azure job show JOB --json
    """
    value = _job(name, place).progress()
    reporter(ctx).result(value, (f"{key}: {item}" for key, item in value.items() if item is not None))


@grouped
def stream(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """Print the log of a job until it ends, and exit with the job's exit code.

    Examples:
      hfx batch azure job stream JOB
      hfx batch azure job stream JOB --workspace /data/hfx
    """
    follow(_job(name, place), reporter(ctx))


@grouped
def download(
    ctx: typer.Context,
    name: Named,
    place: InWorkspace,
    output_name: Annotated[str, Option(help="Output to download. `score` is the only one.")] = "score",
    download_path: Annotated[Path, Option("--download-path", "-p", help="Folder to download to.")] = Path(),
    all_: Annotated[bool, Option("--all", help="Download the logs as well.")] = False,
) -> None:
    """Copy the output of a job to DIR/named-outputs/score.

    Examples:
      hfx batch azure job download JOB
      hfx batch azure job download JOB --download-path results --all
    """
    copied = _job(name, place).download(download_path, output_name, logs=all_)
    reporter(ctx).result({"downloaded": str(copied)}, f"Downloaded to {copied}.")


@grouped
def cancel(ctx: typer.Context, name: Named, place: InWorkspace) -> None:
    """Cancel a job. Finished work is kept; `resume` continues it.

    Examples:
      hfx batch azure job cancel JOB
      hfx batch azure job cancel JOB --json
    """
    job = _job(name, place)
    job.cancel()
    reporter(ctx).result(job.progress(), f"The job {job.name} is {job.status}.")


@grouped
def resume(
    ctx: typer.Context,
    name: Named,
    place: InWorkspace,
    error_threshold: Annotated[
        int | None, Option(min=-1, help="Most failed files or rows allowed from now on; -1: any number.")
    ] = None,
) -> None:
    """Resume a job that failed, or was killed or cancelled. Finished work is not repeated.

    Examples:
      hfx batch azure job resume JOB
      hfx batch azure job resume JOB --error-threshold 100
    """
    job = _job(name, place)
    job.start(error_threshold)
    reporter(ctx).result(job.progress(), job.name)


def follow(job: AzureJob, report: Reporter) -> None:
    """Print the log of a job until it stops, then its state. Raises an error if the state is not Completed."""
    for line in job.log_lines():
        report.note(line) if report.json else report.lines([line])
    job.check_completed()
    report.result(job.progress(), f"The job {job.name} is Completed.")


def _job(name: Named, place: InWorkspace) -> AzureJob:
    from hfx.batch.azure.jobs import job

    return job(place.opened(), name.given)
