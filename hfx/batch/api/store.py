"""The store of files and batches in a folder: their records on the disk and in memory, and the disk space in use."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hfx.batch.folder import PLAN, TEMPORARY, Folder, storage, write_file
from hfx.errors import HfxError, StorageFull
from hfx.front.response import log_line

BLOCK = 4096  # bytes of disk space that a record uses
MOST_RECORDS = 100_000  # a limit, because all records are kept in memory
RECORD = ".json"
VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING = "validating", "in_progress", "finalizing", "cancelling"
COMPLETED, FAILED, EXPIRED, CANCELLED = "completed", "failed", "expired", "cancelled"
UNFINISHED = (VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING)
DATED = (IN_PROGRESS, FINALIZING, COMPLETED, FAILED, EXPIRED, CANCELLING, CANCELLED)  # statuses with a time in the JSON


@dataclass(frozen=True)
class StoredFile:
    """A file, uploaded or written here. `owner` is an API key's label; `order` is the creation time in nanoseconds."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    order: int

    def api_object(self) -> dict[str, Any]:
        """Return the file as an object of OpenAI's API."""
        own = {"id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.order // 10**9}
        return own | {"filename": self.filename, "purpose": self.purpose, "status": "processed"}


@dataclass(frozen=True)
class Batch:
    """A batch of `owner`. `times` maps a status to seconds since 1970; `errors` say why it failed or is waiting.

    `total`, `completed` and `failed` count requests; `order` is the creation time in nanoseconds.
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    expires_at: int
    order: int
    metadata: Mapping[str, str] | None = None
    status: str = VALIDATING
    times: Mapping[str, int] = field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def created_at(self) -> int:
        """The creation time in seconds since 1970."""
        return self.order // 10**9

    @property
    def is_finished(self) -> bool:
        """Whether the status of the batch is final."""
        return self.status not in UNFINISHED

    def api_object(self) -> dict[str, Any]:
        """Return the batch as an object of OpenAI's API."""
        names = ("id", "endpoint", "input_file_id", "completion_window", "status", "output_file_id", "error_file_id")
        counts = {"total": self.total, "completed": self.completed, "failed": self.failed}
        return {
            "object": "batch",
            **{name: getattr(self, name) for name in names},
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{status}_at": self.times.get(status) for status in DATED},
            "request_counts": counts,
            "metadata": self.metadata,
        }


Record = TypeVar("Record", StoredFile, Batch)


class Store:
    """The records in `folder`, whose files may use `limit` bytes of disk. Only one process may open a folder.

    Opening a folder deletes the incomplete files of a killed process. Methods that write raise StorageFull and
    JobError.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._used = 0
        with storage(folder):
            for name in ("files", "batches"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            self.files = _read(StoredFile, (folder / "files").glob(f"*{RECORD}"))
            self.batches = _read(Batch, (folder / "batches").glob(f"*/batch{RECORD}"))
            self._clear()
            self._used = sum(path.stat().st_size + BLOCK for path in folder.rglob("*") if path.is_file())

    def content(self, identity: str) -> Path:
        """Return the path of a file's content."""
        return self._folder / "files" / identity

    def parts(self, batch: Batch) -> Folder:
        """Return the folder of a batch, which contains its plan and its parts."""
        return Folder(self._folder / "batches" / batch.id)

    def reserve(self, size: int) -> None:
        """Add `size` bytes that are about to be written to the disk space in use. A negative size frees disk space.

        Raises StorageFull if the limit would be exceeded.
        """
        if size > 0 and self._used + size > self._limit:
            raise StorageFull(
                f"The files of batches take {self._used} of {self._limit} bytes, and {size} more are needed.",
                "Delete files that are not needed any more, or give `hfx serve` a larger --batch-disk.",
            )
        self._used += size

    def add_file(self, file: StoredFile, size: int = 0) -> None:
        """Write the record of a file whose content is on the disk. `size` bytes of the content are not reserved yet."""
        is_new = file.id not in self.files
        if is_new:
            self._make_room(size)
        try:
            _write(self.content(f"{file.id}{RECORD}"), file)
        except HfxError:
            if is_new:
                with suppress(OSError):  # it may be there, if only the flush of its folder failed
                    self.content(f"{file.id}{RECORD}").unlink(missing_ok=True)
                self.reserve(-size - BLOCK)
            raise
        self.files[file.id] = file

    def delete_file(self, file: StoredFile) -> None:
        """Delete a file. Delete its record first, because content without a record is deleted at the next start."""
        with storage(self.content(file.id)):
            self.content(f"{file.id}{RECORD}").unlink(missing_ok=True)
        with suppress(OSError):
            self.content(file.id).unlink(missing_ok=True)
        del self.files[file.id]
        self.reserve(-file.bytes - BLOCK)

    def add_batch(self, batch: Batch) -> None:
        """Write the record of a new batch."""
        self._make_room(0)
        try:
            with storage(self.parts(batch).path):
                self.parts(batch).parts.mkdir(parents=True)
            self._save(batch)
        except HfxError:
            shutil.rmtree(self.parts(batch).path, ignore_errors=True)
            self.reserve(-BLOCK)
            raise

    def change(self, batch: Batch, status: str = "", **changes: Any) -> Batch:
        """Write the record of `batch` with `changes`, and with the time of a new `status`. Returns the changed batch.

        If the batch is finished after the change, delete its plan and its parts.
        """
        if status:
            times = {**batch.times, **({status: int(time.time())} if status in DATED else {})}
            changes |= {"status": status, "times": times}
        batch = replace(batch, **changes)
        self._save(batch)
        if batch.is_finished:
            self._delete_work(batch)
        return batch

    def change_in_memory(self, batch: Batch, **changes: Any) -> None:
        """Change `batch` in memory only: its counts, which a restart derives from the parts, and temporary errors."""
        self.batches[batch.id] = replace(batch, **changes)

    def _save(self, batch: Batch) -> None:
        _write(self.parts(batch).path / f"batch{RECORD}", batch)
        self.batches[batch.id] = batch

    def _make_room(self, size: int) -> None:
        if len(self.files) + len(self.batches) >= MOST_RECORDS:
            raise StorageFull(f"There are {MOST_RECORDS} files and batches, as many as there may be.", "Delete files.")
        self.reserve(BLOCK + size)

    def _delete_work(self, batch: Batch) -> None:
        """Delete the plan and the parts of a batch."""
        folder = self.parts(batch)
        with suppress(OSError):  # the next start deletes what is left
            self.reserve(-sum(path.stat().st_size for path in folder.parts.glob("[!.]*")))
            shutil.rmtree(folder.parts, ignore_errors=True)
            (folder.path / PLAN).unlink(missing_ok=True)

    def _clear(self) -> None:
        """Delete leftovers of a killed process: temporary files, content without a record, finished batches' parts."""
        for path in [*self._folder.rglob(f"{TEMPORARY}*")]:
            path.unlink(missing_ok=True)
        for path in [*(self._folder / "files").iterdir()]:
            if path.suffix != RECORD and not path.with_name(f"{path.name}{RECORD}").exists():
                path.unlink(missing_ok=True)
        for batch in self.batches.values():
            if batch.is_finished:
                self._delete_work(batch)


def _read(kind: type[Record], paths: Any) -> dict[str, Record]:
    """Return the records in the files at `paths`, by id. Report unreadable files on stderr, and keep them."""
    records = {}
    for path in paths:
        try:
            record = kind(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            log_line(f"{path} is left out, as it can't be read: {error}.")
        else:
            records[record.id] = record
    return records


def _write(path: Path, record: StoredFile | Batch) -> None:
    write_file(path, lambda file: file.write(json.dumps(asdict(record)).encode()))


def no_room(full: StorageFull) -> tuple[str, str]:
    """Return (message, fix) of `full` for callers of the API. If the disk itself is full, the message has no path."""
    is_disk = full.__cause__ is not None
    return ("The server's disk is full.", "Try again later.") if is_disk else (full.message, full.fix)


def sync(file: Any) -> None:
    """Call fsync on `file`. A file that was closed meanwhile is ignored."""
    with suppress(ValueError):
        file.flush()
        os.fsync(file.fileno())
