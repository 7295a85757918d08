"""Files that may be replaced while the front runs: the API keys and the TLS certificate."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

State = tuple[tuple[int, int, int], ...] | None


class FileChanges:
    """Detects that the files at `paths` have changed, once they are unchanged between two calls of `settled`.

    A program that writes a file in place may not have finished when the change is first seen.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [Path(path) for path in paths]
        self._known = self._seen = self._look()
        self._problem = ""

    def settled(self) -> bool:
        """Return whether there is a change that was not reported yet, and none since the last call.

        Each change is reported once, unless `failed` is called.
        """
        before, self._seen = self._seen, self._look()
        is_new = self._seen is not None and self._seen == before != self._known
        if is_new:
            self._problem = self._problem if self._known is None else ""
            self._known = self._seen
        return is_new

    def failed(self, message: str) -> str:
        """Let the change be reported again, as it could not be taken over, perhaps only because of the system.

        Return `message`, or an empty string if it was the last one, too.
        """
        self._known = None
        is_new, self._problem = message != self._problem, message
        return message if is_new else ""

    def _look(self) -> State:
        """Return the inode, size and modification time of each file, or None while a file does not exist."""
        try:
            found = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def open_regular(path: str | Path) -> BinaryIO:
    """Open an operator's file for reading without blocking. Raises OSError, also for a pipe or a folder."""
    file = open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))  # noqa: SIM115
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
    except BaseException:
        file.close()
        raise
    return file
