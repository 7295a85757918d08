"""Runs of prompts, whole or in parts, in the rows of a decoder-only model, and the beginnings that prompts share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from .kv_cache import KvCache, PrefixBlocks
from .partition import DecoderPartition, Outputs, Tokens
from .plan import Span
from .prefix_cache import BLOCK
from .probes import MOST_LEAST, Bits, is_same_in_parts, row_bytes
from .sessions import pad
from .spec import EngineSpec

LOG = logging.getLogger(__name__)


class Prefill:
    """Runs prompts in the rows of a `partition`.

    The rows after the first `slots` are padding for batches of prompts. A part of a prompt is run in the row after all
    rows of the partition. `blocks` are the memory of a prefix cache on the host, which runners of all batches share.
    """

    def __init__(
        self, spec: EngineSpec, partition: DecoderPartition, slots: int, blocks: PrefixBlocks | None = None
    ) -> None:
        self.blocks = blocks
        self._spec, self._partition, self._slots = spec, partition, slots
        self._part_row = len(partition.lengths)
        self._next_ids = np.zeros((len(partition.lengths), 1), np.int64)

    def run(self, spans: Sequence[Span], logits: bool) -> Outputs:
        """Run whole prompts in a batch that is padded at the right, or a part of a prompt.

        Padding lies beyond a row's length, where it is never read. After the run, all rows of a span have its prompt.
        """
        first, rows = spans[0], len(spans)
        if not first.is_whole:
            # The operator takes several tokens after cached ones only in a batch of one, so the part is run alone.
            ids, lengths = np.array([first.tokens], np.int64), np.array([len(first.tokens)], np.int32)
            begin = first.rows[0] if first.is_rest else self._part_row
            if first.loads:
                self._prefixes.load(first.loads, self._cache, begin)
            return self._run(begin, spans, ids, lengths, logits)
        size = self._partition.size
        rest, beside = rows % size.multiple, size.of(rows) - rows
        if rest and rows + beside > MOST_LEAST:
            return Outputs.joined(self.run(some, logits) for some in (spans[:-rest], spans[-rest:]))
        # The padding can't follow the prompts' own rows, because the rows after them may be in use.
        begin = self._slots if beside else first.rows[0]
        ids, lengths = pad([span.tokens for span in (*spans, *[first] * beside)], self._spec.max_length)
        return self._run(begin, spans, ids, lengths, logits)

    def keep_prefixes(self, size: int) -> int:
        """Reserve `size` bytes for a prefix cache, before any run. Return the number of blocks that they hold.

        The number is 0 if there can't be a prefix cache: if the model's maximum length or `size` is too small for one
        block, or if running a prompt in parts gives other bits than running it whole.
        """
        if self._spec.max_length <= BLOCK:
            return 0
        blocks = PrefixBlocks(self._cache, size)
        if not blocks.count:
            LOG.warning("no prefix cache: a block of %d tokens has %d bytes, it may have %d", BLOCK, blocks.bytes, size)
            return 0
        if not self.same_in_parts:
            LOG.warning("no prefix cache: on this processor, a prompt that is run in parts has other last bits")
            return 0
        self.blocks = blocks
        return blocks.count

    @cached_property
    def same_in_parts(self) -> bool:
        """Whether the bits of answers don't depend on the parts that a prompt is run in.

        This is probed when it is first read, which must be before any run.
        """
        same = self._spec.max_length > BLOCK and is_same_in_parts(self._spec, self._bits)
        self._partition.release_memory(0)
        return same

    @property
    def _cache(self) -> KvCache:
        assert isinstance(self._partition.cache, KvCache)
        return self._partition.cache

    @property
    def _prefixes(self) -> PrefixBlocks:
        assert self.blocks is not None, "nothing was kept"
        return self.blocks

    def _bits(self, text: Ids, start: int) -> Bits:
        """Run a part of a prompt, and return its logits and its keys and values (see probes)."""
        logits = row_bytes(self.run([Span(text[start:], start)], logits=True), 0)
        return Bits(logits, self._cache.positions(self._part_row, 0, len(text)).copy())

    def _run(
        self, begin: int, spans: Sequence[Span], ids: NDArray[np.int64], lengths: NDArray[np.int32], logits: bool
    ) -> Outputs:
        """Run `ids` [rows, width] of these `lengths` from row `begin` on, and copy the results to the spans' rows."""
        rows, width = ids.shape
        start = spans[0].start
        tokens = Tokens(
            ids,
            np.ascontiguousarray(np.broadcast_to(np.arange(start, start + width, dtype=np.int64), ids.shape)),
            start + lengths - np.int32(1),
            np.array(start + width, np.int32),
            (lengths - 1).astype(np.int64)[:, None],
        )
        self._partition.bind(begin, tokens, self._next_ids[:rows], logits).run()
        for source, span in enumerate(spans, begin):
            if span.saves:
                self._prefixes.save(span.saves, self._cache, source)
            for row in span.rows:
                if row != source:
                    self._partition.cache.copy(source, row, span.end)
                self._partition.start(row, span.end)
        return self._partition.outputs(self._next_ids[:rows], logits).first(len(spans))
