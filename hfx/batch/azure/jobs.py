"""A job of an endpoint: its folder, its state, and the process that runs it.

    invocation.json       endpoint, files, output: by rename, never changed
    deployment.yml        the deployment with the settings of the invocation
    code/ model/          what the script sees
    parts/                a part a mini-batch; the ending of its name is the number of failed files
    logs/                 driver.txt of the job, processNNN.txt of each process of the script
    named-outputs/score/  the output, unless the invocation names another folder
    pid                   the process that runs it, or ran it last
    status.json           how the job ended

hfx.batch.folder has the lock, the mark of a cancellation, and of a published model's job the rest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hfx.batch.azure.deployment import DEFAULT_MINI_BATCH, PLAIN_NAME, Deployment, parse_deployment
from hfx.batch.azure.documents import read_document
from hfx.batch.azure.invocation import DEPLOYMENT, DRIVER_LOG, INVOCATION, InputFile, Invocation, write_deployment
from hfx.batch.azure.workspace import Workspace
from hfx.batch.folder import JOB, Folder, storage, write_file
from hfx.batch.plan import read_plan
from hfx.batch.progress import errors_of
from hfx.batch.worker import described, reported
from hfx.errors import HfxError, InputChanged, JobCancelled, JobError, UsageError

STATUS, PID = "status.json", "pid"
RUNNER = "hfx.batch.azure.runner"
START_SECONDS, POLL_SECONDS = 60.0, 0.1
Status = Literal["Running", "Completed", "Failed", "Cancelled", "Paused"]


@dataclass(frozen=True)
class AzureJob:
    """A job in its folder."""

    folder: Folder

    @property
    def name(self) -> str:
        """The job's name."""
        return self.folder.path.name

    @property
    def invocation(self) -> Invocation:
        """What it was made for. Raises JobError."""
        try:
            values = json.loads((self.folder.path / INVOCATION).read_bytes())
            files = tuple(InputFile(*entry) for entry in values.pop("files"))
            return Invocation(**values, files=files)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise JobError(f"The job {self.name} is damaged: {error}.", "Invoke the endpoint again.") from error

    @property
    def deployment(self) -> Deployment:
        """The deployment with the settings of the invocation. Raises UsageError."""
        return parse_deployment(read_document(self.folder.path / DEPLOYMENT), self.folder.path, Path())

    @property
    def status(self) -> Status:
        """Its state. A job without a process that has not ended is Paused: the machine or the process was stopped."""
        if self.folder.is_locked:
            return "Running"
        ended: Status | None = self.ended.get("status")
        return ended or ("Cancelled" if self.folder.is_cancelled else "Paused")

    @property
    def ended(self) -> dict[str, Any]:
        """How the job ended; empty until then."""
        path = self.folder.path / STATUS
        try:
            return dict(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return {}

    def end(self, status: Status, error: HfxError | None = None) -> None:
        """Write how the job ended."""
        failure = described(error) if error else {}
        content = json.dumps({"status": status, **failure}, ensure_ascii=False)
        write_file(self.folder.path / STATUS, lambda file: file.write(content.encode("utf-8", "replace")))

    def check_completed(self) -> None:
        """Raise why the job is not Completed."""
        status, ended = self.status, self.ended
        if status in ("Paused", "Cancelled"):
            kind = JobCancelled if status == "Cancelled" else JobError
            raise kind(f"The job {self.name} is {status}.", f"`hfx batch job resume {self.name}` goes on with it.")
        if status == "Failed":
            raise reported(ended)

    def failed(self) -> int:
        """How many files of a script have failed so far, or rows of a published model."""
        if self.deployment.code is None:
            return sum(errors_of(self.folder.events()).values())
        return sum(self.script_parts().values())

    def script_parts(self) -> dict[int, int]:
        """The mini-batches of a script that are done, and how many files of each failed."""
        return {int(path.stem): int(path.suffix[1:]) for path in self.folder.parts.glob("[0-9]*.[0-9]*")}

    def script_part(self, batch: int, failed: int) -> Path:
        """The part of a mini-batch of a script, of whose files some failed."""
        return self.folder.parts / f"{batch:06d}.{failed}"

    def start(self, error_threshold: int | None = None) -> None:
        """Run the job, or what is missing of it, in a process of its own; what failed in a Failed job is tried again.

        Raises JobError and InputChanged.
        """
        deployment, status = self.deployment, self.status
        if status in ("Running", "Completed"):
            raise JobError(f"The job {self.name} is {status}.", "Only a job that has stopped can be resumed.")
        with self.folder.locked() as has_locks:
            if not has_locks:  # which say whether a job runs; two runners of one script could mix different results
                raise JobError(
                    f"The storage of {self.folder.path} has no file locks, which jobs of endpoints need.",
                    "Give a --workspace on a local disk; `hfx batch run` works without locks.",
                )
        for file in self.invocation.files if deployment.code else ():  # hfx.batch checks those of models
            if not Path(file.path).is_file() or InputFile.of(Path(file.path)) != file:
                raise InputChanged(f"{file.path} is not what it was.", "Invoke the endpoint again.")
        if error_threshold is not None:
            settings = replace(deployment.settings, error_threshold=error_threshold)
            write_deployment(self.folder.path, replace(deployment, settings=settings))
        if status == "Failed" and deployment.code:
            for batch, failed in self.script_parts().items():
                if failed:
                    self.script_part(batch, failed).unlink()
        (self.folder.path / STATUS).unlink(missing_ok=True)
        self.folder.uncancel()
        self._spawn()

    def _spawn(self) -> None:
        """Start the process of the job, and wait until it has the lock."""
        with storage(self.folder.path), (self.folder.path / DRIVER_LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", RUNNER, str(self.folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and self.pid() != process.pid and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 10)

    def pid(self) -> int | None:
        """The process that runs the job, or ran it last."""
        try:
            return int((self.folder.path / PID).read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def cancel(self) -> None:
        """End the job; what was done stays. Raises JobError for one that has ended."""
        if self.ended:
            raise JobError(f"The job {self.name} is {self.status}.", "Only a job that has not ended can be cancelled.")
        self.folder.cancel()
        while self.folder.is_locked:
            time.sleep(POLL_SECONDS)

    def download(self, folder: Path, output: str, logs: bool) -> Path:
        """Copy the output, and the `logs`, below `folder`; the output's new place. Raises UsageError."""
        if output != "score":
            raise UsageError(f"The job has no output {output!r}.", "Its output is `score`.")
        if self.status == "Running":
            raise JobError(f"The job {self.name} is Running.", f"`hfx batch job stream {self.name}` ends with it.")
        copies = {folder / "named-outputs" / output: Path(self.invocation.output)}
        copies |= {folder / "artifacts" / "logs": self.folder.path / "logs"} if logs else {}
        for target, source in copies.items():
            if target.exists():
                raise UsageError(f"{target} exists already.", "Give another --download-path.")
            with storage(target):
                shutil.copytree(source, target)
        return next(iter(copies))

    def log_lines(self) -> Iterator[str]:
        """The lines of its log as they come, until it has stopped."""
        with (self.folder.path / DRIVER_LOG).open(encoding="utf-8", errors="replace") as log:
            running = True
            while running:
                running = self.folder.is_locked
                for line in log:
                    yield line.rstrip("\n")
                time.sleep(POLL_SECONDS if running else 0)


def progress(job: AzureJob) -> dict[str, Any]:
    """A job and how far it is, as programs read it; mini-batches of a published model are known when it is planned."""
    invocation, deployment = job.invocation, job.deployment
    return {
        "name": job.name,
        "status": job.status,
        "endpoint_name": invocation.endpoint,
        "deployment_name": deployment.name,
        "created": invocation.created,
        "files": len(invocation.files),
        "mini_batches": _mini_batches(job),
        "done": len(job.folder.done() if deployment.code is None else job.script_parts()),
        "failed": job.failed(),
        "output": invocation.output,
        "error": job.ended.get("message"),
    }


def _mini_batches(job: AzureJob) -> int:
    if job.deployment.code is not None:
        return -(-len(job.invocation.files) // (job.deployment.settings.mini_batch_size or DEFAULT_MINI_BATCH))
    return len(read_plan(job.folder)) if (job.folder.path / JOB).exists() else 0


def jobs(workspace: Workspace, endpoint: str | None = None) -> list[AzureJob]:
    """All jobs, or those of one endpoint, the oldest first."""
    found = [AzureJob(Folder(path.parent)) for path in workspace.jobs.glob(f"[!.]*/{INVOCATION}")]
    dated = sorted((job.invocation.created, job.name, job) for job in found)
    return [job for _, _, job in dated if endpoint is None or job.invocation.endpoint == endpoint]


def job(workspace: Workspace, name: str) -> AzureJob:
    """One job. Raises UsageError."""
    folder = workspace.jobs.absolute() / name
    if not PLAIN_NAME.fullmatch(name) or not (folder / INVOCATION).is_file():
        raise UsageError(f"There is no job {name!r} in {workspace.folder}.", "`hfx batch list-jobs` shows all.")
    return AzureJob(Folder(folder))
