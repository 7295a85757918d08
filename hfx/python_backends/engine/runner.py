"""What the engine asks of a runtime: the seam at which another one than ONNX Runtime can be put in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from .checks import Ids
from .plan import Chunk, Compact, Decode, Encode, Mixed, Plan, Prefill

Pairs = Sequence[tuple[int, int]]
SPIN_MICROSECONDS = 20


@dataclass(frozen=True)
class SessionSettings:
    """How a model's sessions run: `threads` of each operator, 0 for one a core.

    Threads that wait for the next operator spin for `spin_microseconds` before they sleep: 20 gain 10 to 30 % on cores
    of their own and cost nothing on shared ones; 100 gain some more, and lose as much where another program runs.
    `runtime` serves on CPU; None: the one that engine.json names, if it is there. `operators`: a library of operators
    for ONNX Runtime, without which the graphs' own definitions of them run.
    """

    threads: int = 0
    provider: str = "CPU"
    spin_microseconds: int = SPIN_MICROSECONDS
    runtime: str | None = None
    operators: Path | None = None


@dataclass(frozen=True)
class Outputs:
    """What a run left on the host, valid until the next: `next_ids` [rows, 1] int64 and `logits` [rows, vocabulary]."""

    next_ids: NDArray[np.int64]
    logits: NDArray[np.float32] | None = None

    def first(self, rows: int) -> Outputs:
        """Those of the first rows."""
        return Outputs(self.next_ids[:rows], None if self.logits is None else self.logits[:rows])

    @staticmethod
    def joined(runs: Iterable[Outputs]) -> Outputs:
        """The rows of several runs, each of which is done when the one before has been read."""
        ids, logits = [], []
        for outputs in runs:
            ids.append(outputs.next_ids.copy())
            if outputs.logits is not None:
                logits.append(outputs.logits.copy())
        return Outputs(np.concatenate(ids), np.concatenate(logits) if logits else None)


NOTHING = Outputs(np.empty((0, 1), np.int64))


class MixFailed(Exception):
    """The one run of a mixed plan failed before it changed anything: its step and its prompts can be run apart."""


class RunnerLane(Protocol):
    """The rows of a model for `width` beams, row = unit * width + beam, with their keys and values.

    Each row has a length, the positions of its cache that are filled: prompts set it, steps add one.
    """

    width: int

    def move(self, source: int, target: int) -> None:
        """Make unit `target` hold what unit `source` does: caches, lengths, next inputs."""

    def reorder_cache(self, pairs: Pairs) -> None:
        """Rows of one length, as (source, target): each target gets the cache of its source. No source is a target."""

    def set_next_tokens(self, pairs: Pairs) -> None:
        """Set the next input of rows, as (row, token)."""

    def step(self, units: int, logits: bool) -> Outputs:
        """Run one token in all rows of the first `units` units. The argmax of each row becomes its next input."""


class Runner(Protocol):
    """A model and its caches. All calls but `open_lane` come from one thread, and only in the order of plans.

    `runtime` is its name in engine.json. `mixes`: it is a MixingRunner.
    """

    runtime: str
    mixes: bool

    @property
    def lanes(self) -> Mapping[int, RunnerLane]:
        """Those that are open, by width."""

    def open_lane(self, width: int) -> None:
        """Open what the lane of `width` needs, once; takes as long as loading a model. From any thread."""

    def second(self) -> Runner:
        """Another runner of the same model on the CPU, with rows of its own; the two never run at a time."""

    def release_memory(self) -> None:
        """Free memory that no row in use needs; called when there is none."""

    def close(self) -> None:
        """Release the model."""


class PromptRunner(Runner, Protocol):
    """Of a model without an encoder: its decoder runs prompts in rows of the lane of width 1."""

    def prefill(self, first: int, prompts: Sequence[Ids], logits: bool) -> Outputs:
        """Run prompt i in row `first + i`; row i of the outputs is that of its last token."""

    def copy_row(self, source: int, target: int) -> None:
        """Make row `target` hold what row `source` does."""

    def chunk(self, tokens: Ids, start: int, logits: bool) -> Outputs:
        """Run part of a prompt, from position `start`, in the staging row; one row of outputs, of the last token."""

    def commit_chunks(self, row: int) -> None:
        """Copy the staging row to `row`."""


class MixingRunner(PromptRunner, Protocol):
    """Prompts of any length and a step of the first `units` rows go into one run; its rows of outputs come first."""

    def prefill(self, first: int, prompts: Sequence[Ids], logits: bool, units: int = 0) -> Outputs:
        """As a PromptRunner, beside a step."""

    def chunk(self, tokens: Ids, start: int, logits: bool, units: int = 0) -> Outputs:
        """As a PromptRunner, beside a step."""


class SourceRunner(Runner, Protocol):
    """Of a model with an encoder, which prompts go to."""

    def encode(self, sources: Sequence[Ids], places: Sequence[Pairs]) -> None:
        """Give the cross K/V of source i to each (width, unit) of `places[i]`, whose rows become empty."""

    def trim(self, units: Pairs) -> None:
        """The first units of lanes, as (width, number), are all that is in use; memory of others may be freed."""


def carry_out(runner: Runner, plan: Plan) -> Outputs:
    """Do what `plan` says. Raises whatever the runtime raises, and MixFailed.

    The scheduler makes plans of the kinds that the runner has methods for.
    """
    if isinstance(plan, Decode):
        return _prepared(runner, plan).step(plan.units, plan.logits)
    if isinstance(plan, (Prefill, Chunk)):
        return _prompts(cast(PromptRunner, runner), plan)
    if isinstance(plan, Mixed):
        return _mixed(cast(MixingRunner, runner), plan)
    if isinstance(plan, Encode):
        encoder = cast(SourceRunner, runner)
        encoder.trim(plan.in_use)
        encoder.encode(plan.sources, plan.places)
    if isinstance(plan, Compact):
        for source, target in plan.moves:
            runner.lanes[plan.width].move(source, target)
    return NOTHING


def _prepared(runner: Runner, plan: Decode) -> RunnerLane:
    """The lane, ready for the step."""
    lane = runner.lanes[plan.width]
    for pairs in plan.follows:
        lane.reorder_cache(pairs)
    if plan.feeds:
        lane.set_next_tokens(plan.feeds)
    return lane


def _prompts(runner: PromptRunner, plan: Prefill | Chunk) -> Outputs:
    if isinstance(plan, Prefill):
        outputs = runner.prefill(plan.first, plan.prompts, plan.logits)
    else:
        outputs = runner.chunk(plan.tokens, plan.start, plan.logits)
    _share(runner, plan)
    return outputs


def _mixed(runner: MixingRunner, plan: Mixed) -> Outputs:
    join, units = plan.join, plan.decode.units
    _prepared(runner, plan.decode)
    try:
        if isinstance(join, Prefill):
            outputs = runner.prefill(join.first, join.prompts, plan.logits, units)
        else:
            outputs = runner.chunk(join.tokens, join.start, plan.logits, units)
    except Exception as error:  # whatever the runtime raises
        raise MixFailed from error
    _share(runner, join)
    return outputs


def _share(runner: PromptRunner, plan: Prefill | Chunk) -> None:
    """Give what was run to all rows that it is for."""
    if isinstance(plan, Prefill):
        for source, target in plan.copies:
            runner.copy_row(source, target)
        return
    for row in plan.rows:
        runner.commit_chunks(row)
