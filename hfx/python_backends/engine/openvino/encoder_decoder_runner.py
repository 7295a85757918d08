"""Encoder-decoder models in OpenVINO: an encoder, and one decoder for partitions of any width, on K/V in blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..plan import Limits
from ..probes import CONTEXT, SOURCE, SOURCES, StepSize, rows_for, step_size, tokens
from ..runner import Pairs, SessionSettings
from ..spec import OPENVINO, EngineSpec
from .model import CROSS, PREFIXES, InferRequest, LogitsReader, OpenVinoModel
from .paged_cache import PagedCache, PagedRows, blocks_for
from .partition import NEW, GrownRows, OwnRows, PagedPartition, PagedSources

# Sources whose lengths are rounded up to the same number are encoded in one run: OpenVINO keeps some MB for every shape
# that it has run. Lengths up to the first number become multiples of the second: a source's padding follows from its
# own length alone, and so do its numbers.
STEPS = ((64, 16), (256, 32), (1 << 62, 64))


def padded_length(length: int, most: int) -> int:
    """`length` rounded up, to at most `most`."""
    step = next(step for longest, step in STEPS if length <= longest)
    return min(-(-length // step) * step, most)


def batches(lengths: Sequence[int], most: int, together: int) -> Iterator[tuple[int, list[int]]]:
    """(padded length, places in `lengths`) of each run; 1, 2, 4, 8... sources go into one, `together` at most.

    `most` is the largest length.
    """
    alike: dict[int, list[int]] = {}
    for at, length in enumerate(lengths):
        alike.setdefault(padded_length(length, most), []).append(at)
    for width, places in alike.items():
        start = 0
        while start < len(places):
            count = 1 << (min(len(places) - start, together).bit_length() - 1)
            yield width, places[start : start + count]
            start += count


class PagedEncoderDecoderRunner:
    """An `EncoderDecoderRunner` of `slots` rows in all partitions, each opened with the first request of its width."""

    runtime = OPENVINO
    limits = Limits()

    def __init__(self, spec: EngineSpec, slots: int, settings: SessionSettings) -> None:
        assert spec.openvino is not None and spec.openvino.encoder is not None
        self._spec = spec
        self._encoder = OpenVinoModel(spec.openvino.encoder, spec, settings).request()
        self._decoder = OpenVinoModel(spec.openvino.decoder, spec, settings)
        self._groups = {width: rows_for(slots // width) for width in spec.beams}
        self._opening = threading.Lock()
        self._reserve()
        self._together = self._is_same_together()
        required = settings.runtime is None  # where the caller left the choice, there is another runtime
        self._size = StepSize()
        self._size = self._step_size(slots, required)

    def second(self) -> PagedEncoderDecoderRunner:
        """Of the same compiled models."""
        other = copy(self)
        other._reserve()
        return other

    def open_partition(self, width: int) -> None:
        """Reserve the partition's memory."""
        if width in self.partitions:
            return
        with self._opening:
            if width not in self.partitions:
                self.partitions[width] = self._partition(width)

    def encode(self, sources: Sequence[Ids], places: Sequence[Pairs]) -> None:
        """Sources of about one length together, padded at the right; then each source's K/V to its groups."""
        most = len(sources) if self._together else 1
        for width, alike in batches([len(source) for source in sources], self._spec.max_source, most):
            encoded = self._encode(width, [sources[at] for at in alike])
            for row, at in enumerate(alike):
                length = len(sources[at])
                self._place([part[:, :length] for layer in encoded for part in layer[row]], places[at])

    def trim(self, groups: Pairs) -> None:
        """The blocks of other groups are free for those in use."""
        in_use = dict(groups)
        for width, partition in tuple(self.partitions.items()):  # another thread may open one
            partition.release(in_use.get(width, 0))

    def release_memory(self) -> None:
        """The blocks of all partitions, and their pages."""
        self.trim(())
        for cache in (self.sources, self.own):
            if cache is not None:
                cache.release()

    def close(self) -> None:
        """Drop the models with their requests, and the memory."""
        self.partitions.clear()
        del self._encoder, self._decoder, self.sources, self.own

    def _reserve(self) -> None:
        """Memory of no partition yet."""
        # Blocks for all that all partitions can hold: what rows that have ended still have is never missed.
        spec, groups = self._spec, self._groups
        self._logits = LogitsReader(max(width * count for width, count in groups.items()), spec.vocab_size)
        ports = self._decoder.inputs
        blocks = sum(groups.values()) * blocks_for(spec.max_source)
        self.sources = PagedCache(ports, PREFIXES[CROSS], spec.layers, blocks)
        self.own: PagedCache | None = None
        if NEW not in self._decoder.outputs:
            rows = sum(width * count for width, count in groups.items())
            self.own = PagedCache(ports, "", spec.layers, rows * blocks_for(spec.max_length))
        self.partitions: dict[int, PagedPartition] = {}

    def _encode(self, width: int, sources: Sequence[Ids]) -> list[NDArray[Any]]:
        """[sources, 2, heads, width, head_dim] of each layer, valid until the next run."""
        ids = np.zeros((len(sources), width), np.int64)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
        self._encoder.bind({"input_ids": ids, "lengths": np.array([len(source) for source in sources], np.int64)})
        self._encoder.run()
        return [self._encoder.output(f"cross_{layer}") for layer in range(self._spec.layers)]

    def _is_same_together(self) -> bool:
        """See probes: whether a source is encoded to the same numbers alone and with others."""
        length = min(SOURCE, self._spec.max_source)
        alone = [layer[0].tobytes() for layer in self._encode(length, [self._source(length)])]
        return alone == [layer[0].tobytes() for layer in self._encode(length, [self._source(length)] * SOURCES)]

    def _step_size(self, slots: int, required: bool) -> StepSize:
        """See probes: groups that share a source, the first of which takes its first step again and again."""
        width = self._spec.beams[0]
        self.open_partition(width)
        partition = self.partitions[width]
        self.encode([self._source(min(CONTEXT, self._spec.max_source))], [((width, 0),)])

        def reset(groups: int) -> None:
            partition.clear(0)
            for group in range(1, groups):
                partition.share(0, group)

        size = step_size(self._spec, partition, reset, slots // width, required)
        self.release_memory()
        del self.partitions[width]
        return size

    def _source(self, length: int) -> Ids:
        return tokens(length, self._spec.vocab_size)

    def _place(self, values: Sequence[NDArray[Any]], places: Pairs) -> None:
        """One source to its groups; those of one partition share it."""
        filled: dict[int, int] = {}
        for width, group in places:
            if width in filled:
                self.partitions[width].share(filled[width], group)
            else:
                self.partitions[width].put_source(group, values)
                filled[width] = group

    def _partition(self, width: int) -> PagedPartition:
        spec, groups = self._spec, self._groups[width]
        request = self._decoder.request()
        sources = PagedSources(self.sources, groups, spec.max_source, spec.heads * spec.head_dim, request)
        return PagedPartition(
            width, groups, request, self._own_rows(groups * width, request), sources, self._logits, self._size
        )

    def _own_rows(self, rows: int, request: InferRequest) -> OwnRows:
        if self.own is not None:
            return PagedRows(self.own, rows, self._spec.max_length, request)
        spec = self._spec
        return GrownRows(spec.layers, rows, spec.heads, spec.head_dim, spec.max_length, request)
