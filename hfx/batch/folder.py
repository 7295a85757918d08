"""The folder of a job: the paths of its files, atomic writing, and the lock between runners on this machine."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from hfx.errors import JobCancelled, JobError, StorageFull
from hfx.repository.staging import close, exists, flush

JOB, PLAN, PARTS, LOG = "job.json", "plan.jsonl", "parts", "log.jsonl"
LOCK, SUMMARY, CANCEL = "lock", "summary.json", "cancelled"
TEMPORARY, SPOOLED = ".writing-", "input."  # name prefixes of a file being written, and of the copy of standard input
PART, SCRIPT_PART = re.compile(r"([0-9]{6,18})\.([a-z]+)"), re.compile(r"([0-9]{6,18})\.([0-9]{1,18})")
WRITER = re.compile(rf"{re.escape(TEMPORARY)}([0-9a-f]{{8}})-([0-9]{{1,9}})-")
DAY = 86_400.0
State = Literal["Running", "Completed", "Failed", "Cancelled", "Paused"]  # Azure ML's names
GLANCE_SECONDS = 0.2  # `is_locked` in another process may hold the lock for this time
# Errors of flock(2) on storage without locks: DBFS and other FUSE, Lustre without `-o flock`, NFS without lockd. NFSv4
# gives EBADF for an exclusive lock of a read-only file.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)


@dataclass(frozen=True)
class Folder:
    """The folder that contains everything of a job: its plan, its parts and its output.

    `part_name` matches the names of parts: the number of the chunk, and an ending.
    """

    path: Path
    part_name: re.Pattern[str] = PART

    @property
    def parts(self) -> Path:
        """The folder of the parts."""
        return self.path / PARTS

    @property
    def summary(self) -> Path:
        """The path of the summary, which exists once the job is completed."""
        return self.path / SUMMARY

    def part(self, number: int, ending: str) -> Path:
        """Return the path of the part of chunk `number`, which exists once its rows are on the disk."""
        return self.parts / f"{number:06d}{ending}"

    def done(self) -> set[int]:
        """Return the numbers of the chunks whose parts exist. Raises JobError."""
        return set(self.endings())

    def endings(self) -> dict[int, str]:
        """Return the number of the chunk and the ending, without its point, of each part. Raises JobError."""
        with storage(self.path):
            names = [path.name for path in self.parts.iterdir()] if self.parts.is_dir() else []
        return {int(match[1]): match[2] for match in map(self.part_name.fullmatch, names) if match}

    @property
    def is_cancelled(self) -> bool:
        """Whether `hfx batch cancel` has been called, and `hfx batch resume` has not been called since."""
        return self.has(CANCEL)

    def has(self, name: str) -> bool:
        """Return whether the folder has the file `name`. Raises JobError."""
        with storage(self.path):
            return exists(self.path / name)

    def state(self, ended: Callable[[], State | None]) -> State:
        """Return the state of the job. `ended` says how the job has ended, and is called if it is not running.

        Paused means that chunks are missing and nothing runs, perhaps because the machine has stopped. Raises JobError.
        """
        if self.is_locked:
            return "Running"
        return ended() or ("Cancelled" if self.is_cancelled else "Paused")

    def check_cancelled(self) -> None:
        """Raise JobCancelled if the job is cancelled."""
        if self.is_cancelled:
            raise JobCancelled(f"{self.path} was cancelled.", f"`hfx batch resume {self.path}` continues it.")

    def cancel(self) -> None:
        """Stop the job's runners on all machines, and any that start later, until `uncancel` is called."""
        write_file(self.path / CANCEL, lambda file: None)

    def uncancel(self) -> None:
        """Allow the job's runners to run again."""
        with storage(self.path):
            (self.path / CANCEL).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete temporary files of this machine's dead processes, and those of other machines that are a day old."""
        leftovers: list[Path] = []
        for folder in (self.path, self.parts):
            with suppress(OSError):  # a leftover only wastes disk space
                leftovers += folder.glob(f"{TEMPORARY}*")
        for leftover in leftovers:
            with suppress(OSError):
                if _is_abandoned(leftover):
                    leftover.unlink(missing_ok=True)

    def discard_unplanned(self) -> bool:
        """Delete the files of a job without a job.json, and its folder if it is empty.

        Return whether job.json was missing.
        """
        if self.has(JOB):
            return False
        with suppress(OSError):
            for name in (PLAN, LOCK, LOG, *(each.name for each in self.path.glob(f"{SPOOLED}*"))):
                (self.path / name).unlink(missing_ok=True)
            self.parts.rmdir()
            self.path.rmdir()
        return True

    def log(self, event: dict[str, Any]) -> None:
        """Append an event and the time to the log. Errors are ignored, because jobs do not depend on the log."""
        line = json.dumps({"time": round(time.time(), 3), **event}) + "\n"
        with suppress(OSError), open(self.path / LOG, "ab", opener=_open_regular) as file:
            file.write(line.encode())

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the log. Lines that were cut off by a crash, or that can't be read, are left out."""
        with suppress(OSError), open_file(self.path / LOG) as file:
            for line in file:
                with suppress(ValueError, RecursionError):
                    event = json.loads(line)
                    if _is_event(event):
                        yield event

    @contextmanager
    def locked(self, shared: bool = False) -> Iterator[bool]:
        """Hold the lock, exclusively or `shared` with runners of other shards.

        Yield whether the storage supports locks.

        Raises JobError if another runner on this machine holds the lock.
        """
        with storage(self.path):
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with storage(self.path / LOCK):
                has_lock = _lock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, GLANCE_SECONDS)
            if has_lock is False:
                raise JobError(
                    f"Another process is working on {self.path}.",
                    "Wait until it has finished, or end it by `hfx batch cancel`.",
                )
            self.clear()
            yield has_lock is not None
        finally:
            close(descriptor)

    @property
    def is_locked(self) -> bool:
        """Whether a runner on this machine holds the lock; false if the storage has no locks. Raises JobError."""
        access = os.O_RDWR if os.access(self.path / LOCK, os.W_OK) else os.O_RDONLY
        try:
            descriptor = os.open(self.path / LOCK, access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            with storage(self.path / LOCK):
                return _lock(descriptor, fcntl.LOCK_EX) is False
        finally:
            close(descriptor)


def _is_event(event: Any) -> bool:
    """Return whether `event` is a valid line of the log, as `log` writes them."""
    if not isinstance(event, dict) or type(event.get("event")) is not str or type(event.get("time")) is not float:
        return False
    chunk = (event.get("number"), event.get("rows"), event.get("errors"))
    return event["event"] != "chunk" or [type(value) for value in chunk] == [int, int, dict]


def _lock(descriptor: int, kind: int, patience: float = 0.0) -> bool | None:
    """Return whether the lock was acquired within `patience` seconds; None if the storage has no locks."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(GLANCE_SECONDS / 10)
        except OSError as error:
            if error.errno in NO_LOCKS:
                return None
            raise
        else:
            return True


def temporary(target: Path) -> Path:
    """Return the temporary path for writing `target`. Its name contains the writer's machine and process id."""
    return target.with_name(f"{TEMPORARY}{_machine()}-{os.getpid()}-{target.name}")


@cache
def _machine() -> str:
    """Return eight hexadecimal digits for this boot and PID namespace, in which process ids are unique.

    If the boot or the namespace can't be read, return random digits.
    """
    try:
        boot, space = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").readlink()
    except OSError:
        return secrets.token_hex(4)
    return hashlib.sha256(f"{platform.node()} {boot} {space}".encode()).hexdigest()[:8]


def _is_abandoned(path: Path) -> bool:
    """Return whether the writer of a temporary file has ended. On another machine: whether the file is a day old.

    The day is measured by the storage's clock, which may differ from this machine's clock.
    """
    writer = WRITER.match(path.name)
    if writer is None or writer[1] != _machine():
        clock = temporary(path.with_name("clock"))
        clock.touch()
        now = clock.stat().st_mtime
        clock.unlink()
        return path.stat().st_mtime < now - DAY
    try:
        os.kill(int(writer[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # the process of another user is alive
    return False


def open_file(path: Path) -> io.BufferedReader:
    """Open a file of a job for reading. Raises OSError for a FIFO or a similar file, which could block for ever."""
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    try:
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # `open` itself reports an error for folders
            raise OSError(errno.EINVAL, "Not a regular file", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class HashedFile(io.BufferedWriter):
    """A new file that is written sequentially. `sha256` is the hash of the content written so far."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"))
        self.sha256 = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        """Write bytes, and add them to the hash."""
        self.sha256.update(data)
        return super().write(data)


@contextmanager
def new_file(target: Path) -> Iterator[HashedFile]:
    """Open a new file that becomes `target` only if the block succeeds: write, fsync, rename, fsync the folder.

    Raises StorageFull, and JobError for other errors of the file system. After an error, `target` is as before, or
    whole if only the fsync of the folder failed.
    """
    written = temporary(target.with_name(f"{target.name}-{secrets.token_hex(4)}"))
    with storage(target):
        try:
            with HashedFile(written) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            written.rename(target)
        except BaseException:
            with suppress(OSError):
                written.unlink(missing_ok=True)
            raise
        flush(target.parent)


@contextmanager
def new_part(target: Path) -> Iterator[HashedFile]:
    """Open a new part as `new_file` does. Its SHA-256 is written beside it before the part appears."""
    with new_file(target) as file:
        yield file
        _write_sum(target, file.sha256.hexdigest())


def take_part(written: Path, target: Path, sha256: str) -> None:
    """Rename the file that another process has written and flushed, so that it becomes the part `target`."""
    _write_sum(target, sha256)
    with storage(target):
        written.rename(target)
        flush(target.parent)


def _write_sum(part: Path, sha256: str) -> None:
    """Write the SHA-256 of a part beside it, in the format of `sha256sum --check`."""
    write_file(_sum_of(part), lambda file: file.write(f"{sha256}  {part.name}\n".encode()))


@contextmanager
def open_part(path: Path) -> Iterator[io.BufferedReader]:
    """Open a part for reading, after a check of its SHA-256. Parts of earlier versions have no SHA-256.

    Raises JobError, and ValueError if the SHA-256 is another.
    """
    with storage(path):
        file = open_file(path)
    with file:
        sums, is_same = _sum_of(path), True
        with storage(sums):
            if exists(sums):
                with open_file(sums) as expected:
                    is_same = hashlib.file_digest(file, "sha256").hexdigest().encode() == expected.read(64)
                file.seek(0)
        if not is_same:
            raise ValueError(f"its SHA-256 is not the one in {sums.name}")
        yield file


def _sum_of(part: Path) -> Path:
    return part.with_name(f".{part.name}.sha256")


def write_file(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write `target` atomically, as `new_file` does. `write` is called with the open file."""
    with new_file(target) as file:
        write(file)


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Raise StorageFull or JobError instead of an OSError about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFull(
                f"No room left to write {path}: {error.strerror}.",
                "What was done is kept: free some space, then `hfx batch resume` of the job's folder.",
            ) from error
        raise JobError(
            f"{path} can't be read or written: {error.strerror or error}.", "Check the path and its permissions."
        ) from error
