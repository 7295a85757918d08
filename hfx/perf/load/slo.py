"""A service level: what a request must keep to count as good."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from hfx.errors import UsageError
from hfx.perf.load.parsing import parse_seconds

NAMES = ("ttft", "tpot", "latency")
OF_STREAMS = frozenset({"ttft", "tpot"})
PATTERN = re.compile(r"\s*([a-z_]+)\s*<=?\s*(\S.*?)\s*")
FIX = f"Bind {', '.join(NAMES)}, e.g. 'ttft<200ms,tpot<50ms,latency<2s'."


@dataclass(frozen=True)
class Bound:
    """A time (one of NAMES) that must stay below so many seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Slo:
    """All bounds hold for a good request; `text` is how they were written."""

    text: str
    bounds: tuple[Bound, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """`ttft<200ms,tpot<50ms,latency<2s`, in us, ms or s. Raises UsageError."""
        found: dict[str, Bound] = {}
        for part in text.split(","):
            match = PATTERN.fullmatch(part)
            if match is None or match[1] not in NAMES:
                raise UsageError(f"The SLO has a part {part.strip()!r} that can't be read.", FIX)
            if match[1] in found:
                raise UsageError(f"The SLO binds {match[1]} twice.", FIX)
            found[match[1]] = Bound(match[1], parse_seconds(match[2], f"SLO's {match[1]}", unit=""))
        return cls(text.replace(" ", ""), tuple(found.values()))

    @property
    def needs_stream(self) -> bool:
        """Whether a bound is on the times of tokens, which only a stream shows."""
        return any(bound.name in OF_STREAMS for bound in self.bounds)

    def check(self, stream: bool) -> None:
        """Raise UsageError for a bound on tokens' times where answers come whole."""
        if self.needs_stream and not stream:
            raise UsageError(
                f"The SLO {self.text!r} binds times of tokens, but answers come whole here.",
                "Ask a generator with streaming, or bind latency alone.",
            )

    def kept(self, latency: float, ttft: float = math.nan, tpot: float = math.nan) -> bool:
        """Whether a request that succeeded with these seconds kept all bounds; NaN where there is no such time.

        `latency` is from the moment it was to be sent to its end, `ttft` to its first token, `tpot` between its tokens
        on average: a text of one token has none to keep.
        """
        times = {"latency": latency, "ttft": ttft, "tpot": 0.0 if math.isnan(tpot) and not math.isnan(ttft) else tpot}
        return all(times[bound.name] < bound.seconds for bound in self.bounds)
