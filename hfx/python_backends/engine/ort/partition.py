"""A decoder graph in ONNX Runtime with its rows of one width: what its steps read and change in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch_probe import StepSize
from ..memory import Reserved
from ..runner import Outputs, Pairs, Verifier
from ..spec import EngineSpec
from .binding import Bindables, Binding
from .kv_cache import CacheMaker, CrossCache, bind_cache

PREFIXES = ("past_", "present_")
WANTS_LOGITS = "wants_logits"  # an input of graphs whose head can leave logits out


class DecoderPartition:
    """`groups` groups of `width` rows, each group with the keys and values of a source where there is an encoder.

    A row's length is the number of filled positions, which is also the position of its next input. The cache has
    `more_rows` than the partition. A step has the groups of `size` (see batch_probe); `touched` groups have memory.
    """

    def __init__(
        self, spec: EngineSpec, width: int, groups: int, session: Any, make_cache: CacheMaker, more_rows: int = 0
    ) -> None:
        rows = groups * width
        self.width = width
        shape = (2 * spec.layers, rows + more_rows, spec.kv_heads, spec.max_length, spec.head_dim)
        self.cache = make_cache(shape, spec.kv_type)
        self.cross = CrossCache(spec, groups, make_cache) if spec.has_encoder else None
        self.ids = np.zeros((rows, 1), np.int64)
        self.positions = np.zeros((rows, 1), np.int64)
        self.lengths = np.zeros(rows, np.int32)
        self.logits: NDArray[np.float32] = Reserved((rows, spec.vocab_size), np.float32).array
        self.size = StepSize()
        self.verifier: Verifier | None = None
        self.touched = 0
        self._total = np.zeros((), np.int32)
        self._last = np.zeros((rows, 1), np.int64)
        self._session = session
        self._inputs: dict[str, list[object]] = {tensor.name: tensor.shape for tensor in session.get_inputs()}
        self._steps: dict[tuple[int, bool], Binding] = {}

    @property
    def takes_several(self) -> bool:
        """Whether a run behind a past gives outputs for several tokens of a row. Graphs of earlier versions do not."""
        return self._inputs["last_index" if self.cross is None else "input_ids"][1] != 1

    def start(self, row: int, length: int) -> None:
        """Say that `row` has `length` positions filled."""
        self.lengths[row] = self.positions[row, 0] = length

    def put_source(self, group: int, values: NDArray[Any], scales: NDArray[np.float32] | None) -> None:
        """Give `group` the cross K/V of a source (see CrossCache), and empty rows."""
        assert self.cross is not None
        self.cross.put(group, values, scales)
        for row in range(group * self.width, (group + 1) * self.width):
            self.start(row, 0)

    def empty(self, first: int, end: int) -> None:
        """Make groups from `first` to `end`, which are not in use, such that they cost little."""
        if self.cross is not None:
            self.cross.empty(first, end)
        for row in range(first * self.width, end * self.width):
            self.start(row, 0)

    def move(self, source: int, target: int) -> None:
        """Own and cross K/V, lengths and next inputs."""
        if self.cross is not None:
            self.cross.move(source, target)
        for beam in range(self.width):
            one, other = source * self.width + beam, target * self.width + beam
            self.cache.copy(one, other, int(self.lengths[one]))
            for array in (self.ids, self.positions, self.lengths):
                array[other] = array[one]

    def reorder_cache(self, pairs: Pairs) -> None:
        """Copy what is filled; the cross K/V are the group's."""
        for source, target in pairs:
            self.cache.copy(source, target, int(self.lengths[source]))

    def set_next_tokens(self, pairs: Pairs) -> None:
        """Overwrite the argmax of the last run."""
        rows, tokens = zip(*pairs)  # noqa: B905 - pairs
        self.ids[list(rows), 0] = tokens

    def step(self, groups: int, logits: bool) -> Outputs:
        """One run on memory that was bound when there were as many rows the first time."""
        rows, run = groups * self.width, self.size.of(groups)
        self.empty(groups, run)
        binding = self._steps.get((run, logits))
        if binding is None:
            binding = self._steps[run, logits] = self._bind_step(run, logits)
        self._total[...] = self.lengths[: run * self.width].max() + 1
        if self.cross is not None:
            self.cross.prepare(run)
        binding.run()
        self.lengths[:rows] += 1
        self.positions[:rows] += 1
        return Outputs(self.ids, self.logits if logits else None).first(rows)

    def bind(
        self, first: int, next_ids: NDArray[np.int64], inputs: Mapping[str, Any], logits: bool, **outputs: Any
    ) -> Binding:
        """A run of the graph on as many rows, from `first` on, as there are ids, with as many outputs as `next_ids`."""
        past, present = bind_cache(self.cache, first, len(inputs["input_ids"]), PREFIXES)
        if logits:
            outputs["logits"] = self.logits[: len(next_ids)]
        if WANTS_LOGITS in self._inputs:
            inputs = {**inputs, WANTS_LOGITS: np.array(logits)}
        return Binding(self._session, {**inputs, **past}, {"next_ids": next_ids, **present, **outputs})

    def close(self) -> None:
        """Drop what refers to this partition, so that its memory is freed without the garbage collector."""
        self.verifier = None

    def release_memory(self, first: int) -> None:
        """Free the memory of groups from `first` on."""
        self.cache.release(first * self.width)
        if self.cross is not None:
            self.cross.release(first)
        self.touched = first

    def _bind_step(self, groups: int, logits: bool) -> Binding:
        rows = groups * self.width
        inputs: dict[str, Any] = {
            "input_ids": self.ids[:rows],
            "position_ids": self.positions[:rows],
            # The operator wants the total length minus one: what is filled, and the one token of this run, minus one.
            "seqlens_k": self.lengths[:rows],
            "total_length": self._total,
        }
        outputs: Bindables = {}
        if self.cross is None:
            inputs["last_index"] = self._last[:rows]
        else:
            cross, outputs = self.cross.bound(groups)
            inputs |= cross
        # next_ids is written when input_ids has been read: the next input is in place without a copy.
        return self.bind(0, self.ids[:rows], inputs, logits, **outputs)
