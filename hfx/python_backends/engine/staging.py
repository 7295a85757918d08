"""Runs of prompts and sources on a device, in few shapes.

Each shape has memory that is bound once, so that its run is captured as a CUDA graph. A captured graph keeps its
addresses: prompts and sources are run in staging memory, and copied within the device from there to their rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..errors import EngineError
from .device_memory import Device, Graphs
from .kv_cache import DeviceCache
from .partition import DecoderPartition, Outputs, Tokens
from .plan import DEVICE_LIMITS, QUERIES, Span, padded
from .sessions import Binding, SessionSettings, open_captured, open_session
from .spec import EngineSpec

MOST_ROWS = 32  # prompts of a run
SHARE = 1 / 4  # of the KV cache's memory that the staging cache for prompts may have
MOST_CAPTURED = 64  # shapes; each has a graph of about a megabyte
Item = TypeVar("Item")


@dataclass
class Staged:
    """Counts runs of a kind: `shapes` by (rows, width), padding included, and how many of them replayed a graph."""

    shapes: Counter[tuple[int, int]] = field(default_factory=Counter)
    captured: int = 0

    def count(self, shape: tuple[int, int], binding: Binding) -> None:
        """Count a run of `binding`."""
        self.shapes[shape] += 1
        self.captured += binding.captured


class PromptStage:
    """Runs whole prompts of a `partition` on `device`, at most `rows` together, of at most `width` tokens each."""

    def __init__(self, spec: EngineSpec, partition: DecoderPartition, device: Device) -> None:
        self.width = min(DEVICE_LIMITS.chunk, spec.max_length)
        self.rows = min(MOST_ROWS, len(partition.lengths))
        while self.rows > 1 and self.rows * self.width > SHARE * partition.cache.rows * spec.max_length:
            self.rows //= 2
        self.runs = Staged()
        self._partition = partition
        shape = (2 * spec.layers, self.rows, spec.kv_heads, self.width, spec.head_dim)
        self._cache = DeviceCache(device, shape, spec.kv_type)
        self._shapes: dict[tuple[int, int, bool], tuple[Tokens, NDArray[np.int64], Binding]] = {}

    @property
    def bytes(self) -> int:
        """The size of the staging cache."""
        return self._cache.bytes

    def run(self, spans: Sequence[Span], logits: bool) -> Outputs:
        """Run the prompts, which must fit. After the run, all rows of a span have its prompt."""
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
        self.runs.count((rows, width), binding)
        for at, span in enumerate(spans):
            for row in span.rows:
                self._partition.cache.take(row, self._cache, at, 0, span.end)  # type: ignore[arg-type]
                self._partition.start(row, span.end)
        return self._partition.outputs(next_ids[: len(spans)], logits)

    def warm(self, end: float) -> None:
        """Capture runs of short prompts until `end`, a time of `time.monotonic`."""
        rows = 1
        while rows <= self.rows and time.monotonic() < end:
            for width in {padded(QUERIES, QUERIES, self.width), padded(2 * QUERIES, QUERIES, self.width)}:
                self.run([Span((0,) * width)] * rows, logits=False)
            rows = padded(rows + 1, 1)
        self.runs = Staged()

    def _bind(self, rows: int, width: int, logits: bool) -> tuple[Tokens, NDArray[np.int64], Binding]:
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

    def __init__(self, spec: EngineSpec, session: Any, graphs: Graphs, device: Device) -> None:
        self.runs = Staged()
        self.graphs = graphs
        self._spec, self._session = spec, session
        self._tokens = max(DEVICE_LIMITS.encode, spec.max_source)
        shape = (2 * spec.layers, spec.heads, self._tokens, spec.head_dim)
        assert spec.cross_type is not None
        self._memory = device.allocate(shape, spec.cross_type)
        self._shapes: dict[tuple[int, int], tuple[dict[str, NDArray[Any]], DeviceCache, Binding]] = {}

    @property
    def bytes(self) -> int:
        """The size of the memory for results."""
        return int(np.prod(self._memory.shape)) * self._memory.dtype.itemsize

    def fit(self, sources: Sequence[Ids]) -> bool:
        """Whether the sources can be run together."""
        return len(sources) == 1 or int(np.prod(self._shape(sources))) <= self._tokens

    def run(self, sources: Sequence[Ids]) -> DeviceCache:
        """Run sources that fit, and return their K and V, which are valid until the next run."""
        shape = self._shape(sources)
        if shape not in self._shapes:
            self._shapes[shape] = self._bind(shape)
        inputs, encoded, binding = self._shapes[shape]
        for row, source in enumerate(sources):
            inputs["input_ids"][row, : len(source)] = source
            inputs["seqlens_k"][row] = len(source) - 1
        binding.run()
        self.runs.count(shape, binding)
        return encoded

    def warm(self, end: float) -> None:
        """Capture runs of few short sources until `end`, a time of `time.monotonic`."""
        for rows in (1, 2, 4, 8):
            for width in {padded(4 * QUERIES, QUERIES, self._spec.max_source)}:
                if time.monotonic() < end and self.fit([(0,) * width] * rows):
                    self.run([(0,) * width] * rows)
        self.runs = Staged()

    def _shape(self, sources: Sequence[Ids]) -> tuple[int, int]:
        width = padded(max(map(len, sources)), QUERIES, self._spec.max_source)
        return (1 if len(sources) == 1 else padded(len(sources), 1)), width

    def _bind(self, shape: tuple[int, int]) -> tuple[dict[str, NDArray[Any]], DeviceCache, Binding]:
        spec, (rows, width) = self._spec, shape
        of_cache = (2 * spec.layers, rows, spec.heads, width, spec.head_dim)
        encoded = DeviceCache(self._memory.device, of_cache, self._memory.dtype, self._memory)
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": np.zeros(shape, np.int64),
            "seqlens_k": np.zeros(rows, np.int32),
            "total_length": np.array(width, np.int32),
        }
        outputs = {f"cross_{layer}": encoded.layer(layer) for layer in range(spec.layers)}
        graphs = self.graphs if len(self._shapes) < MOST_CAPTURED else None
        return inputs, encoded, Binding(self._session, inputs, outputs, graphs)


def batches(items: Sequence[Item], fit: Callable[[Sequence[Item]], bool]) -> Iterator[Sequence[Item]]:
    """Divide `items` into as few consecutive batches that `fit` as halving makes; a single item always fits."""
    if fit(items) or len(items) == 1:
        yield items
        return
    middle = (len(items) + 1) // 2
    yield from batches(items[:middle], fit)
    yield from batches(items[middle:], fit)


@dataclass(frozen=True)
class DeviceRuns:
    """What a runner did on a device.

    `steps_captured` counts the steps that replayed a CUDA graph, `steps_ahead` those that were begun while the host
    took the tokens of the step before, and `prompts` the runs of prompts or sources.
    `cache_bytes` is the size of the caches. `refusal` says why a file is not captured, if so.
    """

    steps_captured: int
    steps_ahead: int
    prompts: Staged
    cache_bytes: int
    refusal: str


def device_runs(
    partitions: Mapping[int, DecoderPartition],
    stage: PromptStage | SourceStage | None,
    files: Iterable[Graphs | None],
) -> DeviceRuns:
    """Return the counts of a runner with these `partitions`, this `stage` and these files."""
    opened = tuple(partitions.values())  # another thread may open one
    return DeviceRuns(
        sum(partition.steps_captured for partition in opened),
        sum(partition.steps_ahead for partition in opened),
        Staged() if stage is None else stage.runs,
        sum(map(_bytes, opened)) + (0 if stage is None else stage.bytes),
        next((graphs.refusal for graphs in files if graphs is not None and graphs.refusal), ""),
    )


def _bytes(partition: DecoderPartition) -> int:
    caches = (partition.cache, *(partition.cross.caches if partition.cross else ()))
    return sum(cache.bytes for cache in caches if isinstance(cache, DeviceCache))


def warm_steps(partition: DecoderPartition, end: float) -> None:
    """Capture steps of all sizes until `end`, a time of `time.monotonic`."""
    groups = 1
    while groups <= len(partition.lengths) // partition.width and time.monotonic() < end:
        partition.step(groups, logits=False)
        partition.empty(0, groups)
        groups = padded(groups + 1, 1)
    partition.steps_captured = 0


def settle(device: Device | None) -> None:
    """Wait until nothing uses memory that will be freed."""
    if device is not None:
        with suppress(EngineError):  # a lost device does not use it, either
            device.copier.synchronize()


def opened_decoder(path: Path, settings: SessionSettings, device: Device | None) -> tuple[Any, Graphs | None]:
    """Open the session of a decoder, on a device with its graphs."""
    if device is None:
        return open_session(path, settings, is_decoder=True), None
    return open_captured(path, settings, device)


def opened_encoder(spec: EngineSpec, settings: SessionSettings, device: Device) -> SourceStage:
    """Open the session of an encoder on a device, with the memory for its results."""
    assert spec.files.encoder is not None
    return SourceStage(spec, *open_captured(spec.files.encoder, settings, device), device)
