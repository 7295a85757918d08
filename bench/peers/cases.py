"""What every peer is asked and what it answers: the same texts, the same number of new tokens, the same search.

Knows no library. Answers carry what two ways must have in common before their times are compared.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """Texts that are answered together: continued or summarized by exactly `new_tokens` each, or classified (None).

    The end token is forbidden before the last, so that nobody ends early.
    """

    texts: tuple[str, ...]
    new_tokens: int | None = None
    beams: int = 1
    no_repeat_ngram: int = 0

    @property
    def wanted(self) -> Wanted:
        """What a generator is asked for."""
        if self.new_tokens is None:
            raise ValueError("a generator needs new_tokens")
        return Wanted(self.new_tokens, self.beams, self.no_repeat_ngram)


@dataclass(frozen=True)
class Wanted:
    """Exactly `new` tokens for each row, greedy or with `beams`."""

    new: int
    beams: int = 1
    ngram: int = 0


@dataclass(frozen=True)
class Answered:
    """What came back: tokens read in all, tokens written by each row, and their texts; or the label of each row."""

    read: int = 0
    written: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class PeerRun:
    """A batch that was answered, once or again and again.

    `times` are seconds of each call, `answered` what the last one gave, `processor` seconds of all threads a call,
    `memory` the most bytes held so far.
    """

    times: tuple[float, ...]
    answered: Answered
    processor: float | None = None
    memory: int | None = None

    @property
    def seconds(self) -> float:
        """A call's: the median."""
        return statistics.median(self.times)

    @property
    def written(self) -> tuple[int, ...]:
        """New tokens of each row."""
        return self.answered.written

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each row."""
        return self.answered.labels
