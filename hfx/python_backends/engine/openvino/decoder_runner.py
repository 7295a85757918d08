"""Decoder-only models in OpenVINO: one graph runs prompts, parts of prompts, and steps, on K/V in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from ..plan import Limits, Span
from ..probes import BESIDE, CONTEXT, SHORT, StepSize, row_bytes, rows_for, step_size, tokens
from ..runner import Outputs, SessionSettings
from ..spec import OPENVINO, EngineSpec
from .model import LogitsReader, OpenVinoModel
from .paged_cache import PagedCache, PagedRows, blocks_for
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
