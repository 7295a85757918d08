"""Staging folders: where a model is built inside a repository, who owns it, and who may change the repository.

Owns the staging folder, the owner's lock on it, the repository's lock, and what the file system can refuse. It must
not know how models enter the repository (publish) or what they hold.

What a repository may hold besides models (Triton passes over files, but takes every folder for a
model: serve a view of the model folders only):

    .hfx-lock                       held while folders are moved
    .hfx-staging-NAME-RANDOM/
        owner.json                  the process that writes here; it holds an advisory lock on the file while it lives
        new/FOLDER ...              what is being built
        old/FOLDER ...              the version before, moved aside by a publication
        journal.json                the folders of an unfinished publication: it is rolled back, or committed by
        committed.json              renaming the journal: then only leftovers are to be deleted

"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from hfx.errors import RepositoryError, StorageFull
from hfx.manifest import member_folders
from hfx.names import check_name

STAGING_PREFIX = ".hfx-staging-"
LOCK_FILE = ".hfx-lock"
LOCK_SECONDS = 60.0  # moving folders takes milliseconds
JOURNAL = "journal.json"
COMMITTED = "committed.json"
OWNER = "owner.json"


class Staging:
    """A folder inside the repository where one model is built before it is published.

    Use it as a context manager: on leaving, whatever wasn't published is deleted. A full disk inside the block becomes
    StorageFull. Opening one raises RepositoryError when the repository can't be written.
    """

    def __init__(self, repository: Path, name: str) -> None:
        self.repository = repository
        self.name = check_name(name)
        self.path = Path()
        self._owner = -1

    def __enter__(self) -> Staging:
        with storage(self.repository):
            self.repository.mkdir(parents=True, exist_ok=True)
            with locked(self.repository):  # so that recovery never meets a staging folder without its owner's lock
                self.path = Path(tempfile.mkdtemp(prefix=f"{STAGING_PREFIX}{self.name}-", dir=self.repository))
                try:
                    self._owner = _claim(self.path)
                    (self.path / "new").mkdir()
                    (self.path / "old").mkdir()
                except BaseException:
                    shutil.rmtree(self.path, ignore_errors=True)
                    raise
        return self

    def folder(self, name: str) -> Path:
        """The empty, new model folder NAME or NAME_suffix. Raises RepositoryError for a folder of another model."""
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
        """The folder that holds the model folders: a complete model repository of its own, once they are written."""
        return self.path / "new"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if not (self.path / JOURNAL).exists():  # an unfinished publication is recover()'s, its files are needed
                shutil.rmtree(self.path, ignore_errors=True)  # what can't be deleted now is deleted by recover()
        finally:
            os.close(self._owner)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _storage_full(self.repository) from error


def stagings(repository: Path) -> list[Path]:
    """The staging folders in a repository, those of living processes too."""
    return sorted(path for path in repository.glob(f"{STAGING_PREFIX}*") if path.is_dir() and not path.is_symlink())


# The owner of a staging folder


def _claim(staging: Path) -> int:
    """Write owner.json and lock it for as long as this process lives (or closes the descriptor)."""
    descriptor = os.open(staging / OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "start": _start_time(os.getpid())}).encode())
    return descriptor


def claim_abandoned(staging: Path) -> int | None:
    """A locked descriptor when no living process owns the folder, else None.

    The kernel drops the lock when its holder dies, however it dies. That holds where process numbers mislead: after a
    reboot, in another container, when a number is used again.
    """
    try:
        descriptor = os.open(staging / OWNER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:  # its owner has just deleted the folder
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot (proc(5), field 22 of stat); None where there is no /proc."""
    stat = Path(f"/proc/{pid}/stat")
    return int(stat.read_text().rsplit(")", 1)[1].split()[19]) if stat.exists() else None


@contextmanager
def locked(repository: Path) -> Iterator[None]:
    """Hold the repository's lock. Raises RepositoryError when another process keeps it."""
    try:
        with FileLock(repository / LOCK_FILE, timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise RepositoryError(
            f"Another process has been changing {repository} for {LOCK_SECONDS:.0f} seconds.",
            "Wait until it has finished, then try again.",
        ) from error


@contextmanager
def storage(repository: Path) -> Iterator[None]:
    """Turn what a disk can refuse into typed errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _storage_full(repository) from error
        raise RepositoryError(
            f"{repository} can't be changed: {error.strerror} ({error.filename}).",
            "Choose a --repository on a local disk that you may write to.",
        ) from error


def _storage_full(repository: Path) -> StorageFull:
    return StorageFull(
        f"No room left on the disk of {repository}; nothing was changed there.",
        "Free some space, or choose a --repository on another disk.",
    )


def flush_tree(folder: Path) -> None:
    """fsync every file and folder below; a link would make the published model depend on what lies elsewhere."""
    for root, names, files in os.walk(folder):
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
