"""How a budget of seconds is spent: the length of a measurement, the time for the proof, and until when trials begin.

Owns these proportions. It must not know what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from hfx.perf.results import Run

RUNGS, FACTOR = 3, 3  # a measurement is FACTOR times as long as that before it; of so many trials one gets it
SHORTEST, LEAST, LONGEST = 0.5, 1.0, 10.0  # seconds of the shortest measurement, and bounds of the longest
SLOW_LONGEST = 30.0  # of requests that take seconds
STOP = 1.5  # seconds that a server takes to end: it looks once a second
REQUESTS = 20  # that the shortest measurement has to hold
PROOF_SHARE, TRIAL_SHARE = 0.25, 0.05  # of the budget, for the proof's measurements and those of one whole trial


@dataclass(frozen=True)
class Pace:
    """`seconds` of the longest measurement of each of `loads`, and `rounds` of a proof.

    `overhead` is what a server's start and end take, `margin` what goes on around a measurement: its warm-up, the last
    answers, the server's figures.
    """

    seconds: float
    loads: int
    rounds: int
    overhead: float
    margin: float

    @property
    def rungs(self) -> tuple[float, ...]:
        """The lengths of a trial's measurements in turn."""
        return tuple(max(SHORTEST, self.seconds / FACTOR ** (RUNGS - 1 - n)) for n in range(RUNGS))

    @property
    def proof(self) -> float:
        """Seconds that the proof takes: of two sides, with the best load of each."""
        turns = 2 * self.rounds * min(self.loads, 2)
        return 2 * self.overhead + turns * (self.seconds + self.margin)

    @property
    def trial(self) -> float:
        """Seconds of a trial in full length."""
        return self.overhead + self.loads * sum(length + self.margin for length in self.rungs)

    @property
    def least(self) -> float:
        """The smallest budget in seconds: a first look, two trials, and the proof."""
        return self.overhead + self.loads * LEAST + 2 * self.trial + self.proof

    def measurement(self, rung: int) -> float:
        """Seconds of one of a trial's measurements."""
        return self.loads * (self.rungs[rung] + self.margin)


@dataclass(frozen=True)
class Clock:
    """A pace, and when (time.monotonic) the last trial has to be over."""

    pace: Pace
    until: float

    def allows(self, rung: int) -> bool:
        """Whether there is time for one more measurement on a server that runs."""
        return time.monotonic() + self.pace.measurement(rung) <= self.until

    def allows_trial(self, overhead: float) -> bool:
        """Whether there is time for one more trial, where the slowest took OVERHEAD; the proof will be as slow."""
        late = max(0.0, overhead - self.pace.overhead)
        return time.monotonic() + overhead + self.pace.measurement(0) <= self.until - 2 * late


def pace(runs: Sequence[Run], overhead: float, margin: float, budget: float, rounds: int) -> Pace:
    """The pace for a BUDGET in seconds, where LEAST seconds of each load gave RUNS.

    Slow requests lengthen the measurements as far as the budget goes. Its `least` may exceed the budget.
    """
    loads = len(runs)
    whole = sum(FACTOR**-n for n in range(RUNGS))
    affordable = min(PROOF_SHARE * budget / (2 * rounds * min(loads, 2)), TRIAL_SHARE * budget / (loads * whole))
    slowest = min(run.throughput for run in runs)
    wanted = max(min(LONGEST, affordable), min(FACTOR ** (RUNGS - 1) * REQUESTS / slowest, SLOW_LONGEST))
    lengths = (*takewhile(lambda seconds: seconds > LEAST, (wanted * 0.9**n for n in count())), LEAST)
    paces = [Pace(seconds, loads, rounds, overhead, margin) for seconds in lengths]
    return next((found for found in paces if found.least <= budget), paces[-1])
