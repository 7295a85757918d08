"""Checks a deployment's folder against the record of `hfx deploy`, the models' manifests, and the rules.

The rules work offline, change nothing, and also accept files that hfx did not write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hfx.deploy.folder import RECORD_FILE, RECORD_FORMAT
from hfx.deploy.rules import containers, sagemaker
from hfx.deploy.rules.subject import Files, read_files
from hfx.errors import ModelCorrupt, UsageError
from hfx.manifest import IGNORED_FOLDERS, FileEntry, FileProblem, file_entry, read_manifest, verify_file, verify_files
from hfx.names import MANIFEST_FILE
from hfx.repository.subject import Finding, Rule
from hfx.strict_json import read_json

_MODULES = (containers, sagemaker)
_RULES = (value for module in _MODULES for value in vars(module).values() if isinstance(value, Rule))
RULES = tuple(sorted(_RULES, key=lambda rule: rule.id))


def lint(folder: Path) -> list[Finding]:
    """Return every finding in the YAML and JSON files below `folder`, sorted by path."""
    return findings(read_files(folder))


def findings(files: Files) -> list[Finding]:
    """Return every finding in `files`, sorted by path."""
    found = {finding for rule in RULES for finding in rule.findings(files)}
    return sorted(found, key=lambda finding: (finding.path, finding.rule, finding.message))


def has_servers(files: Files) -> bool:
    """Return whether `files` contain anything that a rule checks."""
    return bool(files.containers or files.unreadable) or any(
        True for key in ("ProductionVariants", "PrimaryContainer", "Containers") for _ in files.with_key(key)
    )


MAX_RECORD_BYTES = 16 << 20  # the record of a bundle names thousands of files


@dataclass(frozen=True, slots=True)
class Record:
    """The content of hfx-deploy.json: the target, the names of the models, and every file."""

    target: str
    models: tuple[str, ...]
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of check_folder. `target` is empty if `hfx deploy` did not write the folder.

    `files` counts the files that were compared with the record, `containers` those that the rules were applied to.
    """

    target: str
    files: int
    containers: int
    differences: tuple[FileProblem, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """The number of findings that are errors."""
        return sum(finding.severity == "error" for finding in self.findings)


def check_folder(folder: Path) -> Checked:
    """Check `folder` against its record, if it has one, and with the rules.

    Raises UsageError if the folder does not exist, or has neither a record nor a manifest that runs Triton. Raises
    ModelCorrupt for a damaged record.
    """
    if not folder.is_dir():
        raise UsageError(
            f"There is no folder {folder}.",
            "Correct its path, or give the address of a server such as http://HOST:8000.",
        )
    files = read_files(folder)
    if (folder / RECORD_FILE).is_file():
        record = read_record(folder)
        compared = tuple(differences(folder, record))
        return Checked(record.target, len(record.files), len(files.containers), compared, tuple(findings(files)))
    if not has_servers(files):
        raise UsageError(
            f"{folder} has neither {RECORD_FILE} of `hfx deploy` nor a manifest that runs Triton.",
            "Give a folder of manifests, or the address of a server such as http://HOST:8000.",
        )
    return Checked("", 0, len(files.containers), (), tuple(findings(files)))


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
    models = tuple(name for name, _ in members["models"].items())
    return Record(members["target"].text(), models, {name: file_entry(node) for name, node in members["files"].items()})


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
    for root, names, files in os.walk(folder):
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
