"""How long synthetic texts are: fixed, uniform, or log-normal as real prompts are."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from hfx.errors import UsageError

LONGEST = 1_000_000
FIX = "Give fixed:N, uniform:A-B or lognormal:MEDIAN,SIGMA[,MAX]."


@dataclass(frozen=True)
class Fixed:
    """All of the same length."""

    length: int

    def draw(self, chance: random.Random) -> int:
        """A length."""
        return self.length

    @property
    def words(self) -> str:
        """The same as a reader reads it."""
        return f"{self.length}"


@dataclass(frozen=True)
class Uniform:
    """Any length from `least` to `most` with the same chance."""

    least: int
    most: int

    def draw(self, chance: random.Random) -> int:
        """A length."""
        return chance.randint(self.least, self.most)

    @property
    def words(self) -> str:
        """The same as a reader reads it."""
        return f"{self.least} to {self.most}"


@dataclass(frozen=True)
class LogNormal:
    """Half below `median`; `sigma` of the logarithm; never above `most`."""

    median: float
    sigma: float
    most: int = LONGEST

    def draw(self, chance: random.Random) -> int:
        """A length."""
        drawn = chance.lognormvariate(math.log(self.median), self.sigma)
        return max(1, min(self.most, round(min(drawn, LONGEST))))

    @property
    def words(self) -> str:
        """The same as a reader reads it."""
        bound = f", at most {self.most}" if self.most < LONGEST else ""
        return f"log-normal with median {self.median:g} and sigma {self.sigma:g}{bound}"


Lengths = Fixed | Uniform | LogNormal


def parse_lengths(text: str) -> Lengths:
    """The lengths that TEXT says; raises UsageError."""
    kind, _, numbers = text.strip().partition(":")
    try:
        return _parsed(kind, numbers)
    except ValueError:
        raise UsageError(f"The lengths {text!r} can't be read.", FIX) from None


def _parsed(kind: str, numbers: str) -> Lengths:
    if kind == "fixed":
        return Fixed(_length(numbers))
    if kind == "uniform":
        least, most = map(_length, numbers.split("-"))
        if least > most:
            raise ValueError(numbers)
        return Uniform(least, most)
    if kind == "lognormal":
        middle, sigma, *bound = numbers.split(",")
        found = LogNormal(float(middle), float(sigma), *map(_length, bound))
        if not (1 <= found.median <= found.most and 0 < found.sigma <= 5):
            raise ValueError(numbers)
        return found
    raise ValueError(kind)


def _length(text: str) -> int:
    length = int(text)
    if not 1 <= length <= LONGEST:
        raise ValueError(text)
    return length
