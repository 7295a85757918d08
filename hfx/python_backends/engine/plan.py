"""Plans of what one step does: frozen values that the scheduler makes, a runner carries out, and tests read.

A plan is one run of one graph, or a compaction. If it fails, only its own requests end. Rows and groups are numbered
within one partition: that of the plan's `width`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from ..checks import Ids
from .jobs import Job, Pairs, Sequence

Picks = Mapping[Sequence, Ids]

# ONNX Runtime's attention takes queries in blocks of a multiple of this number. If the last block has only one query,
# another kernel computes it, which rounds differently. The bits of the last token would then depend on how long the row
# or the part is.
QUERIES = 16


@dataclass(frozen=True)
class Limits:
    """The limits of a run, in tokens.

    They bound the time for which prompts and sources delay the sequences that are being decoded. A prompt longer than
    `chunk` is run in parts of at most this length, or of up to `alone` tokens while nothing else runs and if the bits
    don't depend on the parts. `prefill` and `encode` limit the padded tokens of a batch of prompts
    or sources; a single prompt or source may be longer. The longest of a batch may be `unlike` times as long as the
    shortest; a batch of up to `few` padded tokens may have more padding, because reading the weights takes longer than
    computing so few tokens.
    """

    chunk: int = 256
    alone: int = 256
    prefill: int = 256
    encode: int = 512
    unlike: float = 1.5
    few: int = 128


# A GPU computes some thousand tokens in the time in which it reads the weights and starts the operators.
DEVICE_LIMITS = Limits(prefill=2048, encode=4096, few=2048)


def padded(count: int, unit: int, most: int = sys.maxsize) -> int:
    """Return the size of a run of `count` on a device: a multiple of `unit`, at most `most`.

    There are few sizes, in units 1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40 ….
    """
    units = -(-count // unit)
    below = 1 << max((units - 1).bit_length() - 1, 0)  # the power of two
    step = max(below // (2 if below < 16 else 4), 1)
    return min(-(-units // step) * step * unit, most)


# The most tokens of a part whose log-probabilities are wanted: its logits have as many rows.
SCORED = 64


def part_start(start: int, end: int) -> int:
    """Return where the run of a prompt's part from `start` to `end` begins.

    It begins a token earlier if the last block would have only one query (see QUERIES).
    """
    return start - 1 if start and (end - start) % QUERIES == 1 else start


@dataclass(frozen=True)
class Span:
    """Tokens of a prompt, from position `start` on.

    If they include the prompt's last token, `rows` are the rows that get the whole prompt; otherwise `rows` is empty. A
    whole prompt is run in the first of its rows. A part of a longer prompt is run in an extra row after the partition's
    own rows. `loads` are the blocks of the prefix cache that hold the prompt's beginning. If the span is everything
    after these blocks, it is run in the first of the prompt's rows, like a whole prompt. After the run, for each (block
    of the prompt, block of the cache) pair in `saves`, the first block is copied to the second.

    A `scored` span, whose run has logits for each of its tokens, is run alone like a part.
    """

    tokens: Ids
    start: int = 0
    rows: Ids = ()
    loads: Ids = ()
    saves: Pairs = ()
    scored: bool = False

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)

    @property
    def is_whole(self) -> bool:
        """Whether the span is a whole prompt that may be run in a batch."""
        return not self.start and bool(self.rows) and not self.scored

    @property
    def is_rest(self) -> bool:
        """Whether the span is the whole rest of a prompt whose beginning is cached."""
        return bool(self.loads and self.rows)


@dataclass(frozen=True)
class Run:
    """One run of the decoder: a decode step of the first `groups` groups of a partition, or a prefill of prompts.

    A decode step first copies rows of the cache: `row_copies` has a tuple of (source, target) pairs for each sequence.
    Then it sets next inputs: `next_inputs` has (row, token) pairs; the next input of any other row is the argmax of its
    last run. `sequences` are the sequences that have the groups' rows. A prefill runs `spans`: a part of a long prompt,
    or whole prompts whose first rows lie beside each other. `prefill_jobs[i]` is the job of `spans[i]`.

    The outputs have the rows of the groups, or a row for each span, or for each token of a scored span. `picks` maps
    each sequence that chooses its next token to the rows of the outputs from which the rows of its search choose.
    `logits` says whether anything needs more than the argmax.

    A step of row 0 alone may have a `draft`: guessed tokens, which are run after its next input. The outputs then have
    a row for each of them, too, and the run sets no next input of row 0. If row 0 chooses the first token of the draft,
    it chooses again from the next row of the outputs, and so on.
    """

    width: int = 1
    groups: int = 0
    row_copies: tuple[Pairs, ...] = ()
    next_inputs: Pairs = ()
    sequences: tuple[Sequence, ...] = ()
    spans: tuple[Span, ...] = ()
    prefill_jobs: tuple[Job, ...] = ()
    draft: Ids = ()
    jobs: tuple[Job, ...] = field(init=False)
    picks: Picks = field(init=False)
    logits: bool = field(init=False)

    def __post_init__(self) -> None:
        picks = {sequence: tuple(sequence.rows) for sequence in self.sequences if not sequence.prompt_left}
        for row, (span, job) in enumerate(zip(self.spans, self.prefill_jobs, strict=True)):
            # All rows of all searches choose from the one row that their prompt was run in.
            if span.rows:
                last = len(span.tokens) - 1 if span.scored else row
                picks |= {sequence: (last,) * sequence.search.rows for sequence in job.sequences}
        jobs = dict.fromkeys((*(sequence.job for sequence in self.sequences), *self.prefill_jobs))
        object.__setattr__(self, "picks", picks)
        object.__setattr__(self, "jobs", tuple(jobs))
        wants_logits = [*(sequence.wants_logits for sequence in picks), *(span.scored for span in self.spans)]
        object.__setattr__(self, "logits", any(wants_logits))


@dataclass(frozen=True)
class Encode:
    """One run of the encoder: each (width, group) of `places[i]` gets the cross K/V of source i, and empty rows.

    `in_use` has a (width, number of groups in use) pair for each partition; the groups of these sources count.
    """

    sources: tuple[Ids, ...]
    places: tuple[Pairs, ...]
    in_use: Pairs
    jobs: tuple[Job, ...]
    picks: Picks = field(default_factory=dict)


@dataclass(frozen=True)
class Compact:
    """A compaction, after which the groups in use are again the first groups of the partition.

    Each (source, target) pair in `moves` moves one group.
    """

    width: int
    moves: Pairs
    jobs: tuple[Job, ...]
    picks: Picks = field(default_factory=dict)


Plan = Union[Run, Encode, Compact]
