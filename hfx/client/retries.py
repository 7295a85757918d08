"""The rules by which a client sends failed requests again: after which failures, when, and how often.

Only failures after which a retry is safe are retried: the server could not be reached, or it was busy and did not
accept the request. All requests of a client share one budget of retries, so that an outage does not cause a flood of
requests.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from hfx.errors import ServerBusy, ServerUnreachable, UsageError

Result = TypeVar("Result")
RETRIED = (ServerUnreachable, ServerBusy)
LEAST_BURST = 10  # retries that a client may make before any request has earned them


@dataclass(frozen=True)
class RetryPolicy:
    """The rules for retries of a request that failed with ServerUnreachable or ServerBusy.

    `attempts` is the number of attempts for one request, including the first. Before attempt n+1, the client pauses for
    a random time of up to min(`longest`, `shortest` · 2ⁿ⁻¹) seconds ("full jitter"), never beyond the request's
    timeout. All requests of a client share a balance of retries: each request adds `budget` to it, and each retry takes
    1 from it. With 0.2, an outage causes at most a fifth more requests (after the first 10 retries). A stream is not
    tried again once a piece of it has arrived.
    """

    attempts: int = 3
    budget: float = 0.2
    shortest: float = 0.1
    longest: float = 5.0

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise UsageError(f"{self.attempts} attempts send nothing.", "Give at least 1, which means no retries.")
        if self.budget < 0 or not 0 <= self.shortest <= self.longest:
            raise UsageError(
                "A retry policy with a negative budget or waits that shrink makes no sense.",
                "Give budget >= 0 and 0 <= shortest <= longest.",
            )


def policy_of(retries: RetryPolicy | int) -> RetryPolicy:
    """Return the policy for a client's argument `retries`: a policy, or a number of retries (0: none)."""
    return retries if isinstance(retries, RetryPolicy) else RetryPolicy(attempts=retries + 1)


class Deadline:
    """The time by which a request must be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds until the deadline; at least 0.001, so that a late request fails with a timeout."""
        return max(self._end - time.monotonic(), 0.001)

    def passes_within(self, seconds: float) -> bool:
        """Return whether the deadline passes within this number of seconds."""
        return time.monotonic() + seconds >= self._end


class Retries:
    """A client's retry policy, and what is left of its budget. Threads may share it."""

    def __init__(self, policy: RetryPolicy, sleep: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        self._policy = policy
        self._sleep = sleep
        self._most = float(max(LEAST_BURST, policy.attempts))
        self._tokens = self._most
        self._lock = threading.Lock()

    async def call(self, attempt: Callable[[], Coroutine[Any, Any, Result]], deadline: Deadline) -> Result:
        """Call `attempt` until it succeeds, and return its result. Raises the last attempt's error."""
        with self._lock:
            self._tokens = min(self._most, self._tokens + self._policy.budget)
        for number in count(1):
            try:
                return await attempt()
            except RETRIED:
                longest = min(self._policy.longest, self._policy.shortest * 2.0 ** min(number - 1, 64))
                pause = random.uniform(0, longest)
                if number >= self._policy.attempts or deadline.passes_within(pause) or not self._spend():
                    raise
            await self._sleep(pause)
        raise AssertionError("unreachable")

    def _spend(self) -> bool:
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
