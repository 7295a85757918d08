"""The decoder of an encoder-decoder for one number of beams, with the memory of its lane."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch_probe import SOURCE, answers, least_sequences, rows_for
from .kv_cache import CacheMaker, LaneMemory, bind_cache
from .kv_cache_cross import CrossCache, Encoded
from .memory import Bindables, Binding, Reserved
from .runner import Outputs
from .spec import EngineSpec

PREFIXES = ("past_", "present_")

Floats = NDArray[np.float32]


class DecoderLane:
    """`units` units of `width` rows. `touched` units have memory.

    With `probed`, steps run as many units as make answers independent of their number; see batch_probe.
    """

    def __init__(
        self, spec: EngineSpec, width: int, units: int, session: Any, make_cache: CacheMaker, probed: bool
    ) -> None:
        slots, units = units, rows_for(units) if probed else units
        rows = units * width
        own = make_cache(spec.layers, rows, spec.heads, spec.max_length, spec.head_dim, spec.kv_type)
        self.width = width
        self.memory = LaneMemory(rows, own)
        self.cross = CrossCache(spec, units, make_cache)
        self.touched = 0
        self._session = session
        self._logits: Floats = Reserved((rows, spec.vocab_size), np.float32).array
        self._steps: dict[tuple[int, bool], Binding] = {}
        self._least = 1
        if probed:
            self._least = self._least_units(spec, slots)
            self.give_back(0)

    def start(self, unit: int, encoded: Encoded) -> None:
        """Empty rows, and the cross K/V of one source."""
        self.cross.put(unit, encoded)
        for row in range(unit * self.width, (unit + 1) * self.width):
            self.memory.start(row, 0)

    def move(self, source: int, target: int) -> None:
        """All of unit `source` to unit `target`."""
        self.cross.move(source, target)
        for beam in range(self.width):
            self.memory.move(source * self.width + beam, target * self.width + beam)

    def step(self, units: int, logits: bool) -> Outputs:
        """Run one token in all rows of the first `units` units, on memory that was bound once for as many."""
        rows, run = units * self.width, max(units, self._least)
        self._pad(units, run)
        binding = self._steps.get((run, logits))
        if binding is None:
            binding = self._steps[run, logits] = self._bind(run, run * self.width, logits)
        self.memory.prepare(run * self.width)
        self.cross.prepare(run)
        binding.run()
        self.memory.advance(rows)
        return Outputs(self.memory.ids, self._logits if logits else None).first(rows)

    def give_back(self, first: int) -> None:
        """Free the memory of units from `first` on."""
        self.memory.cache.give_back(first * self.width)
        self.cross.give_back(first)
        self.touched = first

    def _least_units(self, spec: EngineSpec, slots: int) -> int:
        """See batch_probe: units of one source, whose numbers are any."""
        rng = np.random.default_rng(0)
        shape = (spec.layers, min(SOURCE, spec.max_source), 2 * spec.heads * spec.head_dim)
        encoded = Encoded(rng.standard_normal(shape, np.float32), None)
        if spec.cross_type == "int8":
            encoded = Encoded(rng.integers(-127, 128, shape, np.int8), np.full(shape[::2], 0.01, np.float32))

        def step(token: int, units: int) -> Outputs:
            self.memory.ids[: units * self.width] = token
            return self.step(units, logits=True)

        def logits_of(units: int) -> bytes:
            for unit in range(units):
                self.start(unit, encoded)
            return answers(spec, lambda token: step(token, units))

        return least_sequences(logits_of, slots)

    def _pad(self, first: int, end: int) -> None:
        """Make units from `first` to `end`, which are not in use, such that they cost little."""
        self.cross.empty(first, end)
        for row in range(first * self.width, end * self.width):
            self.memory.start(row, 0)

    def _bind(self, units: int, rows: int, logits: bool) -> Binding:
        past, present = bind_cache(self.memory.cache, 0, rows, PREFIXES)
        cross, cross_present = self.cross.bound(units)
        # next_ids is written when input_ids has been read: the next input is in place without a copy.
        outputs: Bindables = {"next_ids": self.memory.ids[:rows], **present, **cross_present}
        if logits:
            outputs = {**outputs, "logits": self._logits[:rows]}
        return Binding(self._session, {**self.memory.inputs(rows), **cross, **past}, outputs)
