"""The settings of the Batch API's process, which are passed to it as a JSON argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ApiSettings:
    """The limits and the socket of the process. `disk`, `file` and `line` are limits in bytes.

    `disk` is for the whole `folder`, `file` for an uploaded file, and `line` for one line. `lines` is the largest
    number of requests in a file, and `parallel` the largest number of lines in progress. `listener` is the inherited
    descriptor of the socket on which the process listens, or -1 if it has not been started yet. `front` is the path of
    the socket to which it sends the lines.
    """

    folder: str
    disk: int
    file: int
    lines: int
    line: int
    parallel: int
    listener: int = -1
    front: str = ""
