"""Encoder-decoder models in ONNX Runtime: an encoder, and a decoder graph for each width of partition."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..memory import Reserved
from ..plan import Limits
from ..probes import SOURCE, StepSize, rows_for, step_size, verifies
from ..runner import Pairs, SessionSettings
from ..spec import NATIVE, ONNXRUNTIME, EngineSpec
from .kv_cache import CacheMaker, KvCache
from .partition import DecoderPartition
from .sessions import Binding, open_session, pad


class OrtEncoderDecoderRunner:
    """An `EncoderDecoderRunner` of `slots` rows in all partitions, each opened with the first request of its width."""

    limits = Limits()

    def __init__(
        self, spec: EngineSpec, slots: int, settings: SessionSettings, make_cache: CacheMaker = KvCache
    ) -> None:
        assert spec.files.encoder is not None
        self.runtime = NATIVE if settings.operators else ONNXRUNTIME
        self._spec = spec
        self._slots = slots
        self._settings = settings
        self._make_cache = make_cache
        self._encoder = open_session(spec.files.encoder, settings)
        # What the encoder writes, [layer, tokens, K and V]; it grows with the largest batch.
        dtype = np.int8 if spec.cross_type == "int8" else np.float32
        self._encoded = Reserved((spec.layers, spec.max_source * 2 * spec.heads * spec.head_dim), dtype)
        self._opening = threading.Lock()
        self._sessions: dict[int, Any] = {}  # by width
        self._probed: dict[int, tuple[StepSize, bool]] = {}
        self.partitions: dict[int, DecoderPartition] = {}

    def second(self) -> OrtEncoderDecoderRunner:
        """Of the same sessions; its partitions are opened with its own first requests."""
        other = copy(self)
        other.partitions = {}
        return other

    def open_partition(self, width: int) -> None:
        """Load the decoder for `width` beams and reserve its memory."""
        if width in self.partitions:
            return
        with self._opening:
            if width not in self.partitions:
                self.partitions[width] = self._partition(width)

    def encode(self, sources: Sequence[Ids], places: Sequence[Pairs]) -> None:
        """One ragged batch, padded at the right; then each source's K/V to its groups."""
        values, scales = self._run_encoder(sources)
        for at, (source, groups) in enumerate(zip(sources, places, strict=True)):
            own_scales = None if scales is None else scales[:, at]
            for width, group in groups:
                self.partitions[width].put_source(group, values[:, at, : len(source)], own_scales)

    def trim(self, groups: Pairs) -> None:
        """Keep the memory that partitions have touched to `slots` rows in all: each gives back what it does not use."""
        in_use = dict(groups)
        partitions = tuple(self.partitions.items())  # another thread may open one
        for width, partition in partitions:
            partition.touched = max(partition.touched, in_use.get(width, 0))
        if sum(width * partition.touched for width, partition in partitions) > self._slots:
            for width, partition in partitions:
                partition.release_memory(in_use.get(width, 0))

    def release_memory(self) -> None:
        """All partitions' pages, and the encoder's."""
        self._encoded.release(0, self._encoded.array.size)
        for partition in tuple(self.partitions.values()):
            partition.release_memory(0)

    def close(self) -> None:
        """Drop bindings and sessions."""
        self._encoder = None
        self._sessions.clear()
        self.partitions.clear()

    def _partition(self, width: int) -> DecoderPartition:
        spec, groups = self._spec, self._slots // width
        session = self._sessions.get(width)
        if session is None:
            session = self._sessions[width] = open_session(spec.files.decoder[width], self._settings)
        if self._settings.provider != "CPU":
            return DecoderPartition(spec, width, groups, session, self._make_cache)
        partition = DecoderPartition(spec, width, rows_for(groups), session, self._make_cache)
        if width not in self._probed:
            self._probed[width] = self._probe(partition, groups)
        partition.size, partition.verifies = self._probed[width]
        return partition

    def _probe(self, partition: DecoderPartition, groups: int) -> tuple[StepSize, bool]:
        """See probes: the groups of a partition's steps, and whether drafts can be verified."""
        spec = self._spec
        # A source for the probe, whose numbers are any.
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

    def _run_encoder(self, sources: Sequence[Ids]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """[layers, sources, width, 2 * heads * head_dim]: K, then V, of each position; and the scales of int8."""
        ids, lengths = pad(sources, self._spec.max_source)
        total = np.array(ids.shape[1], np.int32)
        inputs = {"input_ids": ids, "seqlens_k": lengths - np.int32(1), "total_length": total}
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
