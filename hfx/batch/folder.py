"""The folder of a job: where its files are, how they are written, and the lock of the runners on this machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hfx.errors import JobCancelled, JobError, StorageFull
from hfx.repository.staging import flush

JOB, PLAN, PARTS, LOG = "job.json", "plan.jsonl", "parts", "log.jsonl"
LOCK, SUMMARY, CANCEL = "lock", "summary.json", "cancelled"
TEMPORARY, SPOOLED = ".writing-", "input."  # how names begin of files that are written, and of the standard input
PART = re.compile(r"([0-9]{6,18})\.[a-z]+")
GLANCE_SECONDS = 0.2  # that `is_locked` of another process may hold the lock


@dataclass(frozen=True)
class Folder:
    """A job's folder."""

    path: Path

    @property
    def parts(self) -> Path:
        """The folder of the parts."""
        return self.path / PARTS

    @property
    def summary(self) -> Path:
        """The summary, which is there when the job is completed."""
        return self.path / SUMMARY

    def part(self, number: int, ending: str) -> Path:
        """The part of chunk `number`, which is there when its rows are on the disk."""
        return self.parts / f"{number:06d}{ending}"

    def done(self) -> set[int]:
        """The numbers of the chunks whose parts are there. Raises JobError."""
        with storage(self.path):
            names = [path.name for path in self.parts.iterdir()] if self.parts.is_dir() else []
        return {int(match[1]) for match in map(PART.fullmatch, names) if match}

    @property
    def is_cancelled(self) -> bool:
        """Whether `hfx batch cancel` has been called, and `resume` has not since."""
        return (self.path / CANCEL).exists()

    def check_cancelled(self) -> None:
        """Raise JobCancelled if the job is to stop."""
        if self.is_cancelled:
            raise JobCancelled(f"{self.path} was cancelled.", f"`hfx batch resume {self.path}` goes on.")

    def cancel(self) -> None:
        """Let all runners, on any machine, stop; those that are started again, too, until `uncancel`."""
        write_file(self.path / CANCEL, lambda file: None)

    def uncancel(self) -> None:
        """Let runners work again."""
        with storage(self.path):
            (self.path / CANCEL).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what interrupted writers left; the caller has the lock."""
        for folder in (self.path, self.parts):
            for leftover in folder.glob(f"{TEMPORARY}*"):
                leftover.unlink(missing_ok=True)

    def log(self, event: dict[str, Any]) -> None:
        """Append a line with the time, for people; a job does not depend on it."""
        line = json.dumps({"time": round(time.time(), 3), **event}) + "\n"
        with suppress(OSError), (self.path / LOG).open("ab") as file:
            file.write(line.encode())

    def events(self) -> Iterator[dict[str, Any]]:
        """What was logged; a line that was cut off by a crash, or can't be read, is left out."""
        with suppress(OSError), (self.path / LOG).open("rb") as file:
            for line in file:
                with suppress(ValueError, RecursionError):
                    event = json.loads(line)
                    if _is_event(event):
                        yield event

    @contextmanager
    def locked(self, shared: bool = False) -> Iterator[None]:
        """Hold the lock: alone, or `shared` with the runners of other shards.

        Raises JobError where another runner on this machine has it.
        """
        with storage(self.path):
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _lock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, GLANCE_SECONDS):
                raise JobError(
                    f"Another process is working on {self.path}.",
                    "Wait until it has finished, or end it by `hfx batch cancel`.",
                )
            if not shared:  # else writers of other shards may be at work
                self.clear()
            yield
        finally:
            os.close(descriptor)

    @property
    def is_locked(self) -> bool:
        """Whether a runner on this machine works on the job."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _lock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)


def _is_event(event: Any) -> bool:
    """Whether a line of the log is one that was written here."""
    if not isinstance(event, dict) or type(event.get("event")) is not str or type(event.get("time")) is not float:
        return False
    chunk = (event.get("number"), event.get("rows"), event.get("errors"))
    return event["event"] != "chunk" or [type(value) for value in chunk] == [int, int, dict]


def _lock(descriptor: int, kind: int, patience: float = 0.0) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(GLANCE_SECONDS / 10)
        else:
            return True


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """A file that becomes `target` as a whole, or not at all: write, fsync, rename, fsync the folder.

    Raises StorageFull, and JobError for other reasons of the file system; `target` is then as it was.
    """
    temporary = target.with_name(f"{TEMPORARY}{target.name}-{os.getpid()}-{secrets.token_hex(4)}")
    with storage(target):
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        flush(target.parent)


def write_file(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """What `write` puts into a file becomes `target`, as `new_file` does it."""
    with new_file(target) as file:
        write(file)


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn what a file system can refuse into typed errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFull(
                f"No room left to write {path}: {error.strerror}.",
                "What was done is kept: free some space, then `hfx batch resume DIR`.",
            ) from error
        raise JobError(
            f"{path} can't be read or written: {error.strerror}.", "Check the path and its permissions."
        ) from error
