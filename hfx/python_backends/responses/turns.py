"""Who is asked next whether their caller has left: everybody in turn, evenly over time.

Asking costs 54 us, and half of that again in Triton's process: a request is asked about only so often, the more there
are the less. Owns the order; knows nothing of what is asked.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

# Seconds from one question about a request to the next: so that there are MOST questions a second, within limits.
SHORTEST, LONGEST = 0.1, 0.2
MOST = 1000
SLICE = 0.01  # seconds between two looks, so that a thread does not wake for each question


class Live(Protocol):
    """Something that is over at some time."""

    @property
    def over(self) -> bool:
        """Whether nobody has to ask any more."""


Each = TypeVar("Each", bound=Live)


class Turns(Generic[Each]):
    """A round of live requests. For one thread, but for `add`."""

    def __init__(self) -> None:
        self._round: deque[Each] = deque()
        self._looked = 0.0
        self._owed = 0.0

    def __len__(self) -> int:
        return len(self._round)

    def add(self, one: Each) -> None:
        """Ask about `one` too, after all others."""
        self._round.append(one)

    def clear(self) -> None:
        """Forget everybody."""
        self._round.clear()

    def due(self, now: float) -> list[Each]:
        """Those whose turn has come since the last look, none twice; those that are over are left out for good."""
        asked: list[Each] = []
        count = len(self._round)
        period = self._period()
        self._owed = min(count, self._owed + count * min(now - self._looked, period) / period)
        self._looked = now
        for _ in range(count):
            if self._owed < 1:
                break
            one = self._round.popleft()
            if one.over:
                continue
            self._owed -= 1
            asked.append(one)
            self._round.append(one)
        return asked

    def wait(self) -> float | None:
        """Seconds until the next look; None while there is nobody to ask about."""
        return max(self._period() / len(self._round), SLICE) if self._round else None

    def _period(self) -> float:
        return min(max(len(self._round) / MOST, SHORTEST), LONGEST)
