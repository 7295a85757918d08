"""Files in object stores, given by URIs: s3://, gs://, abfs:// and the other schemes of pyarrow.fs."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import quote, urlsplit

from hfx.errors import UsageError
from hfx.extras import install_command
from hfx.rows.row import RowError

BUFFER = 2**23  # bytes that are read with one request
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
WILDCARD = re.compile(r"[*\[]")  # `?` begins the options of a URI


def is_uri(name: str) -> bool:
    """Return whether `name` has a scheme, such as s3."""
    return SCHEME.match(name) is not None


def path_of(name: str) -> str:
    """Return `name` without the options of a URI."""
    return name.partition("?")[0] if is_uri(name) else name


def is_hidden(path: str) -> bool:
    """Return whether a part of a relative path begins with `.` or `_`, such as _SUCCESS and _temporary."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


def names_in(uri: str) -> list[str] | None:
    """Return the sorted files of a folder or of a glob, without hidden files; None if `uri` is neither.

    In a glob, `*` and `[...]` match characters of one part of the path; `?` begins the options of a URI.
    """
    path, options = path_of(uri), uri[len(path_of(uri)) :]
    wild = WILDCARD.search(path)
    folder = path[: path.rindex("/", 0, wild.start()) + 1] if wild else f"{path.rstrip('/')}/"
    pattern = path[len(folder) :].split("/") if wild else None
    if folder.endswith("://"):
        raise UsageError(f"{uri}: it is a glob for buckets.", "Give a URI for each bucket.")
    with _readable(uri):
        fs = _pyarrow_fs(uri)
        filesystem, root = _filesystem(folder + options)
        root = root.rstrip("/") or "/"
        if filesystem.get_file_info(root).type != fs.FileType.Directory:
            return [] if wild else None
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=pattern is None or len(pattern) > 1))
    paths = [info.path[len(root) :].strip("/") for info in found if info.is_file]
    matching = [path for path in paths if not is_hidden(path) and (pattern is None or _matches(path, pattern))]
    return [f"{folder}{quote(path)}{options}" for path in sorted(matching, key=PurePosixPath)]


def facts(uri: str) -> tuple[int, str]:
    """Return the size of a file in bytes, and the time of its last change in nanoseconds.

    Raises RowError if there is no such file.
    """
    with _readable(uri):
        filesystem, path = _filesystem(uri)
        info = filesystem.get_file_info(path)
    if not info.is_file:
        raise RowError(uri, "there is no such file.", "Give the URI of a data file, a folder, or a glob.")
    return info.size, str(info.mtime_ns)


def opened(uri: str) -> BinaryIO:
    """Open a file. Raises RowError if it can't be opened."""
    with _readable(uri):
        filesystem, path = _filesystem(uri)
        return cast("BinaryIO", io.BufferedReader(filesystem.open_input_file(path), BUFFER))


def _filesystem(uri: str) -> tuple[Any, str]:
    if urlsplit(uri).password is not None:  # it would be written into the folder of the job
        raise UsageError("A URI with a password is not taken.", "Give the credentials by the store's own variables.")
    try:
        return cast("tuple[Any, str]", _pyarrow_fs(uri).FileSystem.from_uri(uri))
    except ValueError as error:  # ArrowInvalid
        raise UsageError(f"{str(error).rstrip('.')}.", "Write spaces and the like as %20.") from None


def _pyarrow_fs(uri: str) -> Any:
    try:
        import pyarrow.fs
    except ImportError as error:
        raise UsageError(f"{uri}: object stores need pyarrow.", f"Run: {install_command('batch')}") from error
    return pyarrow.fs


def _matches(path: str, pattern: Sequence[str]) -> bool:
    parts = path.split("/")
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


@contextmanager
def _readable(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RowError(uri, f"it can't be read: {reason}.", "Is its store reachable, and may it be read?") from error
