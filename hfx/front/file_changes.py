"""Files that may be replaced while the front runs: API keys, and the certificate of TLS."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

State = tuple[tuple[int, int, int], ...] | None


class FileChanges:
    """Whether the files at `paths` are others than before, once they have not changed between two looks.

    A program that writes a file in place has not yet written all of it when it is seen for the first time.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [Path(path) for path in paths]
        self._known = self._seen = self._look()

    def settled(self) -> bool:
        """Whether there is a change that was there at the last look, too; True once for each."""
        before, self._seen = self._seen, self._look()
        is_new = self._seen is not None and self._seen == before != self._known
        if is_new:
            self._known = self._seen
        return is_new

    def _look(self) -> State:
        """Inode, size and time of each file; None while one is not there."""
        try:
            found = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file of the operator's for reading, without blocking. Raises OSError, also for a pipe or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file
