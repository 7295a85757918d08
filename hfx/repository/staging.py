"""Staging folders, in which models are built, and the locks of their owners and of the repository.

Triton ignores the files of a repository, but takes every folder in it for a model, and does not start if a folder is
not a model (measured with 2.51: hidden folders, a configuration without a version, an empty version policy). A staging
folder is therefore beside the repository REPO, from where a rename into the repository is just as cheap:

    REPO/.hfx-lock                  held while folders are moved
    .REPO.hfx-staging-NAME-RANDOM/
        owner.json                  the process that writes here; it holds an advisory lock on the file while it lives
        new/FOLDER ...              the folders that are being built
        old/FOLDER ...              the previous version, moved here by a publication
        journal.json                the folders of an unfinished publication, which recovery rolls back
        committed.json              the journal, renamed to commit the publication: only leftovers are to be deleted

If the staging folder can't be beside the repository (REPO is a mount point, or the folder above it can't be written),
it is REPO/.hfx-staging-NAME-RANDOM. It is then also a Triton model that loads and does nothing: config.pbtxt and
1/model.py.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from hfx.errors import RepositoryError, StorageFull, UsageError
from hfx.manifest import member_folders, reraise
from hfx.names import check_name

STAGING_PREFIX = ".hfx-staging-"
PLACEHOLDER = {
    "1/model.py": "class TritonPythonModel:\n    def execute(self, requests):\n        return [None] * len(requests)\n",
    "config.pbtxt": 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n',
}
NOT_BESIDE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EXDEV)
OF_DISKS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ESTALE)
LOCK_FILE = ".hfx-lock"
PROBE_FILE = ".hfx-probe"
LOCK_POLL_SECONDS = 0.05
LOCK_SECONDS = 60.0  # moving folders takes milliseconds
JOURNAL = "journal.json"
COMMITTED = "committed.json"
OWNER = "owner.json"


class Staging:
    """A folder on the repository's file system in which one model is built before it is published.

    Use it as a context manager: at the end of the block, everything that wasn't published is deleted. Inside the block,
    a full disk raises StorageFull, and another error of the staging folder RepositoryError. Entering the block raises
    RepositoryError if the repository can't be written.
    """

    def __init__(self, repository: Path, name: str) -> None:
        self.repository = repository
        self.name = check_name(name)
        self.path = Path()
        self._owner = -1

    def __enter__(self) -> Staging:
        with storage(self.repository):
            self.repository.mkdir(parents=True, exist_ok=True)
            try:
                with locked(self.repository):  # so that recovery never sees a staging folder without its owner's lock
                    self.path = _make_beside(self.repository, self.name) or _make_inside(self.repository, self.name)
                    (self.path / "new").mkdir()
                    (self.path / "old").mkdir()
                    self._owner = _claim(self.path)
            except BaseException:
                self._close()
                raise
        return self

    def folder(self, name: str) -> Path:
        """Create the empty model folder NAME or NAME_suffix. Raises RepositoryError for a folder of another model."""
        if name not in member_folders(self.name):
            raise RepositoryError(
                f"{name!r} can't be a folder of the model {self.name!r}.",
                f"Its folders are {', '.join(member_folders(self.name))}.",
            )
        with storage(self.repository):
            (self.path / "new" / name).mkdir()
        return self.path / "new" / name

    @property
    def root(self) -> Path:
        """The folder that contains the model folders. Once they are written, it is a complete model repository."""
        return self.path / "new"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._close()
        if isinstance(error, OSError) and _is_about(error, self.path):
            with storage(self.repository):
                raise error

    def _close(self) -> None:
        """Delete the folder, unless recover() needs its files, which also deletes what can't be deleted now."""
        try:
            with suppress(OSError):
                if self.path.name and not (self.path / JOURNAL).exists():
                    shutil.rmtree(self.path, ignore_errors=True)
        finally:
            if self._owner >= 0:
                close(self._owner)


def _is_about(error: OSError, folder: Path) -> bool:
    """Return whether an error may be one of the disk of `folder`. Errors of `write` name no file."""
    if not isinstance(error.filename, str) or error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error.errno in OF_DISKS
    return Path(error.filename).is_relative_to(folder)


def stagings(repository: Path) -> list[Path]:
    """List the staging folders of a repository, including those of living processes."""
    return sorted([*stagings_inside(repository), *_stagings_beside(repository)])


def stagings_inside(repository: Path) -> list[Path]:
    """List the staging folders inside a repository, which a server that reads the repository sees."""
    return sorted(path for path in repository.glob(f"{STAGING_PREFIX}*") if path.is_dir() and not path.is_symlink())


def is_placeholder(staging: Path) -> bool:
    """Return whether Triton loads the staging folder as a model that does nothing."""
    return all((staging / name).is_file() for name in PLACEHOLDER)


def _stagings_beside(repository: Path) -> Iterator[Path]:
    """Yield the staging folders of this user and of the repository's owner.

    The folders of other users are not trusted, as anyone can write to a folder such as /tmp.
    """
    real = Path(os.path.realpath(repository))
    # A model's name has no dot, so the staging folders of a repository REPO.hfx-staging-x do not match those of REPO.
    own = re.compile(re.escape(f".{real.name}{STAGING_PREFIX}") + r"[^.]+")
    try:
        trusted = {os.geteuid(), real.stat().st_uid}
        folders = [path for path in real.parent.iterdir() if own.fullmatch(path.name)]
    except OSError:  # no repository yet, or no permission to list the folder above it, and so no staging folder there
        return
    for path in folders:
        if path.is_dir() and not path.is_symlink() and path.lstat().st_uid in trusted:
            yield path


def _make_beside(repository: Path, name: str) -> Path | None:
    """Create a folder beside the repository. Return None if that fails, or if files can't be moved out of it."""
    real = Path(os.path.realpath(repository))
    path = None
    try:
        path = Path(tempfile.mkdtemp(prefix=f".{real.name}{STAGING_PREFIX}{name}-", dir=real.parent))
        (path / PROBE_FILE).touch()
        (path / PROBE_FILE).rename(real / PROBE_FILE)  # fails between two mounts, even of one file system
        (real / PROBE_FILE).unlink()
    except OSError as error:
        if path is not None:
            with suppress(OSError):
                (real / PROBE_FILE).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
        if error.errno in NOT_BESIDE:
            return None
        raise
    return path


def _make_inside(repository: Path, name: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix=f"{STAGING_PREFIX}{name}-", dir=repository))
    try:
        for file, text in PLACEHOLDER.items():
            (path / file).parent.mkdir(exist_ok=True)
            (path / file).write_text(text, encoding="utf-8")
        path.chmod(0o755)  # a server of another user reads it
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


# The owner of a staging folder


def _claim(staging: Path) -> int:
    """Write owner.json and lock it for as long as this process lives (or closes the descriptor)."""
    descriptor = os.open(staging / OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps({"pid": os.getpid()}).encode())
    except BaseException:
        close(descriptor)
        raise
    return descriptor


def claim_abandoned(staging: Path) -> int | None:
    """Return a locked descriptor if no living process owns the folder, and None otherwise.

    The kernel releases the lock when the process that holds it dies for any reason. Unlike a process id, the lock is
    also reliable after a reboot, in another container, and when an id is used again.
    """
    try:
        descriptor = os.open(staging / OWNER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:  # its owner has just deleted the folder
        return None
    has_lock = False
    try:
        has_lock = _lock(descriptor)
    finally:
        if not has_lock:
            close(descriptor)
    return descriptor if has_lock else None


@contextmanager
def locked(repository: Path) -> Iterator[None]:
    """Hold the repository's lock. Raises RepositoryError if another process holds it for LOCK_SECONDS."""
    # filelock 4.2.11 keeps the lock, and its descriptor, if the system fails to unlock it. Closing always unlocks.
    descriptor = os.open(repository / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        while not _lock(descriptor):
            if time.monotonic() > deadline:
                raise RepositoryError(
                    f"Another process has been changing {repository} for {LOCK_SECONDS:.0f} seconds.",
                    "Wait until it has finished, then try again.",
                )
            time.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a file exclusively, and return whether no other process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def close(descriptor: int) -> None:
    """Close a lock, which frees it also if the file system reports an error."""
    with suppress(OSError):
        os.close(descriptor)


def exists(path: Path) -> bool:
    """Return whether there is a file, a folder or a link at `path`. Raises OSError, unlike os.path.lexists."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_folder(path: Path, option: str) -> None:
    """Raise UsageError if a file is where the folder `path`, the value of `option`, should be or be made."""
    absolute = path.absolute()
    try:
        existing = next(each for each in (absolute, *absolute.parents) if exists(each))
        is_folder = existing.is_dir()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # the command line reports it
            raise
        raise UsageError(f"{option} {path} can't be read: {error.strerror}.", f"Give another {option}.") from error
    if not is_folder:
        raise UsageError(f"{option} must be a folder, but {existing} is not one.", f"Give another {option}.")


def write_output(path: Path, text: str, option: str = "--output") -> None:
    """Write the file that `option` of a command names, as a whole or not at all. Raises UsageError."""
    path = path.resolve()  # a link stays one
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.", f"Give another {option}.") from error


@contextmanager
def storage(repository: Path) -> Iterator[None]:
    """Raise the errors of the disk as StorageFull or RepositoryError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _storage_full(repository) from error
        if error.errno == errno.ENAMETOOLONG:  # the command line reports it
            raise
        raise RepositoryError(
            f"{repository} can't be changed: {error.strerror}{f' ({error.filename})' if error.filename else ''}.",
            "Choose a --repository on a local disk that you may write to.",
        ) from error


def _storage_full(repository: Path) -> StorageFull:
    return StorageFull(
        f"No room left on the disk of {repository}; nothing was changed there.",
        "Free some space, or choose a --repository on another disk.",
    )


def flush_tree(folder: Path) -> None:
    """fsync every file and folder below `folder`. Raises RepositoryError for a symbolic link.

    A link would make the published model depend on files elsewhere.
    """
    for root, names, files in os.walk(folder, onerror=reraise):
        for path in (Path(root, name) for name in (*files, *names)):
            if path.is_symlink():
                raise RepositoryError(
                    f"{path.relative_to(folder)} is a link.", "Copy the file into the model's folder."
                )
        for path in (Path(root, name) for name in (*files, ".")):
            flush(path)


def flush(path: Path) -> None:
    """fsync one file or folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
