"""The models that are served: their selection, the check that they are as published, and a private copy of them.

A server gets its own copy of the files, but only links to large files on read-only file systems. There are two reasons:
Triton's Python stubs write bytecode beside the model files, while a published repository must stay as it was hashed;
and neither a re-export nor a program that writes to the published files may change a running server.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hfx.errors import HfxError, ModelCorrupt, ModelMissing, RepositoryError, ServerError, UsageError
from hfx.manifest import Manifest, check_files, member_folders, net_sha256, read_manifest
from hfx.names import MANIFEST_FILE, NET_SUFFIX
from hfx.python_backends.onnxruntime.config import MODEL_FILE, SHARED_NET
from hfx.releases import MINIMUM_SECURE
from hfx.repository import Entry, models, parse_config, recover
from hfx.repository.catalog import model_folders
from hfx.repository.config_pbtxt import CONFIG, config_path

LINKED_BYTES = 1 << 20  # larger files on a read-only file system are linked
FICLONE = 0x40049409  # see ioctl_ficlone(2)
SETTLED_SECONDS = 2.0  # a file that was not written to for this time is complete
MOST_SETTLING_SECONDS = 60.0
GPU_DEVICES = ("nvidia[0-9]*", "dxg")  # dxg: WSL
KIND_GPU, KIND_CPU = 1, 2  # values in ModelInstanceGroup
REPUBLISH = "Export it again with --force, or serve the others with --models."
BYTECODE = "__pycache__"
LARGE_REQUESTS = "large_requests.py"  # in a tokenizing step that answers large requests later; earlier exports lack it
Result = TypeVar("Result")

# Checks of published models; `names` limits them to some models.


def check_published(repository: Path, names: Sequence[str], report: Callable[[str], None]) -> None:
    """Recover from crashed exports, and compare every file of the models with its manifest.

    Raises ModelCorrupt that names the files that are not as they were published.
    """
    for done in recover(repository):
        report(done)
    for entry in _entries(repository, names):
        if entry.problem:
            raise ModelCorrupt(f"The model {entry.name!r} is not as it was published:\n{entry.problem}", REPUBLISH)
        if entry.manifest:
            check_model(entry.manifest, repository, REPUBLISH)


def check_model(manifest: Manifest, repository: Path, fix: str = "Export it again with --force.") -> None:
    """Raise ModelCorrupt with `fix` if files of a model are not as they were published.

    This includes a model that names a net that is not its own: a server would answer with this one for all models that
    name the same net.
    """
    check_files(manifest, repository, fix)
    net = repository / (manifest.name + NET_SUFFIX)
    for path in (net / CONFIG, *sorted(net.glob("configs/*.pbtxt"))):
        parameters = read_config(path).parameters if path.is_file() else {}
        if SHARED_NET in parameters and parameters[SHARED_NET].string_value != _net_of(manifest, path):
            reason = f"{path.relative_to(repository)}: {SHARED_NET} is not the hash of the model's net"
            raise ModelCorrupt(f"The model {manifest.name!r} can't share a net. {reason}.", fix)


def _net_of(manifest: Manifest, path: Path) -> str:
    """Return the hash of the net that the configuration in `path` names; empty if its files are not published."""
    graph = f"{manifest.name}{NET_SUFFIX}/1/{model_file(read_config(path))}"
    return net_sha256(manifest.files, graph) if {graph, f"{graph}.data"} <= manifest.files.keys() else ""


def model_file(config: Any) -> str:
    """Return the ONNX file of a net in its version folder."""
    named = config.parameters[MODEL_FILE].string_value if MODEL_FILE in config.parameters else ""
    return named or config.default_model_filename or "model.onnx"


def damaged_models(repository: Path, report: Callable[[str], None]) -> list[str]:
    """Check all models as `check_published` does, and return the damaged ones, each with a line to `report`.

    Raises ModelCorrupt if all models are damaged, and while files of a damaged model are being written. The members of
    a model without a readable manifest look like models, and are returned as well.
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
    """Raise UsageError if a model needs a later Triton release than `tag`."""
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
    """Return all models of `repository`, or those in `names` and the members that they need, sorted by name.

    Raises RepositoryError if the repository has no model, and ModelMissing for an unknown name.
    """
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
    """Return the models that the model in `folder` needs: its manifest's folders and the steps of its ensemble."""
    manifest = folder / MANIFEST_FILE
    published = read_manifest(manifest).folders if manifest.exists() else ()
    config = read_config(folder / CONFIG)
    return [*published, *(step.model_name for step in config.ensemble_scheduling.step)]


def check_gpu(repository: Path, names: Iterable[str]) -> None:
    """Raise UsageError if one of `names` is configured for a GPU and this machine has none."""
    if any(any(Path("/dev").glob(pattern)) for pattern in GPU_DEVICES):
        return
    for name in names:
        with suppress(RepositoryError):  # a configuration that can't be read is left to the check of the files
            groups = read_config(config_path(repository / name, "gpu")).instance_group
            if any(group.kind == KIND_GPU for group in groups):
                reason = f"{name} is configured for a GPU, and this machine has none."
                raise UsageError(reason, "Serve with --device cpu.")


def answers_later(folder: Path, device: str) -> bool:
    """Return whether requests of the model in `folder` may be open after its `execute`, as for a generator."""
    config = read_config(config_path(folder, device))
    return bool(config.model_transaction_policy.decoupled) or "engine" in config.parameters


def may_hang(folder: Path, device: str) -> bool:
    """Return whether requests of the model in `folder` may never end when its process dies (Triton 2.51).

    This applies to generators, and to tokenizing steps and nets of hfx's onnxruntime backend in Python, which may hang
    with large requests. In a bundle, such a net is a Python model.
    """
    config = read_config(config_path(folder, device))
    if any(folder.glob(f"*/{LARGE_REQUESTS}")):
        return True
    is_net = config.backend.endswith("onnxruntime") or (config.backend == "python" and MODEL_FILE in config.parameters)
    return is_net or answers_later(folder, device)


def is_ensemble(folder: Path) -> bool:
    """Return whether the model in `folder` is an ensemble, which only calls other models."""
    return bool(read_config(folder / CONFIG).ensemble_scheduling.step)


def python_processes(repository: Path, device: str, backends: Collection[str | None]) -> int:
    """Return the least number of processes for those models of `repository` whose backend is in `backends`.

    These backends run in Python.
    """
    processes = 0
    for folder in model_folders(repository):
        with suppress(RepositoryError):  # Triton reports a configuration that can't be read
            config = read_config(config_path(folder, device))
            if config.backend in backends:
                processes += sum(group.count or 1 for group in config.instance_group) or 1
    return processes


def read_config(path: Path) -> Any:
    """Read the configuration message in a file. Raises RepositoryError if it can't be parsed."""
    return parse_config(path.read_text("utf-8", "replace"))


# The private copy


def copy_checked(repository: Path, names: Sequence[str], check: Callable[[], Sequence[str]], target: Path) -> None:
    """Make `target` a repository with copies of the models `names` (default: all).

    `check` runs meanwhile; it returns the models to leave out. Its errors come before those of the copying.
    """
    shutil.rmtree(target, ignore_errors=True)
    copied = select_models(repository, names)
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(copy_models, repository, copied, target)
        left_out = {folder for name in check() for folder in member_folders(name)}
    chosen = [name for name in select_models(repository, names) if name not in left_out]
    if chosen == copied:
        copying.result()
    else:  # some are damaged, or the check has recovered one
        shutil.rmtree(target, ignore_errors=True)
        copy_models(repository, chosen, target)


def copy_models(repository: Path, names: Iterable[str], target: Path) -> None:
    """Make the folder `target` a repository with copies of the models `names`. Links to one file stay links to one."""
    target.mkdir()
    copies = dict[tuple[int, int], Path]()
    for name in names:
        _copy_folder((repository / name).resolve(), target / name, copies)


def _copy_folder(source: Path, target: Path, copies: dict[tuple[int, int], Path]) -> None:
    """Copy a model's folder. `copies` has the copies of files with several links, by device and inode."""
    entries = sorted(Path(entry.path) for entry in os.scandir(source) if entry.name != BYTECODE)
    files = [entry for entry in entries if not _is_folder(entry)]
    for file in files:
        if not file.is_file():
            raise RepositoryError(
                f"{file} is neither a file nor a folder (a broken link, or a link to a folder).",
                "Replace it by what it stands for.",
            )
    has_python = any(file.suffix == ".py" for file in files)
    if any(map(_is_linked, files)) and not any(map(_is_folder, entries)) and not has_python:
        # The folder is linked, not its files: ONNX Runtime refuses external data if a link leads out of the model's
        # folder.
        target.symlink_to(source)
        return
    target.mkdir()
    for entry in entries:
        if _is_folder(entry):
            _copy_folder(entry, target / entry.name, copies)
        elif _is_linked(entry):
            (target / entry.name).symlink_to(entry.resolve())
        elif (status := entry.stat()).st_nlink > 1:
            first = copies.setdefault((status.st_dev, status.st_ino), target / entry.name)
            if first == target / entry.name:
                _copy_file(entry, first)
            else:
                os.link(first, target / entry.name)
        else:
            _copy_file(entry, target / entry.name)
    if has_python:
        # A file of this name keeps Python from writing bytecode. Its folder would make the model look changed, and
        # Triton would load it a second time when it loads an ensemble with this step.
        (target / BYTECODE).touch()


def _is_linked(file: Path) -> bool:
    """Return whether the server reads `file` through a link, as it does for large files on a read-only file system.

    Images and volumes may be mounted in this way. A copy would take memory, as /tmp of a container is often a tmpfs.
    """
    return file.stat().st_size > LINKED_BYTES and bool(os.statvfs(file).f_flag & os.ST_RDONLY)


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()


def _copy_file(source: Path, target: Path) -> None:
    """Copy `source` to the separate file `target`. Triton maps its files, and dies if a mapped file becomes shorter.

    A hard link would be the same file, which `cp` and `rsync --inplace` write to. If the file system can share blocks
    (btrfs, XFS), the copy takes no space. Raises ServerError if there is no room for it.
    """
    with source.open("rb") as content, target.open("xb") as copy, suppress(OSError):
        fcntl.ioctl(copy, FICLONE, content.fileno())
        return
    size, free = source.stat().st_size, shutil.disk_usage(target.parent).free
    if size > free:
        raise ServerError(
            f"{target.parent} has {free >> 20} MiB free, and the server's own copy of {source} takes {-(-size >> 20)}.",
            "Give it room, or set TMPDIR to another folder.",
        )
    shutil.copyfile(source, target)


# Files that are being written


def read_settled(read: Callable[[], Result], folders: Callable[[], Iterable[Path]]) -> Result:
    """Return the result of `read`, which checks and copies the files of model `folders` as they are at one moment.

    If files have changed during the call, `read` is called again. If `read` fails while files are being written, for
    example by `cp`, it is called again when they are complete. Calls are repeated for up to MOST_SETTLING_SECONDS.
    Raises the errors of `read`, and ServerError if the files change all the time.
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
    """For each file, the fields of its status that change with its content."""
    states: dict[Path, tuple[int, ...]] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    states[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return states


def _is_recent(states: Mapping[Path, tuple[int, ...]]) -> bool:
    """Return whether a file was written within SETTLED_SECONDS."""
    now = time.time_ns()
    return any(0 <= now - state[2] < SETTLED_SECONDS * 1e9 for state in states.values())
