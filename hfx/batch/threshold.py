"""How many rows of a job may be errors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hfx.errors import UsageError

ANY = -1


@dataclass(frozen=True)
class Threshold:
    """At most `limit` error rows (ANY: as many as there are), or as many per cent of all rows."""

    limit: float
    percent: bool = False

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """`N`, `P%` or `-1`. Raises UsageError."""
        if text == str(ANY):
            return cls(ANY)
        match = re.fullmatch(r"([0-9]{1,15})|([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
        if match is None or (match[2] and float(match[2]) > 100):
            fix = "Give a number of rows, a share such as 0.5%, or -1 for any."
            raise UsageError(f"{text!r} is no error threshold.", fix)
        return cls(int(match[1])) if match[1] else cls(float(match[2]), percent=True)

    def is_exceeded(self, errors: int, rows: int) -> bool:
        """Whether so many errors among all the rows of the job are too many."""
        if self.limit == ANY:
            return False
        return errors > (rows * self.limit / 100 if self.percent else self.limit)

    def __str__(self) -> str:
        return f"{self.limit:g}%" if self.percent else f"{self.limit:g}"
