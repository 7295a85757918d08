"""The models that are served: which ones, whether they are as published, and a private copy of them.

Triton's Python stubs write __pycache__ beside the model files, a published repository must stay as it was hashed, and
neither a re-export nor a program that writes to the published files must change a running server. So a server gets
files of its own; from read-only file systems it gets links to the large ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hfx.errors import HfxError, ModelCorrupt, ModelMissing, RepositoryError, ServerError, UsageError
from hfx.manifest import check_files, member_folders, read_manifest
from hfx.names import MANIFEST_FILE
from hfx.python_backends.onnxruntime.config import MODEL_FILE
from hfx.releases import MINIMUM_SECURE
from hfx.repository import Entry, models, parse_config, recover
from hfx.repository.catalog import model_folders
from hfx.repository.config_pbtxt import CONFIG, config_path

LINKED_BYTES = 1 << 20  # above which a file on a read-only file system is linked
FICLONE = 0x40049409  # of ioctl_ficlone(2)
SETTLED_SECONDS = 2.0  # after which a file that was not written to is complete
MOST_SETTLING_SECONDS = 60.0
GPU_DEVICES = ("nvidia[0-9]*", "dxg")  # dxg: WSL
KIND_GPU, KIND_CPU = 1, 2  # of ModelInstanceGroup
REPUBLISH = "Export it again with --force, or serve the others with --models."
SKIPPED = {"__pycache__"}
Result = TypeVar("Result")

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

    Raises ModelCorrupt when all are damaged, and while files of a damaged one are being written. The members of one
    without a readable manifest look like models.
    """
    damaged: dict[str, ModelCorrupt] = {}
    names = [entry.name for entry in models(repository)]
    for name in names:
        try:
            check_published(repository, [name], report)
        except ModelCorrupt as error:
            damaged[name] = error
    left_out = [name for name in names if any(name in member_folders(each) for each in damaged)]
    if _is_recent(_states(repository / folder for name in damaged for folder in member_folders(name))):
        raise next(iter(damaged.values()))
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
    """Whether all requests of the model in `folder` may be open when its `execute` has returned: a generator's."""
    config = read_config(config_path(folder, device))
    return bool(config.model_transaction_policy.decoupled) or "engine" in config.parameters


def may_hang(folder: Path, device: str) -> bool:
    """Whether requests of the model in `folder` never end when its process dies (Triton 2.51).

    Those of generators, and large ones of hfx's onnxruntime in Python, which is a Python model in a bundle.
    """
    config = read_config(config_path(folder, device))
    is_net = config.backend.endswith("onnxruntime") or (config.backend == "python" and MODEL_FILE in config.parameters)
    return is_net or answers_later(folder, device)


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
    has_python = any(file.suffix == ".py" for file in files)
    if any(map(_is_linked, files)) and not any(map(_is_folder, entries)) and not has_python:
        # Not file by file: ONNX Runtime and OpenVINO refuse external data that a link leads out of the model's folder.
        target.symlink_to(source)
        return
    target.mkdir()
    for entry in entries:
        if _is_folder(entry):
            _copy_folder(entry, target / entry.name)
        elif _is_linked(entry):
            (target / entry.name).symlink_to(entry.resolve())
        else:
            _copy_file(entry, target / entry.name)


def _is_linked(file: Path) -> bool:
    """Whether the server reads `file` itself: a large one of an image or a volume that is mounted read-only.

    A copy would take memory there, as /tmp of a container often is a tmpfs.
    """
    return file.stat().st_size > LINKED_BYTES and bool(os.statvfs(file).f_flag & os.ST_RDONLY)


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def _regular(entry: Path) -> Path:
    if entry.is_file():
        return entry
    raise RepositoryError(
        f"{entry} is neither a file nor a folder (a broken link, or a link to a folder).",
        "Replace it by what it stands for.",
    )


def _copy_file(source: Path, target: Path) -> None:
    """Make `target` a file of its own: Triton maps what it serves, and dies where a file that is mapped gets shorter.

    A hard link would be the same file, which `cp` and `rsync --inplace` write to. Where the file system can share
    blocks (btrfs, XFS), the copy takes no space. Raises ServerError where there is no room for it.
    """
    with source.open("rb") as content, target.open("xb") as copy, suppress(OSError):
        fcntl.ioctl(copy, FICLONE, content.fileno())
        return
    size, free = source.stat().st_size, shutil.disk_usage(target.parent).free
    if size > free:
        raise ServerError(
            f"{target.parent} has {free >> 20} MiB free, and the server's own copy of {source} takes {size >> 20}.",
            "Give it room, or set TMPDIR to another folder.",
        )
    shutil.copyfile(source, target)


# Files that are being written


def read_settled(read: Callable[[], Result], folders: Callable[[], Iterable[Path]]) -> Result:
    """What `read` returns, which checks and copies the files of model `folders`: all in the state of one moment.

    It is called again when files have changed meanwhile, and after a failure beside files that are being written, as
    by `cp`, once they are not: for MOST_SETTLING_SECONDS. Raises what `read` raises, and ServerError for files that
    change all the time.
    """
    deadline = time.monotonic() + MOST_SETTLING_SECONDS
    while True:
        before = _states(folders())
        try:
            result = read()
        except (HfxError, OSError):
            if time.monotonic() > deadline or (_states(folders()) == before and not _is_recent(before)):
                raise
        else:
            if _states(folders()) == before:
                return result
            if time.monotonic() > deadline:
                raise ServerError("The files of the models change all the time.", "Try again when they don't.")
        while _is_recent(_states(folders())) and time.monotonic() < deadline:
            time.sleep(SETTLED_SECONDS / 4)


def _states(folders: Iterable[Path]) -> dict[Path, tuple[int, ...]]:
    """By its path, what of a file's status changes with its content."""
    states: dict[Path, tuple[int, ...]] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    states[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return states


def _is_recent(states: Mapping[Path, tuple[int, ...]]) -> bool:
    """Whether a file was written within SETTLED_SECONDS."""
    now = time.time_ns()
    return any(0 <= now - state[2] < SETTLED_SECONDS * 1e9 for state in states.values())
