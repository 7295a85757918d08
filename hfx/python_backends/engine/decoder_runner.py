"""Decoder-only models in ONNX Runtime: one graph runs prompts, parts of prompts, and steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .batch_probe import MOST_LEAST, answers, least_sequences
from .kv_cache import CacheMaker, KvCache, LaneMemory, bind_cache
from .memory import Arrays, Bindable, Binding, Reserved, pad
from .plan import Ids
from .runner import Outputs, Pairs
from .sessions import SessionSettings, open_session
from .spec import ONNXRUNTIME, EngineSpec

WIDTH = 1
PREFIXES = ("past_", "present_")


class DecoderRunner:
    """A `PromptRunner` with `slots` rows, all in the lane of width 1, and one more for prompts that come in chunks."""

    runtime = ONNXRUNTIME
    mixes = False

    def __init__(
        self, spec: EngineSpec, slots: int, settings: SessionSettings, make_cache: CacheMaker = KvCache
    ) -> None:
        self._session = open_session(spec.files.decoder[WIDTH], settings)
        probed = settings.provider == "CPU"
        rows = slots + MOST_LEAST if probed else slots
        cache = make_cache(spec.layers, rows + 1, spec.heads, spec.max_length, spec.head_dim, spec.kv_type)
        self.lane = LaneMemory(rows, cache)
        self._spare, self._staging = slots, rows
        self._staged = 0
        self._max_length = spec.max_length
        self._last = np.zeros((rows, 1), np.int64)
        self._first_ids = np.zeros((rows, 1), np.int64)
        self._logits = Reserved((rows, spec.vocab_size), np.float32).array
        self._steps: dict[tuple[int, bool], Binding] = {}
        self._least = 1  # rows of a run
        if probed:
            self._least = self._least_rows(spec, slots)
            self.give_back()

    def open_lane(self, width: int) -> None:
        """Nothing: the one lane is open."""

    def prefill(self, first: int, prompts: Sequence[Ids], logits: bool) -> Outputs:
        """One ragged batch, padded at the right. Pads fill the cache beyond a row's length, where nothing reads."""
        few = len(prompts) < self._least
        begin = self._spare if few else first  # what is beside a lone prompt may be in use
        ids, lengths = pad([*prompts, *[prompts[0]] * (self._least - len(prompts))], self._max_length)
        outputs = self._prompt(begin, ids, 0, lengths, logits)
        for row, prompt in enumerate(prompts):
            if few:
                self.lane.cache.copy(begin + row, first + row, len(prompt))
            self.lane.start(first + row, len(prompt))
        return outputs.first(len(prompts))

    def copy_row(self, source: int, target: int) -> None:
        """Cache and length."""
        self.lane.move(source, target)

    def chunk(self, tokens: Ids, start: int, logits: bool) -> Outputs:
        """The operator takes several tokens on a filled cache for a batch of one only: hence a row of its own."""
        ids = np.array([tokens], np.int64)
        self._staged = start + len(tokens)
        return self._prompt(self._staging, ids, start, np.array([len(tokens)], np.int32), logits)

    def land(self, row: int) -> None:
        """Copy what is filled."""
        self.lane.cache.copy(self._staging, row, self._staged)
        self.lane.start(row, self._staged)

    def move(self, width: int, source: int, target: int) -> None:
        """A unit is a row here."""
        self.lane.move(source, target)

    def follow(self, width: int, pairs: Pairs) -> None:
        """Copy what is filled."""
        self.lane.follow(pairs)

    def feed(self, width: int, pairs: Pairs) -> None:
        """Overwrite the argmax of the last run."""
        self.lane.feed(pairs)

    def step(self, width: int, units: int, logits: bool) -> Outputs:
        """One run on memory that was bound when there were as many rows the first time."""
        run = max(units, self._least)
        self._reset(units, run)
        binding = self._steps.get((run, logits))
        if binding is None:
            inputs = {**self.lane.inputs(run), "last_index": self._last[:run]}
            # next_ids is written when input_ids has been read: the next input is in place without a copy.
            binding = self._bind(0, inputs, self.lane.ids[:run], logits)
            self._steps[run, logits] = binding
        self.lane.prepare(run)
        binding.run()
        self.lane.advance(units)
        return Outputs(self.lane.ids, self._logits if logits else None).first(units)

    def give_back(self) -> None:
        """The cache's pages."""
        self.lane.cache.give_back(0)

    def close(self) -> None:
        """Drop bindings and session."""
        self._steps.clear()
        self._session = None

    def _least_rows(self, spec: EngineSpec, slots: int) -> int:
        """See batch_probe."""

        def step(token: int, rows: int) -> Outputs:
            self.lane.ids[:rows] = token
            return self.step(1, rows, logits=True)

        def logits_of(rows: int) -> bytes:
            self._reset(0, rows)
            return answers(spec, lambda token: step(token, rows))

        return least_sequences(logits_of, slots)

    def _reset(self, first: int, end: int) -> None:
        """Empty the rows from `first` to `end`, which are not in use."""
        for row in range(first, end):
            self.lane.start(row, 0)

    def _prompt(
        self, first: int, ids: NDArray[np.int64], start: int, lengths: NDArray[np.int32], logits: bool
    ) -> Outputs:
        """Run `ids` [rows, width], of which `lengths` a row are real, from position `start` on in rows from `first`."""
        rows, width = ids.shape
        positions = np.arange(start, start + width, dtype=np.int64)
        inputs: Arrays = {
            "input_ids": ids,
            "position_ids": np.ascontiguousarray(np.broadcast_to(positions, ids.shape)),
            "seqlens_k": start + lengths - np.int32(1),
            "total_length": np.array(start + width, np.int32),
            "last_index": (lengths - 1).astype(np.int64)[:, None],
        }
        self._bind(first, inputs, self._first_ids[:rows], logits).run()
        return Outputs(self._first_ids[:rows], self._logits[:rows] if logits else None)

    def _bind(self, first: int, inputs: Arrays, next_ids: NDArray[np.int64], logits: bool) -> Binding:
        rows = len(next_ids)
        past, present = bind_cache(self.lane.cache, first, rows, PREFIXES)
        outputs: dict[str, Bindable] = {"next_ids": next_ids, **present}
        if logits:
            outputs["logits"] = self._logits[:rows]
        return Binding(self._session, {**inputs, **past}, outputs)
