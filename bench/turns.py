"""Several ways measured in turn, round by round, so that what the machine does meanwhile hits all of them.

Owns the order of the turns and what becomes of a way that fails. It must not know what a way measures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hfx.errors import HfxError
from hfx.perf.results import Run


@dataclass(frozen=True)
class Way:
    """One side of a comparison. `measure` takes the number of the round, from 0, and gives one Run of it."""

    label: str
    measure: Callable[[int], Run]


def interleave(
    ways: Sequence[Way], rounds: int, notes: list[str] | None = None, stop: threading.Event | None = None
) -> Iterator[Run]:
    """The runs of ROUNDS rounds as they come: A B C, then B C A, then C A B, so that nobody always goes first.

    A way that fails is left out from there on, and one line of NOTES says why; the rounds that it finished stay. The
    turns end where STOP is set; the run in which that happens is still given.
    """
    said = notes if notes is not None else []
    left = list(ways)
    for number in range(rounds):
        for way in rotated(left, number):
            if stop is not None and stop.is_set():
                return
            try:
                yield way.measure(number)
            except HfxError as error:
                left.remove(way)
                said.append(f"{way.label} {_until(number)}: {one_line(error)}")


def rotated(ways: Sequence[Way], number: int) -> list[Way]:
    """WAYS in the order of a round: each begins as often as the others."""
    start = number % len(ways) if ways else 0
    return [*ways[start:], *ways[:start]]


def one_line(error: HfxError) -> str:
    """The error's message in one line, for a note."""
    return " ".join(error.message.split())


def _until(number: int) -> str:
    if number == 0:
        return "was not measured"
    return f"was measured in {number} round{'s' if number > 1 else ''} only"
