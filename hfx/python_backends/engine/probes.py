"""What keeps an answer from depending on its batch, or on parts, found by running a model as it is opened.

A library chooses its kernels by the number of rows, and another kernel adds up in another order: the last bits change,
and with int8 or int4 a last bit can become another token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ..checks import Ids
from .partition import MOST_DRAFT, DecoderPartition, Outputs, StepSize
from .plan import part_start
from .prefix_cache import BLOCK
from .spec import EngineSpec

LOG = logging.getLogger(__name__)

SOME = 16  # different tokens of the probe
SOURCE = 16  # tokens of a source

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Of MOST_LEAST sequences, as many as are no multiple of more than the key.
REMAINDERS = {1: 15, 2: 14, 4: 12, 8: 8}
MOST_LEAST = 16  # sequences
USUAL = 2  # what most processors need

WIDE = 1024  # of a model's hidden size

RESTS = (1, 2, 7, 15, 30)  # tokens behind a block: of one block of queries, of two, and what is left over of them
CHUNK, LONG = 256, 290  # a long prompt, and where it is cut without a cache


def tokens(length: int, vocabulary: int) -> Ids:
    """Some tokens for a run whose answer is not used."""
    return tuple(at % min(vocabulary, SOME) for at in range(length))


def rows_for(slots: int) -> int:
    """For how many rows a model of `slots` needs memory: for those that are always probed, and any step's padding."""
    return -(-max(slots, MOST_LEAST) // max(REMAINDERS)) * max(REMAINDERS)


def step_size(
    spec: EngineSpec,
    partition: DecoderPartition,
    reset: Callable[[int], None],
    slots: int,
) -> StepSize:
    """`probed_size` of a partition of `slots` groups, whose step runs any number of groups until its `size` is set.

    `reset(groups)` makes the first groups empty, with one and the same source.
    """
    # In a narrow model, two ways of adding up often have the same sum, so that it takes more steps.
    steps = min(max(WIDE // (spec.heads * spec.head_dim), 1), SOME, spec.max_length)

    def logits_of(groups: int) -> set[bytes]:
        reset(groups)
        first, last = [], []
        for token in tokens(steps, spec.vocab_size):
            partition.set_next_tokens([(row, token) for row in range(groups * partition.width)])
            outputs = partition.step(groups, logits=True)
            first.append(row_bytes(outputs, 0))
            last.append(row_bytes(outputs, groups * partition.width - 1))
        return {b"".join(first), b"".join(last)}

    return probed_size(logits_of, slots)


def probed_size(logits_of: Callable[[int], set[bytes]], slots: int) -> StepSize:
    """The least step, and its multiples, in which all sequences have the same answer, to the bit.

    `logits_of(count)` are the bytes of the first and the last sequence's logits in steps of `count` equal sequences,
    at most rows_for(slots). Where the least is larger than MOST_LEAST, it is USUAL with a line in the log.
    """
    most = rows_for(slots)
    expected = logits_of(most)
    more = MOST_LEAST if most >= 2 * MOST_LEAST else 0
    multiple = next((each for each, count in REMAINDERS.items() if logits_of(more + count) == expected), 1)
    least = most
    for count in (count for count in reversed(COUNTS) if count < most and count % multiple == 0):
        if logits_of(count) != expected:
            break
        least = count
    if least <= MOST_LEAST:
        return StepSize(least, multiple)
    LOG.warning("on this processor, answers depend on the batch up to %d sequences: their last bits may differ", least)
    return StepSize(max(USUAL, multiple), multiple)


def verifies(spec: EngineSpec, partition: DecoderPartition, reset: Callable[[int], None]) -> bool:
    """Whether runs of several tokens have the bits of steps. `reset(1)` empties row 0, which is the first group's."""
    fed = tokens(min(2 * MOST_DRAFT, spec.max_length), spec.vocab_size)
    before = len(fed) - MOST_DRAFT - 1
    if before < 1:
        return False

    reset(1)
    expected = []
    for token in fed:
        partition.set_next_tokens([(0, token)])
        expected.append(row_bytes(partition.step(1, logits=True), 0))
    partition.drop(MOST_DRAFT + 1)
    partition.set_next_tokens([(0, fed[before])])
    outputs = partition.verify(fed[before + 1 :], logits=True)
    return [row_bytes(outputs, row) for row in range(MOST_DRAFT + 1)] == expected[before:]


def row_bytes(outputs: Outputs, row: int) -> bytes:
    """The bytes of a row of logits, which must have been asked for."""
    assert outputs.logits is not None
    return bytes(outputs.logits[row].data)


@dataclass(frozen=True)
class Bits:
    """What a part of a prompt left: the last token's logits, and the prompt's keys and values [.., positions, dim]."""

    logits: bytes
    cache: NDArray[Any]

    def begins(self, other: Bits) -> bool:
        """Whether the keys and values are the first ones of `other`."""
        return self.cache.tobytes() == other.cache[..., : self.cache.shape[-2], :].tobytes()


def is_same_in_parts(spec: EngineSpec, run: Callable[[Ids, int], Bits]) -> bool:
    """Whether parts of prompts that begin behind a block leave what whole prompts, or parts of others, do.

    `run(text, start)` runs a prompt from position `start` on, behind what earlier calls have left there.
    """
    text = tokens(min(LONG, spec.max_length), spec.vocab_size)
    ends = [BLOCK + rest for rest in RESTS if BLOCK + rest <= len(text)]

    def part(start: int, end: int) -> Bits:
        return run(text[:end], part_start(start, end))

    whole = part(0, min(CHUNK, len(text)))
    if len(text) > CHUNK:
        whole = part(CHUNK, len(text))
    short = part(0, ends[-1])
    rests = [part(BLOCK, end) for end in ends]
    late = part(max((len(text) - 1) // BLOCK - 1, 1) * BLOCK, len(text))
    same = all(bits.begins(whole) for bits in (short, *rests, late))
    return same and short.logits == rests[-1].logits and late.logits == whole.logits
