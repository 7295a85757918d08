"""The units of one lane: which sequence has which, numbered so that those in use are the first, and their next step."""

from __future__ import annotations

from .jobs import Sequence
from .plan import Pairs, Run


class Lane:
    """Units of `width` rows each, `capacity` of them at most; row = unit * width + place.

    `seats[unit]` is the sequence that has the unit, None in a hole; the last seat is never a hole.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.capacity = capacity
        self.seats: list[Sequence | None] = []
        self.holes: set[int] = set()
        self.sequences: dict[Sequence, None] = {}

    def take(self, sequence: Sequence, units: int) -> None:
        """Give `sequence` so many units more: holes first, then new ones."""
        for _ in range(units):
            unit = self._free_unit()
            self.seats[unit] = sequence
            sequence.rows += range(unit * self.width, (unit + 1) * self.width)
        self.sequences[sequence] = None

    def leave(self, sequence: Sequence) -> None:
        """Free the rows of `sequence`."""
        del self.sequences[sequence]
        for unit in {row // self.width for row in sequence.rows}:
            self.seats[unit] = None
            self.holes.add(unit)
        sequence.rows = []
        self._trim()

    def compact(self) -> tuple[Pairs, tuple[Sequence, ...]]:
        """Fill every hole with the last unit; the moves, as (source, target), and who was moved."""
        moves = []
        moved: dict[Sequence, None] = {}
        while self.holes:
            source, target = len(self.seats) - 1, min(self.holes)
            sequence = self.seats.pop()
            assert sequence is not None
            self.holes.remove(target)
            self.seats[target] = sequence
            shift = (target - source) * self.width
            sequence.rows = [row + shift if row // self.width == source else row for row in sequence.rows]
            moves.append((source, target))
            moved[sequence] = None
            self._trim()
        return tuple(moves), tuple(moved)

    def step(self) -> Run:
        """The next token of all rows, where there are no holes."""
        follows: list[Pairs] = []
        feeds: list[tuple[int, int]] = []
        for sequence in self.sequences:
            rows = sequence.rows
            if sequence.copies:
                follows.append(tuple((rows[source], rows[target]) for source, target in sequence.copies))
            if sequence.feed:
                feeds += zip(rows, sequence.feed, strict=True)
        return Run(self.width, len(self.seats), tuple(follows), tuple(feeds), tuple(self.sequences))

    def _free_unit(self) -> int:
        if self.holes:
            unit = min(self.holes)
            self.holes.remove(unit)
            return unit
        assert len(self.seats) < self.capacity, "more units are taken than were reserved"
        self.seats.append(None)
        return len(self.seats) - 1

    def _trim(self) -> None:
        while self.seats and self.seats[-1] is None:
            self.seats.pop()
            self.holes.remove(len(self.seats))
