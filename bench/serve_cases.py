"""What a served generator is asked for: requests of mixed lengths for callers who wait, and the seed load.

The same for every way: texts, lengths and times follow from these values alone. Knows no server.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

SEED = 0
# A word is two or three tokens to the zoo's tokenizer: prompts of about 10 to 250 tokens.
FEWEST_WORDS, MOST_WORDS = 4, 100
SHORTEST, LONGEST = 16, 64  # tokens of an answer
WORDS = (
    "the", "garden", "of", "a", "friend", "was", "lovely", "and", "old", "house", "is", "quiet", "Anna", "went",
    "to", "market", "with", "her", "dog", "when", "it", "rained", "they", "found", "bread", "near", "river",
)  # fmt: skip
SEED_TEXT, SEED_TOKENS, SEED_RATE, SEED_SECONDS, SEED_BURST = "This is a generation for the work", 50, 50.0, 3.0, 512


@dataclass(frozen=True)
class Ask:
    """One request: greedy, `new` tokens at most."""

    text: str
    new: int


@dataclass(frozen=True)
class Closed:
    """Callers who each send the next of `asks` as soon as they have the answer to their last."""

    asks: tuple[Ask, ...]
    callers: int


@dataclass(frozen=True)
class Open:
    """Requests that are sent at fixed times (seconds from the start, in order), whether others are answered or not."""

    asks: tuple[Ask, ...]
    at: tuple[float, ...]

    @property
    def callers(self) -> int:
        """Requests that may be under way at the same time."""
        return len(self.asks)


Load = Closed | Open


def mixed(count: int) -> tuple[Ask, ...]:
    """`count` requests, lengths of prompts log-uniform, those of answers uniform."""
    chance = random.Random(SEED)
    found = []
    for _ in range(count):
        words = round(math.exp(chance.uniform(math.log(FEWEST_WORDS), math.log(MOST_WORDS))))
        found.append(Ask(" ".join(chance.choices(WORDS, k=words)), chance.randint(SHORTEST, LONGEST)))
    return tuple(found)


def alike(count: int, new: int = SEED_TOKENS) -> tuple[Ask, ...]:
    """The seed load's request, so many times."""
    return (Ask(SEED_TEXT, new),) * count


def seed_load(rate: float, seconds: float) -> Open:
    """The seed load's requests, evenly spaced."""
    count = round(rate * seconds)
    return Open(alike(count), tuple(number / rate for number in range(count)))


def at_once(asks: Sequence[Ask]) -> Open:
    """All of them in the same moment."""
    return Open(tuple(asks), (0.0,) * len(asks))
