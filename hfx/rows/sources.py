"""Input files: finding them in folders, by globs and in object stores, recognizing their format, and opening them."""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast
from urllib.parse import unquote

from hfx.errors import UsageError
from hfx.rows import stores
from hfx.rows.row import RowError

Format = Literal["csv", "tsv", "jsonl", "text", "parquet"]

ENDINGS: Mapping[str, Format] = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text", ".parquet": "parquet",
}  # fmt: skip
GZIP = ".gz"
BUFFER = 2**20  # bytes
WILDCARD = re.compile(r"[*?\[]")
READABLE = ".csv, .tsv, .jsonl, .ndjson or .txt (.gz too), or .parquet"


@dataclass(frozen=True)
class Source:
    """An input file as it was found.

    `name` is its absolute path or its URI, `size` the number of bytes as stored, and `modified` the time of its last
    change in nanoseconds.
    """

    name: str
    format: Format
    size: int
    modified: str
    compressed: bool

    def open(self) -> BinaryIO:
        """Open the uncompressed bytes of the file. Seeking backwards is slow in a compressed file."""
        file = stores.opened(self.name) if stores.is_uri(self.name) else _opened(self.name)
        if not self.compressed:
            return file
        packed = gzip.GzipFile(fileobj=file)
        packed.myfileobj = cast("io.FileIO", file)  # closed with it
        return cast("BinaryIO", io.BufferedReader(packed, BUFFER))


def find_sources(inputs: Sequence[str], format: Format | None = None) -> tuple[Source, ...]:
    """Find the files of `inputs`, which are files, folders, globs and URIs.

    The files are in the order of `inputs`, and sorted within a folder or a glob. In folders and globs, names that begin
    with `.` or `_` are skipped, as are names without a known ending unless `format` is given. A file that is found
    twice within one input, through links, is taken once. Raises RowError or UsageError for an input that has no files,
    or has a file of an earlier input.
    """
    sources: dict[str, Source] = {}
    for text in map(_without_file_scheme, inputs):
        earlier = set(sources)
        within = stores.names_in(text) if stores.is_uri(text) else _names_in(text)
        names = [text] if within is None else [name for name in within if format or format_of(name)]
        if not names:
            raise UsageError(f"{text}: there are no files to read.", f"Give files that end in {READABLE}.")
        for name in names:
            identity = name if stores.is_uri(name) else str(Path(name).resolve())
            if identity in earlier:
                raise UsageError(f"{name}: it is given twice.", "Give each file once.")
            if identity not in sources:
                sources[identity] = source_of(name, format)
    return tuple(sources.values())


def source_of(name: str, format: Format | None = None) -> Source:
    """Return the file `name` as it is now. The ending of the name determines the `format` if none is given.

    Raises RowError.
    """
    uri = stores.is_uri(name)
    size, modified = stores.facts(name) if uri else _facts(name)
    known = format or format_of(name)
    if known is None:
        raise RowError(name, "its format can't be read.", f"Give a file that ends in {READABLE}.")
    compressed = stores.path_of(name).lower().endswith(GZIP)
    return Source(name if uri else str(Path(name).absolute()), known, size, modified, compressed)


def format_of(name: str) -> Format | None:
    """Return the format for the ending of `name`, or None. Parquet has its own compression, so it can't end in .gz."""
    path = stores.path_of(name).lower()
    known = ENDINGS.get(Path(path.removesuffix(GZIP)).suffix)
    return None if known == "parquet" and path.endswith(GZIP) else known


def _without_file_scheme(text: str) -> str:
    scheme, _, path = text.partition("://")
    return unquote(path.removeprefix("localhost")) if scheme.lower() == "file" else text


def _names_in(text: str) -> list[str] | None:
    """Return the sorted files of a folder or of a glob, without hidden files; None if `text` is neither."""
    if (path := Path(text)).is_dir():
        return _walk(path)
    if os.path.lexists(text) or not WILDCARD.search(text):
        return None
    found = sorted(Path(name) for name in glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob wants relative ones
    visible = [path for path in found if not stores.is_hidden(path.name)]
    return [name for path in visible for name in (_walk(path) if path.is_dir() else [str(path)])]


def _walk(folder: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise RowError(str(error.filename), f"it can't be read: {error.strerror}.", "May it be read?") from error

    found = [Path(path, name) for path, _, names in os.walk(folder, onerror=refuse) for name in names]
    return [str(path) for path in sorted(found) if not stores.is_hidden(str(path.relative_to(folder)))]


def _facts(name: str) -> tuple[int, str]:
    try:
        found = Path(name).stat()
    except OSError as error:
        raise _unreadable(name, error) from error
    if not stat.S_ISREG(found.st_mode):  # a pipe would block, and a file is opened more than once
        raise RowError(name, "it can't be read: not a regular file.", "Write the rows to a file first.")
    return found.st_size, str(found.st_mtime_ns)


def _opened(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb", buffering=BUFFER)
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError) -> RowError:
    return RowError(name, f"it can't be read: {error.strerror or error}.", "Give the path of a data file.")
