"""The runners of OpenVINO, on K/V in blocks: decoder-only models, and encoder-decoders.

One graph runs prompts, parts of prompts and steps of a decoder-only model; an encoder-decoder has one decoder for
partitions of any width.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..plan import Limits, Span
from ..probes import BESIDE, CONTEXT, SHORT, SOURCE, SOURCES, StepSize, row_bytes, rows_for, step_size, tokens
from ..runner import Outputs, Pairs, SessionSettings
from ..spec import OPENVINO, EngineSpec
from .kv_cache import NEW, GrownRows, OwnRows, PagedCache, PagedRows, PagedSources, blocks_for
from .model import CROSS, PREFIXES, InferRequest, LogitsReader, OpenVinoModel
from .partition import PagedPartition

# Tokens of a run with prompts are a multiple of this: OpenVINO keeps a MB or more for every shape that it has run.
WHOLE = 16
WIDTH = 1
# A run's fixed cost is shared with a step, and longer parts serve 1.2 times as many requests.
MIXED = Limits(chunk=512, prefill=512, mixed=True)


class PagedDecoderRunner:
    """A `DecoderRunner` with `slots` rows, all in one partition, and one more for prompts that come in chunks.

    It mixes steps and prompts in one run, unless answers depend on that: then each prompt has a run of its own.
    """

    runtime = OPENVINO

    def __init__(self, spec: EngineSpec, slots: int, settings: SessionSettings) -> None:
        assert spec.openvino is not None
        self._model = OpenVinoModel(spec.openvino.decoder, spec, settings)
        self._spec = spec
        rows = rows_for(slots)
        self._staging, self._pads = rows, rows + 1
        self._reserve()
        required = settings.runtime is None  # where the caller left the choice, there is another runtime
        self.limits = MIXED
        self.partition.size, same = self._step_size(slots, required), self._is_same_beside()
        if not same:
            self.limits = Limits()
        self.release_memory()
        for row in range(rows):
            self._start(row, 0)

    def second(self) -> PagedDecoderRunner:
        """Of the same compiled model."""
        other = copy(self)
        other._reserve()
        other.partition.size = self.partition.size
        return other

    def open_partition(self, width: int) -> None:
        """Nothing: the one partition is open."""

    def keep_prefixes(self, size: int) -> int:
        """None: `second` runners have blocks of their own."""
        return 0

    def run(self, spans: Sequence[Span], logits: bool, groups: int = 0) -> Outputs:
        """One run of all tokens, one prompt behind the other and all behind the step's, where runs are mixed."""
        if self.limits.mixed or len(spans) == 1:
            return self._run(spans, logits, groups)
        return Outputs.joined(self._run([span], logits, 0) for span in spans)

    def release_memory(self) -> None:
        """The blocks of all rows, and their pages."""
        self.rows.release(0)
        for row in (self._staging, self._pads):
            self.rows.tables.shrink(row, 0)
        self.cache.release()

    def close(self) -> None:
        """Drop the model with its requests, and the memory."""
        self.partitions.clear()
        del self._prompts, self.partition, self.cache, self.rows, self._model

    def _reserve(self) -> None:
        """Memory and requests, for `_staging` rows, one for chunks and one for pads."""
        model, spec, rows = self._model, self._spec, self._staging
        self.cache = PagedCache(
            model.inputs, "", spec.layers, (rows + 1) * blocks_for(spec.max_length) + blocks_for(WHOLE)
        )
        self._logits = LogitsReader(rows, spec.vocab_size)
        # Steps keep what is bound to theirs while prompts come and go.
        self._prompts, steps = model.request(), model.request()
        self._prompts.bind(self.cache.inputs())
        self.rows = PagedRows(self.cache, rows + 2, spec.max_length, steps)
        self.partition = PagedPartition(WIDTH, rows, steps, self.rows, None, self._logits, StepSize())
        self.partitions = {WIDTH: self.partition}

    def _row(self, span: Span) -> int:
        """The row that a span is run in, with room for it."""
        row = span.rows[0] if span.is_whole else self._staging
        if span.is_whole:
            self.rows.clear(row)
        elif not span.start:
            self.rows.tables.shrink(row, 0)
        self.rows.tables.grow(row, span.end)
        return row

    def _fill(self, source: int, rows: Iterable[int], length: int) -> None:
        """Give `rows` what row `source` holds: shared blocks, but for the last."""
        for row in rows:
            if row != source:
                self.rows.fork(source, row, length)
            self._start(row, length)

    def _step_size(self, slots: int, required: bool) -> StepSize:
        """See probes: rows of the same tokens, which all take the same step."""
        length = min(CONTEXT, self._spec.max_length // 2)
        self.run([Span(self._tokens(length))], logits=False)

        def reset(count: int) -> None:
            self._fill(self._staging, range(count), length)

        return step_size(self._spec, self.partition, reset, slots, required, length)

    def _is_same_beside(self) -> bool:
        """Whether a prompt has the same answer alone and beside a longer one."""
        short, long = (Span(self._tokens(length), rows=(row,)) for row, length in enumerate((SHORT, BESIDE)))
        alone = row_bytes(self.run([short], logits=True), 0)
        return alone == row_bytes(self.run([short, long], logits=True), 0)

    def _tokens(self, length: int) -> Ids:
        return tokens(min(length, self._spec.max_length), self._spec.vocab_size)

    def _start(self, row: int, length: int) -> None:
        self.rows.set_past(row, length)
        self.partition.positions[row] = length

    def _run(self, spans: Sequence[Span], logits: bool, groups: int) -> Outputs:
        """As `run`. What pads the run to a whole number of tokens is a sequence of its own."""
        rows = [self._row(span) for span in spans]
        self.rows.make_room(groups)
        pads = -(groups + sum(len(span.tokens) for span in spans)) % WHOLE
        self.rows.tables.grow(self._pads, pads)
        joined = [*spans, Span((0,) * pads)] if pads else spans
        lengths = np.array([1] * groups + [len(span.tokens) for span in joined], np.int32)
        past = np.concatenate([self.rows.past[:groups], np.array([span.start for span in joined], np.int32)])
        ends = np.cumsum([0, *lengths], dtype=np.int32)
        indices, begins = self._tables((0, groups), (rows[0], len(rows)), (self._pads, 1 if pads else 0))
        last = ends[1 : groups + len(spans) + 1].astype(np.int64) - 1
        places = [np.arange(span.start, span.end) for span in joined]
        self._prompts.bind(
            {
                "input_ids": np.concatenate([self.partition.ids[:groups], *(np.array(span.tokens) for span in joined)]),
                "position_ids": np.concatenate([self.partition.positions[:groups], *places]),
                "last": np.resize(last, self.partition.size.of(len(last))),
                "past_lens": past,
                "subsequence_begins": ends,
                "block_indices": indices,
                "block_indices_begins": begins,
                "max_context_len": np.array((past + lengths).max(), np.int32),
            }
        )
        self._prompts.run()
        next_ids: NDArray[np.int64] = self._prompts.output("next_ids")
        outputs = Outputs(next_ids, self._logits.read(self._prompts) if logits else None).first(len(last))
        for row, span in zip(rows, spans, strict=True):
            self.rows.past[row] = span.end
            self._fill(row, span.rows, span.end)
        self.partition.advance(groups, next_ids)  # last: until here a failure has changed nothing of the step's
        return outputs

    def _tables(self, *spans: tuple[int, int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The blocks of rows, given as (first, number), one after the other, and where each row's begin."""
        each = [self.rows.tables.flat(first, rows) for first, rows in spans]
        counts = np.concatenate([np.diff(begins) for _, begins in each])
        return np.concatenate([blocks for blocks, _ in each]), np.cumsum([0, *counts], dtype=np.int32)


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
