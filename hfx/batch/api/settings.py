"""What the process of the Batch API is started with. Travels as JSON in its arguments."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True)
class ApiSettings:
    """`folder` is DIR, `disk` the bytes that it may take; a file has at most `file` bytes and `lines` lines.

    `line` bounds the bytes of a line, `parallel` the lines that are in progress. `listener` is an inherited descriptor:
    the socket at which the front sends requests; -1: not started yet.
    """

    folder: str
    disk: int
    file: int
    lines: int
    line: int
    parallel: int
    listener: int = -1

    def to_json(self) -> str:
        """The argument of `python -m hfx.batch.api`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings that `to_json` wrote."""
        return cls(**json.loads(text))
