"""What a server is given to serve: a private copy of a repository that costs no space.

Triton's Python stubs write __pycache__ beside the model files, a published repository must stay as it was hashed, and
a re-export must not change a running server. So folders are made anew, small files copied and large ones hard-linked;
where the file system refuses, folders of large files are symbolic links, which pins names and not contents.
This file knows folders and ensemble steps, nothing of tasks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from hfx.errors import ModelMissing, RepositoryError
from hfx.manifest import read_manifest
from hfx.names import MANIFEST_FILE
from hfx.repository.catalog import model_folders
from hfx.repository.config import parse_config

CONFIG_FILE = "config.pbtxt"
COPIED_BYTES = 1 << 20
SKIPPED = {"__pycache__"}


def models_in(repository: Path) -> list[str]:
    """The names of REPOSITORY's models; a folder without a config.pbtxt is none."""
    return [folder.name for folder in model_folders(repository) if (folder / CONFIG_FILE).is_file()]


def select_models(repository: Path, wanted: Sequence[str]) -> list[str]:
    """All models of REPOSITORY, or those WANTED with the members that they need, sorted by name."""
    present = models_in(repository)
    if not present:
        raise RepositoryError(f"{repository} holds no model.", "Publish one with `hfx export MODEL`.")
    if not wanted:
        return present
    chosen: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in present:
            raise ModelMissing(f"{repository} holds no model {name!r}.", f"It holds: {', '.join(present)}.")
        if name not in chosen:
            chosen.add(name)
            waiting += members(repository / name)
    return sorted(chosen)


def members(folder: Path) -> list[str]:
    """The models that the one in FOLDER needs: its manifest's folders and the steps of its ensemble."""
    manifest = folder / MANIFEST_FILE
    published = read_manifest(manifest).folders if manifest.exists() else ()
    config = parse_config((folder / CONFIG_FILE).read_text("utf-8", "replace"))
    return [*published, *(step.model_name for step in config.ensemble_scheduling.step)]


def plant(repository: Path, names: Iterable[str], farm: Path) -> None:
    """Make FARM, a repository of the models NAMES."""
    farm.mkdir()
    for name in names:
        _plant_folder((repository / name).resolve(), farm / name)


def _plant_folder(source: Path, target: Path) -> None:
    entries = sorted(Path(entry.path) for entry in os.scandir(source) if entry.name not in SKIPPED)
    files = [_regular(entry) for entry in entries if not _is_folder(entry)]
    large = next((file for file in files if file.stat().st_size > COPIED_BYTES), None)
    if large and not any(map(_is_folder, entries)) and not _holds_python(files) and not _links_reach(large, target):
        # Not file by file: ONNX Runtime and OpenVINO refuse external data that a link leads out of the model's folder.
        target.symlink_to(source)
        return
    target.mkdir()
    for entry in entries:
        if _is_folder(entry):
            _plant_folder(entry, target / entry.name)
        else:
            _plant_file(entry.resolve(), target / entry.name)


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def _regular(entry: Path) -> Path:
    if entry.is_file():
        return entry
    raise RepositoryError(
        f"{entry} is neither a file nor a folder (a broken link, or a link to a folder).",
        "Replace it by what it stands for.",
    )


def _holds_python(files: Sequence[Path]) -> bool:
    return any(file.suffix == ".py" for file in files)


def _links_reach(file: Path, target: Path) -> bool:
    """Whether FILE can have a hard link beside TARGET: not on another file system, nor for another owner's file."""
    probe = target.with_name(".probe")
    try:
        probe.hardlink_to(file.resolve())
    except OSError:
        return False
    probe.unlink()
    return True


def _plant_file(source: Path, target: Path) -> None:
    if source.stat().st_size <= COPIED_BYTES:
        shutil.copyfile(source, target)
        return
    try:
        target.hardlink_to(source)
    except OSError:
        target.symlink_to(source)
