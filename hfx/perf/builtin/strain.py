"""How hard the generator itself had to work: its processor time, and how late its event loop was.

Owns the judgement that a figure is the client's fault. It must not know what is sent.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

TICK_SECONDS = 0.02
BUSY_CORES = 0.9
LATE_SECONDS = 0.005  # what may be late on any machine
IDLE_CORES = 0.5
MOST_STRETCH = 1.1
LATE_SHARE = 0.2  # of the latency: what is less hardly moves the figures


@dataclass(frozen=True)
class Strain:
    """While requests counted: cores kept busy, how late the loop was at its ticks (seconds)."""

    cores: float
    lags: array[float]


class Gauge:
    """Measures from `start` to `stop`."""

    def __init__(self) -> None:
        self._lags = array("d")
        self._began = (time.perf_counter(), time.process_time())
        self._ended: tuple[float, float] | None = None

    def start(self) -> None:
        """Forget what was before."""
        self._began = (time.perf_counter(), time.process_time())
        del self._lags[:]

    def stop(self) -> None:
        """The end."""
        self._ended = (time.perf_counter(), time.process_time())

    async def watch(self) -> None:
        """Tick until cancelled."""
        while True:
            due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            if self._ended is None:
                self._lags.append(max(0.0, time.perf_counter() - due))

    def found(self) -> Strain:
        """What was measured."""
        wall, used = self._ended or (time.perf_counter(), time.process_time())
        seconds = wall - self._began[0]
        return Strain((used - self._began[1]) / seconds if seconds > 0 else 0.0, self._lags)


def saturation(cores: float, lag: float | None, late: float | None, latency: float | None, stretch: float = 1.0) -> str:
    """Why the client was at its limit, in words; "" where it was not.

    LAG, LATE and LATENCY are 99th percentiles in seconds: of the loop's lag, of sends after their time, of requests.
    STRETCH is how many times longer the sending took than it was to.
    """
    tolerable = max(LATE_SECONDS, LATE_SHARE * (latency or 0.0))
    if cores >= BUSY_CORES:
        return f"the load generator kept {cores:.2f} of a core busy, which is all that it can"
    why = ", as other processes had the cores" if cores < IDLE_CORES else ""
    if stretch > MOST_STRETCH and late is not None and late > LATE_SECONDS:
        return f"requests were sent at {1 / stretch:.0%} of the rate{why}"
    if late is not None and late > tolerable:
        return f"requests were sent up to {late * 1e3:.1f} ms (p99) after their time{why}"
    if lag is not None and lag > tolerable:
        return f"the load generator's event loop was late by {lag * 1e3:.1f} ms (p99){why}"
    return ""


def percentile(values: Sequence[float], share: float) -> float | None:
    """The least value that SHARE of them keep within; None of none."""
    if not len(values):
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
