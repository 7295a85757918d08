"""Whether a prompt has the same bits run whole and in parts on this processor, found by running a model at opening.

Only then may a prompt's beginning come from another's run. Why it may not be so: see batch_probe.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .batch_probe import tokens
from .checks import Ids
from .plan import part_start
from .prefix_cache import BLOCK
from .spec import EngineSpec

RESTS = (1, 2, 7, 15, 30)  # tokens behind a block: of one block of queries, of two, and what is left over of them
CHUNK, LONG = 256, 290  # a long prompt, and where it is cut without a cache


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
