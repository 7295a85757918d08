"""The process that runs a job: `python -m hfx.batch.azure.runner FOLDER`. Its output is the job's log.

A job without a script runs as `hfx batch run` does, with a published model. The mini-batches of a script are
distributed to processes that run it. Failed mini-batches are retried, and processes that take too long are killed. A
process writes the results of a mini-batch to a temporary file, which this process renames, so that a killed job can
continue with the missing parts.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hfx.batch.azure import worker as script_worker
from hfx.batch.azure.deployment import Deployment, published_spec
from hfx.batch.azure.jobs import AzureJob, MiniBatch
from hfx.batch.create import create
from hfx.batch.folder import JOB, SUMMARY, Folder, new_file, new_part, open_part, take_part
from hfx.batch.local import Pool, Worker, runner
from hfx.batch.options import Threshold
from hfx.batch.plan import PlannedJob
from hfx.batch.progress import check_job, finish, logged, score_missing
from hfx.errors import HfxError, JobCancelled, JobError, StorageFull, TooManyErrors, UsageError
from hfx.process import JsonChild, Messages, exit_reason

GRACE_SECONDS = 10.0  # time for a script to clean up at the end

log = logging.getLogger("hfx.batch.azure")


def main(folder: Path) -> int:
    """Run the missing mini-batches of the job, log how it ended, and return the exit code.

    SIGTERM leaves the job Paused.
    """
    job = AzureJob(Folder(folder))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with job.folder.locked():
        try:
            job.folder.check_cancelled()
            _run(job)
        except StorageFull as error:  # the job stays Paused
            log.error("%s", error)
            return error.exit_code
        except HfxError as error:
            is_cancelled = isinstance(error, JobCancelled)
            shown = JobCancelled("The job was cancelled.") if is_cancelled else error
            log.error("%s", shown)
            job.end("Cancelled" if is_cancelled else "Failed", shown)
            return error.exit_code
        except Exception as error:
            log.exception("Unexpected")
            job.end("Failed", HfxError(f"Unexpected: {type(error).__name__}: {error}.", "See the log of the job."))
            return HfxError.exit_code
        job.end("Completed")
    return 0


def _run(job: AzureJob) -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(stream=sys.stdout, format="%(asctime)sZ %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    deployment = job.deployment
    log.setLevel(deployment.settings.logging_level.upper())
    log.info("The job %s of %s/%s starts.", job.name, deployment.endpoint_name, deployment.name)
    if deployment.code is None:
        run_published(job, deployment)
    else:
        ScriptRunner(job, deployment).run()
        if deployment.settings.output_action == "append_row":
            publish(job, Path(job.invocation.output) / deployment.settings.output_file_name)
    log.info("The job has completed; %d %s failed.", job.progress()["failed"], "files" if deployment.code else "rows")


# A published model


def run_published(job: AzureJob, deployment: Deployment) -> None:
    """Score the missing rows, and then copy the output. Raises the HfxError that ends the job early."""
    spec, task, options = published_spec(deployment, tuple(file.path for file in job.invocation.files))
    folder = job.folder
    os.environ.update(deployment.settings.environment_variables)  # the worker processes inherit them
    on_event = logged(folder, None, _log)
    is_new = not folder.has(JOB)
    try:
        with runner(spec.name, options, spec.settings, probe=is_new) as running:
            if is_new:
                planned = create(folder, spec, task, options, running.open)
            else:
                planned = PlannedJob.read(folder)
                check_job(planned, running.open(), options)
            score_missing(planned, running, on_event)
        finish(planned, options.threshold, on_event)
    except TooManyErrors as error:
        fix = f"`hfx batch azure job resume {job.name} --error-threshold N` continues with a higher one."
        raise TooManyErrors(error.message, fix) from error
    name = spec.output.file_name if spec.output.action == "append_row" else SUMMARY
    with (folder.path / name).open("rb") as source, new_file(Path(job.invocation.output) / name) as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _log(event: Mapping[str, Any]) -> None:
    if event["event"] == "death":
        log.warning("A process has ended (%s); another goes on.", event["how"])
    elif event["event"] == "chunk":
        failed = sum(event["errors"].values())
        log.info("Mini-batch %d: done, %d of %d rows failed.", event["number"], failed, event["rows"])


# A script


class ScriptRunner:
    """Runs the missing mini-batches of a job in a pool of processes that run its script."""

    def __init__(self, job: AzureJob, deployment: Deployment) -> None:
        self._job, self._deployment, self._settings = job, deployment, deployment.settings
        self._failed_files, self._plan = sum(job.script_parts().values()), job.plan
        self._tries: Counter[int] = Counter()
        settings, missing = deployment.settings, deque(self._plan.missing())
        self._pool = Pool(self._child, self._take, self._ended, settings.timeout, settings.processes, missing)

    def run(self) -> None:
        """Run all missing mini-batches. Raises the HfxError that ends the job early."""
        self._check_threshold()
        with self._pool:
            self._pool.run(self._job.folder.check_cancelled)
            self._pool.close(GRACE_SECONDS)

    def _child(self, number: int, messages: Messages) -> JsonChild:
        folder, settings = self._job.folder.path, self._settings
        own = {"AZUREML_MODEL_DIR": str(folder / "model"), "AZUREML_BI_OUTPUT_PATH": self._job.invocation.output}
        script = (str(self._deployment.scoring_script), "--logging_level", settings.logging_level)
        return JsonChild(
            (sys.executable, "-u", script_worker.__file__, *script),
            messages,
            log=folder / "logs" / f"process{number:03d}.txt",
            env=os.environ | settings.environment_variables | own,
            cwd=folder / "code",
        )

    def _take(self, worker: Worker[MiniBatch], reply: dict[str, Any]) -> None:
        if "init" in reply:
            log.error("init() failed:\n%s", reply["init"])
            raise _init_failed(reply["init"].rstrip().rpartition("\n")[2])
        if "storage" in reply:
            raise StorageFull(f"A part can't be written: {reply['storage']}.", "Free some space, then resume the job.")
        if "error" in reply:
            self._failed(worker.work, reply["error"])
        elif "elements" in reply and (batch := worker.work):
            failed = max(0, len(batch.files) - reply["elements"])
            take_part(Path(batch.path), self._job.script_part(batch.number, failed), reply["sha256"])
            self._done(batch, failed)

    def _ended(self, worker: Worker[MiniBatch], code: int | None) -> None:
        how = "run() took too long" if code is None else f"its process ended ({exit_reason(code)})"
        if not worker.is_open:
            raise _init_failed(how)
        self._failed(worker.work, how)

    def _failed(self, batch: MiniBatch | None, reason: str) -> None:
        if batch is None:
            return
        self._tries[batch.number] += 1
        tries, most = self._tries[batch.number], 1 + self._settings.max_retries
        log.warning("Mini-batch %d, try %d of %d: %s", batch.number + 1, tries, most, reason.rstrip())
        if tries < most:
            self._pool.pending.appendleft(batch)
            return
        Path(batch.path).unlink(missing_ok=True)  # what a process had written when it was killed
        with new_part(self._job.script_part(batch.number, len(batch.files))):
            pass  # it has no rows
        self._done(batch, len(batch.files))

    def _done(self, batch: MiniBatch, failed: int) -> None:
        log.info("Mini-batch %d of %d: done, %d files failed.", batch.number + 1, len(self._plan.chunks), failed)
        self._failed_files += failed
        self._check_threshold()

    def _check_threshold(self) -> None:
        threshold = self._settings.error_threshold
        if Threshold(threshold).is_exceeded(self._failed_files, 0):
            raise TooManyErrors(
                f"{self._failed_files} files failed, more than the error threshold of {threshold}.",
                f"See the log. `hfx batch azure job resume {self._job.name} --error-threshold N` continues it.",
            )


def _init_failed(reason: str) -> UsageError:
    return UsageError(f"The scoring script failed at init(): {reason}.", "Correct it; the log has more.")


def publish(job: AzureJob, target: Path) -> None:
    """Join the parts into `target`, in the order of the mini-batches. Raises JobError for a damaged part."""
    with new_file(target) as file:
        for part in (job.script_part(*done) for done in sorted(job.script_parts().items())):
            try:
                with open_part(part) as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            except ValueError as error:
                fix = f"Delete it, then `hfx batch azure job resume --name {job.name}`."
                raise JobError(f"{part} is damaged: {error}.", fix) from error


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
