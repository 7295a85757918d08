"""What one step does: frozen values that the scheduler makes, a runner carries out, and tests read.

A plan is one run of one graph, or a compaction; its failure ends its own requests only. Rows and units are numbers
within the lane of `width`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from .checks import Ids
from .errors import EngineError
from .search import Step

if TYPE_CHECKING:
    from .jobs import Job, Sequence


@dataclass(frozen=True)
class Pick:
    """A sequence that chooses its next tokens from rows `rows` of a run's outputs, one for each row of its search."""

    sequence: Sequence
    rows: Ids


@dataclass(frozen=True)
class Outcome:
    """What came of a Pick. `argmax` is the id that the run left in place as the next input, where there is one row."""

    sequence: Sequence
    result: Step | EngineError
    argmax: int | None = None


@dataclass(frozen=True)
class Prefill:
    """Whole prompts into new rows of the lane of width 1.

    Prompt i is run in row `first + i`; `copies` are (source, target) rows that get the same prompt.
    """

    first: int
    prompts: tuple[Ids, ...]
    copies: tuple[tuple[int, int], ...]
    logits: bool
    jobs: tuple[Job, ...]
    picks: tuple[Pick, ...]


@dataclass(frozen=True)
class Chunk:
    """Part of one long prompt, from position `start`, into the staging row; the last part lands in `rows`."""

    tokens: Ids
    start: int
    rows: Ids
    logits: bool
    jobs: tuple[Job, ...]
    picks: tuple[Pick, ...]


@dataclass(frozen=True)
class Encode:
    """Sources to the encoder; each (width, unit) of `places[i]` gets the cross K/V of source i, and empty rows.

    `in_use` are the units of all lanes that are in use then, as (width, number).
    """

    sources: tuple[Ids, ...]
    places: tuple[tuple[tuple[int, int], ...], ...]
    in_use: tuple[tuple[int, int], ...]
    jobs: tuple[Job, ...]
    picks: tuple[Pick, ...] = ()


@dataclass(frozen=True)
class Decode:
    """One token for each row of units 0 to `units` of a lane.

    First each (source, target) of `follows` is copied, a group for each sequence; then `feeds` are written, as (row,
    token). Other rows are fed with the argmax of their last run. `logits`: whether a pick needs more than the argmax.
    `sequences` are those that have the rows.
    """

    width: int
    units: int
    follows: tuple[tuple[tuple[int, int], ...], ...]
    feeds: tuple[tuple[int, int], ...]
    logits: bool
    jobs: tuple[Job, ...]
    picks: tuple[Pick, ...]
    sequences: tuple[Sequence, ...]


@dataclass(frozen=True)
class Mixed:
    """A step of the rows of lane 1, and prompts or a part of one beside them, in one run.

    Rows of the outputs are those of the step, then those of the prompts.
    """

    decode: Decode
    join: Prefill | Chunk

    @property
    def logits(self) -> bool:
        """Whether a pick needs more than the argmax."""
        return self.decode.logits or self.join.logits

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All that a failure concerns."""
        return *self.decode.jobs, *self.join.jobs

    @property
    def picks(self) -> tuple[Pick, ...]:
        """The step's, then the prompts'."""
        begin = self.decode.units
        moved = (Pick(pick.sequence, tuple(begin + row for row in pick.rows)) for pick in self.join.picks)
        return *self.decode.picks, *moved


@dataclass(frozen=True)
class Compact:
    """Units that move, as (source, target), so that those in use are the first ones of the lane again."""

    width: int
    moves: tuple[tuple[int, int], ...]
    jobs: tuple[Job, ...]
    picks: tuple[Pick, ...] = ()


Plan = Union[Prefill, Chunk, Encode, Decode, Mixed, Compact]
