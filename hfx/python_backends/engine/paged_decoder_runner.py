"""Decoder-only models in OpenVINO: one graph runs prompts, parts of prompts, and steps, on K/V in blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .batch_probe import CONTEXT, LONG, SHORT, answers, first_row, least_sequences, rows_for, tokens
from .kv_cache_paged import PagedCache, blocks_for
from .openvino_model import LogitsReader, OpenVinoModel
from .paged_rows import PagedRows
from .plan import Ids
from .runner import Outputs, Pairs
from .sessions import SessionSettings
from .spec import OPENVINO, EngineSpec

# Tokens of a run with prompts are a multiple of this: OpenVINO keeps a MB or more for every shape that it has run.
WHOLE = 16


class PagedDecoderRunner:
    """A `MixingRunner` with `slots` rows, all in the lane of width 1, and one more for prompts that come in chunks.

    It mixes steps and prompts in one run, unless answers depend on that: then each prompt has a run of its own.
    """

    runtime = OPENVINO

    def __init__(self, spec: EngineSpec, slots: int, settings: SessionSettings) -> None:
        assert spec.openvino is not None
        model = OpenVinoModel(spec.openvino.decoder, spec, settings)
        rows = rows_for(slots)
        self.cache = PagedCache(
            model.inputs, "", spec.layers, (rows + 1) * blocks_for(spec.max_length) + blocks_for(WHOLE)
        )
        self.ids = np.zeros(rows, np.int64)
        self.positions = np.zeros(rows, np.int64)
        self._last = np.arange(rows, dtype=np.int64)
        self._logits = LogitsReader(rows, spec.vocab_size)
        self._spec = spec
        self._staging, self._pads = rows, rows + 1
        # Steps keep what is bound to theirs while prompts come and go.
        self._prompts, self._steps = model.request(), model.request()
        self._prompts.bind(self.cache.inputs())
        self.rows = PagedRows(self.cache, rows + 2, spec.max_length, self._steps)
        self._bound = 0
        self._required = settings.runtime is None  # where the caller left the choice, there is another runtime
        self._least = 1  # sequences of a step
        self.mixes = True
        self._least, self.mixes = self._least_sequences(slots), self._is_same_beside()
        self.give_back()
        for row in range(rows):
            self._start(row, 0)

    def open_lane(self, width: int) -> None:
        """Nothing: the one lane is open."""

    def prefill(self, first: int, prompts: Sequence[Ids], logits: bool) -> Outputs:
        """One run of all tokens, one prompt behind the other, where the runner mixes."""
        if self.mixes:
            return self.prefill_beside(0, first, prompts, logits)
        ids, rows = [], []
        for row, prompt in enumerate(prompts, first):
            outputs = self.prefill_beside(0, row, [prompt], logits)
            ids.append(outputs.next_ids.copy())
            if outputs.logits is not None:
                rows.append(outputs.logits.copy())
        return Outputs(np.concatenate(ids), np.concatenate(rows) if rows else None)

    def prefill_beside(self, units: int, first: int, prompts: Sequence[Ids], logits: bool) -> Outputs:
        """Prompts behind the tokens of a step."""
        for row, prompt in enumerate(prompts, first):
            self.rows.clear(row)
            self.rows.tables.grow(row, len(prompt))
        outputs = self._run(units, first, prompts, 0, logits)
        for row, prompt in enumerate(prompts, first):
            self._start(row, len(prompt))
        return outputs

    def copy_row(self, source: int, target: int) -> None:
        """Shared blocks, but for the last."""
        self.rows.fork(source, target, int(self.rows.past[source]))
        self.positions[target] = self.positions[source]

    def chunk(self, tokens: Ids, start: int, logits: bool) -> Outputs:
        """A row of its own, so that the lane's rows stay beside each other."""
        return self.chunk_beside(0, tokens, start, logits)

    def chunk_beside(self, units: int, tokens: Ids, start: int, logits: bool) -> Outputs:
        """The part behind the tokens of a step."""
        if not start:
            self.rows.tables.shrink(self._staging, 0)
        self.rows.tables.grow(self._staging, start + len(tokens))
        outputs = self._run(units, self._staging, [tokens], start, logits)
        self.rows.past[self._staging] = start + len(tokens)
        return outputs

    def land(self, row: int) -> None:
        """Shared blocks, but for the last."""
        length = int(self.rows.past[self._staging])
        self.rows.fork(self._staging, row, length)
        self._start(row, length)

    def move(self, width: int, source: int, target: int) -> None:
        """A unit is a row here."""
        self.rows.move(source, target)
        for array in (self.ids, self.positions):
            array[target] = array[source]

    def follow(self, width: int, pairs: Pairs) -> None:
        """Shared blocks, but for the last."""
        self.rows.follow(pairs)

    def feed(self, width: int, pairs: Pairs) -> None:
        """Overwrite the argmax of the last run."""
        rows, tokens = zip(*pairs)  # noqa: B905 - pairs
        self.ids[list(rows)] = tokens

    def step(self, width: int, units: int, logits: bool) -> Outputs:
        """One run of a token for each row."""
        request, run = self._steps, max(units, self._least)
        for row in range(units, run):
            self.rows.clear(row)
            self.positions[row] = 0
        if run != self._bound:
            inputs = {"input_ids": self.ids, "position_ids": self.positions, "last": self._last}
            request.bind({name: array[:run] for name, array in inputs.items()})
            self.rows.bind(run)
            self._bound = run
        self.rows.prepare(run)
        request.run()
        self._advance(units, request.output("next_ids"))
        return Outputs(self.ids[:, None], self._logits.read(request) if logits else None).first(units)

    def give_back(self) -> None:
        """The blocks of all rows, and their pages."""
        self.rows.let_go(0)
        for row in (self._staging, self._pads):
            self.rows.tables.shrink(row, 0)
        self.cache.give_back()

    def close(self) -> None:
        """Drop the model with its requests, and the memory."""
        del self._prompts, self._steps, self.cache, self.rows

    def _least_sequences(self, slots: int) -> int:
        """See batch_probe: rows of the same tokens, which all take the same step."""
        length = min(CONTEXT, self._spec.max_length // 2)
        self.chunk(self._tokens(length), 0, logits=False)

        def logits_of(rows: int) -> bytes:
            for row in range(rows):
                self.land(row)
            return answers(self._spec, lambda token: self._step_of(token, rows), length)

        return least_sequences(logits_of, slots, self._required)

    def _step_of(self, token: int, rows: int) -> Outputs:
        self.ids[:rows] = token
        return self.step(1, rows, logits=True)

    def _is_same_beside(self) -> bool:
        """Whether a prompt has the same answer alone and beside a longer one."""
        short, long = self._tokens(SHORT), self._tokens(LONG)
        alone = first_row(self.prefill(0, [short], logits=True))
        return alone == first_row(self.prefill(0, [short, long], logits=True))

    def _tokens(self, length: int) -> Ids:
        return tokens(min(length, self._spec.max_length), self._spec.vocab_size)

    def _start(self, row: int, length: int) -> None:
        self.rows.set_past(row, length)
        self.positions[row] = length

    def _run(self, units: int, first: int, prompts: Sequence[Ids], start: int, logits: bool) -> Outputs:
        """A token for each of the first `units` rows, and `prompts`, from position `start` on, in rows from `first`.

        The rows of prompts have room for them. What pads the run to a whole number of tokens is a sequence of its own.
        """
        self.rows.make_room(units)
        pads = -(units + sum(map(len, prompts))) % WHOLE
        self.rows.tables.grow(self._pads, pads)
        joined = [*prompts, (0,) * pads] if pads else prompts
        lengths = np.array([1] * units + [len(prompt) for prompt in joined], np.int32)
        starts = np.array([start] * len(prompts) + [0] * (len(joined) - len(prompts)), np.int32)
        past = np.concatenate([self.rows.past[:units], starts])
        ends = np.cumsum([0, *lengths], dtype=np.int32)
        indices, begins = self._tables((0, units), (first, len(prompts)), (self._pads, 1 if pads else 0))
        last = ends[1 : units + len(prompts) + 1].astype(np.int64) - 1
        places = [np.arange(begin, begin + len(prompt)) for begin, prompt in zip(starts, joined, strict=True)]
        self._prompts.bind(
            {
                "input_ids": np.concatenate([self.ids[:units], *(np.array(prompt, np.int64) for prompt in joined)]),
                "position_ids": np.concatenate([self.positions[:units], *places]),
                "last": np.resize(last, max(len(last), self._least)),
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
        self._advance(units, next_ids)  # last: until here a failure has changed nothing
        return outputs

    def _tables(self, *spans: tuple[int, int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The blocks of rows, given as (first, number), one after the other, and where each row's begin."""
        each = [self.rows.tables.flat(first, rows) for first, rows in spans]
        counts = np.concatenate([np.diff(begins) for _, begins in each])
        return np.concatenate([blocks for blocks, _ in each]), np.cumsum([0, *counts], dtype=np.int32)

    def _advance(self, units: int, next_ids: NDArray[np.int64]) -> None:
        """The first rows have taken a step."""
        self.ids[:units] = next_ids[:units, 0]
        self.rows.advance(units)
        self.positions[:units] += 1
