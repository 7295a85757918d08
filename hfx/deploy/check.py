"""Compares a folder with the record of `hfx deploy` and the models' manifests, and checks the calls of SageMaker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hfx.deploy.folder import RECORD_FILE, RECORD_FORMAT
from hfx.deploy.sagemaker import checks
from hfx.errors import ModelCorrupt, UsageError
from hfx.manifest import (
    IGNORED_FOLDERS,
    FileEntry,
    FileProblem,
    file_entry,
    read_manifest,
    reraise,
    verify_file,
    verify_files,
)
from hfx.names import MANIFEST_FILE
from hfx.repository.subject import Finding
from hfx.strict_json import read_json

MAX_RECORD_BYTES = 16 << 20  # the record of a bundle names thousands of files


@dataclass(frozen=True, slots=True)
class Record:
    """The target and the files that hfx-deploy.json names."""

    target: str
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True)
class Checked:
    """The number of files in the record of a folder, the differences from it, and the findings in edited calls."""

    target: str
    files: int
    differences: tuple[FileProblem, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """The number of findings that are errors."""
        return sum(finding.severity == "error" for finding in self.findings)


def check_folder(folder: Path) -> Checked:
    """Check a folder that `hfx deploy` wrote.

    Raises UsageError if there is no such folder, and ModelCorrupt for a damaged record.
    """
    server = "or the address of a server such as http://HOST:8000."
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}.", f"Correct its path, {server}")
    if not (folder / RECORD_FILE).is_file():
        raise UsageError(f"{folder} has no {RECORD_FILE}.", f"Give a folder that `hfx deploy` wrote, {server}")
    record = read_record(folder)
    return Checked(record.target, len(record.files), tuple(differences(folder, record)), _findings(folder, record))


def _findings(folder: Path, record: Record) -> tuple[Finding, ...]:
    """Return the findings in the calls of SageMaker. Calls that can't be read have none, and differ from `record`."""
    try:
        return tuple(checks.findings(folder)) if record.target == "sagemaker" else ()
    except UsageError:
        return ()


def read_record(folder: Path) -> Record:
    """Return the record of a folder that `hfx deploy` wrote. Raises ModelCorrupt."""
    path = folder / RECORD_FILE
    members = dict(read_json(path, MAX_RECORD_BYTES).items())
    if missing := [name for name in ("format", "target", "models", "files") if name not in members]:
        raise ModelCorrupt(f"{path} has no {missing[0]!r}.", "Write the folder again with --force.")
    if members["format"].value != RECORD_FORMAT:
        raise ModelCorrupt(
            f"{path} has another format than {RECORD_FORMAT}.", "Use the version of hfx that wrote the folder."
        )
    return Record(members["target"].text(), {name: file_entry(node) for name, node in members["files"].items()})


def differences(folder: Path, record: Record) -> list[FileProblem]:
    """Return every file that differs from the record or from its model's manifest, by path."""
    found = [problem for name, entry in record.files.items() if (problem := verify_file(folder, name, entry))]
    found += [
        FileProblem(name, "unlisted", f"{name} was not written by `hfx deploy`.")
        for name in _files(folder)
        if name not in record.files and name != RECORD_FILE
    ]
    known = {problem.path for problem in found}
    found += [problem for problem in _of_models(folder, record) if problem.path not in known]
    return sorted(found, key=lambda problem: problem.path)


def _files(folder: Path) -> Iterator[str]:
    """Yield every file and link below `folder`, relative to it."""
    for root, names, files in os.walk(folder, onerror=reraise):
        links = [name for name in names if Path(root, name).is_symlink()]
        names[:] = [name for name in names if name not in IGNORED_FOLDERS]
        yield from (Path(root, name).relative_to(folder).as_posix() for name in (*files, *links))


def _of_models(folder: Path, record: Record) -> Iterator[FileProblem]:
    """Yield the differences from the models' manifests.

    Unlike the record, the manifests also reveal a change after which the record itself was written again.
    """
    for name in record.files:
        path = folder / name
        if path.name != MANIFEST_FILE or not path.is_file():
            continue
        repository = path.parent.parent
        try:
            problems = verify_files(read_manifest(path), repository)
        except ModelCorrupt as error:
            problems = [FileProblem(f"{path.parent.name}/{MANIFEST_FILE}", "unreadable", error.message)]
        for problem in problems:
            yield FileProblem((repository / problem.path).relative_to(folder).as_posix(), problem.kind, problem.message)
