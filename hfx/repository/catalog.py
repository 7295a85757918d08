"""The contents of a repository: the models of hfx with their manifests, damaged models, and folders of other origin."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import ModelCorrupt, ModelMissing, RepositoryError
from hfx.manifest import Manifest, read_manifest
from hfx.names import MANIFEST_FILE


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the catalogue.

    A model of hfx has a `manifest` and the folder of its entry point. A damaged model has a `problem` instead of a
    manifest. A folder that hfx didn't make has neither.
    """

    name: str
    folder: Path
    manifest: Manifest | None = None
    problem: str | None = None

    @property
    def foreign(self) -> bool:
        """Whether hfx didn't make this folder."""
        return self.manifest is None and self.problem is None


def models(repository: Path) -> list[Entry]:
    """List every model in `repository`, sorted by name; members of a model of hfx have no entries of their own.

    Raises RepositoryError if `repository` is not a folder. A damaged manifest is an entry, not an error.
    """
    with readable(repository):
        entries = [_entry(folder) for folder in model_folders(repository)]
    members = {member for entry in entries if entry.manifest for member in entry.manifest.folders}
    names = {entry.name for entry in entries if entry.manifest}
    return [entry for entry in entries if entry.name in names or entry.problem or entry.name not in members]


def model(repository: Path, name: str) -> Manifest:
    """Read the manifest of NAME. Raises ModelMissing, or ModelCorrupt for a damaged manifest."""
    path = repository / name / MANIFEST_FILE
    with readable(repository):
        is_there = path.exists()
    if not is_there:
        known = ", ".join(entry.name for entry in models(repository) if entry.manifest) or "none"
        raise ModelMissing(
            f"{repository} has no model {name!r}.",
            f"Its models: {known}. Export it, or correct the name.",
        )
    return _named(read_manifest(path), path)


def model_folders(repository: Path) -> list[Path]:
    """List the folders that Triton would take for models, sorted by name.

    Raises RepositoryError if `repository` is not a folder, or can't be read.
    """
    with readable(repository):
        if not repository.is_dir():
            raise RepositoryError(
                f"There is no folder {repository}.",
                "Publish a model with `hfx export`, which makes it, or give the folder of your models.",
            )
        return sorted(path for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))


@contextmanager
def readable(repository: Path) -> Iterator[None]:
    """Raise RepositoryError instead of an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # the command line reports it
            raise
        raise RepositoryError(f"{repository} can't be read: {error.strerror}.", "Check its permissions.") from error


def _entry(folder: Path) -> Entry:
    path = folder / MANIFEST_FILE
    if not path.exists() and not path.is_symlink():
        return Entry(folder.name, folder)
    try:
        return Entry(folder.name, folder, manifest=_named(read_manifest(path), path))
    except RepositoryError as error:
        return Entry(folder.name, folder, problem=error.message)


def _named(manifest: Manifest, path: Path) -> Manifest:
    if manifest.name != path.parent.name:
        raise ModelCorrupt(
            f"{path} is the manifest of {manifest.name!r}.", "Rename its folder back, or export the model again."
        )
    return manifest
