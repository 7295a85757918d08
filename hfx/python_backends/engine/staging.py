"""Runs of prompts and sources on a device, in few shapes.

Each shape has memory that is bound once, so that its run is captured as a CUDA graph. A captured graph keeps its
addresses: prompts and sources are run in staging memory, and copied within the device from there to their rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from .captures import BoundRun, Net
from .device_memory import Device, DeviceCounts
from .kv_cache import DeviceCache, Place
from .partition import DecoderPartition, Outputs, Tokens
from .plan import DEVICE_LIMITS, QUERIES, Span, padded
from .prefill import Fill, Prefill
from .spec import EngineSpec

MOST_ROWS = 32  # prompts of a run
SHARE = 1 / 4  # of the KV cache's memory that the staging cache for prompts may have
MOST_CAPTURED = 64  # shapes; each has a graph of about a megabyte
Item = TypeVar("Item")


class PromptStage:
    """Runs whole prompts of a `partition` on a device, at most `rows` together, of at most `width` tokens each.

    Parts of prompts, and prompts that are too long, are run in the partition's rows.
    """

    same_in_parts = False  # not probed on a device

    def __init__(self, spec: EngineSpec, partition: DecoderPartition, slots: int, place: Place) -> None:
        self.width = min(DEVICE_LIMITS.chunk, spec.max_length)
        self.rows = min(MOST_ROWS, len(partition.lengths))
        while self.rows > 1 and self.rows * self.width > SHARE * partition.cache.rows * spec.max_length:
            self.rows //= 2
        self.blocks = None
        self._partition, self._counts = partition, place.counts
        self._in_rows = Prefill(spec, partition, slots)
        self._cache = place.cache((2 * spec.layers, self.rows, spec.kv_heads, self.width, spec.head_dim), spec.kv_type)
        self._shapes: dict[tuple[int, int, bool], tuple[Tokens, NDArray[np.int64], BoundRun]] = {}

    def run(self, spans: Sequence[Span], logits: bool) -> Outputs:
        """Run whole prompts or a part of one. After the run, all rows of a span have its prompt."""
        if not spans[0].is_whole or any(span.end > self.width for span in spans):
            return self._in_rows.run(spans, logits)
        if len(spans) <= self.rows:
            return self._run(spans, logits)
        return Outputs.joined(self._run(some, logits) for some in batches(spans, lambda some: len(some) <= self.rows))

    def keep_prefixes(self, size: int) -> int:
        """Return 0: there is no prefix cache on a device."""
        return 0

    def warm(self, end: float) -> None:
        """Capture runs of short prompts until `end`, a time of `time.monotonic`."""
        rows = 1
        while rows <= self.rows and time.monotonic() < end:
            for width in {padded(QUERIES, QUERIES, self.width), padded(2 * QUERIES, QUERIES, self.width)}:
                self._run([Span((0,) * width)] * rows, logits=False)
            rows = padded(rows + 1, 1)

    def _run(self, spans: Sequence[Span], logits: bool) -> Outputs:
        """Run prompts that fit into the staging memory."""
        rows = padded(len(spans), 1, self.rows)
        width = padded(max(len(span.tokens) for span in spans), QUERIES, self.width)
        shape = self._shapes.get((rows, width, logits))
        if shape is None:
            shape = self._shapes[rows, width, logits] = self._bind(rows, width, logits)
        tokens, next_ids, binding = shape  # in the rows after `spans` are those of an earlier run
        for row, span in enumerate(spans):
            tokens.ids[row, : len(span.tokens)] = span.tokens
            tokens.ends[row] = tokens.picked[row] = len(span.tokens) - 1
        binding.run()
        self._counts.count_prompts((rows, width), binding.captured)
        for at, span in enumerate(spans):
            for row in span.rows:
                self._partition.cache.take(row, self._cache, at, 0, span.end)  # type: ignore[arg-type]
                self._partition.start(row, span.end)
        return self._partition.outputs(next_ids[: len(spans)], logits)

    def _bind(self, rows: int, width: int, logits: bool) -> tuple[Tokens, NDArray[np.int64], BoundRun]:
        positions = np.ascontiguousarray(np.broadcast_to(np.arange(width, dtype=np.int64), (rows, width)))
        tokens = Tokens(
            np.zeros((rows, width), np.int64),
            positions,
            np.zeros(rows, np.int32),
            np.array(width, np.int32),
            np.zeros((rows, 1), np.int64),
        )
        next_ids = np.zeros((rows, 1), np.int64)
        captured = len(self._shapes) < MOST_CAPTURED
        return tokens, next_ids, self._partition.bind(0, tokens, next_ids, logits, captured, self._cache)


class SourceStage:
    """Runs an encoder whose results, K and V in float16, stay on `device`, in memory that all shapes share."""

    def __init__(self, spec: EngineSpec, net: Net, device: Device, counts: DeviceCounts) -> None:
        self._spec, self._net, self._counts = spec, net, counts
        self._tokens = max(DEVICE_LIMITS.encode, spec.max_source)
        shape = (2 * spec.layers, spec.heads, self._tokens, spec.head_dim)
        self._memory = device.allocate(shape, spec.cross_type)
        counts.device_cache_bytes += self._memory.nbytes
        self._shapes: dict[tuple[int, int], tuple[dict[str, NDArray[Any]], DeviceCache, BoundRun]] = {}

    def run(self, sources: Sequence[Ids]) -> Iterator[Fill]:
        """Run the sources in as few batches as have memory, and yield a Fill for each source."""
        for some in batches(sources, self._fit):
            encoded = self._run(some)
            for row, source in enumerate(some):
                yield partial(DecoderPartition.take_source, encoded=encoded, source=row, length=len(source))

    def release_memory(self) -> None:
        """Do nothing: memory on a device stays allocated."""

    def warm(self, end: float) -> None:
        """Capture runs of few short sources until `end`, a time of `time.monotonic`."""
        for rows in (1, 2, 4, 8):
            for width in {padded(4 * QUERIES, QUERIES, self._spec.max_source)}:
                if time.monotonic() < end and self._fit([(0,) * width] * rows):
                    self._run([(0,) * width] * rows)

    def _fit(self, sources: Sequence[Ids]) -> bool:
        """Whether the sources can be run together."""
        return len(sources) == 1 or int(np.prod(self._shape(sources))) <= self._tokens

    def _run(self, sources: Sequence[Ids]) -> DeviceCache:
        """Run sources that fit, and return their K and V, which are valid until the next run."""
        shape = self._shape(sources)
        if shape not in self._shapes:
            self._shapes[shape] = self._bind(shape)
        inputs, encoded, binding = self._shapes[shape]
        for row, source in enumerate(sources):
            inputs["input_ids"][row, : len(source)] = source
            inputs["seqlens_k"][row] = len(source) - 1
        binding.run()
        self._counts.count_prompts(shape, binding.captured)
        return encoded

    def _shape(self, sources: Sequence[Ids]) -> tuple[int, int]:
        width = padded(max(map(len, sources)), QUERIES, self._spec.max_source)
        return (1 if len(sources) == 1 else padded(len(sources), 1)), width

    def _bind(self, shape: tuple[int, int]) -> tuple[dict[str, NDArray[Any]], DeviceCache, BoundRun]:
        spec, (rows, width) = self._spec, shape
        of_cache = (2 * spec.layers, rows, spec.heads, width, spec.head_dim)
        encoded = DeviceCache(self._memory.device, of_cache, self._memory.dtype, self._memory)
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": np.zeros(shape, np.int64),
            "seqlens_k": np.zeros(rows, np.int32),
            "total_length": np.array(width, np.int32),
        }
        outputs = {f"cross_{layer}": encoded.layer(layer) for layer in range(spec.layers)}
        return inputs, encoded, self._net.bind(inputs, outputs, captured=len(self._shapes) < MOST_CAPTURED)


def batches(items: Sequence[Item], fit: Callable[[Sequence[Item]], bool]) -> Iterator[Sequence[Item]]:
    """Split `items` in half, again and again, until each batch fits. A single item always fits."""
    if fit(items) or len(items) == 1:
        yield items
        return
    middle = (len(items) + 1) // 2
    yield from batches(items[:middle], fit)
    yield from batches(items[middle:], fit)


def warm_steps(partition: DecoderPartition, end: float) -> None:
    """Capture steps of all sizes until `end`, a time of `time.monotonic`."""
    groups = 1
    while groups <= len(partition.lengths) // partition.width and time.monotonic() < end:
        partition.step(groups, logits=False)
        partition.empty(0, groups)
        groups = padded(groups + 1, 1)
