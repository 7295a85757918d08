"""Whether a prompt has the same bits run whole and in parts on this processor, found by running a model at opening.

Only then may a prompt's beginning come from another's run. Why it may not be so: see batch_probe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .batch_probe import tokens
from .plan import Span, part_start
from .prefix_cache import BLOCK
from .spec import EngineSpec

RESTS = (1, 2, 7, 15, 30)  # tokens behind a block: of one block of queries, of two, and what is left over of them
CHUNK, LONG = 256, 289  # a long prompt, and where it is cut without a cache


def is_same_in_parts(spec: EngineSpec, run: Callable[[Sequence[Span]], bytes]) -> bool:
    """Whether parts of prompts that begin behind a block leave what whole prompts, or parts of others, do.

    `run(spans)` runs the parts of a prompt, the last of which has a row: the bytes of its keys, values and logits.
    """
    ways = [((BLOCK + rest,), (BLOCK, BLOCK + rest)) for rest in RESTS] + [((CHUNK, LONG), (BLOCK, LONG))]
    fitting = [(one, other) for one, other in ways if one[-1] <= spec.max_length]
    return all(run(_parts(one, spec.vocab_size)) == run(_parts(other, spec.vocab_size)) for one, other in fitting)


def _parts(ends: Sequence[int], vocabulary: int) -> list[Span]:
    text, start, spans = tokens(ends[-1], vocabulary), 0, []
    for end in ends:
        begin = part_start(start, end)
        spans.append(Span(text[begin:end], begin, (0,) if end == ends[-1] else ()))
        start = end
    return spans
