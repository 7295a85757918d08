"""Copies of a published model with other names, for servers that need several models of one kind."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from hfx.manifest import Manifest, hash_folder, read_manifest, write_manifest
from hfx.names import MANIFEST_FILE


def copy_renamed(source: Path, name: str, repository: Path, other: str) -> Manifest:
    """Copy the model `name` of the repository `source` as `other`, in place of an earlier one, without its manifest.

    Returns the manifest for `seal`, which may follow changes of the files.
    """
    manifest = read_manifest(source / name / MANIFEST_FILE)
    folders = tuple(other + folder.removeprefix(name) for folder in manifest.folders)
    for folder, renamed in zip(manifest.folders, folders, strict=True):
        shutil.rmtree(repository / renamed, ignore_errors=True)
        shutil.copytree(source / folder, repository / renamed, ignore=shutil.ignore_patterns(MANIFEST_FILE))
        for config in (repository / renamed).rglob("*.pbtxt"):
            config.write_text(config.read_text().replace(f'"{name}', f'"{other}'))
    return replace(manifest, name=other, folders=folders)


def seal(repository: Path, manifest: Manifest) -> None:
    """Write `manifest` with the hashes of the files as they are."""
    hashed = (hash_folder(repository / folder, repository) for folder in manifest.folders)
    files = {file: entry for folder in hashed for file, entry in folder.items()}
    write_manifest(replace(manifest, files=files), repository / manifest.name / MANIFEST_FILE)
