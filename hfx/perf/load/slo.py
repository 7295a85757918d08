"""A service level: what a request must keep to count as good."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from hfx.errors import UsageError
from hfx.perf.load.parsing import parse_seconds

NAMES = ("ttft", "tpot", "latency")
PATTERN = re.compile(r"\s*([a-z_]+)\s*<=?\s*(\S.*?)\s*")
FIX = f"Bind {', '.join(NAMES)}, e.g. 'ttft<200ms,tpot<50ms,latency<2s'."


@dataclass(frozen=True)
class Slo:
    """Times (of NAMES) that a good request keeps below so many seconds; `text` is how they were written."""

    text: str
    bounds: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Self:
        """`ttft<200ms,tpot<50ms,latency<2s`, in us, ms or s. Raises UsageError."""
        found: dict[str, float] = {}
        for part in text.split(","):
            match = PATTERN.fullmatch(part)
            if match is None or match[1] not in NAMES:
                raise UsageError(f"The SLO has a part {part.strip()!r} that can't be read.", FIX)
            if match[1] in found:
                raise UsageError(f"The SLO binds {match[1]} twice.", FIX)
            found[match[1]] = parse_seconds(match[2], f"SLO's {match[1]}", unit="")
        return cls(text.replace(" ", ""), found)

    def kept(self, latency: float, ttft: float = math.nan, tpot: float = math.nan) -> bool:
        """Whether a request that succeeded with these seconds kept all bounds; NaN where there is no such time.

        `latency` is from the moment it was to be sent to its end, `ttft` to its first token, `tpot` between its tokens
        on average: a text of one token has none to keep.
        """
        times = {"latency": latency, "ttft": ttft, "tpot": 0.0 if math.isnan(tpot) and not math.isnan(ttft) else tpot}
        return all(times[name] < seconds for name, seconds in self.bounds.items())
