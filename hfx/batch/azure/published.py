"""Deployments without a script: a published model, whose jobs are those of `hfx batch run`.

Which columns, and which settings, are environment variables: rows.py.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.answering import Request
from hfx.batch.azure.deployment import Deployment
from hfx.batch.azure.rows import row_settings
from hfx.batch.create import JobSpec, create, default_rows
from hfx.batch.folder import JOB, SUMMARY, write_file
from hfx.batch.job import Output, read_job
from hfx.batch.local import check_job, finish, logged, missing_chunks, runner, score_missing
from hfx.batch.models import describe
from hfx.batch.options import RunOptions
from hfx.batch.plan import read_plan
from hfx.errors import TooManyErrors
from hfx.names import Task

if TYPE_CHECKING:
    from hfx.batch.azure.jobs import AzureJob

log = logging.getLogger("hfx.batch.azure")


@dataclass(frozen=True)
class PublishedModel:
    """What a job of a deployment does: on which columns, with which settings, where."""

    name: str
    task: Task
    columns: tuple[str, ...]
    settings: Request
    seed: int
    options: RunOptions
    output: Output

    @property
    def rows(self) -> int:
        """The rows that are published together, where the deployment does not say it."""
        return default_rows(self.task)

    def spec(self, inputs: tuple[str, ...], rows: int | None) -> JobSpec:
        """The job of `inputs`."""
        return JobSpec(self.name, inputs, self.columns, self.settings, self.seed, self.output, mini_batch_size=rows)


def published_model(deployment: Deployment) -> PublishedModel:
    """What a deployment without a script does. Raises UsageError, and ModelMissing for no published model."""
    assert deployment.model is not None
    settings, variables = deployment.settings, deployment.settings.environment_variables
    options = RunOptions(
        repository=str(deployment.model.parent),
        workers=settings.processes,
        error_threshold=str(settings.error_threshold),
    )
    task, metadata, _ = describe(deployment.model.name, options.place())
    chosen = row_settings(task, metadata, variables)
    output = Output(settings.output_action, settings.output_file_name, (), "")
    return PublishedModel(deployment.model.name, task, chosen.columns, chosen.settings, chosen.seed, options, output)


def run_published(job: AzureJob, deployment: Deployment) -> None:
    """Score the rows that are missing, then copy the output. Raises what ends the job early."""
    model, folder = published_model(deployment), job.folder
    os.environ.update(deployment.settings.environment_variables)  # the workers get them
    on_event = logged(folder, None, _log)
    is_new = not (folder.path / JOB).exists()
    try:
        with runner(model.name, model.options, model.settings, probe=is_new) as running:
            if is_new:
                files = tuple(file.path for file in job.invocation.files)
                spec = model.spec(files, deployment.settings.mini_batch_size)
                planned_job, planned = create(folder, spec, model.task, model.options, running.open)
            else:
                planned_job, planned = read_job(folder), read_plan(folder)
                check_job(planned_job, planned, running.open(), model.options)
            score_missing(folder, planned_job, planned, missing_chunks(folder, planned, None), running, on_event)
        finish(folder, planned_job, planned, model.options.threshold, on_event)
    except TooManyErrors as error:
        fix = f"`hfx batch job resume {job.name} --error-threshold N` goes on with a higher one."
        raise TooManyErrors(error.message, fix) from error
    is_joined = deployment.settings.output_action == "append_row"
    name = deployment.settings.output_file_name if is_joined else SUMMARY
    with (folder.path / name).open("rb") as source:
        write_file(Path(job.invocation.output) / name, lambda file: shutil.copyfileobj(source, file, 1 << 20))


def _log(event: Mapping[str, Any]) -> None:
    if event["event"] == "death":
        log.warning("A process has ended (%s); another goes on.", event["how"])
    elif event["event"] == "chunk":
        failed = sum(event["errors"].values())
        log.info("Mini-batch %d: done, %d of %d rows failed.", event["number"], failed, event["rows"])
