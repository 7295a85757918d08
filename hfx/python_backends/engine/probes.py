"""Probes, run when a model is opened, that keep an answer from depending on its batch or on the parts of its prompt.

A library chooses its kernels by the number of rows, and another kernel adds up in another order. That changes the last
bits of scores, and with int8 or int4 a changed bit can lead to another token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from .partition import MOST_DRAFT, DecoderPartition, Outputs, StepSize
from .plan import QUERIES, part_start
from .prefix_cache import BLOCK
from .spec import EngineSpec

LOG = logging.getLogger(__name__)

SOME = 16  # different tokens of the probe
SOURCE = 16  # tokens of the probe's source

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Multiple -> the largest number below MOST_LEAST that is divisible by it, but not by the next multiple.
REMAINDERS = {1: 15, 2: 14, 4: 12, 8: 8}
MOST_LEAST = 16  # sequences
USUAL = 2  # sequences; this size is enough on most processors

WIDE = 1024  # hidden size of a wide model

# Numbers of tokens after a cached block: within one or two blocks of queries, with various remainders.
RESTS = (1, 2, 7, 15, 30)
CHUNK, LONG = 256, 290  # where a long prompt is cut without a cache, and its length


def tokens(length: int, vocabulary: int) -> Ids:
    """Return tokens for a run whose answer is not used."""
    return tuple(at % min(vocabulary, SOME) for at in range(length))


def rows_for(slots: int) -> int:
    """Return how many rows of memory a model of `slots` needs, for the probes and for the padding of any step."""
    return -(-max(slots, MOST_LEAST) // max(REMAINDERS)) * max(REMAINDERS)


def probe(spec: EngineSpec, partition: DecoderPartition, groups: int, is_native: bool) -> tuple[StepSize, bool]:
    """Return the size of steps of a new partition of `groups` groups, and whether it can verify drafts."""
    # A source for the probe, with arbitrary numbers.
    shape = (spec.layers, min(SOURCE, spec.max_source), 2 * spec.heads * spec.head_dim)
    values: NDArray[Any] = np.random.default_rng(0).standard_normal(shape, np.float32)
    scales = None
    if spec.cross_type == "int8":
        values, scales = (25 * values).astype(np.int8), np.full(shape[::2], 0.04, np.float32)

    def reset(count: int) -> None:
        partition.empty(0, count)
        for group in range(count if spec.has_encoder else 0):
            partition.put_source(group, values, scales)

    size = step_size(spec, partition, reset, groups)
    can_verify = is_native and partition.width == 1 and partition.takes_several
    can_verify = can_verify and verifies(spec, partition, reset)
    partition.release_memory(0)
    return size, can_verify


def step_size(
    spec: EngineSpec,
    partition: DecoderPartition,
    reset: Callable[[int], None],
    slots: int,
) -> StepSize:
    """Return the `probed_size` of a partition of `slots` groups, whose `size` is not set yet.

    Until it is set, steps are not padded. `reset(groups)` makes the first groups empty, with one and the same source.
    """
    # In a narrow model, two ways of adding up often give the same sum, so it takes more steps to tell them apart.
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
    """Return the least size of a step, and its multiple, with which all sequences have the same answer, to the bit.

    `logits_of(count)` returns the bytes of the first and the last sequence's logits in steps of `count` equal
    sequences, at most rows_for(slots). If the least size is larger than MOST_LEAST, USUAL (or the multiple, if that is
    larger) is used instead, and a warning is logged.
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
    """Whether runs of several tokens give the same bits as steps. `reset(1)` empties the first group, with row 0."""
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
    """Return the bytes of a row of logits, which `outputs` must have."""
    assert outputs.logits is not None
    return bytes(outputs.logits[row].data)


@dataclass(frozen=True)
class Bits:
    """The result of a prompt's part: the last token's logits, and the prompt's keys and values [.., positions, dim]."""

    logits: bytes
    cache: NDArray[Any]

    def begins(self, other: Bits) -> bool:
        """Whether the keys and values equal the first ones of `other`."""
        return self.cache.tobytes() == other.cache[..., : self.cache.shape[-2], :].tobytes()


def is_same_in_parts(spec: EngineSpec, run: Callable[[Ids, int], Bits]) -> bool:
    """Whether parts of prompts that begin after a block give the same bits as whole prompts, and as other parts.

    `run(text, start)` runs a prompt from position `start` on, after the positions that earlier calls have filled.
    """
    text = tokens(min(LONG, spec.max_length), spec.vocab_size)
    ends = [BLOCK + rest for rest in RESTS if BLOCK + rest <= len(text)]

    def part(start: int, end: int) -> Bits:
        return run(text[:end], part_start(start, end))

    whole = part(0, min(CHUNK, len(text)))
    if len(text) > CHUNK:
        whole = part(CHUNK, len(text))
    first, short = part(0, ends[0]), part(0, ends[-1])
    rests = [part(BLOCK, end) for end in ends]
    late = part(max((len(text) - 1) // BLOCK - 1, 1) * BLOCK, len(text))
    within = part(min(BLOCK + QUERIES, len(text) - 1), min(BLOCK + 2 * QUERIES, len(text)))
    same = all(bits.begins(whole) for bits in (first, short, *rests, late, within))
    # Of few rows, which a library may add up otherwise, keys and values don't show the last layer.
    pairs = ((first, rests[0]), (short, rests[-1]), (whole, late))
    return same and all(one.logits == other.logits for one, other in pairs)
