"""The settings of the process of the Batch API, which are its argument as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True)
class ApiSettings:
    """Limits in bytes: `disk` of the whole `folder`, `file` of an uploaded file, `line` of one line.

    `lines` is the largest number of requests in a file, `parallel` that of lines in progress. `listener` is the
    inherited descriptor of the socket that the process listens on; -1: not started yet.
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
