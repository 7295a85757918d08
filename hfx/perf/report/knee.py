"""How throughput grows with callers: Gunther's Universal Scalability Law fitted to measured loads.

    X(N) = alone N / (1 + contention (N - 1) + coherency N (N - 1))

N. Gunther, "Guerrilla Capacity Planning" (2007), chapter 4. Its most is at N = sqrt((1 - contention) / coherency): more
callers than that are answered more slowly and no more often. It must not know where the points come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_LOADS = 4  # three parameters, and one point to tell a fit from a path through all of them
GOOD = 0.95  # R² from which the knee is named without a caution


@dataclass(frozen=True)
class Fit:
    """The law's parameters, and R², the share of the throughputs' variance that it explains."""

    alone: float
    contention: float
    coherency: float
    explained: float

    def at(self, callers: float) -> float:
        """Requests a second of so many callers."""
        loss = 1 + self.contention * (callers - 1) + self.coherency * callers * (callers - 1)
        return self.alone * callers / loss

    @property
    def knee(self) -> float:
        """The callers from which on throughput falls; infinite where nothing makes it fall."""
        if self.contention >= 1:
            return 1.0
        return math.sqrt((1 - self.contention) / self.coherency) if self.coherency > 0 else math.inf

    @property
    def poor(self) -> bool:
        """Whether the law says little about these points."""
        return self.explained < GOOD


def fit(points: Sequence[tuple[float, float]]) -> Fit | None:
    """The law through POINTS (callers, throughput); None with fewer than four different loads, or without a fit."""
    from scipy.optimize import curve_fit

    if len({callers for callers, _ in points}) < LEAST_LOADS or any(
        callers < 1 or rate <= 0 for callers, rate in points
    ):
        return None
    callers = [float(point[0]) for point in points]
    rates = [float(point[1]) for point in points]
    most = max(rates)
    try:  # throughputs as shares of the most: the three parameters are then of one magnitude
        found, _ = curve_fit(
            lambda n, alone, sigma, kappa: alone * n / (1 + sigma * (n - 1) + kappa * n * (n - 1)),
            callers,
            [rate / most for rate in rates],
            p0=(rates[0] / most / callers[0], 0.05, 0.001),
            bounds=([0, 0, 0], [math.inf, 1, 1]),
            maxfev=20_000,
        )
    except RuntimeError:  # it did not converge
        return None
    alone, sigma, kappa = (float(value) for value in found)
    made = Fit(alone * most, sigma, kappa, 0.0)
    return Fit(made.alone, sigma, kappa, _explained(made, callers, rates))


def words(found: Fit, most_callers: float, noun: str = "callers") -> str:
    """What the fit says, and how far it may be believed: MOST_CALLERS were the most that were measured."""
    if found.poor:
        return (
            f"The Universal Scalability Law fits these points poorly (R² {found.explained:.2f}), so no knee is drawn."
        )
    law = f"Universal Scalability Law, R² {found.explained:.3f}: contention {100 * found.contention:.1f} %"
    if found.knee > most_callers:
        return f"No knee up to {most_callers:g} {noun} ({law})."
    return f"More than about {found.knee:.0f} {noun} bring no more throughput ({law}, coherency {found.coherency:.2g})."


def _explained(found: Fit, callers: Sequence[float], rates: Sequence[float]) -> float:
    mean = sum(rates) / len(rates)
    spread = sum((rate - mean) ** 2 for rate in rates)
    missed = sum((rate - found.at(each)) ** 2 for each, rate in zip(callers, rates, strict=True))
    return 1 - missed / spread if spread else 0.0
