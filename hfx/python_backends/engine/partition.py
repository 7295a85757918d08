"""Rows of one beam width, in groups: which sequence has which, those in use being the first, and their next step."""

from __future__ import annotations

from .checks import Ids
from .jobs import Sequence
from .plan import Pairs, Run


class Partition:
    """Groups of `width` rows each, `capacity` of them at most; row = group * width + place.

    `groups[group]` is the sequence that has the group, None in a hole; the last group is never a hole.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.capacity = capacity
        self.groups: list[Sequence | None] = []
        self.holes: set[int] = set()
        self.sequences: dict[Sequence, None] = {}

    def take(self, sequence: Sequence, groups: int) -> None:
        """Give `sequence` so many groups more: holes first, then new ones."""
        for _ in range(groups):
            group = self._free_group()
            self.groups[group] = sequence
            sequence.rows += range(group * self.width, (group + 1) * self.width)
        self.sequences[sequence] = None

    def leave(self, sequence: Sequence) -> None:
        """Free the rows of `sequence`."""
        del self.sequences[sequence]
        for group in {row // self.width for row in sequence.rows}:
            self.groups[group] = None
            self.holes.add(group)
        sequence.rows = []
        self._trim()

    def compact(self) -> tuple[Pairs, tuple[Sequence, ...]]:
        """Fill every hole with the last group; the moves, as (source, target), and who was moved."""
        moves = []
        moved: dict[Sequence, None] = {}
        while self.holes:
            source, target = len(self.groups) - 1, min(self.holes)
            sequence = self.groups.pop()
            assert sequence is not None
            self.holes.remove(target)
            self.groups[target] = sequence
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
        return Run(
            self.width, len(self.groups), tuple(follows), tuple(feeds), tuple(self.sequences), draft=self._draft()
        )

    def _draft(self) -> Ids:
        """A guess at what follows, where there is one row only: rows beside each other fill a run better."""
        if len(self.groups) != 1 or self.width != 1:
            return ()
        (sequence,) = self.sequences
        return sequence.drafter.guess() if sequence.drafter is not None and not sequence.prompt_left else ()

    def _free_group(self) -> int:
        if self.holes:
            group = min(self.holes)
            self.holes.remove(group)
            return group
        assert len(self.groups) < self.capacity, "more groups are taken than were reserved"
        self.groups.append(None)
        return len(self.groups) - 1

    def _trim(self) -> None:
        while self.groups and self.groups[-1] is None:
            self.groups.pop()
            self.holes.remove(len(self.groups))
