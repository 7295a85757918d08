"""Decoder-only models in ONNX Runtime: one graph runs prompts, parts of prompts, and steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..plan import Limits, Span
from ..prefix_cache import BLOCK
from ..probes import MOST_LEAST, Bits, is_same_in_parts, row_bytes, step_size, verifies
from ..runner import Outputs, SessionSettings
from ..spec import NATIVE, ONNXRUNTIME, EngineSpec
from .kv_cache import CacheMaker, KvCache, PrefixBlocks
from .partition import DecoderPartition, Tokens
from .sessions import open_session, pad

LOG = logging.getLogger(__name__)
WIDTH = 1


class OrtDecoderRunner:
    """A `DecoderRunner` with `slots` rows, all in one partition, and one more for prompts that come in chunks.

    `blocks` is the memory of a prefix cache, which it shares with its `second` runners.
    """

    limits = Limits()
    blocks: PrefixBlocks | None = None

    def __init__(
        self, spec: EngineSpec, slots: int, settings: SessionSettings, make_cache: CacheMaker = KvCache
    ) -> None:
        self.runtime = NATIVE if settings.operators else ONNXRUNTIME
        probed = settings.provider == "CPU"
        rows = slots + MOST_LEAST if probed else slots
        session = open_session(spec.files.decoder[WIDTH], settings)
        self._make_partition = partial(DecoderPartition, spec, WIDTH, rows, session, make_cache, more_rows=1)
        self._spare, self._staging = slots, rows
        self._spec = spec
        self._reserve(rows)
        if probed:
            reset = partial(self.partition.empty, 0)
            self.partition.size = step_size(spec, self.partition, reset, slots)
            if settings.operators:
                self.partition.verifies = self.partition.takes_several and verifies(spec, self.partition, reset)
            self.release_memory()

    def second(self) -> OrtDecoderRunner:
        """Of the same session."""
        other = copy(self)
        other._reserve(self._staging)
        other.partition.size = self.partition.size
        other.partition.verifies = self.partition.verifies
        return other

    def open_partition(self, width: int) -> None:
        """Nothing: the one partition is open."""

    def run(self, spans: Sequence[Span], logits: bool, groups: int = 0) -> Outputs:
        """Whole prompts in a ragged batch, padded at the right: pads lie beyond a row's length, where nothing reads."""
        assert not groups, "a step has a run of its own"
        first, rows = spans[0], len(spans)
        if first.is_whole:
            size = self.partition.size
            rest, beside = rows % size.multiple, size.of(rows) - rows
            if rest and rows + beside > MOST_LEAST:
                return Outputs.joined(self.run(some, logits) for some in (spans[:-rest], spans[-rest:]))
            begin = self._spare if beside else first.rows[0]  # the rows beside the prompts' may be in use
            ids, lengths = pad([span.tokens for span in (*spans, *[first] * beside)], self._spec.max_length)
        else:
            # The operator takes several tokens on a filled cache for a batch of one only: hence a row of its own.
            begin = first.rows[0] if first.is_rest else self._staging
            if first.loads:
                self._prefixes.load(first.loads, self.partition.cache, begin)
            ids, lengths = np.array([first.tokens], np.int64), np.array([len(first.tokens)], np.int32)
        outputs = self._prompt(begin, ids, first.start, lengths, logits).first(rows)
        for source, span in enumerate(spans, begin):
            if span.saves:
                self._prefixes.save(span.saves, self.partition.cache, source)
            for row in span.rows:
                if row != source:
                    self.partition.cache.copy(source, row, span.end)
                self.partition.start(row, span.end)
        return outputs

    def keep_prefixes(self, size: int) -> int:
        """On the host, where the probe allows it."""
        cache, spec = self.partition.cache, self._spec
        if not isinstance(cache, KvCache) or spec.max_length <= BLOCK:
            return 0
        blocks = PrefixBlocks(cache, size)
        if not blocks.count:
            LOG.warning("no prefix cache: a block of %d tokens has %d bytes, it may have %d", BLOCK, blocks.bytes, size)
            return 0
        if not is_same_in_parts(spec, self._bits):
            LOG.warning("no prefix cache: on this processor, a prompt that is run in parts has other last bits")
            return 0
        self.release_memory()
        self.blocks = blocks
        return blocks.count

    def release_memory(self) -> None:
        """The cache's pages."""
        self.partition.release_memory(0)

    def close(self) -> None:
        """Drop bindings and session."""
        self.partitions.clear()
        del self.partition, self._make_partition

    def _reserve(self, rows: int) -> None:
        self.partition = self._make_partition()
        self.partitions = {WIDTH: self.partition}
        self._first_ids = np.zeros((rows, 1), np.int64)

    @property
    def _prefixes(self) -> PrefixBlocks:
        assert self.blocks is not None, "nothing was kept"
        return self.blocks

    def _bits(self, text: Ids, start: int) -> Bits:
        """See probes."""
        logits = row_bytes(self.run([Span(text[start:], start)], logits=True), 0)
        cache = self.partition.cache
        assert isinstance(cache, KvCache)
        return Bits(logits, cache.positions(self._staging, 0, len(text)).copy())

    def _prompt(
        self, first: int, ids: NDArray[np.int64], start: int, lengths: NDArray[np.int32], logits: bool
    ) -> Outputs:
        """Run `ids` [rows, width], of which `lengths` a row are real, from position `start` on in rows from `first`."""
        rows, width = ids.shape
        positions = np.arange(start, start + width, dtype=np.int64)
        tokens = Tokens(
            ids,
            np.ascontiguousarray(np.broadcast_to(positions, ids.shape)),
            start + lengths - np.int32(1),
            np.array(start + width, np.int32),
            (lengths - 1).astype(np.int64)[:, None],
        )
        next_ids = self._first_ids[:rows]
        self.partition.bind(first, tokens, next_ids, logits).run()
        return Outputs(next_ids, self.partition.logits[:rows] if logits else None)
