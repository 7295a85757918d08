"""Which long texts an engine is compared on, up to the model's limit, whatever its size.

One forward of the checkpoint over a text costs less than a few generated tokens. Of an engine, each of ROWS rows holds
a beginning of the text and takes STEPS steps along it, all rows together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hfx.exporter.generation.prompts import Ids, spread_indices, truncated
from hfx.python_backends.engine.plan import Limits

ROWS, STEPS = 16, 8
CHUNK = Limits().chunk
EARLY = 92  # tokens of one of the beginnings: more than most prompts that are continued
REPEATS = (1, 4, 16, 64, 256)  # of all texts, where they are shorter than the model's limit
# Scores of one layer's attention, in torch: 512 MB of float32.
MOST_SCORES = 1 << 27


@dataclass(frozen=True)
class LongText:
    """What the decoder reads (`inputs`), behind the `source` that an encoder reads (empty without one).

    Row i holds the first `starts[i]` inputs before its `steps` steps.
    """

    source: Ids
    inputs: Ids
    starts: Ids
    steps: int

    @property
    def places(self) -> list[int]:
        """The inputs behind which the next token is predicted: those of steps, and a decoder's last before them."""
        first = 0 if self.source else -1
        return sorted({start + at for start in self.starts for at in range(first, self.steps)})

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return len(self.source) or self.starts[-1]


@dataclass(frozen=True)
class LongReader:
    """How texts become long ones: a transformers tokenizer, what goes before a text, and what a decoder begins with.

    `max_length` and `max_source` (0 without an encoder) are the model's. Tokens from `vocab_size` on are left out: some
    tokenizers have more than their model. `heads` are those of one attention.
    """

    tokenizer: Any
    prefix: str
    start: Ids
    vocab_size: int
    heads: int
    max_length: int
    max_source: int

    def read(self, texts: Sequence[str]) -> list[LongText]:
        """One text at the model's limit, one just over a chunk of prompts, one between; fewer of a short model."""
        # The last position is that of a token that is written, and never read.
        inputs = self._lengths(self.max_length - 1)
        pairs = [(0, length) for length in inputs]
        if self.max_source:
            pairs = [
                (source, inputs[min(at, len(inputs) - 1, 1)])
                for at, source in enumerate(self._lengths(self.max_source))
            ]
        chosen = []
        for at, (source, length) in enumerate(pairs):
            first = at * len(texts) // len(pairs)
            text = self._text([*texts[first:], *texts[:first]], length, source)
            if text is not None:
                chosen.append(text)
        return chosen

    def _text(self, texts: Sequence[str], length: int, source: int) -> LongText | None:
        read = self._prompt(texts, source or length)
        inputs = self._written(texts[::-1], length) if source else read
        steps = min(STEPS, len(inputs) - 1)
        if not read or steps < 1:
            return None
        return LongText(read if source else (), inputs, starts(len(inputs), steps), steps)

    def _lengths(self, limit: int) -> list[int]:
        longest = min(limit, math.isqrt(MOST_SCORES // self.heads))
        short = min(CHUNK + 1 + STEPS, longest)
        return [longest, short, math.isqrt(longest * short)] if short < longest else [longest]

    def _prompt(self, texts: Sequence[str], length: int) -> Ids:
        """`length` tokens of a prompt, special ones included; fewer where the tokenizer makes no more of the texts."""
        ids: Ids = ()
        for times in REPEATS:
            ids = truncated(self.tokenizer, self.prefix + " ".join([*texts] * times), length, "right")
            if len(ids) == length:
                break
        return tuple(token for token in ids if token < self.vocab_size)

    def _written(self, texts: Sequence[str], length: int) -> Ids:
        """`length` inputs of a decoder behind an encoder: what it begins with, and tokens that it may have written."""
        special = {*self.tokenizer.all_special_ids}
        ids = self.tokenizer(" ".join(texts), add_special_tokens=False, verbose=False)["input_ids"]
        known = [token for token in ids if token < self.vocab_size and token not in special]
        return (*self.start, *known * (length // max(len(known), 1) + 1))[:length]


def starts(length: int, steps: int) -> Ids:
    """How many inputs the rows hold: those of the last steps, around the first chunks and the last, and between."""
    last = length - steps
    ends = (CHUNK, 2 * CHUNK, last // CHUNK * CHUNK)  # OpenVINO's chunks are twice as long
    chosen = {start for start in (last, EARLY, *ends, *(end + 1 for end in ends)) if 0 < start <= last}
    for index in spread_indices(last, ROWS):
        if len(chosen) < ROWS:
            chosen.add(index + 1)
    return tuple(sorted(chosen))
