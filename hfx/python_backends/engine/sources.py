"""Runs of encoders on the host. Each source gets its results as its keys and values for cross attention.

`run` of these classes, and of SourceStage (staging.py), yields a Fill for each source, in order. A Fill is valid until
the next one is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from .kv_cache import Place
from .partition import DecoderPartition
from .sessions import Net, Reserved, pad
from .spec import EngineSpec

# Gives a group of a partition the keys and values of one source.
Fill = Callable[[DecoderPartition, int], None]


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
