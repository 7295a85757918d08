"""What one step does: frozen values that the scheduler makes, a runner carries out, and tests read.

A plan is one run of one graph, or a compaction; its failure ends its own requests only. Rows and groups are numbers
within the partition of `width`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from ..checks import Ids
from .jobs import Job, Pairs, Sequence

Picks = Mapping[Sequence, Ids]

# ONNX Runtime's attention takes queries in blocks of a multiple of so many, and a last block of one query goes to
# another kernel, which rounds differently: the last token would have other bits than in a longer row or part.
QUERIES = 16


@dataclass(frozen=True)
class Limits:
    """What a run of a runner takes, in tokens, so that sequences that are being decoded wait for a bounded time.

    A prompt longer than `chunk` is run in parts of this length. `prefill` and `encode` bound the padded tokens of a
    batch of prompts or sources; a single one may be longer.
    """

    chunk: int = 256
    prefill: int = 256
    encode: int = 512


def part_start(start: int, end: int) -> int:
    """Where to begin to run a prompt's part from `start` to `end`: a token earlier where one query was left over."""
    return start - 1 if start and (end - start) % QUERIES == 1 else start


@dataclass(frozen=True)
class Span:
    """Tokens of a prompt, from position `start` on. `rows` get the prompt when these are the last of it.

    A whole prompt is run in the first of its rows, a part of a longer one in a row beside those of the partition.
    `loads` are blocks of the prefix cache that hold the prompt's beginning: where the tokens are all that is left of
    it, they are run in the first of its rows, too. `saves` are copied to the cache then, as (block of the prompt, block
    of the cache).
    """

    tokens: Ids
    start: int = 0
    rows: Ids = ()
    loads: Ids = ()
    saves: Pairs = ()

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.start + len(self.tokens)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its prompt."""
        return not self.start and bool(self.rows)

    @property
    def is_rest(self) -> bool:
        """Whether it is all of its prompt that is not cached."""
        return bool(self.loads and self.rows)


@dataclass(frozen=True)
class Run:
    """One run of the decoder: a token for each row of groups 0 to `groups` of a partition, or prompts or a part of one.

    First each (source, target) of `follows` is copied, a group for each sequence; then `feeds` are written, as (row,
    token). Other rows are fed with the argmax of their last run. `sequences` have these rows. `spans` are a part of a
    long prompt or whole ones, whose first rows lie beside each other; `joining[i]` is the job of `spans[i]`. Rows of
    the outputs are those of the groups, or one for each span. `picks` are the sequences that choose their next tokens
    from the outputs, each with a row of these for each row of its search. `logits`: whether one needs more than the
    argmax.

    A step of row 0 alone may have a `draft`: tokens that are run behind its next one in case they are what is chosen.
    Outputs have a row for each of them then, and row 0 has no next input of its own: where its choice is the first of
    the draft, it chooses again from the row behind, and so on.
    """

    width: int = 1
    groups: int = 0
    follows: tuple[Pairs, ...] = ()
    feeds: Pairs = ()
    sequences: tuple[Sequence, ...] = ()
    spans: tuple[Span, ...] = ()
    joining: tuple[Job, ...] = ()
    draft: Ids = ()
    jobs: tuple[Job, ...] = field(init=False)
    picks: Picks = field(init=False)
    logits: bool = field(init=False)

    def __post_init__(self) -> None:
        picks = {sequence: tuple(sequence.rows) for sequence in self.sequences if not sequence.prompt_left}
        for row, (span, job) in enumerate(zip(self.spans, self.joining, strict=True)):
            # All rows of all searches choose from the one row that their prompt was run in.
            if span.rows:
                picks |= {sequence: (row,) * sequence.search.rows for sequence in job.sequences}
        jobs = dict.fromkeys((*(sequence.job for sequence in self.sequences), *self.joining))
        object.__setattr__(self, "picks", picks)
        object.__setattr__(self, "jobs", tuple(jobs))
        object.__setattr__(self, "logits", any(sequence.wants_logits for sequence in picks))


@dataclass(frozen=True)
class Encode:
    """Sources to the encoder; each (width, group) of `places[i]` gets the cross K/V of source i, and empty rows.

    `in_use` are the groups of all partitions that are in use then, as (width, number).
    """

    sources: tuple[Ids, ...]
    places: tuple[Pairs, ...]
    in_use: Pairs
    jobs: tuple[Job, ...]
    picks: Picks = field(default_factory=dict)


@dataclass(frozen=True)
class Compact:
    """Groups that move, as (source, target), so that those in use are the first ones of the partition again."""

    width: int
    moves: Pairs
    jobs: tuple[Job, ...]
    picks: Picks = field(default_factory=dict)


Plan = Union[Run, Encode, Compact]
