"""A server's log, kept within a bound: Triton 2.51 without descriptors writes 16 to 50 MB a second."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

FILE_BYTES = 16 << 20
OLDER_FILES = 2  # beside the one that is written
CHECK_SECONDS = 0.2


class LogRotation:
    """Moves the contents of the file `path`, to which a server appends, to `path`.1 and so on, until `stop()`.

    The file itself stays: the server and its stubs hold it open. What they write while it is copied and emptied, some
    milliseconds in 16 MB, is lost.
    """

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-rotation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Rotate no more; the older files are removed."""
        self._stopped.set()
        self._thread.join()
        for older in self._older():
            older.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            if self._path.exists() and self._path.stat().st_size > self._file_bytes:
                self._rotate()

    def _rotate(self) -> None:
        newest, *_ = older = self._older()
        for target, source in zip(reversed(older), reversed(older[:-1]), strict=False):
            if source.exists():
                source.replace(target)
        shutil.copyfile(self._path, newest)
        os.truncate(self._path, 0)

    def _older(self) -> list[Path]:
        return [self._path.with_name(f"{self._path.name}.{number}") for number in range(1, OLDER_FILES + 1)]
