"""The models that are served: which ones, whether they are as published, and a private copy that costs no space.

Triton's Python stubs write __pycache__ beside the model files, a published repository must stay as it was hashed, and
a re-export must not change a running server. So a server gets folders of its own, small files copied and large ones
hard-linked; where the file system refuses, folders of large files are symbolic links, which pins names, not contents.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hfx.errors import ModelCorrupt, ModelMissing, RepositoryError, UsageError
from hfx.manifest import check_files, member_folders, read_manifest
from hfx.names import MANIFEST_FILE
from hfx.releases import MINIMUM_SECURE
from hfx.repository import Entry, models, parse_config, recover
from hfx.repository.catalog import model_folders
from hfx.repository.config_pbtxt import CONFIG, config_path

COPIED_BYTES = 1 << 20
GPU_DEVICES = ("nvidia[0-9]*", "dxg")  # dxg: WSL
KIND_GPU, KIND_CPU = 1, 2  # of ModelInstanceGroup
REPUBLISH = "Export it again with --force, or serve the others with --models."
SKIPPED = {"__pycache__"}

# Checks of published models; `names` limits them to some.


def check_published(repository: Path, names: Sequence[str], report: Callable[[str], None]) -> None:
    """Finish what a crashed export left, and compare every file of the models with its manifest.

    Raises ModelCorrupt naming the files that are not as they were published.
    """
    for done in recover(repository):
        report(done)
    for entry in _entries(repository, names):
        if entry.problem:
            raise ModelCorrupt(f"The model {entry.name!r} is not as it was published:\n{entry.problem}", REPUBLISH)
        if entry.manifest:
            check_files(entry.manifest, repository, REPUBLISH)


def damaged_models(repository: Path, report: Callable[[str], None]) -> list[str]:
    """As `check_published` of all models, but the folders of damaged ones, each model with a line to `report`.

    Raises ModelCorrupt when all are damaged. The members of one without a readable manifest look like models.
    """
    damaged: dict[str, ModelCorrupt] = {}
    names = [entry.name for entry in models(repository)]
    for name in names:
        try:
            check_published(repository, [name], report)
        except ModelCorrupt as error:
            damaged[name] = error
    left_out = [name for name in names if any(name in member_folders(each) for each in damaged)]
    for problem in damaged.values():
        if len(left_out) == len(names):
            raise problem
        report(f"{problem.message}\nThe other models are served.")
    return left_out


def check_release(repository: Path, names: Sequence[str], tag: str) -> None:
    """Raise UsageError when a model needs a later Triton release than `tag`."""
    for entry in _entries(repository, names):
        if entry.manifest and tag < (minimum := entry.manifest.triton.minimum):
            raise UsageError(
                f"The model {entry.name!r} needs Triton {minimum}; {tag} is older.",
                f"Use --triton {max(minimum, MINIMUM_SECURE)}, or serve the others with --models.",
            )


def _entries(repository: Path, names: Sequence[str]) -> list[Entry]:
    return [entry for entry in models(repository) if not names or entry.name in names]


# Selection


def select_models(repository: Path, names: Sequence[str]) -> list[str]:
    """All models of `repository`, or those with `names` and the members that they need, sorted by name."""
    present = [folder.name for folder in model_folders(repository) if (folder / CONFIG).is_file()]
    if not present:
        raise RepositoryError(f"{repository} has no model.", "Publish one with `hfx export MODEL`.")
    if not names:
        return present
    selected: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in present:
            known = ", ".join(entry.name for entry in models(repository))
            raise ModelMissing(f"{repository} has no model {name!r}.", f"Its models: {known}.")
        if name not in selected:
            selected.add(name)
            pending += needs(repository / name)
    return sorted(selected)


def needs(folder: Path) -> list[str]:
    """The models that the one in `folder` needs: its manifest's folders and the steps of its ensemble."""
    manifest = folder / MANIFEST_FILE
    published = read_manifest(manifest).folders if manifest.exists() else ()
    config = read_config(folder / CONFIG)
    return [*published, *(step.model_name for step in config.ensemble_scheduling.step)]


def check_gpu(repository: Path, names: Iterable[str]) -> None:
    """Raise UsageError when one of `names` is configured for a GPU and this machine has none."""
    if any(any(Path("/dev").glob(pattern)) for pattern in GPU_DEVICES):
        return
    for name in names:
        if any(group.kind == KIND_GPU for group in read_config(config_path(repository / name, "gpu")).instance_group):
            raise UsageError(f"{name} is configured for a GPU, and this machine has none.", "Serve with --device cpu.")


def answers_later(folder: Path, device: str) -> bool:
    """Whether requests of the model in `folder` may be open when its `execute` has returned, as those of generators."""
    config = read_config(config_path(folder, device))
    return bool(config.model_transaction_policy.decoupled) or "engine" in config.parameters


def is_ensemble(folder: Path) -> bool:
    """Whether the model in `folder` only calls others."""
    return bool(read_config(folder / CONFIG).ensemble_scheduling.step)


def python_processes(repository: Path, device: str, backends: Collection[str | None]) -> int:
    """How many processes the models of `repository` have, at least, of those `backends` that run in Python."""
    processes = 0
    for folder in model_folders(repository):
        with suppress(RepositoryError):  # a configuration that can't be read: Triton will say so
            config = read_config(config_path(folder, device))
            if config.backend in backends:
                processes += sum(group.count or 1 for group in config.instance_group) or 1
    return processes


def read_config(path: Path) -> Any:
    """The configuration message in a file; RepositoryError where it can't be parsed."""
    return parse_config(path.read_text("utf-8", "replace"))


# The private copy


def copy_models(repository: Path, names: Iterable[str], target: Path) -> None:
    """Make `target`, a repository of the models `names`."""
    target.mkdir()
    for name in names:
        _copy_folder((repository / name).resolve(), target / name)


def _copy_folder(source: Path, target: Path) -> None:
    entries = sorted(Path(entry.path) for entry in os.scandir(source) if entry.name not in SKIPPED)
    files = [_regular(entry) for entry in entries if not _is_folder(entry)]
    large = next((file for file in files if file.stat().st_size > COPIED_BYTES), None)
    has_python = any(file.suffix == ".py" for file in files)
    if large and not any(map(_is_folder, entries)) and not has_python and not _can_link(large, target):
        # Not file by file: ONNX Runtime and OpenVINO refuse external data that a link leads out of the model's folder.
        target.symlink_to(source)
        return
    target.mkdir()
    for entry in entries:
        if _is_folder(entry):
            _copy_folder(entry, target / entry.name)
        else:
            _copy_file(entry.resolve(), target / entry.name)


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def _regular(entry: Path) -> Path:
    if entry.is_file():
        return entry
    raise RepositoryError(
        f"{entry} is neither a file nor a folder (a broken link, or a link to a folder).",
        "Replace it by what it stands for.",
    )


def _can_link(file: Path, target: Path) -> bool:
    """Whether `file` can have a hard link beside `target`: not on another file system, nor another owner's file."""
    probe = target.with_name(".probe")
    try:
        probe.hardlink_to(file.resolve())
    except OSError:
        return False
    probe.unlink()
    return True


def _copy_file(source: Path, target: Path) -> None:
    if source.stat().st_size <= COPIED_BYTES:
        shutil.copyfile(source, target)
        return
    try:
        target.hardlink_to(source)
    except OSError:
        target.symlink_to(source)
