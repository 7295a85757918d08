"""An invocation of an endpoint: the folder of its job, with all that the job needs, as one rename."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hfx.batch.azure.deployment import PLAIN_NAME, Deployment, deployment_document
from hfx.batch.azure.documents import write_document
from hfx.batch.azure.workspace import Workspace, copy_code
from hfx.batch.folder import Folder, storage, write_file
from hfx.errors import UsageError
from hfx.manifest import created_now, read_manifest
from hfx.names import MANIFEST_FILE
from hfx.rows import find_sources

INVOCATION, DEPLOYMENT, DRIVER_LOG = "invocation.json", "deployment.yml", "logs/driver.txt"


@dataclass(frozen=True)
class InputFile:
    """A file of the input, as it was when the job was made."""

    path: str
    size: int
    modified: str

    @classmethod
    def of(cls, path: Path) -> InputFile:
        """The file as it is now."""
        facts = path.stat()
        return cls(str(path), facts.st_size, str(facts.st_mtime_ns))


@dataclass(frozen=True)
class Invocation:
    """What a job was made for; `output` is the folder of the results."""

    endpoint: str
    created: str
    output: str
    files: tuple[InputFile, ...]


def create_job(
    workspace: Workspace, deployment: Deployment, inputs: Sequence[str], output: Path | None, name: str | None
) -> Folder:
    """Make the folder of a job; `start` runs it. Raises UsageError for inputs and an output that can't be taken."""
    files = _inputs(deployment, inputs)
    name = name or f"batchjob-{secrets.token_hex(6)}"
    folder = workspace.jobs.absolute() / name
    if not PLAIN_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a job.", "Use letters, digits, - and _.")
    if folder.exists():
        raise UsageError(f"There is a job {name!r} already.", "Give another --job-name.")
    target = output.absolute() if output else folder / "named-outputs" / "score"
    if target.exists():
        raise UsageError(f"The output {target} exists already.", "Give a folder that does not exist.")
    temporary = folder.with_name(f".{name}.{os.getpid()}")
    try:
        with storage(target):
            _fill(temporary, deployment, Invocation(deployment.endpoint_name, created_now(), str(target), files))
            (output or temporary / "named-outputs" / "score").mkdir(parents=True)
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Folder(folder)


def _inputs(deployment: Deployment, inputs: Sequence[str]) -> tuple[InputFile, ...]:
    if not inputs:
        raise UsageError("The job has no input.", "Give --input FILE_OR_FOLDER.")
    if deployment.code is None:
        return tuple(InputFile(each.name, each.size, each.modified) for each in find_sources(inputs))
    return tuple(InputFile.of(path) for each in inputs for path in _files(each))


def _fill(folder: Path, deployment: Deployment, invocation: Invocation) -> None:
    for name in ("parts", "logs", "model"):
        (folder / name).mkdir(parents=True)
    if deployment.code is not None:
        copy_code(deployment.code, folder / "code")
    for path in _model_paths(deployment.model):
        (folder / "model" / path.name).symlink_to(path)
    write_deployment(folder, deployment)
    values = asdict(invocation) | {"files": [[file.path, file.size, file.modified] for file in invocation.files]}
    content = json.dumps(values).encode()
    write_file(folder / INVOCATION, lambda file: file.write(content))
    (folder / DRIVER_LOG).touch()


def write_deployment(folder: Path, deployment: Deployment) -> None:
    """Write the deployment of the job in `folder`, with the job's own copy of the code."""
    code = None if deployment.code is None else Path("code")
    write_document(folder / DEPLOYMENT, deployment_document(replace(deployment, code=code)))


def _model_paths(model: Path | None) -> list[Path]:
    """What the script finds in AZUREML_MODEL_DIR: the model under its name, a published one with its members."""
    if model is None:
        return []
    if (manifest := model / MANIFEST_FILE).is_file():
        return [model.parent / folder for folder in read_manifest(manifest).folders]
    return [model]


def _files(given: str) -> list[Path]:
    """The files of a path, sorted; hidden ones are left out."""
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
