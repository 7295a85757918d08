"""The private folders of running servers, and the removal of those whose servers crashed.

A workspace holds a lock that the server and its stubs inherit. The lock is free exactly when all of them are gone, also
across containers that share a temporary folder. The next start removes what a crash leaves behind: stubs without a
server, the folder, and regions in /dev/shm.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from hfx.errors import ServerError
from hfx.process import POLL_SECONDS
from hfx.repository.staging import close
from hfx.triton.process import kill_orphans

PREFIX = "hfx-triton-"
LOCK = "lock"
LOG = "triton.log"
KEPT_LOGS = 3  # logs of failed starts, whose errors name them
SHARED_MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 << 20  # for each Python process: its initial region (arguments.py), and the first growth of the region
ROOM_FIX = (
    "Containers have their own: docker run --shm-size 1g; in Kubernetes an emptyDir with `medium: Memory` at /dev/shm, "
    "and its size in the container's memory. On a machine: mount -o remount,size=1g /dev/shm"
)
ORPHAN_SECONDS = 2.0  # for killed stubs to end


class Workspace:
    """A new folder with a lock that is held; `remove()` frees both, and the shared memory with the folder's name."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        # The file is locked under another name first. As a sweep only looks at "lock", it never finds the file
        # unlocked.
        unborn = self.folder / f"{LOCK}.new"
        self.lock = -1
        try:
            self.lock = os.open(unborn, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            unborn.rename(self.folder / LOCK)
        except BaseException:
            if self.lock >= 0:
                close(self.lock)
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def remove(self, keep: Path | None = None) -> None:
        """Remove the folder, except for the file `keep` directly in it, and free the lock.

        What can't be removed now is removed by the next sweep, which finds the folder by the lock.
        """
        lock = self.folder / LOCK
        with suppress(OSError):
            remove_regions(self.folder)
            for entry in self.folder.iterdir():
                if entry not in (keep, lock):
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            lock.unlink()
            if keep is None or not keep.exists():
                try:
                    self.folder.rmdir()
                except OSError:
                    lock.touch(0o600)  # by which the next sweep finds the folder
        close(self.lock)


def region_prefix(folder: Path) -> str:
    """Return the prefix of the shared memory of the workspace `folder`: its unique name, in characters for regions."""
    return folder.name.replace("-", "_") + "_"


def remove_regions(folder: Path) -> None:
    """Remove the shared memory regions that have the name of the workspace `folder`."""
    for region in SHARED_MEMORY.glob(region_prefix(folder) + "*"):
        region.unlink(missing_ok=True)


def check_shared_memory(folder: Path, processes: int) -> None:
    """Raise ServerError if SHARED_MEMORY has no room for the server in `folder` with this number of Python `processes`.

    Also raises ServerError if this user can't create files there.
    """
    trial = SHARED_MEMORY / f"{region_prefix(folder)}trial"
    try:
        os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        trial.unlink()
        room = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        raise ServerError(
            f"Triton and the Python processes of models exchange tensors in {SHARED_MEMORY}, where user {os.getuid()} "
            f"can't make files: {error.strerror}.",
            f"Mount a tmpfs there that this user can write to. {ROOM_FIX}",
        ) from None
    free = room.f_bavail * room.f_frsize
    if room.f_blocks and free < processes * ROOM_BYTES:  # 0 blocks: no limit
        raise ServerError(
            f"{SHARED_MEMORY} has {free >> 20} MiB free of {room.f_blocks * room.f_frsize >> 20}; the {processes} "
            f"Python processes of these models take {processes * ROOM_BYTES >> 20} to begin with, and more with "
            "larger requests.",
            ROOM_FIX,
        )


def sweep() -> None:
    """Remove this user's workspaces whose servers are gone, and kill the stubs that are left of them."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # its owner, or another sweep, was faster; or it can't be removed now
            if lock.parent.lstat().st_uid == os.getuid():
                _sweep_one(lock)
    for folder in _failed_starts()[:-KEPT_LOGS]:
        shutil.rmtree(folder, ignore_errors=True)


def _failed_starts() -> list[Path]:
    """Return this user's folders in which only the log of a failed start is left, oldest first."""
    found: dict[Path, float] = {}
    for log in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOG}"):
        with suppress(OSError):
            if log.lstat().st_uid == os.getuid() and [entry.name for entry in log.parent.iterdir()] == [LOG]:
                found[log.parent] = log.stat().st_mtime
    return sorted(found, key=lambda folder: found[folder])


def _sweep_one(lock: Path) -> None:
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if _is_free(descriptor) or (kill_orphans(lock.parent) and _is_free(descriptor, ORPHAN_SECONDS)):
            remove_regions(lock.parent)
            shutil.rmtree(lock.parent, ignore_errors=True)
    finally:
        close(descriptor)


def _is_free(descriptor: int, patience: float = 0.0) -> bool:
    """Return whether the lock becomes free within `patience` seconds. If so, this process holds it afterwards."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False  # alive
            time.sleep(POLL_SECONDS)
        else:
            return True
