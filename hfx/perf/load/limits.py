"""How long a load goes on, and what of it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hfx.errors import UsageError

LONGEST_UNTIL_STABLE = 60.0  # seconds, where nothing else is said


@dataclass(frozen=True)
class Limits:
    """`requests` or `seconds` that count, whichever comes first, after a warm-up of requests or seconds that do not.

    With `stable`, the load goes on until throughput and median latency of three windows in a row lie within so many
    per cent, and these windows count; a window has at least `window` seconds. A request may take `timeout` seconds.
    """

    requests: int | None = None
    seconds: float | None = None
    warmup_requests: int = 0
    warmup_seconds: float = 0.0
    stable: float | None = None
    window: float = 2.0
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.requests is not None and self.requests < 1:
            raise UsageError(f"With {self.requests} requests nothing is measured.", "Give at least 1.")
        for name in ("seconds", "stable", "window", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"The limit {name} is {value!r}.", "Give a positive number.")
        if self.warmup_requests < 0 or not 0 <= self.warmup_seconds < math.inf:
            raise UsageError("A warm-up can't be shorter than none.", "Give a number of requests, or seconds.")

    @property
    def most_seconds(self) -> float | None:
        """How long requests that count are sent at most."""
        unbounded = self.stable is not None and self.seconds is None and self.requests is None
        return LONGEST_UNTIL_STABLE if unbounded else self.seconds

    @property
    def words(self) -> str:
        """The same for a reader."""
        parts = [f"{self.requests} request{'' if self.requests == 1 else 's'}"] if self.requests else []
        parts += [f"{self.most_seconds:g} s"] if self.most_seconds else []
        most = " or ".join(parts)
        if self.stable is None:
            return most
        return f"until stable within {self.stable:g} %" + (f", {most} at most" if most else "")
