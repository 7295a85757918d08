"""The runners of decoder-only models and of encoder-decoders, which carry out plans.

All calls except `open_partition` come from one thread, in the order of the plans. One graph runs prompts, parts of
prompts and steps of a decoder-only model; an encoder-decoder has a decoder graph for each width of partition.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from .device_memory import Device, Graphs
from .kv_cache import Cache, KvCache, Pairs, PrefixBlocks, cache_maker
from .partition import DecoderPartition, Outputs, StepSize, Tokens
from .plan import Span
from .prefix_cache import BLOCK
from .probes import MOST_LEAST, SOURCE, Bits, is_same_in_parts, row_bytes, rows_for, step_size, verifies
from .sessions import Binding, Reserved, SessionSettings, open_session, pad
from .spec import NATIVE, ONNXRUNTIME, EngineSpec
from .staging import (
    DeviceRuns,
    PromptStage,
    SourceStage,
    batches,
    device_runs,
    opened_decoder,
    opened_encoder,
    settle,
    warm_steps,
)

LOG = logging.getLogger(__name__)
WIDTH = 1


class DecoderRunner:
    """The runner of a model without an encoder, whose decoder runs prompts, too.

    All rows are in one partition: `slots` rows, on CPU MOST_LEAST further rows for padding, and one more row for
    prompts that are run in parts. With a `device`, keys and values stay there. `blocks` is the memory of a prefix
    cache, which the runner shares with its `second` runners.
    """

    blocks: PrefixBlocks | None = None

    def __init__(self, spec: EngineSpec, slots: int, settings: SessionSettings, device: Device | None = None) -> None:
        self.runtime = NATIVE if settings.operators else ONNXRUNTIME
        self.device = device
        rows = slots + MOST_LEAST if device is None else slots
        session, graphs = opened_decoder(spec.files.decoder[WIDTH], settings, device)
        self._graphs = graphs
        self._make_partition = partial(
            DecoderPartition, spec, WIDTH, rows, session, cache_maker(device), more_rows=1, graphs=graphs
        )
        self._spare, self._staging = slots, rows
        self._spec = spec
        self._reserve(rows)
        self._stage = None if device is None else PromptStage(spec, self.partition, device)
        if device is None:
            reset = partial(self.partition.empty, 0)
            self.partition.size = step_size(spec, self.partition, reset, slots)
            if settings.operators:
                self.partition.verifies = self.partition.takes_several and verifies(spec, self.partition, reset)
            self.release_memory()

    def second(self) -> DecoderRunner:
        """Return another runner of the same session, with its own rows. The two never run at the same time."""
        other = copy(self)
        other._reserve(self._staging)
        other.partition.size = self.partition.size
        other.partition.verifies = self.partition.verifies
        return other

    def open_partition(self, width: int) -> None:
        """Do nothing: the only partition is open."""

    def run(self, spans: Sequence[Span], logits: bool) -> Outputs:
        """Run whole prompts in a batch that is padded at the right, or a part of a prompt.

        Padding lies beyond a row's length, where it is never read. After the run, all rows of a span have its prompt.
        """
        first, rows = spans[0], len(spans)
        if self._stage is not None and first.is_whole and all(span.end <= self._stage.width for span in spans):
            return self._run_staged(self._stage, spans, logits)
        if first.is_whole:
            size = self.partition.size
            rest, beside = rows % size.multiple, size.of(rows) - rows
            if rest and rows + beside > MOST_LEAST:
                return Outputs.joined(self.run(some, logits) for some in (spans[:-rest], spans[-rest:]))
            # The padding can't follow the prompts' own rows, because the rows after them may be in use.
            begin = self._spare if beside else first.rows[0]
            ids, lengths = pad([span.tokens for span in (*spans, *[first] * beside)], self._spec.max_length)
        else:
            # The operator takes several tokens after cached ones only in a batch of one, so the part is run alone.
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

    def _run_staged(self, stage: PromptStage, spans: Sequence[Span], logits: bool) -> Outputs:
        if len(spans) <= stage.rows:
            return stage.run(spans, logits)
        return Outputs.joined(stage.run(some, logits) for some in batches(spans, lambda some: len(some) <= stage.rows))

    def device_runs(self) -> DeviceRuns:
        """Return the counts of runs on a device."""
        return device_runs(self.partitions, self._stage, (self._graphs,))

    def warm(self, seconds: float) -> None:
        """Capture the commonest runs, for about `seconds`, before any request. The engine's thread must call this."""
        end = time.monotonic() + seconds
        warm_steps(self.partition, end)
        if self._stage is not None:
            self._stage.warm(end)

    def keep_prefixes(self, size: int) -> int:
        """Reserve `size` bytes for a prefix cache, before any run. Return the number of blocks that they hold.

        The number is 0 if there can't be a prefix cache: if the KV cache is on a device, if the model's maximum length
        or `size` is too small for one block, or if running a prompt in parts gives other bits than running it whole.
        """
        cache = self.partition.cache
        if not isinstance(cache, KvCache) or self._spec.max_length <= BLOCK:
            return 0
        blocks = PrefixBlocks(cache, size)
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
        """Whether the bits of answers don't depend on the parts that a prompt is run in. False if KV is on a device.

        This is probed when it is first asked, which must be before any run.
        """
        if not isinstance(self.partition.cache, KvCache) or self._spec.max_length <= BLOCK:
            return False
        same = is_same_in_parts(self._spec, self._bits)
        self.release_memory()
        return same

    def release_memory(self) -> None:
        """Give the cache's pages back to the operating system."""
        self.partition.release_memory(0)

    def close(self) -> None:
        """Release the bindings and the session."""
        settle(self.device)
        self.partitions.clear()
        self._stage = None
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
        """Run a part of a prompt, and return its logits and its keys and values (see probes)."""
        logits = row_bytes(self.run([Span(text[start:], start)], logits=True), 0)
        cache = self.partition.cache
        assert isinstance(cache, KvCache)
        return Bits(logits, cache.positions(self._staging, 0, len(text)).copy())

    def _prompt(
        self, first: int, ids: NDArray[np.int64], start: int, lengths: NDArray[np.int32], logits: bool
    ) -> Outputs:
        """Run `ids` [rows, width] of these `lengths` from position `start` on, in the rows from `first` on."""
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
        return self.partition.outputs(next_ids, logits)


class EncoderDecoderRunner:
    """The runner of a model with an encoder, which reads the prompts.

    It has a partition for each width, with room for `slots` rows. A partition is opened when the first request of its
    width arrives, if not before.
    """

    same_in_parts = False  # sources are run whole

    def __init__(self, spec: EngineSpec, slots: int, settings: SessionSettings, device: Device | None = None) -> None:
        assert spec.files.encoder is not None
        self.runtime = NATIVE if settings.operators else ONNXRUNTIME
        self.device = device
        self._spec = spec
        self._slots = slots
        self._settings = settings
        self._make_cache = cache_maker(device)
        self._stage: SourceStage | None = None
        self._encoder: Any = None
        if device is not None and spec.cross_type == "float16":
            self._stage = opened_encoder(spec, settings, device)
        else:
            self._encoder = open_session(spec.files.encoder, settings)
        # The encoder's output on the host, [layer, tokens, K and V], which grows with the largest batch.
        dtype = np.int8 if spec.cross_type == "int8" else np.float32
        self._encoded = Reserved((spec.layers, spec.max_source * 2 * spec.heads * spec.head_dim), dtype)
        self._opening = threading.Lock()
        self._sessions: dict[int, tuple[Any, Graphs | None]] = {}  # by width
        self._probed: dict[int, tuple[StepSize, bool]] = {}
        self.partitions: dict[int, DecoderPartition] = {}

    def second(self) -> EncoderDecoderRunner:
        """Return another runner of the same sessions, whose partitions are opened with its own first requests."""
        other = copy(self)
        other.partitions = {}
        return other

    def open_partition(self, width: int) -> None:
        """Load the decoder for `width` beams, once, and reserve its memory. Any thread may call this."""
        if width in self.partitions:
            return
        with self._opening:
            if width not in self.partitions:
                self.partitions[width] = self._partition(width)

    def encode(self, sources: Sequence[Ids], places: Sequence[Pairs]) -> None:
        """Encode `sources`. Each (width, group) of `places[i]` gets the cross K/V of source i, and empty rows.

        The sources are run in one batch, padded at the right.
        """
        if self._spec.cross_type == "float16":
            self._encode_to_caches(sources, places)
            return
        values, scales = self._run_encoder(sources)
        for at, (source, groups) in enumerate(zip(sources, places, strict=True)):
            own_scales = None if scales is None else scales[:, at]
            for width, group in groups:
                self.partitions[width].put_source(group, values[:, at, : len(source)], own_scales)

    def device_runs(self) -> DeviceRuns:
        """Return the counts of runs on a device."""
        decoders = tuple(graphs for _, graphs in tuple(self._sessions.values()))  # another thread may open one
        return device_runs(
            self.partitions, self._stage, (*decoders, None if self._stage is None else self._stage.graphs)
        )

    def warm(self, seconds: float) -> None:
        """Capture the commonest runs, for about `seconds`, before any request. The engine's thread must call this."""
        end = time.monotonic() + seconds
        for partition in tuple(self.partitions.values()):
            warm_steps(partition, end)
        if self._stage is not None:
            self._stage.warm(end)

    def trim(self, groups: Pairs) -> None:
        """Free memory of groups that are not in use.

        `groups` has a (width, number of groups in use) pair for each partition. If the partitions have touched the
        memory of more than `slots` rows in all, each frees the memory of groups that it does not use.
        """
        in_use = dict(groups)
        partitions = tuple(self.partitions.items())  # another thread may open one
        for width, partition in partitions:
            partition.touched = max(partition.touched, in_use.get(width, 0))
        if sum(width * partition.touched for width, partition in partitions) > self._slots:
            for width, partition in partitions:
                partition.release_memory(in_use.get(width, 0))

    def release_memory(self) -> None:
        """Give the pages of all partitions and of the encoder's output back to the operating system."""
        self._encoded.release(0, self._encoded.array.size)
        for partition in tuple(self.partitions.values()):
            partition.release_memory(0)

    def close(self) -> None:
        """Release the bindings and the sessions."""
        settle(self.device)
        self._encoder = self._stage = None
        self._sessions.clear()
        self.partitions.clear()

    def _partition(self, width: int) -> DecoderPartition:
        spec, groups = self._spec, self._slots // width
        if width not in self._sessions:
            self._sessions[width] = opened_decoder(spec.files.decoder[width], self._settings, self.device)
        session, graphs = self._sessions[width]
        if self.device is not None:
            return DecoderPartition(spec, width, groups, session, self._make_cache, graphs=graphs)
        partition = DecoderPartition(spec, width, rows_for(groups), session, self._make_cache)
        if width not in self._probed:
            self._probed[width] = self._probe(partition, groups)
        partition.size, partition.verifies = self._probed[width]
        return partition

    def _probe(self, partition: DecoderPartition, groups: int) -> tuple[StepSize, bool]:
        """Return the number of groups of a partition's steps, and whether it can verify drafts (see probes)."""
        spec = self._spec
        # A source for the probe, with arbitrary numbers.
        shape = (spec.layers, min(SOURCE, spec.max_source), 2 * spec.heads * spec.head_dim)
        values: NDArray[Any] = np.random.default_rng(0).standard_normal(shape, np.float32)
        scales = None
        if spec.cross_type == "int8":
            values, scales = (25 * values).astype(np.int8), np.full(shape[::2], 0.04, np.float32)

        def reset(count: int) -> None:
            for group in range(count):
                partition.put_source(group, values, scales)

        size = step_size(spec, partition, reset, groups)
        native = self._settings.operators is not None and partition.width == 1
        can_verify = native and partition.takes_several and verifies(spec, partition, reset)
        partition.release_memory(0)
        return size, can_verify

    def _encode_to_caches(self, sources: Sequence[Ids], places: Sequence[Pairs]) -> None:
        """Encode the sources to K and V in float16, in caches of the same kind as the partitions' caches."""
        stage = self._stage
        fit = (lambda some: True) if stage is None else stage.fit
        groups = iter(places)
        for some in batches(sources, fit):
            encoded = self._encoded_on_host(some) if stage is None else stage.run(some)
            for row, source in enumerate(some):
                for width, group in next(groups):
                    self.partitions[width].take_source(group, encoded, row, len(source))

    def _encoded_on_host(self, sources: Sequence[Ids]) -> Cache:
        """Return a new cache whose capacity is the length of the longest source."""
        inputs, spec = self._encoder_inputs(sources), self._spec
        rows, width = inputs["input_ids"].shape
        encoded = self._make_cache((2 * spec.layers, rows, spec.heads, width, spec.head_dim), spec.cross_type)
        outputs = {f"cross_{at}": encoded.layer(at) for at in range(spec.layers)}
        Binding(self._encoder, inputs, outputs).run()
        return encoded

    def _encoder_inputs(self, sources: Sequence[Ids]) -> dict[str, NDArray[Any]]:
        ids, lengths = pad(sources, self._spec.max_source)
        total = np.array(ids.shape[1], np.int32)
        return {"input_ids": ids, "seqlens_k": lengths - np.int32(1), "total_length": total}

    def _run_encoder(self, sources: Sequence[Ids]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Return K, then V, of each position [layers, sources, width, 2 * heads * head_dim], and the scales of int8."""
        inputs = self._encoder_inputs(sources)
        ids = inputs["input_ids"]
        width = 2 * self._spec.heads * self._spec.head_dim
        shape = (*ids.shape, width)
        size = int(np.prod(shape))
        if size > self._encoded.array.shape[1]:
            self._encoded = Reserved((self._spec.layers, size), self._encoded.array.dtype)
        outputs = {f"cross_{i}": layer[:size].reshape(shape) for i, layer in enumerate(self._encoded.array)}
        scales = None
        if self._spec.cross_type == "int8":
            scales = np.empty((self._spec.layers, len(sources), width), np.float32)
            outputs |= {f"cross_scale_{i}": layer for i, layer in enumerate(scales)}
        Binding(self._encoder, inputs, outputs).run()
        return self._encoded.array[:, :size].reshape(-1, *shape), scales


Runner = Union[DecoderRunner, EncoderDecoderRunner]
