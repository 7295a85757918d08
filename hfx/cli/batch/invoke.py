"""`hfx batch invoke`: a job of an endpoint, in the background."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from typer import Option

from hfx.cli.batch.azure import InWorkspace, Named, Set
from hfx.cli.batch.jobs import follow
from hfx.cli.commands import given, grouped
from hfx.cli.output import reporter
from hfx.errors import UsageError

PLACES = {"instance_count": "resources", "max_retries": "settings.retry_settings", "timeout": "settings.retry_settings"}


@dataclass(frozen=True)
class SettingOptions:
    """Settings of the deployment for this job."""

    PANEL: ClassVar[str] = "Settings of this job"

    mini_batch_size: Annotated[int | None, Option("--mini-batch-size", "-m", help="Files of one run().")] = None
    instance_count: Annotated[int | None, Option("--instance-count", "-c", help="Instances.")] = None
    max_retries: Annotated[int | None, Option(help="Further tries of a mini-batch that failed.")] = None
    timeout: Annotated[int | None, Option(help="Seconds that one run() may take.")] = None
    error_threshold: Annotated[int | None, Option(help="Failed files that are allowed; -1: all.")] = None


@grouped
def command(
    ctx: typer.Context,
    name: Named,
    place: InWorkspace,
    options: SettingOptions,
    deployment_name: Annotated[
        str | None, Option("--deployment-name", "-d", help="The deployment; without it the endpoint's default.")
    ] = None,
    inputs: Annotated[list[str] | None, Option("--input", help="A file or folder; may be repeated.")] = None,
    output_path: Annotated[Path | None, Option(help="The folder of the output, which must not exist.")] = None,
    set_: Set = None,
    job_name: Annotated[str | None, Option(help="The job's name; without it a new one.")] = None,
    wait: Annotated[bool, Option("--wait", help="Print the log until the job ends; the exit code is its.")] = False,
) -> None:
    """Start a job of an endpoint and print its name; the job goes on in the background.

    --set output_file_name=F changes a setting of the deployment for this job.

    Examples:
      hfx batch invoke reviews --input reviews.csv
      hfx batch invoke reviews --input data/ --set output_file_name=scores.csv --wait
    """
    from hfx.batch.azure.invocation import create_job
    from hfx.batch.azure.jobs import AzureJob, progress

    workspace, report = place.opened(), reporter(ctx)
    settings = [f"{key}={value}" for key, value in given(options).items()] + (set_ or [])
    chosen = deployment_name or workspace.endpoint(name.given).default
    if chosen is None:
        raise UsageError(f"The endpoint {name.given} has no default deployment.", "Give --deployment-name D.")
    deployment = workspace.deployment(name.given, chosen, [_placed(setting) for setting in settings])
    if deployment.code is None and (options.timeout is not None or options.max_retries is not None):
        raise UsageError("--timeout and --max-retries are for a scoring script's run().", "Leave them out.")
    job = AzureJob(create_job(workspace, deployment, inputs or [], output_path, job_name))
    job.start()
    if wait:
        report.note(job.name)
        follow(job, report)
    else:
        report.result(progress(job), job.name)


def _placed(setting: str) -> str:
    """`setting` under the key where the YAML has it."""
    key = setting.partition("=")[0]
    if "." in key and not key.startswith("retry_settings."):
        return setting
    return f"{PLACES.get(key, 'settings')}.{setting}"
