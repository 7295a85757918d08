"""The process that runs a job: `python -m hfx.batch.azure.runner FOLDER`. Its output is the job's log."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from hfx.batch.azure.jobs import PID, AzureJob
from hfx.batch.azure.published import run_published
from hfx.batch.azure.script import run_script
from hfx.batch.folder import Folder, check_sum, open_file, storage, write_file
from hfx.errors import HfxError, JobCancelled, JobError, StorageFull

log = logging.getLogger("hfx.batch.azure")


def main(folder: Path) -> int:
    """Run what is missing of the job, and write how it ended; the exit code. A SIGTERM leaves the job Paused."""
    job = AzureJob(Folder(folder))
    signal.signal(signal.SIGTERM, _stop)
    with job.folder.locked():
        write_file(folder / PID, lambda file: file.write(str(os.getpid()).encode()))
        try:
            job.folder.check_cancelled()
            _run(job)
        except StorageFull as error:  # the job stays Paused
            log.error("%s", error)
            return error.exit_code
        except HfxError as error:
            log.error("%s", error)
            job.end("Cancelled" if isinstance(error, JobCancelled) else "Failed", error)
            return error.exit_code
        except Exception as error:
            log.exception("Unexpected")
            job.end("Failed", HfxError(f"Unexpected: {type(error).__name__}: {error}.", "See the log of the job."))
            return HfxError.exit_code
        job.end("Completed")
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _run(job: AzureJob) -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(stream=sys.stdout, format="%(asctime)sZ %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    deployment = job.deployment
    log.setLevel(deployment.settings.logging_level.upper())
    log.info("The job %s of %s/%s starts.", job.name, deployment.endpoint_name, deployment.name)
    if deployment.code is None:
        run_published(job, deployment)
    else:
        run_script(job, deployment)
        if deployment.settings.output_action == "append_row":
            publish(job, Path(job.invocation.output) / deployment.settings.output_file_name)
    log.info("The job has completed; %d %s failed.", job.failed(), "files" if deployment.code else "rows")


def publish(job: AzureJob, target: Path) -> None:
    """Join the parts, in the order of the mini-batches. Raises JobError for one that is damaged."""

    def join(file: BinaryIO) -> None:
        for batch, failed in sorted(job.script_parts().items()):
            part = job.script_part(batch, failed)
            try:
                with storage(part), open_file(part) as source:
                    check_sum(part, source)
                    shutil.copyfileobj(source, file, 1 << 20)
            except ValueError as error:
                fix = f"Delete it, then `hfx batch job resume --name {job.name}`."
                raise JobError(f"{part} is damaged: {error}.", fix) from error

    write_file(target, join)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
