"""Runs of prompts and of sources on the host: what a GPU does in staging.py.

A decoder-only model runs prompts, whole or in parts, in its own rows. An encoder runs sources, each of which gets its
results as its keys and values for cross attention: `run` of a class of sources yields a Fill for each source, in order,
which is valid until the next one is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from .captures import Net
from .kv_cache import KvCache, Place, PrefixBlocks
from .partition import DecoderPartition, Outputs, Tokens
from .plan import SCORED, Span
from .prefix_cache import BLOCK
from .probes import MOST_LEAST, Bits, is_same_in_parts, row_bytes
from .sessions import Reserved, pad
from .spec import EngineSpec

LOG = logging.getLogger(__name__)
# Gives a group of a partition the keys and values of one source.
Fill = Callable[[DecoderPartition, int], None]


class Prefill:
    """Runs prompts in the rows of a `partition`.

    The rows after the first `slots` are padding for batches of prompts. A part of a prompt is run in the row after all
    rows of the partition. `blocks` are the memory of a prefix cache on the host, which runners of all batches share.
    Unless `needs_outputs`, a part without the prompt's last token is run without the head, which reads the weights of
    the whole vocabulary. Native operators can do this.
    """

    needs_outputs = True

    def __init__(
        self, spec: EngineSpec, partition: DecoderPartition, slots: int, blocks: PrefixBlocks | None = None
    ) -> None:
        self.blocks = blocks
        self._spec, self._partition, self._slots = spec, partition, slots
        self._part_row = len(partition.lengths)
        self._next_ids = np.zeros((max(len(partition.lengths), SCORED), 1), np.int64)

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
            if first.scored:
                picked = np.arange(ids.shape[1], dtype=np.int64)[None]
            elif self.needs_outputs or first.rows or logits:
                # The head gets as many rows as for a whole prompt: with a single one, it may give other bits.
                count = self._partition.size.of(1) if self._partition.takes_several else 1
                picked = np.full((1, count), ids.shape[1] - 1, np.int64)
            else:
                picked = np.empty((1, 0), np.int64)
            return self._run(begin, spans, ids, lengths, logits, picked)
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
        """Run a whole prompt or its part from `start` on, and return its logits, keys and values (see probes)."""
        logits = row_bytes(self.run([Span(text[start:], start, () if start else (0,))], logits=True), 0)
        if not start:
            self._cache.copy(0, self._part_row, len(text))
        return Bits(logits, self._cache.positions(self._part_row, 0, len(text)).copy())

    def _run(
        self,
        begin: int,
        spans: Sequence[Span],
        ids: NDArray[np.int64],
        lengths: NDArray[np.int32],
        logits: bool,
        picked: NDArray[np.int64] | None = None,
    ) -> Outputs:
        """Run `ids` [rows, width] of these `lengths` from row `begin` on, and copy the results to the spans' rows.

        The outputs are those of the `picked` tokens [1, picked] of a single row, or of each row's last token.
        """
        width, start = ids.shape[1], spans[0].start
        picked = (lengths - 1).astype(np.int64)[:, None] if picked is None else picked
        tokens = Tokens(
            ids,
            np.ascontiguousarray(np.broadcast_to(np.arange(start, start + width, dtype=np.int64), ids.shape)),
            start + lengths - np.int32(1),
            np.array(start + width, np.int32),
            picked,
        )
        next_ids = self._next_ids[: picked.size]
        self._partition.bind(begin, tokens, next_ids, logits).run()
        for source, span in enumerate(spans, begin):
            if span.saves:
                self._prefixes.save(span.saves, self._cache, source)
            for row in span.rows:
                if row != source:
                    self._partition.cache.copy(source, row, span.end)
                self._partition.start(row, span.end)
        outputs = self._partition.outputs(next_ids, logits)
        return outputs if spans[0].scored else outputs.first(len(spans))


class ArraySources:
    """Runs an encoder in float32 or int8 to `memory` [layers, tokens, K and V], which grows with the largest batch."""

    def __init__(self, spec: EngineSpec, net: Net) -> None:
        self._spec, self._net = spec, net
        dtype = np.int8 if spec.cross_type == "int8" else np.float32
        self.memory = Reserved((spec.layers, spec.max_source * 2 * spec.heads * spec.head_dim), dtype)

    def run(self, sources: Sequence[Ids]) -> Iterator[Fill]:
        """Run all sources in one batch."""
        values, scales = self._run(sources)
        for at, source in enumerate(sources):
            own_scales = None if scales is None else scales[:, at]
            yield partial(DecoderPartition.put_source, values=values[:, at, : len(source)], scales=own_scales)

    def release_memory(self) -> None:
        """Give the pages of `memory` back to the operating system."""
        self.memory.release(0, self.memory.array.size)

    def _run(self, sources: Sequence[Ids]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Return K, then V, of each position [layers, sources, width, 2 * heads * head_dim], and the scales of int8."""
        inputs = encoder_inputs(sources, self._spec)
        width = 2 * self._spec.heads * self._spec.head_dim
        shape = (*inputs["input_ids"].shape, width)
        size = int(np.prod(shape))
        if size > self.memory.array.shape[1]:
            self.memory = Reserved((self._spec.layers, size), self.memory.array.dtype)
        outputs = {f"cross_{i}": layer[:size].reshape(shape) for i, layer in enumerate(self.memory.array)}
        scales = None
        if self._spec.cross_type == "int8":
            scales = np.empty((self._spec.layers, len(sources), width), np.float32)
            outputs |= {f"cross_scale_{i}": layer for i, layer in enumerate(scales)}
        self._net.bind(inputs, outputs).run()
        return self.memory.array[:, :size].reshape(-1, *shape), scales


class CacheSources:
    """Runs an encoder in float16, which writes caches of the same kind as the partitions' caches."""

    def __init__(self, spec: EngineSpec, net: Net, place: Place) -> None:
        self._spec, self._net, self._place = spec, net, place

    def run(self, sources: Sequence[Ids]) -> Iterator[Fill]:
        """Run all sources in one batch, to a new cache whose capacity is the length of the longest source."""
        inputs, spec = encoder_inputs(sources, self._spec), self._spec
        rows, width = inputs["input_ids"].shape
        encoded = self._place.cache((2 * spec.layers, rows, spec.heads, width, spec.head_dim), spec.cross_type)
        self._net.bind(inputs, {f"cross_{at}": encoded.layer(at) for at in range(spec.layers)}).run()
        for row, source in enumerate(sources):
            yield partial(DecoderPartition.take_source, encoded=encoded, source=row, length=len(source))

    def release_memory(self) -> None:
        """Do nothing: a cache is freed after its run."""


def encoder_inputs(sources: Sequence[Ids], spec: EngineSpec) -> dict[str, NDArray[Any]]:
    """Return an encoder's inputs for sources, padded at the right."""
    ids, lengths = pad(sources, spec.max_source)
    return {"input_ids": ids, "seqlens_k": lengths - np.int32(1), "total_length": np.array(ids.shape[1], np.int32)}
