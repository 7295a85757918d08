"""A partition: a decoder graph in ONNX Runtime, and rows that its runs read and change in place.

The rows form groups of `width` rows. A model with an encoder has a partition for each number of beams, its width. A
model without an encoder has one partition, of width 1, for any number of beams.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids
from .captures import BoundRun, Net
from .kv_cache import Cache, CrossCache, Pairs, Place, bind_cache
from .plan import SCORED
from .sessions import Bindable
from .spec import EngineSpec

PREFIXES = ("past_", "present_")
WANTS_LOGITS = "wants_logits"  # an input of graphs whose head can leave logits out
# The most guessed tokens of a run; with the token before them, they fill whole blocks of matrix products.
MOST_DRAFT = 15


class Outputs:
    """The outputs of a run: `next_ids` [rows, 1] int64 on the host, and logits [rows, vocabulary] float32 if wanted.

    The logits are in `memory`, on the host or on a device; `logits` are copied from a device when they are first read.
    All of them are valid until the next run.
    """

    def __init__(self, next_ids: NDArray[np.int64], memory: Bindable | None = None) -> None:
        self.next_ids = next_ids
        self.memory = memory

    @cached_property
    def logits(self) -> NDArray[np.float32] | None:
        """The logits on the host; None if the run has none. Raises EngineError if they can't be copied."""
        return None if self.memory is None else np.asarray(self.memory)

    @property
    def host_logits(self) -> NDArray[np.float32]:
        """The logits on the host, which the run must have."""
        logits = self.logits
        assert logits is not None
        return logits

    def first(self, rows: int) -> Outputs:
        """Return the outputs of the first rows."""
        return Outputs(self.next_ids[:rows], None if self.memory is None else self.memory[:rows])

    @staticmethod
    def joined(runs: Iterable[Outputs]) -> Outputs:
        """Return the rows of several runs, with logits on the host.

        `runs` must be lazy, because a run may begin only after the outputs of the run before it have been copied.
        """
        ids, logits = [], []
        for outputs in runs:
            ids.append(outputs.next_ids.copy())
            if outputs.logits is not None:
                logits.append(outputs.logits.copy())
        return Outputs(np.concatenate(ids), np.concatenate(logits) if logits else None)


@dataclass(frozen=True)
class StepSize:
    """The sizes of a step, in sequences, with which a sequence gets the same answer in any batch.

    A step has at least `least` sequences, and their number is a multiple of `multiple`. Otherwise, a kernel that takes
    several rows at a time would leave rows over, and another kernel, which rounds differently, would compute them.
    """

    least: int = 1
    multiple: int = 1

    def of(self, sequences: int) -> int:
        """Return the size of a step of `sequences`, padding included."""
        return max(-(-sequences // self.multiple) * self.multiple, self.least)


@dataclass(frozen=True)
class Tokens:
    """The inputs of a run for its rows' tokens.

    `ids` and `positions` are [rows, tokens]. `ends` has the last position of each row. `total` is at least one more
    than the largest of `ends`. `picked` [rows, picked] has the indices of the tokens that a decoder-only graph has
    outputs for.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    ends: NDArray[np.int32]
    total: NDArray[np.int32]
    picked: NDArray[np.int64]


class BegunStep(NamedTuple):
    """A step of `groups` that was begun after this number of `changes`."""

    binding: BoundRun
    groups: int
    changes: int


@dataclass(frozen=True)
class BoundRuns:
    """The runs of one kind that are `bound`, by their size and whether they have logits.

    Smaller runs use the beginning of `tokens`, and write their best ids to the beginning of `next_ids` [rows, 1].
    """

    tokens: Tokens
    next_ids: NDArray[np.int64]
    bound: dict[tuple[int, bool], BoundRun] = field(default_factory=dict)


class DecoderPartition:
    """A decoder's rows: `groups` groups of `width` rows. With an encoder, each group has the cross K/V of a source.

    For the life of the partition:

    - `cache` [2 * layers, rows, kv_heads, max_length, head_dim] has the keys and values. Without an encoder, it has one
      more row, in which parts of prompts are run. `cross` has the sources' keys and values.
    - `size` determines the number of groups of a step, and `verifies` says that a run of several tokens of row 0 gives
      the same bits as single steps (see probes).
    - `_steps` and `_drafts` are the bound runs; all of them write `_logits` [rows, vocabulary], which has at least
      SCORED rows without an encoder.

    For the life of the sequence in a row:

    - `ids` and `positions` [rows, 1] are the next input and its position, `lengths` [rows] the number of cached tokens,
      which is equal to the position.
    - `touched` is the largest number of groups that were in use since memory was last freed (with an encoder).

    From one step to the next: `_begun` is a step that was begun before it is planned, on a device, and `_changes` is
    the number of changes of rows, after which such a step is of no use.
    """

    def __init__(self, spec: EngineSpec, width: int, groups: int, net: Net, place: Place) -> None:
        rows, more_rows = groups * width, 0 if spec.has_encoder else 1
        self.width = width
        self._net, self._place = net, place
        shape = (2 * spec.layers, rows + more_rows, spec.kv_heads, spec.max_length, spec.head_dim)
        self.cache = place.cache(shape, spec.kv_type)
        self.cross = CrossCache(spec, groups, place) if spec.has_encoder else None
        self._logits = place.array((max(rows, SCORED * more_rows), spec.vocab_size), np.float32)
        self._capacity = spec.max_length
        self.size = StepSize()
        self.verifies = False

        self.ids = np.zeros((rows, 1), np.int64)
        self.positions = np.zeros((rows, 1), np.int64)
        self.lengths = np.zeros(rows, np.int32)
        self.touched = 0

        # A step runs one token a row. Its position is the number of cached tokens, so `lengths` can serve as `ends`.
        # The graph writes next_ids after it has read input_ids; as both are the same array, the next input is in place
        # without a copy.
        total, first = np.zeros((), np.int32), np.zeros((rows, 1), np.int64)
        self._steps = BoundRuns(Tokens(self.ids, self.positions, self.lengths, total, first), self.ids)
        tokens, total = np.arange(MOST_DRAFT + 1, dtype=np.int64)[None], np.zeros((), np.int32)
        draft = Tokens(tokens.copy(), tokens.copy(), np.zeros(1, np.int32), total, tokens)
        self._drafts = BoundRuns(draft, np.zeros((MOST_DRAFT + 1, 1), np.int64))
        self._begun: BegunStep | None = None
        self._changes = 0

    @property
    def takes_several(self) -> bool:
        """Whether a run after cached tokens gives outputs for several tokens of a row.

        Graphs of earlier versions do not.
        """
        return self._net.inputs["last_index" if self.cross is None else "input_ids"][1] != 1

    def start(self, row: int, length: int) -> None:
        """Set the number of cached tokens of `row` to `length`."""
        self._changes += 1
        self.lengths[row] = self.positions[row, 0] = length

    def put_source(self, group: int, values: NDArray[Any], scales: NDArray[np.float32] | None) -> None:
        """Give `group` the cross K/V of a source (see CrossCache), and empty its rows."""
        assert self.cross is not None
        self.cross.put(group, values, scales)
        self._start_group(group)

    def take_source(self, group: int, encoded: Cache, source: int, length: int) -> None:
        """Copy row `source` of the encoder's cache `encoded` to the cross K/V of `group`, and empty its rows."""
        assert self.cross is not None
        self.cross.take(group, encoded, source, length)
        self._start_group(group)

    def put_past(self, row: int, past: NDArray[Any]) -> None:
        """Fill the first positions of a row with `past` [parts, positions, heads, head_dim].

        The parts are those of a KvCache: keys and values by layer.
        """
        for part, values in enumerate(past):
            self.cache.put(part, row, values)
        self.start(row, past.shape[1])

    def empty(self, first: int, end: int) -> None:
        """Empty groups from `first` to `end`, which are not in use, so that they cost little time in a run."""
        if self.cross is not None:
            self.cross.empty(first, end)
        for row in range(first * self.width, end * self.width):
            self.start(row, 0)

    def move(self, source: int, target: int) -> None:
        """Copy group `source` to group `target`: each row's K/V, length and next input, and the group's cross K/V."""
        self._changes += 1
        if self.cross is not None:
            self.cross.move(source, target)
        for beam in range(self.width):
            one, other = source * self.width + beam, target * self.width + beam
            self.cache.copy(one, other, int(self.lengths[one]))
            for array in (self.ids, self.positions, self.lengths):
                array[other] = array[one]

    def reorder_cache(self, pairs: Pairs) -> None:
        """Copy the cache of the source row of each (source, target) pair to the target row. No source is a target.

        The cross K/V stay unchanged, as they belong to the group.
        """
        self._changes += 1
        for source, target in pairs:
            self.cache.copy(source, target, int(self.lengths[source]))

    def set_next_tokens(self, pairs: Pairs) -> None:
        """Set next inputs from (row, token) pairs. They replace the argmax of the last run."""
        self._changes += 1
        rows, tokens = zip(*pairs)  # noqa: B905 - pairs
        self.ids[list(rows), 0] = tokens

    def step(self, groups: int, logits: bool) -> Outputs:
        """Run one token in all rows of the first `groups` groups. The argmax of each row becomes its next input.

        The first step of each size binds the memory for this size; later steps of the size reuse the binding.
        """
        rows, begun = groups * self.width, self._begun
        self._begun = None
        if begun is not None and not logits and begun.groups >= groups and begun.changes == self._changes:
            binding = begun.binding
            self._place.counts.steps_ahead += 1
        else:
            if begun is not None:
                begun.binding.drop()
            binding = self._begin_step(groups, logits)
        binding.finish()
        self._place.counts.steps_captured += binding.captured
        self.lengths[:rows] += 1
        self.positions[:rows] += 1
        return self.outputs(self.ids[:rows], logits)

    def begin_next_step(self, groups: int) -> None:
        """Begin the step that follows a step of these groups if nothing changes, on a device.

        If something changes before the next call of `step`, the step that was begun has no effect: what it writes lies
        beyond the rows' lengths.
        """
        try:
            binding = self._begin_step(groups, logits=False)
        except Exception:  # the step itself will raise it
            self._place.wait()
        else:
            self._begun = BegunStep(binding, groups, self._changes)

    def verify(self, draft: Ids, logits: bool) -> Outputs:
        """Run row 0's next token and the `draft` after it, with outputs for each token.

        Afterwards, the caller must set row 0's next input.
        """
        tokens, runs = len(draft) + 1, self._drafts
        binding = runs.bound.get((tokens, logits))
        if binding is None:
            of = runs.tokens
            ids, positions, picked = (each[:, :tokens] for each in (of.ids, of.positions, of.picked))
            some = Tokens(ids, positions, of.ends, of.total, picked)
            binding = runs.bound[tokens, logits] = self.bind(0, some, runs.next_ids[:tokens], logits)
        start, end = int(self.lengths[0]), int(self.lengths[0]) + tokens
        runs.tokens.ids[0, :tokens] = self.ids[0, 0], *draft
        runs.tokens.positions[0, :tokens] = np.arange(start, end)
        runs.tokens.ends[0], runs.tokens.total[...] = end - 1, end
        if self.cross is not None:
            self.cross.prepare(1)
        binding.run()
        self.start(0, end)
        return self.outputs(runs.next_ids[:tokens], logits)

    def drop(self, positions: int) -> None:
        """Forget the last positions of row 0. Memory beyond a row's length is never read."""
        self.start(0, int(self.lengths[0]) - positions)

    def bind(
        self,
        first: int,
        tokens: Tokens,
        next_ids: NDArray[np.int64],
        logits: bool,
        captured: bool = False,
        cache: Cache | None = None,
    ) -> BoundRun:
        """Bind a run of the graph to the rows from `first` on (always 0 with an encoder), and return the binding.

        The outputs have as many rows as `next_ids`. On a device, the run is captured if `captured`. `cache`, if given,
        takes the place of the partition's own.
        """
        rows = len(tokens.ids)
        inputs: dict[str, Any] = {
            "input_ids": tokens.ids,
            "position_ids": tokens.positions,
            "seqlens_k": tokens.ends,
            "total_length": tokens.total,
        }
        past, present = bind_cache(cache or self.cache, first, rows, PREFIXES)
        outputs = {"next_ids": next_ids, **present}
        if self.cross is None:
            inputs["last_index"] = tokens.picked
        else:
            cross, cross_present = self.cross.bound(rows // self.width)
            inputs |= cross
            outputs |= cross_present
        if logits:
            outputs["logits"] = self._logits[: len(next_ids)]
        if WANTS_LOGITS in self._net.inputs:
            inputs[WANTS_LOGITS] = np.array(logits)
        return self._net.bind({**inputs, **past}, outputs, captured)

    def outputs(self, next_ids: NDArray[np.int64], logits: bool) -> Outputs:
        """Return the outputs of a run that was bound to `next_ids`, or to more rows of it."""
        return Outputs(next_ids, self._logits[: len(next_ids)] if logits else None)

    def release_memory(self, first: int) -> None:
        """Free the memory of groups from `first` on."""
        self.cache.release(first * self.width)
        if self.cross is not None:
            self.cross.release(first)
        self.touched = first

    def _start_group(self, group: int) -> None:
        for row in range(group * self.width, (group + 1) * self.width):
            self.start(row, 0)

    def _begin_step(self, groups: int, logits: bool) -> BoundRun:
        run = self._place.run_size(self.size.of(groups), len(self.lengths) // self.width)
        self.empty(groups, run)
        binding = self._steps.bound.get((run, logits))
        if binding is None:
            binding = self._steps.bound[run, logits] = self._bind_step(run, logits)
        if not binding.captured:
            self._steps.tokens.total[...] = self.lengths[: run * self.width].max() + 1
            if self.cross is not None:
                self.cross.prepare(run)
        binding.begin()
        return binding

    def _bind_step(self, groups: int, logits: bool) -> BoundRun:
        rows, of = groups * self.width, self._steps.tokens
        # A captured graph can't read a new total in each step. As the total need only be an upper bound, it is then the
        # capacity.
        of.total[...] = self._capacity
        if self.cross is not None:
            self.cross.prepare_any()
        tokens = Tokens(of.ids[:rows], of.positions[:rows], of.ends[:rows], of.total, of.picked[:rows])
        return self.bind(0, tokens, self.ids[:rows], logits, captured=True)
