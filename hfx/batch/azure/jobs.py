"""A job of an endpoint: its folder, its state, and starting the process that runs it.

    invocation.json       endpoint, input files, output folder; never changed
    deployment.yml        the deployment, with the settings of the invocation
    code/ model/          the files that the script can see
    parts/                one part per mini-batch; the ending of its name is the number of failed files
    logs/                 driver.txt of the job, processNNN.txt of each process of the script
    named-outputs/score/  the output, unless the invocation names another folder
    log.jsonl             each start, and finally how the job ended

The lock, the mark of a cancellation, the log, and the files of a published model's job are those of hfx.batch.folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from hfx.batch.azure.deployment import DEFAULT_MINI_BATCH, PLAIN_NAME, Deployment, parse_deployment
from hfx.batch.azure.documents import read_document, write_document
from hfx.batch.azure.workspace import Workspace, copy_code
from hfx.batch.folder import JOB, SCRIPT_PART, Folder, State, storage, temporary, write_file
from hfx.batch.plan import Plan, read_plan
from hfx.batch.progress import errors_of
from hfx.batch.worker import described, reported
from hfx.errors import HfxError, InputChanged, JobCancelled, JobError, UsageError
from hfx.manifest import created_now, read_manifest
from hfx.names import MANIFEST_FILE
from hfx.process import spawn
from hfx.rows import find_sources

INVOCATION, DEPLOYMENT, DRIVER_LOG = "invocation.json", "deployment.yml", "logs/driver.txt"
OUTPUT = "named-outputs/score"
RUNNER = "hfx.batch.azure.runner"
START_SECONDS, POLL_SECONDS = 60.0, 0.1


class InputFile(NamedTuple):
    """An input file: its path, and its size and modification time when the job was created."""

    path: str
    size: int
    modified: str

    @classmethod
    def of(cls, path: Path) -> InputFile:
        """Return the file as it is now."""
        facts = path.stat()
        return cls(str(path), facts.st_size, str(facts.st_mtime_ns))


@dataclass(frozen=True)
class Invocation:
    """The input files of a job, and the `output` folder for its results."""

    endpoint: str
    created: str
    output: str
    files: tuple[InputFile, ...]


@dataclass(frozen=True)
class MiniBatch:
    """A request to a process of the script: `files` for run(), and the `path` for its results if `rows` is set."""

    number: int
    files: tuple[str, ...]
    path: str
    rows: bool


@dataclass(frozen=True)
class AzureJob:
    """A job in its folder."""

    folder: Folder

    @property
    def name(self) -> str:
        """The job's name."""
        return self.folder.path.name

    @cached_property
    def invocation(self) -> Invocation:
        """The input files and the output folder. Raises JobError if invocation.json is damaged."""
        try:
            values = json.loads((self.folder.path / INVOCATION).read_bytes())
            files = tuple(InputFile(*entry) for entry in values.pop("files"))
            return Invocation(**values, files=files)
        except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise JobError(f"The job {self.name} is damaged: {error}.", "Invoke the endpoint again.") from error

    @property
    def deployment(self) -> Deployment:
        """The deployment with the settings of the invocation. Raises UsageError."""
        return parse_deployment(read_document(self.folder.path / DEPLOYMENT), self.folder.path, Path())

    @property
    def status(self) -> State:
        """The state of the job, by its folder and its record of the end."""
        return self.folder.state(lambda: self.ended.get("status"))

    @property
    def ended(self) -> dict[str, Any]:
        """The event that says how the job ended; empty until then."""
        last = [{"event": ""}, *self.folder.events()][-1]
        return last if last["event"] == "ended" else {}

    def end(self, status: State, error: HfxError | None = None) -> None:
        """Write to the log how the job ended."""
        self.folder.log({"event": "ended", "status": status, **(described(error) if error else {})})

    def check_completed(self) -> None:
        """Raise an error with the reason if the job is not Completed."""
        status = self.status
        if status in ("Paused", "Cancelled"):
            kind = JobCancelled if status == "Cancelled" else JobError
            raise kind(f"The job {self.name} is {status}.", f"`hfx batch azure job resume {self.name}` goes on.")
        if status == "Failed":
            raise reported(self.ended)

    def script_parts(self) -> dict[int, int]:
        """Return the finished mini-batches of a script: number -> failed files, which is the ending of the part."""
        return {number: int(ending) for number, ending in Folder(self.folder.path, SCRIPT_PART).endings().items()}

    def script_part(self, batch: int, failed: int) -> Path:
        """Return the path of the part of a mini-batch of which `failed` files failed."""
        return self.folder.part(batch, f".{failed}")

    @property
    def plan(self) -> Plan[MiniBatch]:
        """The mini-batches of a script."""
        files = tuple(file.path for file in self.invocation.files)
        settings = self.deployment.settings
        rows, size = settings.output_action == "append_row", settings.mini_batch_size or DEFAULT_MINI_BATCH
        return Plan(
            Folder(self.folder.path, SCRIPT_PART),
            [
                MiniBatch(number, files[first : first + size], str(temporary(self.folder.part(number, ""))), rows)
                for number, first in enumerate(range(0, len(files), size))
            ],
        )

    def progress(self) -> dict[str, Any]:
        """Return the state and the counts for --json. `failed` counts files of a script, or rows of a published model.

        The number of mini-batches of a published model is 0 until the job is planned.
        """
        invocation, deployment = self.invocation, self.deployment
        status = self.status  # read before the end of the log, as the job may end meanwhile
        if deployment.code is not None:
            parts = self.script_parts()
            mini_batches, done, failed = len(self.plan.chunks), len(parts), sum(parts.values())
        else:
            is_planned = self.folder.has(JOB)
            mini_batches, done = len(read_plan(self.folder)) if is_planned else 0, len(self.folder.done())
            failed = sum(errors_of(self.folder.events()).values())
        return {
            "name": self.name,
            "status": status,
            "endpoint_name": invocation.endpoint,
            "deployment_name": deployment.name,
            "created": invocation.created,
            "files": len(invocation.files),
            "mini_batches": mini_batches,
            "done": done,
            "failed": failed,
            "output": invocation.output,
            "error": self.ended.get("message"),
        }

    def start(self, error_threshold: int | None = None) -> None:
        """Start a process that runs the missing mini-batches.

        If the job is Failed, the process also runs the mini-batches with failed files. Returns when the process holds
        the lock. Raises JobError and InputChanged.
        """
        deployment, status = self.deployment, self.status
        if status in ("Running", "Completed"):
            raise JobError(f"The job {self.name} is {status}.", "Only a job that has stopped can be resumed.")
        with self.folder.locked() as has_locks:
            if not has_locks:  # without locks, two runners of one script could mix different results
                raise JobError(
                    f"The storage of {self.folder.path} has no file locks, which jobs of endpoints need.",
                    "Give a --workspace on a local disk; `hfx batch run` works without locks.",
                )
        for file in self.invocation.files if deployment.code else ():  # hfx.batch checks a published model's files
            if not Path(file.path).is_file() or InputFile.of(Path(file.path)) != file:
                raise InputChanged(f"{file.path} is not what it was.", "Invoke the endpoint again.")
        if error_threshold is not None:
            settings = replace(deployment.settings, error_threshold=error_threshold)
            _write_deployment(self.folder.path, replace(deployment, settings=settings))
        if status == "Failed" and deployment.code:
            for batch, failed in self.script_parts().items():
                if failed:
                    self.script_part(batch, failed).unlink()
        self.folder.log({"event": "start"})
        self.folder.uncancel()
        with storage(self.folder.path):
            command = (sys.executable, "-P", "-m", RUNNER, str(self.folder.path))
            process = spawn(command, self.folder.path / DRIVER_LOG)  # the new process outlives this one
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and not self.folder.is_locked and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 10)

    def cancel(self) -> None:
        """Cancel the job, and wait until its process ends. Finished parts are kept.

        Raises JobError if the job has ended.
        """
        if self.ended:
            raise JobError(f"The job {self.name} is {self.status}.", "Only a job that has not ended can be cancelled.")
        self.folder.cancel()
        while self.folder.is_locked:
            time.sleep(POLL_SECONDS)

    def download(self, folder: Path, output: str, logs: bool) -> Path:
        """Copy the output, and with `logs` also the logs, into `folder`. Returns the path of the copied output.

        Raises UsageError for an output other than "score" and for a target that exists, and JobError for a running job.
        """
        if output != "score":
            raise UsageError(f"The job has no output {output!r}.", "Its output is `score`.")
        if self.status == "Running":
            raise JobError(f"The job {self.name} is Running.", f"`hfx batch azure job stream {self.name}` waits.")
        copies = {folder / OUTPUT: Path(self.invocation.output)}
        copies |= {folder / "artifacts" / "logs": self.folder.path / "logs"} if logs else {}
        for target, source in copies.items():
            if target.exists():
                raise UsageError(f"{target} exists already.", "Give another --download-path.")
            with storage(target):
                shutil.copytree(source, target)
        return folder / OUTPUT

    def log_lines(self) -> Iterator[str]:
        """Yield the lines of the job's log as they appear, until the job has stopped. Raises JobError."""
        path = self.folder.path / DRIVER_LOG
        with storage(path), path.open(encoding="utf-8", errors="replace") as log:
            running = True
            while running:
                running = self.folder.is_locked
                for line in log:
                    yield line.rstrip("\n")
                time.sleep(POLL_SECONDS if running else 0)


def jobs(workspace: Workspace, endpoint: str | None = None) -> list[AzureJob]:
    """Return all jobs, or only the jobs of `endpoint`, oldest first. Damaged jobs are left out."""
    readable = []
    for path in workspace.jobs.glob(f"[!.]*/{INVOCATION}"):
        job = AzureJob(Folder(path.parent))
        with suppress(JobError):  # `hfx batch azure job show` says why
            if endpoint in (None, job.invocation.endpoint):
                readable.append(job)
    return sorted(readable, key=lambda job: (job.invocation.created, job.name))


def job(workspace: Workspace, name: str) -> AzureJob:
    """Return the job `name`. Raises UsageError."""
    folder = workspace.jobs.absolute() / name
    if not PLAIN_NAME.fullmatch(name) or not (folder / INVOCATION).is_file():
        raise UsageError(f"There is no job {name!r} in {workspace.folder}.", "`hfx batch azure list-jobs` shows all.")
    return AzureJob(Folder(folder))


def create_job(
    workspace: Workspace, deployment: Deployment, inputs: Sequence[str], output: Path | None, name: str | None
) -> AzureJob:
    """Create a job. The folder appears by one rename when it is complete.

    Raises UsageError for inputs or an output that can't be used, StorageFull and JobError.
    """
    if not inputs:
        raise UsageError("The job has no input.", "Give --input FILE_OR_FOLDER.")
    if deployment.code is None:
        files = tuple(InputFile(each.name, each.size, each.modified) for each in find_sources(inputs))
    else:
        files = tuple(InputFile.of(path) for each in inputs for path in _files(each))
    name = name or f"batchjob-{secrets.token_hex(6)}"
    folder = workspace.jobs.absolute() / name
    if not PLAIN_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name of a job.", "Use letters, digits, - and _.")
    if folder.exists():
        raise UsageError(f"There is a job {name!r} already.", "Give another --job-name.")
    target = output.absolute() if output else folder / OUTPUT
    if target.exists():
        raise UsageError(f"The output {target} exists already.", "Give a folder that does not exist.")
    unfinished = folder.with_name(f".{name}.{os.getpid()}")
    try:
        with storage(target):
            _fill(unfinished, deployment, Invocation(deployment.endpoint_name, created_now(), str(target), files))
            (output or unfinished / OUTPUT).mkdir(parents=True)
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return AzureJob(Folder(folder))


def _fill(folder: Path, deployment: Deployment, invocation: Invocation) -> None:
    for name in ("parts", "logs", "model"):
        (folder / name).mkdir(parents=True)
    if deployment.code is not None:
        copy_code(deployment.code, folder / "code")
    for path in _model_paths(deployment.model):
        (folder / "model" / path.name).symlink_to(path)
    _write_deployment(folder, deployment)
    content = json.dumps(asdict(invocation)).encode()
    write_file(folder / INVOCATION, lambda file: file.write(content))
    (folder / DRIVER_LOG).touch()


def _write_deployment(folder: Path, deployment: Deployment) -> None:
    """Write the deployment into the job's `folder`. Its code is the job's own copy."""
    code = None if deployment.code is None else Path("code")
    write_document(folder / DEPLOYMENT, replace(deployment, code=code).document())


def _model_paths(model: Path | None) -> list[Path]:
    """Return the entries of AZUREML_MODEL_DIR: the model's file or folder, or a published model with its members."""
    if model is None:
        return []
    if (manifest := model / MANIFEST_FILE).is_file():
        return [model.parent / folder for folder in read_manifest(manifest).folders]
    return [model]


def _files(given: str) -> list[Path]:
    """Return the files of a path, sorted, without hidden files. Raises UsageError if there are none."""
    path = Path(given.removeprefix("file://")).absolute()
    if "://" in given.removeprefix("file://") or given.startswith("azureml:"):
        raise UsageError(f"The input {given} is not on this machine.", "Give a file or a folder.")
    if path.is_dir():
        found = sorted(each for each in path.rglob("*") if each.is_file())
        files = [each for each in found if not any(part.startswith(".") for part in each.relative_to(path).parts)]
    else:
        files = [path] if path.is_file() else []
    if not files:
        raise UsageError(f"The input {given} has no files.", "Give a file, or a folder with files.")
    return files
