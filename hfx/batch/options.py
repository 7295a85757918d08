"""The options of a run. Runs of one job may have different options, because answers do not depend on the options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hfx.batch.job import record_of
from hfx.batch.models import Place, Repository, Servers
from hfx.batch.servers import Persistence
from hfx.errors import UsageError

CONCURRENCY = 64  # requests in flight at each server
ANY = -1  # no limit


@dataclass(frozen=True)
class Threshold:
    """The largest number of error rows, or with `percent` their largest percentage of all rows. ANY means no limit."""

    limit: float
    percent: bool = False

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Return the threshold in `N`, `P%` or `-1`. Raises UsageError."""
        if text == str(ANY):
            return cls(ANY)
        match = re.fullmatch(r"([0-9]{1,15})|([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
        if match is None or (match[2] and float(match[2]) > 100):
            fix = "Give a number of rows, a share such as 0.5%, or -1 for any."
            raise UsageError(f"{text!r} is not an error threshold.", fix)
        return cls(int(match[1])) if match[1] else cls(float(match[2]), percent=True)

    def is_exceeded(self, errors: int, rows: int) -> bool:
        """Return whether `errors` error rows are too many for a job of `rows` rows."""
        if self.limit == ANY:
            return False
        return errors > (rows * self.limit / 100 if self.percent else self.limit)

    def __str__(self) -> str:
        return f"{self.limit:g}%" if self.percent else f"{self.limit:g}"


@dataclass(frozen=True)
class RunOptions:
    """The location of the model, and how a run works. Fields are plain values, because they are written to job.json.

    `client` has options of the connection. They may be secrets, and are therefore not written to job.json.
    """

    repository: str = ""
    urls: tuple[str, ...] = ()
    device: Literal["cpu", "gpu"] = "cpu"
    workers: int = 1
    max_concurrency: int | None = None
    retries: int = 3
    patience: float = 300.0
    row_timeout: float | None = None
    error_threshold: str = "-1"
    mixed_processors: bool = False
    client: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RunOptions:
        """Return the options in an object that `as_json` returned. Raises UsageError if the object is damaged."""
        try:
            return record_of(cls, {"client": {}, **values})
        except ValueError as error:
            raise UsageError(
                f"The options of the job's first run can't be read: {error}.", "Start a new job."
            ) from error

    @property
    def in_process(self) -> bool:
        """Whether the model runs in the workers, and not behind servers."""
        return not self.urls

    @property
    def threshold(self) -> Threshold:
        """The error threshold. Raises UsageError."""
        return Threshold.parse(self.error_threshold)

    @property
    def persistence(self) -> Persistence:
        """How long failed requests are retried."""
        return Persistence(self.patience, self.retries, self.row_timeout)

    def place(self, threads: int | None = None) -> Place:
        """Return the location of the model. A model in this process uses `threads` threads."""
        if self.urls:
            return Servers(self.urls, self.max_concurrency or CONCURRENCY, dict(self.client))
        return Repository(Path(self.repository), self.device, threads)

    def as_json(self) -> dict[str, Any]:
        """Return the options as they are written to job.json."""
        return {name: value for name, value in asdict(self).items() if name != "client"}
