"""Publishing a set of model folders into a repository, as a whole or not at all.

Every move is a rename inside one file system. Recovery can tell from the places of the folders which moves were made,
so that it needs no log of single steps, and can itself be interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from hfx.errors import RepositoryError
from hfx.manifest import Manifest, member_folders, read_manifest
from hfx.names import MANIFEST_FILE, check_name
from hfx.repository.staging import (
    COMMITTED,
    JOURNAL,
    Staging,
    check_folder,
    claim_abandoned,
    close,
    exists,
    flush,
    flush_tree,
    locked,
    stagings,
    storage,
)
from hfx.strict_json import read_json

JOURNAL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Journal:
    """A publication: the entry point NAME, the `old` folders to remove, and the `new` folders to add."""

    name: str
    old: tuple[str, ...]
    new: tuple[str, ...]


def check_target(repository: Path, name: str, replace: bool) -> None:
    """Raise RepositoryError or UsageError if NAME can't be published into `repository`. Call this before the work."""
    check_folder(repository, "--repository")
    with storage(repository):
        _outgoing(repository, check_name(name), (), replace)


def publish(staging: Staging, replace: bool) -> Manifest:
    """Move the staged folders into the repository, the entry point NAME last, and return their manifest.

    With `replace`, an older version of NAME is replaced. Raises StorageFull, and RepositoryError if NAME is taken or
    the staged folders differ from the manifest. After an error the repository is unchanged.
    """
    repository = staging.repository
    manifest = _staged_manifest(staging)
    with storage(repository):
        flush_tree(staging.root)
        with locked(repository):
            _recover_all(repository)
            old = _outgoing(repository, manifest.name, manifest.folders, replace)
            new = (*(folder for folder in manifest.folders if folder != manifest.name), manifest.name)
            _move(repository, staging.path, _Journal(manifest.name, old, new))
    return manifest


def remove(repository: Path, name: str) -> tuple[str, ...]:
    """Delete the model NAME, as a whole or not at all, and return the names of its folders, the entry point first.

    Raises RepositoryError if hfx did not make the model, or if the repository can't be changed.
    """
    with Staging(repository, name) as staging, storage(repository), locked(repository):
        _recover_all(repository)
        folders = _outgoing(repository, name, (), replace=True)
        _move(repository, staging.path, _Journal(name, folders, ()))
    return folders


def recover(repository: Path) -> list[str]:
    """Undo unfinished publications of dead processes, delete their leftovers, and return descriptions of what was done.

    If there is nothing to do, this is cheap and writes nothing. Raises RepositoryError if the repository can't be
    repaired, for example because it is read-only.
    """
    with storage(repository):
        leftovers = stagings(repository)
        if not leftovers:
            return []
        if not os.access(repository, os.W_OK) and not any((staging / JOURNAL).exists() for staging in leftovers):
            return []  # the models are whole; leftovers in a read-only repository do no harm
        with locked(repository):
            return _recover_all(repository)


# Steps of a publication


def _staged_manifest(staging: Staging) -> Manifest:
    manifest = read_manifest(staging.root / staging.name / MANIFEST_FILE)
    staged = {path.name for path in staging.root.iterdir()}
    if staged != set(manifest.folders):  # of which only the manifest's name can be that of a staging
        raise RepositoryError(
            f"The staged folders {', '.join(sorted(staged))} are not those of the manifest of {manifest.name!r}: "
            f"{', '.join(manifest.folders)}.",
            "Name exactly the folders that were built in the manifest.",
        )
    return manifest


def _outgoing(repository: Path, name: str, incoming: tuple[str, ...], replace: bool) -> tuple[str, ...]:
    """Return the folders of the present version of NAME, the entry point first.

    Raises RepositoryError if a folder is in the way that hfx may not replace.
    """
    old: tuple[str, ...] = ()
    entry = repository / name
    if exists(entry):
        if entry.is_symlink() or not (entry / MANIFEST_FILE).is_file():
            raise RepositoryError(
                f"{name!r} exists in {repository} and was not made by hfx.", "Choose another --name, or move it away."
            )
        if not replace:
            raise RepositoryError(
                f"{name!r} exists in {repository}.", "Use --force to replace it, or choose another --name."
            )
        old = _replaceable(entry, read_manifest(entry / MANIFEST_FILE))
    for folder in incoming:
        if folder not in old and exists(repository / folder):
            raise RepositoryError(
                f"{folder!r} exists in {repository} and doesn't belong to {name!r}.",
                "Choose another --name, or move the folder away.",
            )
    return old


def _replaceable(entry: Path, manifest: Manifest) -> tuple[str, ...]:
    if manifest.name != entry.name:
        raise RepositoryError(
            f"{entry / MANIFEST_FILE} is the manifest of {manifest.name!r}.", f"Move {entry} away, or rename it back."
        )
    members = (folder for folder in manifest.folders if folder != manifest.name)
    return (manifest.name, *(folder for folder in members if exists(entry.parent / folder)))


def _move(repository: Path, staging: Path, journal: _Journal) -> None:
    _write(staging / JOURNAL, asdict(journal))
    try:
        for folder in journal.old:
            (repository / folder).rename(staging / "old" / folder)
        for folder in journal.new:
            (staging / "new" / folder).rename(repository / folder)
        flush(repository)
        (staging / JOURNAL).rename(staging / COMMITTED)
        flush(staging)  # before the old version is deleted
    except BaseException:
        if (staging / COMMITTED).exists():
            (staging / COMMITTED).rename(staging / JOURNAL)
        _roll_back(repository, staging, journal)
        raise


def _roll_back(repository: Path, staging: Path, journal: _Journal) -> None:
    """Move all folders back. May be interrupted and repeated, as the places of the folders show what is still to do."""
    for folder in reversed(journal.new):
        if not exists(staging / "new" / folder) and exists(repository / folder):
            (repository / folder).rename(staging / "new" / folder)
    for folder in reversed(journal.old):
        if exists(staging / "old" / folder):
            if exists(repository / folder):
                raise RepositoryError(
                    f"{folder!r} can't be restored from {staging}: another {folder!r} is in its place.",
                    "Move the other one away, then try again.",
                )
            (staging / "old" / folder).rename(repository / folder)
    flush(repository)
    (staging / JOURNAL).unlink()


# Recovery


def _recover_all(repository: Path) -> list[str]:
    done = []
    for staging in stagings(repository):
        owner = claim_abandoned(staging)
        if owner is None:
            continue
        try:
            done.append(_recover_one(repository, staging))
        finally:
            close(owner)
    return done


def _recover_one(repository: Path, staging: Path) -> str:
    if (staging / JOURNAL).exists():
        journal = _read_journal(staging / JOURNAL)
        _roll_back(repository, staging, journal)
        done = f"rolled back the unfinished export of {journal.name}"
    elif (staging / COMMITTED).exists():
        done = f"deleted the version before of {_read_journal(staging / COMMITTED).name}"
    else:
        done = f"deleted the abandoned staging folder {staging.name}"
    shutil.rmtree(staging)
    return done


def _read_journal(path: Path) -> _Journal:
    try:
        at = read_json(path, JOURNAL_BYTES).members(_Journal)
        old, new = (tuple(folder.text() for folder in at[field].elements()) for field in ("old", "new"))
        journal = _Journal(at["name"].parsed(check_name), old, new)
    except RepositoryError as error:
        raise RepositoryError(
            error.message, f"Move the models in {path.parent} back by hand, then delete it."
        ) from error
    if not {*journal.old, *journal.new} <= set(member_folders(journal.name)):
        raise RepositoryError(f"{path} names folders of other models.", f"hfx didn't write it: delete {path.parent}.")
    return journal


def _write(path: Path, data: dict[str, object]) -> None:
    """Write a small file, so that it exists as a whole or not at all, even after a power cut."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    flush(path.parent)
