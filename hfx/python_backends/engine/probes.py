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

from ..errors import ProcessorUnsuited
from .checks import Ids
from .plan import part_start
from .prefix_cache import BLOCK
from .runner import Outputs, RunnerPartition, Verifier
from .spec import EngineSpec

LOG = logging.getLogger(__name__)

CONTEXT = 80  # tokens before a probed step: more than a block, so that attention may be split among threads
SOME = 16  # different tokens of the probe
SHORT, BESIDE = 8, 248  # tokens of a prompt, and of one beside it
SOURCE, SOURCES = 16, 16  # tokens of a source, and how many are encoded together

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Of MOST_LEAST sequences, as many as are no multiple of more than the key.
REMAINDERS = {1: 15, 2: 14, 4: 12, 8: 8}
MOST_LEAST = 16  # sequences; where more were needed, a runtime that needs none is faster
USUAL = 2  # what most processors need

MOST_DRAFT = 15  # guessed tokens of a run, so that it takes a whole number of the products' rows

WIDE = 1024  # of a model's hidden size

RESTS = (1, 2, 7, 15, 30)  # tokens behind a block: of one block of queries, of two, and what is left over of them
CHUNK, LONG = 256, 290  # a long prompt, and where it is cut without a cache


@dataclass(frozen=True)
class StepSize:
    """How many sequences a step has, so that each one's answer is the same in any batch.

    That is `least` or more, and a multiple of `multiple`: where a kernel takes several rows at a time, what is left
    over goes to another one.
    """

    least: int = 1
    multiple: int = 1

    def of(self, sequences: int) -> int:
        """The size of a step of `sequences`, the rest of which is padding."""
        return max(-(-sequences // self.multiple) * self.multiple, self.least)


def tokens(length: int, vocabulary: int) -> Ids:
    """Some tokens for a run whose answer is not used."""
    return tuple(at % min(vocabulary, SOME) for at in range(length))


def rows_for(slots: int) -> int:
    """For how many rows a model of `slots` needs memory: for those that are always probed, and any step's padding."""
    return -(-max(slots, MOST_LEAST) // max(REMAINDERS)) * max(REMAINDERS)


def step_size(
    spec: EngineSpec,
    partition: RunnerPartition,
    reset: Callable[[int], None],
    slots: int,
    required: bool = False,
    length: int = 0,
) -> StepSize:
    """`probed_size` of a partition of `slots` groups, whose step runs any number of groups until its `size` is set.

    `reset(groups)` fills the first groups with one and the same, of `length` positions.
    """
    # In a narrow model, two ways of adding up often have the same sum, so that it takes more steps.
    steps = min(max(WIDE // (spec.heads * spec.head_dim), 1), SOME, spec.max_length - length)

    def logits_of(groups: int) -> set[bytes]:
        reset(groups)
        first, last = [], []
        for token in tokens(steps, spec.vocab_size):
            partition.set_next_tokens([(row, token) for row in range(groups * partition.width)])
            outputs = partition.step(groups, logits=True)
            first.append(row_bytes(outputs, 0))
            last.append(row_bytes(outputs, groups * partition.width - 1))
        return {b"".join(first), b"".join(last)}

    return probed_size(logits_of, slots, required)


def probed_size(logits_of: Callable[[int], set[bytes]], slots: int, required: bool = False) -> StepSize:
    """The least step, and its multiples, in which all sequences have the same answer, to the bit.

    `logits_of(count)` are the bytes of the first and the last sequence's logits in steps of `count` equal sequences,
    at most rows_for(slots). Where the least is larger than MOST_LEAST, it is USUAL with a line in the log, or where
    the promise is `required`, ProcessorUnsuited is raised.
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
    reason = f"on this processor, answers depend on the batch up to {least} sequences"
    if required:
        raise ProcessorUnsuited(reason, "Use fewer slots")
    LOG.warning("%s: their last bits may differ", reason)
    return StepSize(max(USUAL, multiple), multiple)


def verifies(spec: EngineSpec, partition: Verifier, reset: Callable[[int], None]) -> bool:
    """Whether runs of several tokens have the bits of steps. `reset(1)` empties row 0, which is the first group's."""
    fed = tokens(min(2 * MOST_DRAFT, spec.max_length), spec.vocab_size)
    before = len(fed) - MOST_DRAFT - 1
    if before < 1:
        return False

    def stepped(count: int) -> list[bytes]:
        reset(1)
        found = []
        for token in fed[:count]:
            partition.set_next_tokens([(0, token)])
            found.append(row_bytes(partition.step(1, logits=True), 0))
        return found

    expected = stepped(len(fed))[before:]
    stepped(before)
    partition.set_next_tokens([(0, fed[before])])
    outputs = partition.verify(fed[before + 1 :], logits=True)
    return [row_bytes(outputs, row) for row in range(MOST_DRAFT + 1)] == expected


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
