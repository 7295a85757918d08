"""What keeps an answer from depending on its batch on this processor, found by running a model as it is opened.

A library chooses its kernels by the number of rows, and another kernel adds up in another order: the last bits change,
and with int8 or int4 a last bit can become another token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .checks import Ids
from .errors import ProcessorUnsuited
from .runner import Outputs, RunnerLane
from .spec import EngineSpec

LOG = logging.getLogger(__name__)

CONTEXT = 80  # tokens before a probed step: more than a block, so that attention may be split among threads
SOME = 16  # different tokens of the probe
SHORT, LONG = 8, 248  # tokens of a prompt, and of one beside it
SOURCE, SOURCES = 16, 16  # tokens of a source, and how many are encoded together

COUNTS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
MOST_LEAST = 16  # sequences; where more were needed, a runtime that needs none is faster
USUAL = 2  # what most processors need

WIDE = 1024  # of a model's hidden size


def tokens(length: int, vocabulary: int) -> Ids:
    """Some tokens for a run whose answer is not used."""
    return tuple(at % min(vocabulary, SOME) for at in range(length))


def rows_for(slots: int) -> int:
    """For how many rows a model of `slots` needs memory: at least for those that are always probed."""
    return max(slots, MOST_LEAST)


def least_units(
    spec: EngineSpec,
    lane: RunnerLane,
    reset: Callable[[int], None],
    slots: int,
    required: bool = False,
    length: int = 0,
) -> int:
    """`least_sequences` of a lane of `slots` units, whose step runs any number of units until `least` is set.

    `reset(units)` fills the first units with one and the same, of `length` positions.
    """
    # In a narrow model, two ways of adding up often have the same sum, so that it takes more steps.
    steps = min(max(WIDE // (spec.heads * spec.head_dim), 1), SOME, spec.max_length - length)

    def logits_of(units: int) -> bytes:
        reset(units)
        logits = []
        for token in tokens(steps, spec.vocab_size):
            lane.set_next_tokens([(row, token) for row in range(units * lane.width)])
            logits.append(first_row(lane.step(units, logits=True)))
        return b"".join(logits)

    return least_sequences(logits_of, slots, required)


def least_sequences(logits_of: Callable[[int], bytes], slots: int, required: bool = False) -> int:
    """The least number of sequences from which on a step gives each the same answer, to the bit.

    `logits_of(count)` are the bytes of the first sequence's logits in steps of `count`, at most rows_for(slots); it is
    called for falling counts. Where the number is larger than MOST_LEAST, it is USUAL with a line in the log, or where
    the promise is `required`, ProcessorUnsuited is raised.
    """
    most = rows_for(slots)
    least, expected = most, logits_of(most)
    for count in (count for count in reversed(COUNTS) if count < most):
        if logits_of(count) != expected:
            break
        least = count
    if least <= MOST_LEAST:
        return least
    reason = f"on this processor, answers depend on the batch up to {least} sequences"
    if required:
        raise ProcessorUnsuited(reason, "Use fewer slots")
    LOG.warning("%s: their last bits may differ", reason)
    return USUAL


def first_row(outputs: Outputs) -> bytes:
    """The bytes of the first row of logits, which must have been asked for."""
    assert outputs.logits is not None
    return bytes(outputs.logits[0].data)
